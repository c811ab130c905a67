/* graft-bench tune on a GPU (tune_gpu.h): kernels in one shape after the other, timed in graphs over copies that no
 * cache holds. Owns the arena that they work in. One thread. */
#include "bench/tune_gpu.h"

#include "bench/table.h"
#include "common/rules/bf16.h"
#include "common/base/log.h"
#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/device/kv_layout.h"
#include "model/cuda/device.h"
#include "model/cuda/graphs.h"

#include <stdlib.h>
#include <string.h>

#define N_WARM 5                   /* runs before the first that counts */
#define N_COPY_MAX 64              /* copies of a matrix, so that no cache holds the one that is read */
#define ENOUGH ((size_t)512 << 20) /* bytes that a graph reads, or tries to: ten times the L2 cache */
#define N_RANDOM ((size_t)8 << 20) /* values; repeated all over the memory */
#define BLOCK_STRIDE 7919          /* a prime, and more than there are blocks */
#define N_KV_FREE 8                /* blocks beside those of the context: scratch, and what it is rounded up by */

struct gr_tune_gpu {
    struct gr_cuda_device device;
    cudaEvent_t begin, end;
    uint16_t *random; /* (N_RANDOM) bf16 within [-1, 1), pinned */
    void *arena;      /* weights, or KV: random values */
    size_t arena_bytes;
    int32_t *count; /* of the device: rows, or sequences, of a launch */
};

/* ---- memory ---- */

static enum gr_status take_random(struct gr_tune_gpu *g)
{
    void *p = NULL;
    void *ignored = NULL;
    uint64_t z = 88172645463325252ull;
    GR_TRY(gr_cuda_take_host(&g->device, N_RANDOM * sizeof(uint16_t), &p, &ignored));
    g->random = p;
    for (size_t i = 0; i < N_RANDOM; i++) {
        z ^= z << 13;
        z ^= z >> 7;
        z ^= z << 17;
        g->random[i] = gr_bf16_from_f32((float)(uint32_t)(z >> 32) * 0x1p-31f - 1.0f);
    }
    return GR_OK;
}

static enum gr_status fill(const struct gr_tune_gpu *g, void *to, size_t bytes)
{
    const size_t piece = N_RANDOM * sizeof(uint16_t);
    for (size_t at = 0; at < bytes; at += piece) {
        GR_TRY(gr_cuda_check(cudaMemcpyAsync((uint8_t *)to + at, g->random, GR_MIN(piece, bytes - at),
                                             cudaMemcpyHostToDevice, g->device.stream),
                             "random values"));
    }
    return GR_OK;
}

/* At least so many bytes of random values; it grows with what is measured. */
static enum gr_status need_arena(struct gr_tune_gpu *g, size_t bytes)
{
    if (bytes <= g->arena_bytes) {
        return GR_OK;
    }
    GR_TRY(gr_cuda_wait(&g->device, "graft-bench tune"));
    gr_cuda_give_back(&g->device, g->arena);
    g->arena = NULL;
    g->arena_bytes = 0;
    GR_TRY(gr_cuda_take(&g->device, "weights and KV to measure with", bytes, &g->arena));
    g->arena_bytes = bytes;
    return fill(g, g->arena, bytes);
}

/* So that a graph reads ENOUGH. */
static int choose_copies(size_t bytes)
{
    const size_t n = (ENOUGH + bytes - 1) / bytes;
    return (int)GR_MAX(GR_MIN(n, (size_t)N_COPY_MAX), (size_t)2);
}

enum gr_status gr_tune_gpu_open(int device, struct gr_tune_gpu **out)
{
    void *count = NULL;
    struct gr_tune_gpu *g = calloc(1, sizeof(*g));
    enum gr_status st = g != NULL ? gr_cuda_device_open(&g->device, device) : GR_ENOMEM;
    if (st == GR_OK) {
        st = gr_cuda_check(cudaEventCreate(&g->begin), "event");
    }
    if (st == GR_OK) {
        st = gr_cuda_check(cudaEventCreate(&g->end), "event");
    }
    if (st == GR_OK) {
        st = gr_cuda_take(&g->device, "inputs and results", sizeof(int32_t), &count);
    }
    if (st == GR_OK) {
        g->count = count;
        st = take_random(g);
    }
    if (st != GR_OK) {
        gr_tune_gpu_close(g);
        return st;
    }
    *out = g;
    return GR_OK;
}

