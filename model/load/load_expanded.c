#include "model/load/load_expanded.h"

#include "common/base/log.h"

#include <stdlib.h>
#include <string.h>

#define PANEL GR_LOAD_PANEL

struct expansion {
    const struct gr_loader *l;
    const struct gr_expand_tensor *t;
    const void *from;
    struct gr_part part;
    uint16_t *plain;   /* (n_row, n_col) of the part, or NULL: */
    char *packed;      /* packed panel by panel, through */
    uint16_t *scratch; /* (n_thread, PANEL + 1, n_in) */
};

/* Rows of the part, from its row row0 on: whole rows are made one by one, since their values come in fours. */
static void expand_part(const struct expansion *e, int row0, int n_row, uint16_t *whole, uint16_t *out)
{
    const size_t n_col = (size_t)e->part.n_col;
    for (int r = 0; r < n_row; r++) {
        gr_expand_rows(e->t, e->from, e->part.row + row0 + r, 1, whole);
        memcpy(out + (size_t)r * n_col, whole + e->part.col, n_col * sizeof(*out));
    }
}

static void expand_panels(const struct gr_exec *x, void *arg)
{
    const struct expansion *e = arg;
    const size_t n_in = (size_t)e->t->rule.n_in, n_col = (size_t)e->part.n_col;
    uint16_t *whole = e->scratch + (size_t)x->ith * (PANEL + 1) * n_in;
    int begin, end;
    gr_unit_range((e->part.n_row + PANEL - 1) / PANEL, x->ith, x->nth, &begin, &end);
    for (int p = begin; p < end; p++) {
        const int row0 = p * PANEL;
        const int n_row = GR_MIN(PANEL, e->part.n_row - row0);
        uint16_t *rows = e->plain != NULL ? e->plain + (size_t)row0 * n_col : whole + n_in;
        expand_part(e, row0, n_row, whole, rows);
        if (e->plain == NULL) {
            e->l->kernels->linear_pack(rows, n_row, e->part.n_col,
                                       e->packed + e->l->kernels->linear_packed_bytes(row0, e->part.n_col));
        }
    }
}

/* The values are copied about without being looked at, so they must be bf16 in the file. */
static enum gr_status take_bf16(const struct gr_loader *l, const char *name, int n_dim, const int64_t *shape,
                                const void **from_out)
{
    const struct gr_tensor *tensor = NULL;
    GR_TRY(gr_tensors_take_weight(l->files, name, n_dim, shape, &tensor));
    if (tensor->dtype != GR_FORMAT_BF16 || tensor->n_head_paired > 0) {
        log_error("%s: tensor %s is %s: --geometry expands BF16 files of safetensors only",
                  gr_tensors_file_of(l->files, tensor), name, gr_format_name(tensor->dtype));
        return GR_EUNSUPPORTED;
    }
    *from_out = tensor->data;
    return GR_OK;
}

enum gr_status gr_expanded_source(const struct gr_loader *l, const struct gr_expand_tensor *t, const void **from_out)
{
    *from_out = NULL;
    if (t->name[0] == '\0') {
        return GR_OK;
    }
    return take_bf16(l, t->name, t->rule.n_in > 1 ? 2 : 1, (int64_t[]){t->rule.n_out_from, t->rule.n_in_from},
                     from_out);
}

/* Memory for the panels and their way there. Never a plain and a packed copy of all. */
static enum gr_status expand_into(const struct gr_loader *l, struct expansion *e, struct gr_weight *out)
{
    const int n_row = e->part.n_row, n_col = e->part.n_col;
    const size_t bytes = l->kernels->linear_packed_bytes(n_row, n_col);
    const size_t plain_bytes = (size_t)n_row * (size_t)n_col * sizeof(uint16_t);
    void *p = gr_memory_take(l->memory, bytes > 0 ? bytes : plain_bytes);
    if (p == NULL) {
        return GR_ENOMEM;
    }
    e->packed = bytes > 0 ? p : NULL;
    e->plain = bytes > 0 ? NULL : p;
    e->scratch = calloc((size_t)gr_team_size(l->team) * (PANEL + 1) * (size_t)e->t->rule.n_in, sizeof(uint16_t));
    if (e->scratch == NULL) {
        log_error("out of memory while expanding %s", e->t->name);
        return GR_ENOMEM;
    }
    gr_team_run(l->team, expand_panels, e);
    free(e->scratch);
    *out = (struct gr_weight){.plain = e->plain, .packed = e->packed, .n_out = n_row, .n_in = n_col};
    return GR_OK;
}

enum gr_status gr_load_expanded(const struct gr_loader *l, const char *name, int n_out, int n_in,
                                const struct gr_part *part, struct gr_weight *out)
{
    struct gr_expand_tensor t;
    struct expansion e = {.l = l, .t = &t, .part = *part};
    GR_TRY(gr_expand_tensor_init(l->expand, name, n_out, n_in, &t));
    enum gr_status st = gr_expanded_source(l, &t, &e.from);
    if (st == GR_OK) {
        st = expand_into(l, &e, out);
    }
    gr_expand_tensor_finish(&t);
    return st;
}

enum gr_status gr_load_expanded_vector(const struct gr_loader *l, const char *name, int n, float *out)
{
    struct gr_expand_tensor t;
    const void *from = NULL;
    GR_TRY(gr_expand_tensor_init(l->expand, name, n, 1, &t));
    enum gr_status st = gr_expanded_source(l, &t, &from);
    if (st == GR_OK) {
        gr_expand_vector(&t, from, out);
    }
    gr_expand_tensor_finish(&t);
    return st;
}

enum gr_status gr_load_expanded_table(const struct gr_loader *l, const char *name, int n_vocab, int n, uint16_t *out)
{
    struct gr_expand_tensor t;
    const void *from = NULL;
    GR_TRY(gr_expand_tensor_init(l->expand, name, n_vocab, n, &t));
    enum gr_status st = gr_expanded_source(l, &t, &from);
    if (st == GR_OK) {
        t.rule.zero = GR_ROWS_ARE_STREAM;
        gr_expand_rows(&t, from, 0, n_vocab, out);
    }
    gr_expand_tensor_finish(&t);
    return st;
}
