#include "model/load/loader.h"

#include "common/base/log.h"
#include "model/load/load_expanded.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define PANEL GR_LOAD_PANEL

/* ---- which numbers ---- */

struct scan {
    const struct gr_tensor *t;
    int64_t n_row;
    float *scratch; /* (n_thread, n_col) */
    atomic_bool inexact;
};

static bool is_bf16(const float *x, size_t n)
{
    uint32_t low = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t u = 0;
        memcpy(&u, x + i, sizeof(u));
        low |= u & 0xffffu;
    }
    return low == 0;
}

static void scan_rows(const struct gr_exec *x, void *arg)
{
    struct scan *s = arg;
    const size_t n_col = (size_t)gr_tensor_n_col(s->t);
    float *row = s->scratch + (size_t)x->ith * n_col;
    int begin, end;
    gr_unit_range((int)s->n_row, x->ith, x->nth, &begin, &end);
    for (int r = begin; r < end && !atomic_load_explicit(&s->inexact, memory_order_relaxed); r++) {
        gr_tensor_row_f32(s->t, r, row);
        if (!is_bf16(row, n_col)) {
            atomic_store_explicit(&s->inexact, true, memory_order_relaxed);
        }
    }
}

/* Would a matrix of F32 or F16 lose nothing as bf16? */
static enum gr_status is_exact(const struct gr_loader *l, const struct gr_tensor *t, bool *exact_out)
{
    struct scan s = {.t = t, .n_row = t->shape[0]};
    s.scratch = calloc((size_t)gr_team_size(l->team) * (size_t)gr_tensor_n_col(t), sizeof(float));
    if (s.scratch == NULL) {
        log_error("out of memory while reading %s", t->name);
        return GR_ENOMEM;
    }
    gr_team_run(l->team, scan_rows, &s);
    free(s.scratch);
    *exact_out = !s.inexact;
    return GR_OK;
}

struct held {
    bool is_f32, rounded; /* rounded: some value may not be the file's */
};

static enum gr_status choose(const struct gr_loader *l, const struct gr_tensor *t, struct held *out)
{
    *out = (struct held){.is_f32 = l->as == GR_WEIGHTS_F32};
    if (out->is_f32 || t->dtype == GR_FORMAT_BF16) {
        return GR_OK;
    }
    bool exact = false;
    if (!gr_format_is_quantised(t->dtype)) {
        GR_TRY(is_exact(l, t, &exact));
        out->is_f32 = !exact && l->as == GR_WEIGHTS_AUTO;
    }
    out->rounded = !exact && !out->is_f32;
    return GR_OK;
}

static void count(const struct gr_loader *l, const struct held *h, size_t n)
{
    if (l->sum == NULL) {
        return;
    }
    l->sum->n_bf16 += !h->is_f32;
    l->sum->n_f32 += h->is_f32;
    l->sum->n_rounded += h->rounded;
    l->sum->bf16_bytes += h->is_f32 ? 0 : n * sizeof(uint16_t);
    l->sum->f32_bytes += h->is_f32 ? n * sizeof(float) : 0;
}

void gr_load_sum_log(const struct gr_load_sum *s, const char *path)
{
    const double bf16 = (double)s->bf16_bytes / 1e6, f32 = (double)s->f32_bytes / 1e6;
    if (s->n_f32 > 0) {
        log_info("%s: %d matrices as bf16 (%.1f MB; %d of them rounded), %d as f32 (%.1f MB, read in every pass: "
                 "--dtype bf16 rounds them and halves that)",
                 path, s->n_bf16, bf16, s->n_rounded, s->n_f32, f32);
    } else {
        log_info("%s: %d matrices as bf16 (%.1f MB)%s", path, s->n_bf16, bf16,
                 s->n_rounded > 0 ? "; those that are wider or quantised in the file are rounded" : "");
    }
}

static size_t held_bytes(bool is_f32)
{
    return is_f32 ? sizeof(float) : sizeof(uint16_t);
}

/* Bytes of a matrix as the kernels keep it. */
static size_t matrix_bytes(const struct gr_loader *l, int n_out, int n_in, bool is_f32)
{
    const size_t packed = l->kernels->linear_packed_bytes(n_out, n_in) * (is_f32 ? 2 : 1);
    return packed > 0 ? packed : (size_t)n_out * (size_t)n_in * held_bytes(is_f32);
}

