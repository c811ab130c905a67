/* Tree attention: the plan of a pass, and the doors of attention.h. */
#include "kernels/cuda/attention_plan.cuh"

#include <cstdio>

namespace gr
{

constexpr int N_PLAN_THREAD = 512;

struct PlanArgs {
    gr_cuda_attn_shape shape;
    const gr_attn_seq *seq;
    const int32_t *n_seq;
    Plan *plan;
};

static __device__ void refuse(Plan *plan, int error)
{
    atomicMax(&plan->error, error);
}

/* A warp: the rows of one sequence, NEAR_ROWS at a time. */
static __device__ void plan_groups(const PlanArgs &a, int i_seq, int lane, int *n_group)
{
    const gr_attn_seq &s = a.seq[i_seq];
    if (s.n_slot < 0 || s.n_slot > GR_CUDA_SLOT_MAX) {
        refuse(a.plan, GR_CUDA_ATTN_SLOTS);
    }
    for (int row0 = lane * NEAR_ROWS; row0 < s.n_row; row0 += 32 * NEAR_ROWS) {
        int first = 1 << 30, end = 0;
        for (int r = row0; r < min(row0 + NEAR_ROWS, s.n_row); r++) {
            const int limit = s.limit[r], n_anc = s.n_anc[r];
            if (n_anc < 0 || n_anc > GR_ATTN_ANC_MAX || limit < 0 || limit + n_anc < 1) {
                refuse(a.plan, GR_CUDA_ATTN_SLOTS);
                return;
            }
            for (int i = 0; i < n_anc; i++) {
                const int slot = s.anc[r * GR_ATTN_ANC_MAX + i];
                if (slot < 0 || slot >= s.n_slot) {
                    refuse(a.plan, GR_CUDA_ATTN_SLOTS);
                    return;
                }
            }
            if (s.sparse && (limit < s.dense_from || s.dense_from % GR_KV_BLOCK != 0)) {
                refuse(a.plan, GR_CUDA_ATTN_SPAN);
            }
            first = min(first, near_from(s, r));
            end = max(end, limit);
        }
        if ((end + GR_KV_BLOCK - 1) / GR_KV_BLOCK - first / GR_KV_BLOCK > NEAR_POOL_BLOCKS) {
            refuse(a.plan, GR_CUDA_ATTN_SPAN);
        }
        a.plan->group[atomicAdd(n_group, 1)] = i_seq << 16 | row0 / NEAR_ROWS;
    }
}

/* A warp: up to tile_rows rows, one tile for each split_len among them, smallest first. Lane l has rows l and l + 32. */
static __device__ void plan_tiles(const PlanArgs &a, int i_seq, int row0, int n_row, int lane, int *n_tile)
{
    const gr_attn_seq &s = a.seq[i_seq];
    int far[2], len[2], done = 0; /* rows of this length or a smaller one have a tile */
    for (int h = 0; h < 2; h++) {
        far[h] = lane + 32 * h < n_row ? far_len(s, row0 + lane + 32 * h) : 0;
        len[h] = split_len(far[h]);
    }
    for (;;) {
        const int mine = min(len[0] > done ? len[0] : 1 << 30, len[1] > done ? len[1] : 1 << 30);
        done = __reduce_min_sync(~0u, mine);
        if (done == 1 << 30) {
            return;
        }
        int at = 0, n = 0;
        at = lane == 0 ? atomicAdd(n_tile, 1) : 0;
        at = __shfl_sync(~0u, at, 0);
        if (at >= n_tile_max(a.shape)) {
            refuse(a.plan, GR_CUDA_ATTN_SPAN);
            return;
        }
        Tile &t = a.plan->raw[at];
        int lo = 1 << 30, hi = 0;
        for (int h = 0; h < 2; h++) {
            const bool in = len[h] == done;
            const uint32_t mask = __ballot_sync(~0u, in);
            if (in) {
                const int i = n + __popc(mask & ((1u << lane) - 1));
                t.row[i] = (int16_t)(row0 + lane + 32 * h);
                t.far[i] = far[h];
                lo = min(lo, far[h]);
                hi = max(hi, far[h]);
            }
            n += __popc(mask);
        }
        lo = __reduce_min_sync(~0u, lo);
        hi = __reduce_max_sync(~0u, hi);
        if (lane == 0) {
            t.seq = i_seq, t.n_row = n, t.far_len = hi, t.far_min = lo;
            t.split_len = done, t.n_split = (hi + done - 1) / done;
        }
    }
}

/* A thread for a tile: its place among them, longest splits first, and its items. */
static __device__ void place_tile(const PlanArgs &a, int i, int n_tile)
{
    const Tile &t = a.plan->raw[i];
    int place = 0, first = 0;
    for (int k = 0; k < n_tile; k++) {
        const Tile &other = a.plan->raw[k];
        if (other.split_len > t.split_len || (other.split_len == t.split_len && k < i)) {
            place++;
            first += other.n_split * a.shape.n_kv_head;
        }
    }
    a.plan->tile[place] = t;
    for (int h = 0; h < a.shape.n_kv_head; h++) {
        for (int k = 0; k < t.n_split; k++) {
            a.plan->item[first + h * t.n_split + k] = (uint32_t)(place << 16 | h << 8 | k);
        }
    }
    atomicAdd(&a.plan->n_item, t.n_split * a.shape.n_kv_head);
}

__global__ void __launch_bounds__(N_PLAN_THREAD) plan_kernel(const PlanArgs a)
{
    __shared__ int n_tile, n_group, n_row;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, n_seq = *a.n_seq;
    Plan *p = a.plan;
    if (threadIdx.x == 0) {
        uint8_t *at = (uint8_t *)(p + 1);
        const int tiles = n_tile_max(a.shape);
        n_tile = n_group = n_row = 0;
        p->error = p->n_tile = p->n_item = p->n_group = 0;
        p->tile = (Tile *)at;
        p->raw = p->tile + tiles;
        p->item = (uint32_t *)(p->raw + tiles);
        p->group = (int32_t *)(p->item + (size_t)tiles * a.shape.n_kv_head * GR_CUDA_SPLIT_MAX);
        for (int i = 0; i < n_seq && i < a.shape.n_seq_max; i++) {
            n_row += a.seq[i].n_row;
        }
        if (n_seq > a.shape.n_seq_max || n_row > a.shape.n_row_max) {
            refuse(p, GR_CUDA_ATTN_ROWS);
        }
    }
    __syncthreads();
    if (p->error != 0) {
        return;
    }
    for (int i = warp; i < n_seq; i += N_PLAN_THREAD / 32) {
        plan_groups(a, i, lane, &n_group);
    }
    __syncthreads();
    if (*(volatile int *)&p->error != 0) {
        return;
    }
    const int step = tile_rows(a.shape.n_head / a.shape.n_kv_head);
    for (int i = 0, k = 0; i < n_seq; i++) {
        for (int row0 = 0; row0 < a.seq[i].n_row; row0 += step, k++) {
            if (k % (N_PLAN_THREAD / 32) == warp) {
                plan_tiles(a, i, row0, min(step, a.seq[i].n_row - row0), lane, &n_tile);
            }
        }
    }
    __syncthreads();
    if (*(volatile int *)&p->error != 0) {
        return;
    }
    for (int i = (int)threadIdx.x; i < n_tile; i += N_PLAN_THREAD) {
        place_tile(a, i, n_tile);
    }
    if (threadIdx.x == 0) {
        p->n_tile = n_tile;
        p->n_group = n_group;
    }
}

static enum gr_status status_of(cudaError_t e, const char *what)
{
    if (e == cudaSuccess) {
        return GR_OK;
    }
    fprintf(stderr, "cuda: %s: %s\n", what, cudaGetErrorString(e));
    (void)cudaGetLastError();
    return GR_ECUDA;
}

static enum gr_status check_shape(const gr_cuda_attn_shape *s)
{
    if ((s->head_dim != 64 && s->head_dim != 128) || s->n_kv_head < 1 || s->n_kv_head > 256 ||
        s->n_head % s->n_kv_head != 0 || s->n_head / s->n_kv_head < 1 ||
        s->n_head / s->n_kv_head > GR_CUDA_GROUP_MAX || s->n_row_max < 1 || s->n_row_max > 1 << 15 ||
        s->n_seq_max < 1 || s->n_seq_max > 1 << 10) {
        fprintf(stderr,
                "cuda: attention of %d query heads, %d KV heads of %d (%d rows, %d sequences) is not built: head_dim"
                " 64 or 128, at most %d query heads a KV head\n",
                s->n_head, s->n_kv_head, s->head_dim, s->n_row_max, s->n_seq_max, (int)GR_CUDA_GROUP_MAX);
        return GR_EUNSUPPORTED;
    }
    return GR_OK;
}

} // namespace gr