void gr_tune_gpu_close(struct gr_tune_gpu *g)
{
    if (g == NULL) {
        return;
    }
    if (g->begin != NULL) {
        (void)cudaEventDestroy(g->begin);
    }
    if (g->end != NULL) {
        (void)cudaEventDestroy(g->end);
    }
    gr_cuda_device_close(&g->device);
    free(g);
}

const char *gr_tune_gpu_name(const struct gr_tune_gpu *g)
{
    return g->device.name;
}

struct gr_cuda_cut gr_tune_gpu_formula(int n_out, int n_in)
{
    return gr_cuda_linear_cut(n_out, n_in);
}

/* ---- time of a graph ---- */

static enum gr_status time_once(struct gr_tune_gpu *g, cudaGraphExec_t graph, double *us_out)
{
    float ms = 0.0f;
    GR_TRY(gr_cuda_check(cudaEventRecord(g->begin, g->device.stream), "event"));
    GR_TRY(gr_cuda_check(cudaGraphLaunch(graph, g->device.stream), "launch"));
    GR_TRY(gr_cuda_check(cudaEventRecord(g->end, g->device.stream), "event"));
    GR_TRY(gr_cuda_check(cudaEventSynchronize(g->end), "graft-bench tune"));
    GR_TRY(gr_cuda_check(cudaEventElapsedTime(&ms, g->begin, g->end), "event"));
    *us_out = (double)ms * 1e3;
    return GR_OK;
}

/* us_out: of a launch, of which enqueue(what, n) enqueues n. */
static enum gr_status time_graph(struct gr_tune_gpu *g, gr_cuda_enqueue_fn *enqueue, void *what, int n, int n_rep,
                                 double *us_out)
{
    static double us[GR_TUNE_REP_MAX];
    cudaGraphExec_t graph = NULL;
    GR_ASSERT(n_rep >= 1 && n_rep <= GR_TUNE_REP_MAX);
    enum gr_status st = gr_cuda_graph_capture(&g->device, enqueue, what, n, &graph);
    for (int i = -N_WARM; i < n_rep && st == GR_OK; i++) {
        st = time_once(g, graph, &us[GR_MAX(i, 0)]);
    }
    if (graph != NULL) {
        (void)cudaGraphExecDestroy(graph);
    }
    GR_TRY(st);
    *us_out = gr_median(us, n_rep) / n;
    return GR_OK;
}

static enum gr_status set_count(const struct gr_tune_gpu *g, int32_t n)
{
    return gr_cuda_upload(&g->device, g->count, &n, sizeof(n), "inputs");
}

/* ---- a linear layer ---- */

struct linear_case {
    struct gr_tune_gpu *g;
    const struct gr_tune_linear *l;
    size_t bytes; /* of a copy of the weights */
    void *x, *y;
};

static enum gr_status enqueue_linear(void *what, int n_copy)
{
    const struct linear_case *c = what;
    const struct gr_tune_gpu *g = c->g;
    const struct gr_linear_shape *s = c->l->shape;
    const struct gr_segments segments = gr_segments_of_down(s->n_in); /* for o, too */
    for (int i = 0; i < n_copy; i++) {
        const struct gr_cuda_linear_args a = {.w = (const uint8_t *)g->arena + (size_t)i * c->bytes,
                                              .n_out = s->n_out,
                                              .n_in = s->n_in,
                                              .x = c->x,
                                              .y = c->y,
                                              .out = s->out,
                                              .y_stride = s->n_out,
                                              .n_row = c->l->n_row,
                                              .n_row_true = g->count,
                                              .cut = c->l->cut,
                                              .segments =
                                                  s->out == GR_CUDA_OUT_ADD ? segments : (struct gr_segments){0}};
        GR_TRY(gr_cuda_linear(&a, g->device.stream));
    }
    return GR_OK;
}