/* Before it is loaded nobody knows the values: what may be held as bf16 is counted so. t: NULL where it is expanded. */
static void need(const struct gr_loader *l, const struct gr_tensor *t, size_t bytes_bf16, size_t bytes_f32)
{
    const bool is_f32 = t != NULL && l->as == GR_WEIGHTS_F32;
    l->needs->bf16_bytes += is_f32 ? 0 : bytes_bf16;
    l->needs->f32_bytes += is_f32 ? bytes_f32 : 0;
    if (t != NULL && l->as == GR_WEIGHTS_AUTO && (t->dtype == GR_FORMAT_F32 || t->dtype == GR_FORMAT_F16)) {
        l->needs->wider_bytes += bytes_f32 - bytes_bf16;
    }
}

/* Used where it lies in the file. */
static bool is_borrowed(const struct gr_loader *l, const struct gr_tensor *t)
{
    return t != NULL && t->dtype == GR_FORMAT_BF16 && l->as != GR_WEIGHTS_F32;
}

static bool is_whole_width(const struct gr_part *part, int n_in)
{
    return part->n_col == n_in;
}

static enum gr_status need_matrix(const struct gr_loader *l, const char *name, int n_out, int n_in,
                                  const struct gr_part *part)
{
    const struct gr_tensor *t = NULL;
    if (l->expand == NULL) {
        GR_TRY(gr_tensors_take_weight(l->files, name, 2, (int64_t[]){n_out, n_in}, &t));
    }
    const bool plain = l->kernels->linear_packed_bytes(part->n_row, part->n_col) == 0 && is_whole_width(part, n_in);
    if (!plain || !is_borrowed(l, t) || t->n_head_paired > 0) {
        need(l, t, matrix_bytes(l, part->n_row, part->n_col, false), matrix_bytes(l, part->n_row, part->n_col, true));
    }
    return GR_OK;
}

static enum gr_status need_table(const struct gr_loader *l, const char *name, int n_vocab, int n)
{
    const struct gr_tensor *t = NULL;
    const size_t values = (size_t)n_vocab * (size_t)n;
    if (l->expand == NULL) {
        GR_TRY(gr_tensors_take_weight(l->files, name, 2, (int64_t[]){n_vocab, n}, &t));
    }
    if (!is_borrowed(l, t)) {
        need(l, t, values * sizeof(uint16_t), values * sizeof(float));
    }
    return GR_OK;
}

static void show(const struct gr_loader *l, size_t bytes)
{
    if (l->progress != NULL) {
        gr_load_progress_add(l->progress, bytes);
    }
}

/* ---- rows, converted ---- */

struct conversion {
    const struct gr_loader *l;
    const struct gr_tensor *t;
    bool is_f32;
    struct gr_part part;
    char *plain;   /* (n_row, n_col) of the part, of the held numbers, or NULL: */
    char *packed;  /* packed panel by panel, through */
    char *scratch; /* (n_thread, PANEL + 1, span) f32: of a row what is read, and of a panel the held numbers */
};

/* The values of a row that are converted for columns [col, col + n_col): whole blocks of the format. */
struct span {
    size_t begin, n;
};

static struct span span_of(const struct gr_tensor *t, const struct gr_part *part)
{
    const size_t block = gr_format_block(t->dtype);
    const size_t begin = (size_t)part->col / block * block;
    const size_t end = ((size_t)(part->col + part->n_col) + block - 1) / block * block;
    return (struct span){.begin = begin, .n = end - begin};
}

static void round_row(const float *x, size_t n, uint16_t *out)
{
    for (size_t i = 0; i < n; i++) {
        out[i] = gr_bf16_from_f32(x[i]);
    }
}

