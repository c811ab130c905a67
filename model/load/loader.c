#include "model/load/loader.h"

#include "common/base/log.h"

#include <stdlib.h>
#include <string.h>

/* ---- expanded ---- */

#define PANEL 16 /* rows of a matrix that linear_pack() keeps together (kernels.h) */

#define ROWS_ARE_STREAM true /* of an embedding: its padding is the stream's, zero */

struct expansion {
    const struct gr_loader *l;
    const struct gr_expand_tensor *t;
    const void *from;
    uint16_t *plain;   /* (n_out, n_in), or NULL: */
    char *packed;      /* packed panel by panel, through */
    uint16_t *scratch; /* (n_thread, PANEL, n_in) */
};

static void expand_panels(const struct gr_exec *x, void *arg)
{
    const struct expansion *e = arg;
    const struct gr_expand_tensor *t = e->t;
    const size_t n_in = (size_t)t->rule.n_in;
    int begin, end;
    gr_unit_range((t->rule.n_out + PANEL - 1) / PANEL, x->ith, x->nth, &begin, &end);
    for (int p = begin; p < end; p++) {
        const int row0 = p * PANEL;
        const int n_row = GR_MIN(PANEL, t->rule.n_out - row0);
        uint16_t *rows = e->plain != NULL ? e->plain + (size_t)row0 * n_in : e->scratch + (size_t)x->ith * PANEL * n_in;
        gr_expand_rows(t, e->from, row0, n_row, rows);
        if (e->plain == NULL) {
            e->l->kernels->linear_pack(rows, n_row, t->rule.n_in,
                                       e->packed + e->l->kernels->linear_packed_bytes(row0, t->rule.n_in));
        }
    }
}

static enum gr_status take_from(const struct gr_loader *l, const struct gr_expand_tensor *t, const void **from_out)
{
    *from_out = NULL;
    if (t->name[0] == '\0') {
        return GR_OK;
    }
    return gr_safetensors_take(l->files, t->name, GR_ST_BF16, t->rule.n_in > 1 ? 2 : 1,
                               (int64_t[]){t->rule.n_out_from, t->rule.n_in_from}, from_out);
}

/* Memory for the panels and their way there. Never a plain and a packed copy of all. */
static enum gr_status expand_into(const struct gr_loader *l, struct expansion *e, struct gr_weight *out)
{
    const struct gr_expand_tensor *t = e->t;
    const int n_out = t->rule.n_out, n_in = t->rule.n_in;
    const size_t bytes = l->kernels->linear_packed_bytes(n_out, n_in);
    const size_t plain_bytes = (size_t)n_out * (size_t)n_in * sizeof(uint16_t);
    void *p = gr_memory_take(l->memory, bytes > 0 ? bytes : plain_bytes);
    if (p == NULL) {
        return GR_ENOMEM;
    }
    if (bytes > 0) {
        e->packed = p;
        e->scratch = calloc((size_t)gr_team_size(l->team) * PANEL * (size_t)n_in, sizeof(uint16_t));
        if (e->scratch == NULL) {
            log_error("out of memory while expanding %s", t->name);
            return GR_ENOMEM;
        }
    } else {
        e->plain = p;
    }
    gr_team_run(l->team, expand_panels, e);
    free(e->scratch);
    *out = (struct gr_weight){.plain = e->plain, .packed = e->packed, .n_out = n_out, .n_in = n_in};
    return GR_OK;
}

static enum gr_status expand_matrix(const struct gr_loader *l, const char *name, int n_out, int n_in,
                                    struct gr_weight *out)
{
    struct gr_expand_tensor t;
    struct expansion e = {.l = l, .t = &t};
    GR_TRY(gr_expand_tensor_init(l->expand, name, n_out, n_in, &t));
    enum gr_status st = take_from(l, &t, &e.from);
    if (st == GR_OK) {
        st = expand_into(l, &e, out);
    }
    gr_expand_tensor_finish(&t);
    return st;
}

static enum gr_status expand_vector(const struct gr_loader *l, const char *name, int n, float *out)
{
    struct gr_expand_tensor t;
    const void *from = NULL;
    GR_TRY(gr_expand_tensor_init(l->expand, name, n, 1, &t));
    enum gr_status st = take_from(l, &t, &from);
    if (st == GR_OK) {
        gr_expand_vector(&t, from, out);
    }
    gr_expand_tensor_finish(&t);
    return st;
}

static enum gr_status expand_embedding(const struct gr_loader *l, const char *name, int n_vocab, int n, uint16_t *out)
{
    struct gr_expand_tensor t;
    const void *from = NULL;
    GR_TRY(gr_expand_tensor_init(l->expand, name, n_vocab, n, &t));
    enum gr_status st = take_from(l, &t, &from);
    if (st == GR_OK) {
        t.rule.zero = ROWS_ARE_STREAM;
        gr_expand_rows(&t, from, 0, n_vocab, out);
    }
    gr_expand_tensor_finish(&t);
    return st;
}