enum gr_status gr_tune_gpu_linear(struct gr_tune_gpu *g, const struct gr_tune_linear *l, int n_rep, double *us_out)
{
    const struct gr_linear_shape *s = l->shape;
    struct linear_case c = {
        .g = g, .l = l, .bytes = (gr_cuda_linear_bytes(s->n_out, s->n_in, l->cut) + 255) / 256 * 256};
    const size_t x_bytes = gr_cuda_tile_bytes(GR_TUNE_ROW_MAX, s->n_in);
    GR_ASSERT(c.bytes > 0 && l->n_row >= 1 && l->n_row <= GR_TUNE_ROW_MAX);
    const int n_copy = choose_copies(c.bytes);
    GR_TRY(need_arena(g, c.bytes * (size_t)n_copy));
    enum gr_status st = gr_cuda_take(&g->device, "inputs and results", x_bytes, &c.x);
    if (st == GR_OK) { /* f32 is the largest form of a result */
        st = gr_cuda_take(&g->device, "inputs and results", (size_t)GR_TUNE_ROW_MAX * (size_t)s->n_out * sizeof(float),
                          &c.y);
    }
    if (st == GR_OK) {
        st = fill(g, c.x, x_bytes);
    }
    if (st == GR_OK) {
        st = set_count(g, l->n_row);
    }
    if (st == GR_OK) {
        st = time_graph(g, enqueue_linear, &c, n_copy, n_rep, us_out);
    }
    gr_cuda_give_back(&g->device, c.x);
    gr_cuda_give_back(&g->device, c.y);
    return st;
}

/* ---- attention ---- */

/* What a pass of one sequence sees, on the host and, one after the other, on the device. */
struct tree {
    struct gr_attn_seq seq;
    int32_t limit[GR_TUNE_ROW_MAX], n_anc[GR_TUNE_ROW_MAX], scratch_block[GR_TUNE_ROW_MAX / GR_KV_BLOCK_TOKENS];
    int16_t anc[GR_TUNE_ROW_MAX * GR_ATTN_ANC_MAX];
};

struct attention_case {
    struct gr_tune_gpu *g;
    struct gr_cuda_attention_args a;
    size_t layer_bytes;
    int n_layer;
    void *tree, *block, *q, *out, *plan, *work;
};

static enum gr_status enqueue_attention(void *what, int n_layer)
{
    const struct attention_case *c = what;
    const struct gr_tune_gpu *g = c->g;
    struct gr_cuda_attention_args a = c->a;
    const struct gr_cuda_attn_plan_args plan = {.shape = a.shape, .seq = a.seq, .n_seq = g->count, .plan = c->plan};
    GR_TRY(gr_cuda_attn_plan(&plan, g->device.stream));
    for (int i = 0; i < n_layer; i++) {
        a.kv = (const uint8_t *)g->arena + (size_t)i * c->layer_bytes;
        a.layer = i;
        GR_TRY(gr_cuda_attention(&a, g->device.stream));
    }
    return GR_OK;
}

/* Blocks in the order 0, STRIDE, 2 STRIDE, ... modulo their number: scattered as in a pool. A row's parent is up to six
 * rows before it. */
static void describe_tree(const struct gr_tune_attention *c, int n_block, int32_t *block, struct tree *t)
{
    const int n_scratch = GR_TUNE_ROW_MAX / GR_KV_BLOCK_TOKENS;
    for (int i = 0; i < n_block; i++) {
        block[i] = (int32_t)((int64_t)i * BLOCK_STRIDE % n_block);
    }
    for (int i = 0; i < n_scratch; i++) {
        t->scratch_block[i] = block[n_block - n_scratch + i];
    }
    for (int r = 0; r < c->n_row; r++) {
        const int parent = r == 0 ? -1 : GR_MAX(0, r - 1 - r * 7 % 6);
        int16_t *anc = &t->anc[r * GR_ATTN_ANC_MAX];
        const int n = parent < 0 ? 0 : t->n_anc[parent];
        if (parent >= 0) {
            memcpy(anc, &t->anc[parent * GR_ATTN_ANC_MAX], (size_t)n * sizeof(*anc));
        }
        anc[n] = (int16_t)r;
        t->n_anc[r] = n + 1;
        t->limit[r] = c->n_context;
    }
    t->seq.n_row = c->n_row;
    t->seq.n_slot = c->n_row;
}

static enum gr_status upload_tree(struct gr_tune_gpu *g, const struct gr_tune_attention *c, int n_block,
                                  struct attention_case *to)
{
    struct tree *t = calloc(1, sizeof(*t));
    int32_t *block = calloc((size_t)n_block, sizeof(*block));
    uint8_t *dev = NULL;
    enum gr_status st = t != NULL && block != NULL ? GR_OK : GR_ENOMEM;
    if (st == GR_OK) {
        st = gr_cuda_take(&g->device, "inputs and results", sizeof(*t), &to->tree);
    }
    if (st == GR_OK) {
        st = gr_cuda_take(&g->device, "inputs and results", (size_t)n_block * sizeof(*block), &to->block);
    }
    if (st == GR_OK) {
        describe_tree(c, n_block, block, t);
        dev = to->tree;
        t->seq.block = to->block;
        t->seq.limit = (const int32_t *)(dev + offsetof(struct tree, limit));
        t->seq.n_anc = (const int32_t *)(dev + offsetof(struct tree, n_anc));
        t->seq.scratch_block = (const int32_t *)(dev + offsetof(struct tree, scratch_block));
        t->seq.anc = (const int16_t *)(dev + offsetof(struct tree, anc));
        to->a.seq = (const struct gr_attn_seq *)dev;
        st = gr_cuda_upload(&g->device, to->tree, t, sizeof(*t), "inputs");
    }
    if (st == GR_OK) {
        st = gr_cuda_upload(&g->device, to->block, block, (size_t)n_block * sizeof(*block), "inputs");
    }
    free(block);
    free(t);
    return st;
}