/* The part's columns of row `row` in the numbers that are held; scratch: (span) f32. */
static void convert_row(const struct conversion *c, int row, float *scratch, void *out)
{
    const struct gr_tensor *t = c->t;
    const size_t n_col = (size_t)c->part.n_col;
    const struct span span = span_of(t, &c->part);
    const uint8_t *from = gr_tensor_row(t, row);
    if (t->dtype == GR_FORMAT_BF16 && !c->is_f32) {
        memcpy(out, from + (size_t)c->part.col * sizeof(uint16_t), n_col * sizeof(uint16_t));
        return;
    }
    from += span.begin / gr_format_block(t->dtype) * gr_format_bytes(t->dtype);
    gr_format_to_f32(t->dtype, from, span.n, scratch);
    scratch += (size_t)c->part.col - span.begin;
    if (c->is_f32) {
        memcpy(out, scratch, n_col * sizeof(float));
    } else {
        round_row(scratch, n_col, out);
    }
}

static void pack_panel(const struct conversion *c, const void *rows, int row0, int n_row)
{
    const struct gr_kernels *k = c->l->kernels;
    char *to = c->packed + k->linear_packed_bytes(row0, c->part.n_col) * (c->is_f32 ? 2 : 1);
    if (c->is_f32) {
        k->linear_pack_f32(rows, n_row, c->part.n_col, to);
    } else {
        k->linear_pack(rows, n_row, c->part.n_col, to);
    }
}

static void convert_panels(const struct gr_exec *x, void *arg)
{
    const struct conversion *c = arg;
    const size_t span = span_of(c->t, &c->part).n, row_bytes = (size_t)c->part.n_col * held_bytes(c->is_f32);
    const bool as_it_is = c->t->dtype == GR_FORMAT_BF16 && !c->is_f32 && c->t->n_head_paired == 0 &&
                          is_whole_width(&c->part, (int)gr_tensor_n_col(c->t));
    char *const scratch = c->scratch + (size_t)x->ith * (PANEL + 1) * span * sizeof(float);
    char *const held = scratch + span * sizeof(float);
    int begin, end;
    gr_unit_range((c->part.n_row + PANEL - 1) / PANEL, x->ith, x->nth, &begin, &end);
    for (int p = begin; p < end; p++) {
        const int row0 = p * PANEL, from = c->part.row + row0;
        const int n_row = GR_MIN(PANEL, c->part.n_row - row0);
        char *rows = c->plain != NULL ? c->plain + (size_t)row0 * row_bytes : held;
        if (as_it_is && c->packed != NULL) {
            pack_panel(c, gr_tensor_row(c->t, from), row0, n_row);
            continue;
        }
        for (int r = 0; r < n_row; r++) {
            convert_row(c, from + r, (float *)(void *)scratch, rows + (size_t)r * row_bytes);
        }
        if (c->packed != NULL) {
            pack_panel(c, rows, row0, n_row);
        }
    }
}

static enum gr_status convert(struct conversion *c)
{
    const size_t span = span_of(c->t, &c->part).n;
    c->scratch = calloc((size_t)gr_team_size(c->l->team) * (PANEL + 1) * span, sizeof(float));
    if (c->scratch == NULL) {
        log_error("out of memory while loading %s", c->t->name);
        return GR_ENOMEM;
    }
    gr_team_run(c->l->team, convert_panels, c);
    free(c->scratch);
    return GR_OK;
}

/* ---- all ---- */

/* Used where it lies in the file: rows of bf16, by kernels that take them so. */
static bool lies_ready(const struct conversion *c, size_t packed_bytes)
{
    return packed_bytes == 0 && c->t->dtype == GR_FORMAT_BF16 && !c->is_f32 && c->t->n_head_paired == 0 &&
           is_whole_width(&c->part, (int)gr_tensor_n_col(c->t));
}

static enum gr_status convert_part(struct conversion *c, struct gr_weight *out)
{
    const struct gr_loader *l = c->l;
    const int n_row = c->part.n_row, n_col = c->part.n_col;
    struct gr_weight w = {.n_out = n_row, .n_in = n_col, .is_f32 = c->is_f32};
    const size_t bytes = l->kernels->linear_packed_bytes(n_row, n_col) * (c->is_f32 ? 2 : 1);
    if (lies_ready(c, bytes)) {
        w.plain = gr_tensor_row(c->t, c->part.row);
        *out = w;
        return GR_OK;
    }
    char *p = gr_memory_take(l->memory, bytes > 0 ? bytes : (size_t)n_row * (size_t)n_col * held_bytes(c->is_f32));
    if (p == NULL) {
        return GR_ENOMEM;
    }
    c->packed = bytes > 0 ? p : NULL;
    c->plain = bytes > 0 ? NULL : p;
    GR_TRY(convert(c));
    w.packed = c->packed;
    w.plain = c->plain;
    *out = w;
    return GR_OK;
}

