#include "model/cuda/weights.h"

#include "common/base/log.h"
#include "kernels/cuda/rows/expand.h"
#include "kernels/cuda/linear/linear.h"

#include <inttypes.h>
#include <stdio.h>

#define PIECE_BYTES ((size_t)64 << 20) /* weights go to the device in pieces of this size */

static enum gr_status take_plain(struct gr_cuda_piece *p)
{
    return gr_cuda_check(cudaMalloc((void **)&p->plain, PIECE_BYTES), "staging of weights");
}

enum gr_status gr_cuda_weights_begin(struct gr_cuda_weights *w, struct gr_cuda_device *device,
                                     const struct gr_loader *loader, const struct gr_model_shapes *shapes)
{
    *w = (struct gr_cuda_weights){.device = device, .loader = loader, .shapes = shapes};
    if (loader->expand != NULL) {
        return take_plain(&w->piece[0]);
    }
    for (int i = 0; i < 2; i++) {
        struct gr_cuda_piece *p = &w->piece[i];
        GR_TRY(
            gr_cuda_check(cudaHostAlloc((void **)&p->host, PIECE_BYTES, cudaHostAllocDefault), "staging of weights"));
        GR_TRY(take_plain(p));
        GR_TRY(gr_cuda_check(cudaEventCreateWithFlags(&p->done, cudaEventDisableTiming), "staging of weights"));
    }
    return GR_OK;
}

enum gr_status gr_cuda_weights_finish(struct gr_cuda_weights *w)
{
    const enum gr_status st = gr_cuda_wait(w->device, "loading of weights");
    for (int i = 0; i < 2; i++) {
        (void)cudaFreeHost(w->piece[i].host);
        (void)cudaFree(w->piece[i].plain);
        if (w->piece[i].done != NULL) {
            (void)cudaEventDestroy(w->piece[i].done);
        }
    }
    (void)cudaFree(w->from);
    return st;
}

/* A piece that nobody uses any more. */
static enum gr_status next_piece(struct gr_cuda_weights *w, struct gr_cuda_piece **out)
{
    struct gr_cuda_piece *p = &w->piece[w->next];
    w->next = 1 - w->next;
    *out = p;
    return gr_cuda_check(cudaEventSynchronize(p->done), "loading of weights");
}

struct target_rows {
    const struct gr_cuda_matrix *m; /* packed; or NULL: */
    uint16_t *table;
    int row0, step, head_dim;
    struct gr_part part; /* of the source */
};

/* Where rows from `row` of the part on are put before they are packed; those of a table: for good. */
static uint16_t *plain_rows(const struct target_rows *to, const struct gr_cuda_piece *p, int row)
{
    return to->m != NULL ? p->plain : to->table + (size_t)row * (size_t)to->part.n_col;
}

/* Rows [row, row + n) of the part are where plain_rows() says, or columns from `col` of rows of `stride` values are. */
struct plain_columns {
    int col, stride;
};

static enum gr_status pack_rows(struct gr_cuda_weights *w, const struct gr_cuda_piece *p, const struct target_rows *to,
                                int row, int n, struct plain_columns columns)
{
    if (to->m != NULL) {
        const struct gr_cuda_linear_pack_args a = {.plain = p->plain + columns.col,
                                                   .packed = to->m->packed,
                                                   .n_out = to->m->n_out,
                                                   .n_in = to->m->n_in,
                                                   .row0 = to->row0,
                                                   .n_row = n,
                                                   .step = to->step,
                                                   .cut = to->m->cut,
                                                   .first = row,
                                                   .head_dim = to->head_dim,
                                                   .plain_stride = columns.stride};
        GR_TRY(gr_cuda_linear_pack(&a, w->device->stream));
    }
    const size_t bytes = (size_t)n * (size_t)to->part.n_col * sizeof(uint16_t);
    w->bytes += bytes;
    if (w->loader->progress != NULL) {
        gr_load_progress_add(w->loader->progress, bytes);
    }
    return GR_OK;
}

/* ---- as in the files ---- */