/* ---- all ---- */

enum gr_status gr_load_matrix(const struct gr_loader *l, const char *name, int n_out, int n_in, struct gr_weight *out)
{
    if (l->expand != NULL) {
        return expand_matrix(l, name, n_out, n_in, out);
    }
    const void *data = NULL;
    GR_TRY(gr_safetensors_take(l->files, name, GR_ST_BF16, 2, (int64_t[]){n_out, n_in}, &data));
    struct gr_weight w = {.plain = data, .n_out = n_out, .n_in = n_in};
    size_t bytes = l->kernels->linear_packed_bytes(n_out, n_in);
    if (bytes > 0) {
        void *packed = gr_memory_take(l->memory, bytes);
        if (packed == NULL) {
            return GR_ENOMEM;
        }
        l->kernels->linear_pack(data, n_out, n_in, packed);
        w.packed = packed;
    }
    *out = w;
    return GR_OK;
}

enum gr_status gr_load_vector(const struct gr_loader *l, const char *name, int n, float **out)
{
    const void *data = NULL;
    float *w = gr_memory_take_f32(l->memory, (size_t)n);
    if (w == NULL) {
        return GR_ENOMEM;
    }
    *out = w;
    if (l->expand != NULL) {
        return expand_vector(l, name, n, w);
    }
    GR_TRY(gr_safetensors_take(l->files, name, GR_ST_BF16, 1, (int64_t[]){n}, &data));
    for (int i = 0; i < n; i++) {
        w[i] = gr_bf16_to_f32(((const uint16_t *)data)[i]);
    }
    return GR_OK;
}

enum gr_status gr_load_embedding(const struct gr_loader *l, const char *name, int n_vocab, int n, const uint16_t **out)
{
    if (l->expand != NULL) {
        uint16_t *rows = gr_memory_take(l->memory, (size_t)n_vocab * (size_t)n * sizeof(uint16_t));
        *out = rows;
        return rows != NULL ? expand_embedding(l, name, n_vocab, n, rows) : GR_ENOMEM;
    }
    const void *data = NULL;
    GR_TRY(gr_safetensors_take(l->files, name, GR_ST_BF16, 2, (int64_t[]){n_vocab, n}, &data));
    *out = data;
    return GR_OK;
}

/* ---- piece by piece ---- */

enum gr_status gr_matrix_open(const struct gr_loader *l, const char *name, int n_out, int n_in,
                              struct gr_matrix_source *out)
{
    *out = (struct gr_matrix_source){.l = l, .n_out = n_out, .n_in = n_in};
    if (l->expand == NULL) {
        return gr_safetensors_take(l->files, name, GR_ST_BF16, 2, (int64_t[]){n_out, n_in}, &out->from);
    }
    GR_TRY(gr_expand_tensor_init(l->expand, name, n_out, n_in, &out->t));
    const enum gr_status st = take_from(l, &out->t, &out->from);
    if (st != GR_OK) {
        gr_expand_tensor_finish(&out->t);
    }
    return st;
}

enum gr_status gr_table_open(const struct gr_loader *l, const char *name, int n_row, int n,
                             struct gr_matrix_source *out)
{
    GR_TRY(gr_matrix_open(l, name, n_row, n, out));
    out->t.rule.zero = ROWS_ARE_STREAM;
    return GR_OK;
}

struct reading {
    const struct gr_matrix_source *m;
    int row0, n_row;
    uint16_t *out;
};

static void read_rows(const struct gr_exec *x, void *arg)
{
    const struct reading *r = arg;
    const struct gr_matrix_source *m = r->m;
    const size_t n_in = (size_t)m->n_in;
    int begin, end;
    gr_unit_range(r->n_row, x->ith, x->nth, &begin, &end);
    uint16_t *out = r->out + (size_t)begin * n_in;
    memcpy(out, (const uint16_t *)m->from + (size_t)(r->row0 + begin) * n_in, (size_t)(end - begin) * n_in * 2);
}

void gr_matrix_read(const struct gr_matrix_source *m, int row0, int n_row, uint16_t *out)
{
    GR_ASSERT(m->l->expand == NULL && row0 >= 0 && row0 + n_row <= m->n_out);
    gr_team_run(m->l->team, read_rows, &(struct reading){.m = m, .row0 = row0, .n_row = n_row, .out = out});
}

void gr_matrix_close(struct gr_matrix_source *m)
{
    if (m->l->expand != NULL) {
        gr_expand_tensor_finish(&m->t);
    }
}