static enum gr_status prepare(struct gr_tune_gpu *g, const struct gr_tune_attention *c, struct attention_case *to)
{
    const int n_q = c->n_head * c->head_dim;
    const int n_block = c->n_context / GR_KV_BLOCK_TOKENS + N_KV_FREE;
    const size_t q_bytes = (size_t)GR_TUNE_ROW_MAX * (size_t)n_q * sizeof(uint16_t);
    const struct gr_cuda_attn_shape *s = &to->a.shape;
    GR_ASSERT(n_block < BLOCK_STRIDE);
    to->layer_bytes = gr_cuda_block_at(n_block, 0, c->n_kv_head, c->head_dim) * sizeof(uint16_t);
    to->n_layer = choose_copies(to->layer_bytes);
    GR_TRY(need_arena(g, to->layer_bytes * (size_t)to->n_layer));
    GR_TRY(upload_tree(g, c, n_block, to));
    GR_TRY(gr_cuda_take(&g->device, "inputs and results", q_bytes, &to->q));
    GR_TRY(gr_cuda_take(&g->device, "inputs and results", gr_cuda_tile_bytes(GR_TUNE_ROW_MAX, n_q), &to->out));
    GR_TRY(gr_cuda_take(&g->device, "inputs and results", gr_cuda_attn_plan_bytes(s), &to->plan));
    GR_TRY(gr_cuda_take(&g->device, "inputs and results", gr_cuda_attn_work_bytes(s), &to->work));
    to->a.q = to->q;
    to->a.out = to->out;
    to->a.plan = to->plan;
    to->a.work = to->work;
    GR_TRY(fill(g, to->q, q_bytes));
    return set_count(g, 1);
}

/* A plan that was refused computes nothing, fast. */
static enum gr_status check_plan(const struct gr_tune_gpu *g, const struct attention_case *c)
{
    int32_t error = 0;
    GR_TRY(gr_cuda_wait(&g->device, "graft-bench tune"));
    GR_TRY(gr_cuda_check(cudaMemcpy(&error, gr_cuda_attn_plan_error(c->plan), sizeof(error), cudaMemcpyDeviceToHost),
                         "plan of attention"));
    if (error != GR_CUDA_ATTN_OK) {
        log_error("CUDA: attention refused the rows to measure with (enum gr_cuda_attn_error %d)", (int)error);
        return GR_ELIMIT;
    }
    return GR_OK;
}

enum gr_status gr_tune_gpu_attention(struct gr_tune_gpu *g, const struct gr_tune_attention *a, int n_rep,
                                     double *us_out)
{
    GR_ASSERT(a->n_row >= 1 && a->n_row <= GR_TUNE_ROW_MAX);
    struct attention_case c = {.g = g,
                               .a = {.shape = {.n_head = a->n_head,
                                               .n_kv_head = a->n_kv_head,
                                               .head_dim = a->head_dim,
                                               .n_row_max = GR_TUNE_ROW_MAX,
                                               .n_seq_max = 1,
                                               .n_slot_max = GR_TUNE_ROW_MAX,
                                               .n_split_max = a->n_split_max},
                                     .n_row = a->n_row,
                                     .n_seq = 1,
                                     .q_stride = a->n_head * a->head_dim,
                                     .scale = 0.1f}};
    enum gr_status st = prepare(g, a, &c);
    if (st == GR_OK) {
        st = time_graph(g, enqueue_attention, &c, c.n_layer, n_rep, us_out);
    }
    if (st == GR_OK) {
        st = check_plan(g, &c);
    }
    void *const taken[] = {c.tree, c.block, c.q, c.out, c.plan, c.work};
    for (size_t i = 0; i < GR_ARRAY_LEN(taken); i++) {
        gr_cuda_give_back(&g->device, taken[i]);
    }
    return st;
}