/* Rows [row, row + n) of the part are in the piece. */
static enum gr_status send_piece(struct gr_cuda_weights *w, const struct gr_cuda_piece *p, const struct target_rows *to,
                                 int row, int n)
{
    const int n_col = to->part.n_col;
    const size_t bytes = (size_t)n * (size_t)n_col * sizeof(uint16_t);
    const cudaStream_t stream = w->device->stream;
    GR_TRY(gr_cuda_check(cudaMemcpyAsync(plain_rows(to, p, row), p->host, bytes, cudaMemcpyHostToDevice, stream),
                         "copy of weights"));
    w->copied += bytes;
    GR_TRY(pack_rows(w, p, to, row, n, (struct plain_columns){.stride = n_col}));
    return gr_cuda_check(cudaEventRecord(p->done, stream), "loading of weights");
}

static enum gr_status send_rows(struct gr_cuda_weights *w, const struct gr_matrix_source *source, int n_at_once,
                                const struct target_rows *to)
{
    for (int row = 0; row < to->part.n_row; row += n_at_once) {
        struct gr_cuda_piece *p = NULL;
        struct gr_part part = to->part;
        part.row += row;
        part.n_row = GR_MIN(n_at_once, to->part.n_row - row);
        GR_TRY(next_piece(w, &p));
        gr_matrix_read_part(source, &part, p->host);
        GR_TRY(send_piece(w, p, to, row, part.n_row));
    }
    return GR_OK;
}

/* ---- expanded ---- */

/* The small tensor to w->from, after what still reads the one before. */
static enum gr_status send_small(struct gr_cuda_weights *w, const struct gr_matrix_source *source)
{
    const struct gr_expand_rule *r = &source->t.rule;
    const size_t bytes = (size_t)r->n_out_from * (size_t)r->n_in_from * sizeof(uint16_t);
    if (bytes > w->from_bytes) {
        (void)cudaFree(w->from); /* waits for them */
        w->from = NULL;
        w->from_bytes = 0;
        GR_TRY(gr_cuda_check(cudaMalloc((void **)&w->from, bytes), "staging of weights"));
        w->from_bytes = bytes;
    }
    w->copied += bytes;
    return bytes == 0
               ? GR_OK
               : gr_cuda_check(cudaMemcpyAsync(w->from, source->from, bytes, cudaMemcpyHostToDevice, w->device->stream),
                               "copy of weights");
}

/* One piece for all: the stream's order keeps a piece's rows until they are packed. Rows are made whole: a part of
 * their columns is taken when they are packed. */
static enum gr_status make_rows(struct gr_cuda_weights *w, const struct gr_matrix_source *source, int n_at_once,
                                const struct target_rows *to)
{
    const struct gr_cuda_piece *p = &w->piece[0];
    GR_TRY(send_small(w, source));
    for (int row = 0; row < to->part.n_row; row += n_at_once) {
        const struct gr_cuda_expand_args a = {.rule = source->t.rule,
                                              .from = source->from != NULL ? w->from : NULL,
                                              .out = plain_rows(to, p, row),
                                              .row0 = to->part.row + row,
                                              .n_row = GR_MIN(n_at_once, to->part.n_row - row)};
        GR_TRY(gr_cuda_expand(&a, w->device->stream));
        GR_TRY(pack_rows(w, p, to, row, a.n_row, (struct plain_columns){to->part.col, source->n_in}));
    }
    return GR_OK;
}

/* ---- all ---- */

/* Of the source (n_out, n_in) what to->part says. */
static enum gr_status load_rows(struct gr_cuda_weights *w, const char *name, int n_out, int n_in,
                                const struct target_rows *to)
{
    struct gr_matrix_source source;
    GR_TRY(to->table != NULL ? gr_table_open(w->loader, name, n_out, n_in, &source)
                             : gr_matrix_open(w->loader, name, n_out, n_in, &source));
    const int n_at_once = (int)GR_MAX(PIECE_BYTES / ((size_t)n_in * sizeof(uint16_t)), (size_t)1);
    const enum gr_status st =
        w->loader->expand != NULL ? make_rows(w, &source, n_at_once, to) : send_rows(w, &source, n_at_once, to);
    gr_matrix_close(&source);
    return st;
}

static enum gr_status take_matrix(struct gr_cuda_weights *w, struct gr_cuda_matrix *m)
{
    GR_ASSERT(m->cut.width > 0);
    return gr_cuda_take(w->device, "weights", gr_cuda_linear_bytes(m->n_out, m->n_in, m->cut), &m->packed);
}