enum gr_status gr_load_part(const struct gr_loader *l, const char *name, int n_out, int n_in,
                            const struct gr_part *part, struct gr_weight *out)
{
    GR_ASSERT(part->row >= 0 && part->row + part->n_row <= n_out && part->col >= 0 && part->col + part->n_col <= n_in);
    if (l->needs != NULL) {
        return need_matrix(l, name, n_out, n_in, part);
    }
    show(l, matrix_bytes(l, part->n_row, part->n_col, l->as == GR_WEIGHTS_F32));
    if (l->expand != NULL) {
        return gr_load_expanded(l, name, n_out, n_in, part, out);
    }
    struct conversion c = {.l = l, .part = *part};
    struct held h;
    GR_TRY(gr_tensors_take_weight(l->files, name, 2, (int64_t[]){n_out, n_in}, &c.t));
    GR_TRY(choose(l, c.t, &h));
    count(l, &h, (size_t)part->n_row * (size_t)part->n_col);
    c.is_f32 = h.is_f32;
    return convert_part(&c, out);
}

enum gr_status gr_load_matrix(const struct gr_loader *l, const char *name, int n_out, int n_in, struct gr_weight *out)
{
    return gr_load_part(l, name, n_out, n_in, &(struct gr_part){.n_row = n_out, .n_col = n_in}, out);
}

enum gr_status gr_load_vector(const struct gr_loader *l, const char *name, int n, float **out)
{
    const struct gr_tensor *t = NULL;
    if (l->needs != NULL) {
        l->needs->other_bytes += (size_t)n * sizeof(float);
        return l->expand != NULL ? GR_OK : gr_tensors_take_weight(l->files, name, 1, (int64_t[]){n}, &t);
    }
    float *w = gr_memory_take_f32(l->memory, (size_t)n);
    if (w == NULL) {
        return GR_ENOMEM;
    }
    *out = w;
    if (l->expand != NULL) {
        return gr_load_expanded_vector(l, name, n, w);
    }
    GR_TRY(gr_tensors_take_weight(l->files, name, 1, (int64_t[]){n}, &t));
    gr_tensor_row_f32(t, 0, w);
    for (int i = 0; l->as == GR_WEIGHTS_BF16 && i < n; i++) {
        w[i] = gr_bf16_to_f32(gr_bf16_from_f32(w[i]));
    }
    return GR_OK;
}

enum gr_status gr_load_table(const struct gr_loader *l, const char *name, int n_vocab, int n, struct gr_row_table *out)
{
    *out = (struct gr_row_table){.bf16 = NULL};
    if (l->needs != NULL) {
        return need_table(l, name, n_vocab, n);
    }
    if (l->expand != NULL) {
        uint16_t *rows = gr_memory_take(l->memory, (size_t)n_vocab * (size_t)n * sizeof(uint16_t));
        out->bf16 = rows;
        return rows != NULL ? gr_load_expanded_table(l, name, n_vocab, n, rows) : GR_ENOMEM;
    }
    struct conversion c = {.l = l, .part = {.n_row = n_vocab, .n_col = n}};
    struct held h;
    GR_TRY(gr_tensors_take_weight(l->files, name, 2, (int64_t[]){n_vocab, n}, &c.t));
    GR_TRY(choose(l, c.t, &h));
    count(l, &h, (size_t)n_vocab * (size_t)n);
    c.is_f32 = h.is_f32;
    if (c.t->dtype == GR_FORMAT_BF16 && !h.is_f32) {
        out->bf16 = c.t->data;
        return GR_OK;
    }
    c.plain = gr_memory_take(l->memory, (size_t)n_vocab * (size_t)n * held_bytes(h.is_f32));
    if (c.plain == NULL) {
        return GR_ENOMEM;
    }
    GR_TRY(convert(&c));
    out->f32 = h.is_f32 ? (const float *)(void *)c.plain : NULL;
    out->bf16 = h.is_f32 ? NULL : (const uint16_t *)(void *)c.plain;
    return GR_OK;
}