size_t gr_cuda_attn_plan_bytes(const struct gr_cuda_attn_shape *s)
{
    const size_t tiles = (size_t)gr::n_tile_max(*s);
    return sizeof(gr::Plan) + tiles * (2 * sizeof(gr::Tile) + (size_t)s->n_kv_head * GR_CUDA_SPLIT_MAX * 4) +
           (size_t)(s->n_row_max / gr::NEAR_ROWS + s->n_seq_max + 1) * 4;
}

size_t gr_cuda_attn_work_bytes(const struct gr_cuda_attn_shape *s)
{
    return (size_t)GR_CUDA_SPLIT_MAX * s->n_row_max * s->n_head * (s->head_dim + 2) * sizeof(float);
}

enum gr_status gr_cuda_attn_plan(const struct gr_cuda_attn_shape *shape, const struct gr_attn_seq *seq,
                                 const int32_t *n_seq, void *plan, struct CUstream_st *stream)
{
    GR_TRY(gr::check_shape(shape));
    gr::plan_kernel<<<1, gr::N_PLAN_THREAD, 0, stream>>>(gr::PlanArgs{*shape, seq, n_seq, (gr::Plan *)plan});
    return gr::status_of(cudaGetLastError(), "plan of attention");
}

enum gr_status gr_cuda_attention(const struct gr_cuda_attention_args *a, struct CUstream_st *stream)
{
    GR_TRY(gr::check_shape(&a->shape));
    if (a->n_row < 1 || a->n_row > a->shape.n_row_max || a->n_seq < 1 || a->n_seq > a->shape.n_seq_max ||
        a->q_stride % 8 != 0 || a->out_stride % 2 != 0) {
        fprintf(stderr, "cuda: attention: %d rows of %d sequences, room for %d and %d; strides %d and %d\n", a->n_row,
                a->n_seq, a->shape.n_row_max, a->shape.n_seq_max, a->q_stride, a->out_stride);
        return GR_EINVAL;
    }
    GR_TRY(gr::status_of(gr::launch_far(*a, stream), "attention, far keys"));
    return gr::status_of(gr::launch_near(*a, stream), "attention, near keys");
}