enum gr_status gr_cuda_matrix_take(struct gr_cuda_weights *w, int n_out, int n_in, struct gr_cuda_matrix *out)
{
    const struct gr_linear_shape *shape = gr_shapes_find(w->shapes, n_out, n_in);
    GR_ASSERT(shape != NULL);
    *out = (struct gr_cuda_matrix){.n_out = n_out, .n_in = n_in, .cut = shape->cut, .whole_cut = shape->cut};
    return take_matrix(w, out);
}

enum gr_status gr_cuda_matrix_take_rows(struct gr_cuda_weights *w, int n_out, int n_in, int n_row,
                                        struct gr_cuda_matrix *out)
{
    const struct gr_linear_shape *shape = gr_shapes_find(w->shapes, n_out, n_in);
    GR_ASSERT(shape != NULL);
    *out = (struct gr_cuda_matrix){.n_out = n_row, .n_in = n_in, .whole_cut = shape->cut};
    out->cut = n_row == n_out ? shape->cut : gr_cuda_linear_cut_in(n_row, n_in, shape->cut.parts);
    return take_matrix(w, out);
}

enum gr_status gr_cuda_matrix_take_columns(struct gr_cuda_weights *w, int n_out, int n_in, int n_col,
                                           struct gr_segments segments, struct gr_cuda_matrix *out)
{
    const struct gr_linear_shape *shape = gr_shapes_find(w->shapes, n_out, n_in);
    GR_ASSERT(shape != NULL);
    *out = (struct gr_cuda_matrix){.n_out = n_out, .n_in = n_col, .whole_cut = shape->cut, .segments = segments};
    out->cut = n_col == n_in     ? shape->cut
               : segments.n == 1 ? gr_cuda_linear_cut_in(n_out, n_col, 1)
                                 : gr_cuda_linear_cut(n_out, n_col);
    return take_matrix(w, out);
}

enum gr_status gr_cuda_rows_load(struct gr_cuda_weights *w, const struct gr_cuda_rows *r,
                                 const struct gr_cuda_matrix *m)
{
    GR_ASSERT(r->row0 + (r->part.n_row - 1) * r->step < m->n_out && r->part.n_col == m->n_in);
    return load_rows(
        w, r->name, r->n_out, r->n_in,
        &(struct target_rows){.m = m, .row0 = r->row0, .step = r->step, .head_dim = r->head_dim, .part = r->part});
}

enum gr_status gr_cuda_matrix_load(struct gr_cuda_weights *w, const char *name, int n_row,
                                   const struct gr_cuda_matrix *m)
{
    const struct gr_cuda_rows r = {
        .name = name, .n_out = n_row, .n_in = m->n_in, .part = {.n_row = n_row, .n_col = m->n_in}, .step = 1};
    return gr_cuda_rows_load(w, &r, m);
}

enum gr_status gr_cuda_table_load(struct gr_cuda_weights *w, const char *name, int n_row, int n, uint16_t **out)
{
    void *table = NULL;
    GR_TRY(gr_cuda_take(w->device, "embedding", (size_t)n_row * (size_t)n * sizeof(uint16_t), &table));
    *out = table;
    return load_rows(w, name, n_row, n, &(struct target_rows){.table = table, .part = {.n_row = n_row, .n_col = n}});
}

enum gr_status gr_cuda_vector_part_load(struct gr_cuda_weights *w, const char *name, int n_all,
                                        const struct gr_part *part, float *to)
{
    const size_t bytes = (size_t)part->n_row * sizeof(float);
    float *values = NULL;
    GR_TRY(gr_load_vector(w->loader, name, n_all, &values));
    w->copied += bytes;
    return gr_cuda_check(cudaMemcpyAsync(to, values + part->row, bytes, cudaMemcpyHostToDevice, w->device->stream),
                         "copy of weights");
}

enum gr_status gr_cuda_vector_load(struct gr_cuda_weights *w, const char *name, int n, float **out)
{
    void *p = NULL;
    GR_TRY(gr_cuda_take(w->device, "weights", (size_t)n * sizeof(float), &p));
    *out = p;
    return gr_cuda_vector_part_load(w, name, n, &(struct gr_part){.n_row = n}, p);
}