/* ---- piece by piece ---- */

enum gr_status gr_matrix_open(const struct gr_loader *l, const char *name, int n_out, int n_in,
                              struct gr_matrix_source *out)
{
    *out = (struct gr_matrix_source){.l = l, .n_out = n_out, .n_in = n_in};
    if (l->expand == NULL) {
        struct held h;
        GR_TRY(gr_tensors_take_weight(l->files, name, 2, (int64_t[]){n_out, n_in}, &out->tensor));
        GR_TRY(choose(l, out->tensor, &h));
        if (h.is_f32) {
            log_error("%s: tensor %s: %s: a GPU takes bf16 weights only; --dtype bf16 rounds them",
                      gr_tensors_file_of(l->files, out->tensor), name,
                      l->as == GR_WEIGHTS_F32 ? "--dtype f32" : "some of its values are wider than bf16");
            return GR_EUNSUPPORTED;
        }
        count(l, &h, (size_t)n_out * (size_t)n_in);
        return GR_OK;
    }
    GR_TRY(gr_expand_tensor_init(l->expand, name, n_out, n_in, &out->t));
    const enum gr_status st = gr_expanded_source(l, &out->t, &out->from);
    if (st != GR_OK) {
        gr_expand_tensor_finish(&out->t);
    }
    return st;
}

enum gr_status gr_table_open(const struct gr_loader *l, const char *name, int n_row, int n,
                             struct gr_matrix_source *out)
{
    GR_TRY(gr_matrix_open(l, name, n_row, n, out));
    out->t.rule.zero = GR_ROWS_ARE_STREAM;
    return GR_OK;
}

struct reading {
    const struct gr_matrix_source *m;
    const struct gr_part *part;
    uint16_t *out;
};

#define ROUND_PIECE 1024 /* values that are converted at a time: whole blocks of every format */

/* The part's columns of a row; what is read begins and ends with blocks. */
static void read_row(const struct gr_tensor *t, int row, const struct gr_part *part, uint16_t *out)
{
    const uint8_t *from = gr_tensor_row(t, row);
    const size_t block = gr_format_block(t->dtype), bytes = gr_format_bytes(t->dtype), col = (size_t)part->col;
    const struct span span = span_of(t, part);
    const size_t end = span.begin + span.n;
    float values[ROUND_PIECE];
    if (t->dtype == GR_FORMAT_BF16) {
        memcpy(out, from + col * sizeof(*out), (size_t)part->n_col * sizeof(*out));
        return;
    }
    for (size_t i = span.begin; i < end; i += ROUND_PIECE) {
        const size_t n = GR_MIN((size_t)ROUND_PIECE, end - i), first = GR_MAX(i, col);
        const size_t last = GR_MIN(i + n, col + (size_t)part->n_col);
        gr_format_to_f32(t->dtype, from + i / block * bytes, n, values);
        round_row(values + (first - i), last - first, out + (first - col));
    }
}

static void read_rows(const struct gr_exec *x, void *arg)
{
    const struct reading *r = arg;
    int begin, end;
    gr_unit_range(r->part->n_row, x->ith, x->nth, &begin, &end);
    for (int i = begin; i < end; i++) {
        read_row(r->m->tensor, r->part->row + i, r->part, r->out + (size_t)i * (size_t)r->part->n_col);
    }
}

void gr_matrix_read_part(const struct gr_matrix_source *m, const struct gr_part *part, uint16_t *out)
{
    GR_ASSERT(m->l->expand == NULL && part->row >= 0 && part->row + part->n_row <= m->n_out && part->col >= 0 &&
              part->col + part->n_col <= m->n_in);
    gr_team_run(m->l->team, read_rows, &(struct reading){.m = m, .part = part, .out = out});
}

void gr_matrix_read(const struct gr_matrix_source *m, int row0, int n_row, uint16_t *out)
{
    gr_matrix_read_part(m, &(struct gr_part){.row = row0, .n_row = n_row, .n_col = m->n_in}, out);
}

void gr_matrix_close(struct gr_matrix_source *m)
{
    if (m->l->expand != NULL) {
        gr_expand_tensor_finish(&m->t);
    }
}
