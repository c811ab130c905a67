/* Tree attention: the plan of a pass, and the doors of attention.h. */
#include "kernels/cuda/attention_plan.cuh"
#include "kernels/cuda/cuda_status.cuh"

#include <cstdio>

namespace gr
{

constexpr int N_PLAN_THREAD = 1024;
constexpr int N_PLAN_WARP = N_PLAN_THREAD / 32;
constexpr int NOWHERE = 1 << 30;

struct PlanArgs {
    gr_cuda_attn_shape shape;
    const gr_attn_seq *seq;
    const int32_t *n_seq;
    PlanParts plan;
    int32_t *error; /* NULL: only in the plan */
};

/* Of sequence i: groups and (rows / tile_rows) pieces before it. One more than there are sequences. */
struct Starts {
    int group[N_PLAN_THREAD + 1], piece[N_PLAN_THREAD + 1];
};

static __device__ void refuse(const PlanParts &plan, int error)
{
    atomicMax(&plan.head->error, error);
}

/* The sequence that piece or group i belongs to. */
static __device__ int seq_of(const int *start, int n_seq, int i)
{
    int lo = 0, hi = n_seq; /* start[lo] <= i < start[hi] */
    while (hi - lo > 1) {
        const int mid = (lo + hi) / 2;
        (start[mid] <= i ? lo : hi) = mid;
    }
    return lo;
}

static __device__ int near_cell(const PlanArgs &a, const gr_attn_seq &s, const Group &g, int first, int row, int pos)
{
    const int limit = s.limit[row];
    if (pos < limit) {
        return pos - first * GR_KV_BLOCK;
    }
    const int slot = s.anc[row * GR_ATTN_ANC_MAX + pos - limit];
    if (slot < 0 || slot >= s.n_slot) {
        refuse(a.plan, GR_CUDA_ATTN_SLOTS);
        return 0;
    }
    return g.n_pool * GR_KV_BLOCK + slot;
}

/* A warp: the rows of a group, lane l < 4 its row l. */
static __device__ void plan_group(const PlanArgs &a, const gr_attn_seq &s, int row0, Group &g, int lane)
{
    const int n_row = min(NEAR_ROWS, s.n_row - row0), row = row0 + min(lane, n_row - 1);
    const int limit = s.limit[row], n_anc = s.n_anc[row];
    const bool bad = n_anc < 0 || n_anc > GR_ATTN_ANC_MAX || limit < 0 || limit + n_anc < 1 || s.n_slot < 0 ||
                     s.n_slot > a.shape.n_slot_max;
    const bool below = s.sparse && (limit < s.dense_from || s.dense_from % GR_KV_BLOCK != 0);
    if (__any_sync(~0u, bad || below)) {
        refuse(a.plan, bad ? GR_CUDA_ATTN_SLOTS : GR_CUDA_ATTN_SPAN);
        return;
    }
    const int from = near_from(s, row), pos = limit + n_anc - 1;
    const int first = __reduce_min_sync(~0u, from) / GR_KV_BLOCK;
    const int n_pool = max(0, (__reduce_max_sync(~0u, limit) + GR_KV_BLOCK - 1) / GR_KV_BLOCK - first);
    if (n_pool > NEAR_POOL_BLOCKS) {
        refuse(a.plan, GR_CUDA_ATTN_SPAN);
        return;
    }
    const int n_block = n_pool + (s.n_slot + GR_KV_BLOCK - 1) / GR_KV_BLOCK;
    if (lane == 0) {
        g.row0 = s.row0 + row0, g.n_row = n_row, g.n_pool = n_pool, g.n_block = n_block;
    }
    if (lane < NEAR_BLOCKS_MAX) {
        g.block[lane] = lane < n_pool ? s.block[first + lane] : lane < n_block ? s.scratch_block[lane - n_pool] : 0;
    }
    if (lane < n_row) {
        const int far = far_len(s, row), len = split_len(a.shape, far);
        g.n_key[lane] = (int16_t)(pos - from + 1);
        g.n_split[lane] = (int16_t)(len == 0 ? 0 : (far + len - 1) / len);
    }
    __syncwarp();
    for (int r = 0; r < n_row; r++) {
        const int start = __shfl_sync(~0u, from, r), end = __shfl_sync(~0u, pos, r);
        for (int key = lane; key < NEAR_KEYS; key += 32) {
            g.cell[r][key % 8][key / 8] = (uint16_t)near_cell(a, s, g, first, row0 + r, min(start + key, end));
        }
        __syncwarp();
    }
}

/* Far keys below this one were there before the pass: chain rows write theirs in it. Per thread: its rows only. */
static __device__ int first_new(const gr_attn_seq &s, int row)
{
    return s.n_anc[row] == 0 ? s.limit[row] - 1 : NOWHERE;
}

/* A warp: up to tile_rows rows, one tile for each split_len among them, smallest first. Lane l has rows l and l + 32.
 */
static __device__ void plan_tiles(const PlanArgs &a, int i_seq, int row0, int n_row, int lane, int *n_tile)
{
    const gr_attn_seq &s = a.seq[i_seq];
    int far[2], len[2], done = 0;                           /* rows of this length or a smaller one have a tile */
    int fresh = lane < s.n_row ? first_new(s, 0) : NOWHERE; /* a session's chain rows come first */
    for (int h = 0; h < 2; h++) {
        far[h] = lane + 32 * h < n_row ? far_len(s, row0 + lane + 32 * h) : 0;
        len[h] = split_len(a.shape, far[h]);
    }
    for (;;) {
        const int mine = min(len[0] > done ? len[0] : NOWHERE, len[1] > done ? len[1] : NOWHERE);
        done = __reduce_min_sync(~0u, mine);
        if (done == NOWHERE) {
            return;
        }
        int n = 0, lo = NOWHERE, hi = 0, at = lane == 0 ? atomicAdd(n_tile, 1) : 0;
        at = __shfl_sync(~0u, at, 0);
        if (at >= n_tile_max(a.shape)) {
            refuse(a.plan, GR_CUDA_ATTN_SPAN);
            return;
        }
        Tile &t = a.plan.raw[at];
        for (int h = 0; h < 2; h++) {
            const bool in = len[h] == done;
            const uint32_t mask = __ballot_sync(~0u, in);
            if (in) {
                const int i = n + __popc(mask & ((1u << lane) - 1));
                t.row[i] = s.row0 + row0 + lane + 32 * h;
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
            t.old = fresh >= (s.sparse ? hi - s.n_sparse * GR_KV_BLOCK + s.dense_from : hi);
        }
    }
}

/* All threads: a tile to its place, longest splits first, and its items. */
static __device__ void place_tile(const PlanArgs &a, int i, int n_tile)
{
    const Tile &t = a.plan.raw[i];
    const gr_attn_seq &s = a.seq[t.seq];
    int place = 0, first = 0;
    for (int k = 0; k < n_tile; k++) {
        const Tile &other = a.plan.raw[k];
        if (other.split_len > t.split_len || (other.split_len == t.split_len && k < i)) {
            place++;
            first += other.n_split * a.shape.n_kv_head;
        }
    }
    for (int k = (int)threadIdx.x; k < (int)sizeof(Tile) / 4; k += N_PLAN_THREAD) {
        ((int *)(a.plan.tile + place))[k] = ((const int *)&t)[k];
    }
    for (int k = (int)threadIdx.x; k < a.shape.n_kv_head * t.n_split; k += N_PLAN_THREAD) {
        Item it{};
        it.tile = place, it.kv_head = k / t.n_split, it.split = k % t.n_split, it.n_row = t.n_row;
        it.first = it.split * t.split_len;
        it.n_key = min(t.split_len, t.far_len - it.first);
        it.n_whole = max(0, min(it.n_key, t.far_min - it.first)) / GR_CUDA_KEY_TILE;
        it.old = t.old;
        it.block = s.block, it.sparse = s.sparse;
        it.sparse_stride = s.sparse_stride, it.n_sparse = s.n_sparse, it.dense_block = s.dense_from / GR_KV_BLOCK;
        a.plan.item[first + k] = it;
    }
    if (threadIdx.x == 0) {
        a.plan.head->n_item += t.n_split * a.shape.n_kv_head;
    }
}

/* One thread. */
static __device__ void begin_plan(const PlanArgs &a, Starts &starts, int n_seq, int step)
{
    Plan *p = a.plan.head;
    int n_row = 0, n_group = 0, n_piece = 0;
    p->error = p->n_tile = p->n_item = p->n_group = 0;
    for (int i = 0; i < n_seq && i < a.shape.n_seq_max; i++) {
        const int n = starts.group[i]; /* rows, for now */
        starts.group[i] = n_group;
        starts.piece[i] = n_piece;
        n_row += n;
        n_group += (n + NEAR_ROWS - 1) / NEAR_ROWS;
        n_piece += (n + step - 1) / step;
    }
    if (n_seq < 1 || n_seq > a.shape.n_seq_max || n_row > a.shape.n_row_max) {
        refuse(a.plan, GR_CUDA_ATTN_ROWS);
        return;
    }
    starts.group[n_seq] = n_group;
    starts.piece[n_seq] = n_piece;
}

static __device__ __forceinline__ void make_plan(const PlanArgs &a)
{
    __shared__ Starts starts;
    __shared__ int n_tile;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, n_seq = *a.n_seq;
    const int step = tile_rows(a.shape.n_head / a.shape.n_kv_head);
    if ((int)threadIdx.x < min(n_seq, a.shape.n_seq_max)) {
        starts.group[threadIdx.x] = a.seq[threadIdx.x].n_row;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        n_tile = 0;
        begin_plan(a, starts, n_seq, step);
    }
    __syncthreads();
    if (*(volatile int *)&a.plan.head->error != 0) {
        return;
    }
    const int n_group = starts.group[n_seq], n_piece = starts.piece[n_seq];
    for (int i = warp; i < n_piece; i += N_PLAN_WARP) {
        const int k = seq_of(starts.piece, n_seq, i), row0 = (i - starts.piece[k]) * step;
        plan_tiles(a, k, row0, min(step, a.seq[k].n_row - row0), lane, &n_tile);
    }
    for (int i = N_PLAN_WARP - 1 - warp; i < n_group; i += N_PLAN_WARP) {
        const int k = seq_of(starts.group, n_seq, i);
        plan_group(a, a.seq[k], (i - starts.group[k]) * NEAR_ROWS, a.plan.group[i], lane);
    }
    __syncthreads();
    if (*(volatile int *)&a.plan.head->error != 0) {
        return;
    }
    for (int i = 0; i < n_tile; i++) {
        place_tile(a, i, n_tile);
    }
    if (threadIdx.x == 0) {
        a.plan.head->n_tile = n_tile;
        a.plan.head->n_group = n_group;
    }
}

__global__ void __launch_bounds__(N_PLAN_THREAD) plan_kernel(const PlanArgs a)
{
    make_plan(a);
    __syncthreads();
    if (threadIdx.x == 0 && a.error != nullptr) {
        *a.error = *(volatile int *)&a.plan.head->error;
    }
}

/* Attention's kernels read the plan before they wait for the kernel before them, so that one must not be the plan's. */
__global__ void between_kernel()
{
}

static enum gr_status check_shape(const gr_cuda_attn_shape *s)
{
    if ((s->head_dim != 64 && s->head_dim != 128) || s->n_kv_head < 1 || s->n_kv_head > 256 ||
        s->n_head % s->n_kv_head != 0 || s->n_head / s->n_kv_head < 1 || s->n_head / s->n_kv_head > GR_CUDA_GROUP_MAX ||
        s->n_slot_max < 0 || s->n_slot_max > GR_CUDA_SLOT_MAX || s->n_row_max < 1 || s->n_row_max > 1 << 15 ||
        s->n_seq_max < 1 || s->n_seq_max > gr::N_PLAN_THREAD || s->n_split_max < 1 ||
        s->n_split_max > GR_CUDA_SPLIT_MAX) {
        fprintf(stderr,
                "cuda: attention of %d query heads, %d KV heads of %d (%d rows, %d sequences, %d slots, %d splits) is"
                " not built: head_dim 64 or 128, at most %d query heads a KV head, %d slots, 1 to %d splits\n",
                s->n_head, s->n_kv_head, s->head_dim, s->n_row_max, s->n_seq_max, s->n_slot_max, s->n_split_max,
                (int)GR_CUDA_GROUP_MAX, (int)GR_CUDA_SLOT_MAX, (int)GR_CUDA_SPLIT_MAX);
        return GR_EUNSUPPORTED;
    }
    return GR_OK;
}

} // namespace gr

size_t gr_cuda_attn_plan_bytes(const struct gr_cuda_attn_shape *s)
{
    return (size_t)(gr::parts_of(*s, nullptr).end - (uint8_t *)nullptr);
}

size_t gr_cuda_attn_work_bytes(const struct gr_cuda_attn_shape *s)
{
    return (size_t)GR_CUDA_SPLIT_MAX * s->n_row_max * s->n_head * (s->head_dim + 2) * sizeof(float);
}

enum gr_status gr_cuda_attn_plan(const struct gr_cuda_attn_shape *shape, const struct gr_attn_seq *seq,
                                 const int32_t *n_seq, void *plan, int32_t *error, struct CUstream_st *stream)
{
    GR_TRY(gr::check_shape(shape));
    gr::plan_kernel<<<1, gr::N_PLAN_THREAD, 0, stream>>>(
        gr::PlanArgs{*shape, seq, n_seq, gr::parts_of(*shape, plan), error});
    gr::between_kernel<<<1, 1, 0, stream>>>();
    return cuda_status_of(cudaGetLastError(), "plan of attention");
}

enum gr_status gr_cuda_attention(const struct gr_cuda_attention_args *a, struct CUstream_st *stream)
{
    GR_TRY(gr::check_shape(&a->shape));
    if (a->n_row < 1 || a->n_row > a->shape.n_row_max || a->n_seq < 1 || a->n_seq > a->shape.n_seq_max ||
        a->q_stride % 8 != 0) {
        fprintf(stderr, "cuda: attention: %d rows of %d sequences, room for %d and %d; stride %d\n", a->n_row, a->n_seq,
                a->shape.n_row_max, a->shape.n_seq_max, a->q_stride);
        return GR_EINVAL;
    }
    GR_TRY(cuda_status_of(gr::launch_far(*a, stream), "attention, far keys"));
    return cuda_status_of(gr::launch_near(*a, stream), "attention, near keys");
}
