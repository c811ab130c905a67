/* Making the plan of a pass's attention: one block, which others may stand beside. */
#ifndef GR_KERNELS_CUDA_ATTENTION_ATTENTION_MAKE_PLAN_CUH
#define GR_KERNELS_CUDA_ATTENTION_ATTENTION_MAKE_PLAN_CUH

#include "kernels/cuda/attention/attention_plan.cuh"
#include "kernels/cuda/device/device.cuh"

namespace gr
{

constexpr int N_PLAN_THREAD = 1024; /* one block plans the pass */
constexpr int N_PLAN_WARP = N_PLAN_THREAD / 32;
constexpr int NOWHERE = 1 << 30; /* a position that no key has */
/* n_tile_max() of the largest shape: 32768 rows, 32 of them in a tile, and as many sessions as there are threads. */
constexpr int PLAN_TILE_MAX = 2 * ((1 << 15) / 32 + N_PLAN_THREAD);

struct PlanArgs {
    gr_cuda_attn_shape shape;
    const gr_attn_seq *seq;
    const int32_t *n_seq;
    PlanParts plan;
    int32_t *error; /* NULL: only in the plan */
    int window;     /* 0: none */
};

__host__ __device__ __forceinline__ PlanArgs plan_args(const gr_cuda_attn_plan_args &a)
{
    return {a.shape, a.seq, a.n_seq, parts_of(a.shape, a.plan), a.error, a.window};
}

/* Of a tile's far keys: tiles of keys in a split, and splits. */
struct PlanSplits {
    uint16_t tiles, n;
};

/* What the block shares. group, piece: of sequence i, groups and (rows / tile_rows) pieces before it; one more than
 * there are sequences. */
struct PlanShared {
    int group[N_PLAN_THREAD + 1], piece[N_PLAN_THREAD + 1];
    int n_tile, n_item, error;
    bool fits; /* said once, before others may note errors */
    PlanSplits splits[PLAN_TILE_MAX];
};

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

static __device__ int near_cell(PlanShared &sh, const gr_attn_seq &s, int n_pool, int first, int row, int pos)
{
    const int limit = s.limit[row];
    if (pos < limit) {
        return pos - first * GR_KV_BLOCK_TOKENS;
    }
    const int slot = s.anc[row * GR_ATTN_ANC_MAX + pos - limit];
    if (slot < 0 || slot >= s.n_slot) {
        atomicMax(&sh.error, GR_CUDA_ATTN_SLOTS);
        return 0;
    }
    return n_pool * GR_KV_BLOCK_TOKENS + slot;
}

/* Into how many splits the far keys of a row at this position are cut. */
static __device__ int n_window_split(const PlanArgs &a, int pos)
{
    const int from = window_first(a.window, pos), to = window_near(a.window, pos),
              len = window_split(a.shape, a.window);
    return from < to ? (to - 1) / len - from / len + 1 : 0;
}

/* A warp: the rows of a group, lane l < 4 its row l. */
template <bool WINDOW>
static __device__ void plan_group(const PlanArgs &a, PlanShared &sh, const gr_attn_seq &s, int row0, Group &g, int lane)
{
    const int n_row = min(NEAR_ROWS, s.n_row - row0), row = row0 + min(lane, n_row - 1);
    const int limit = s.limit[row], n_anc = s.n_anc[row];
    const bool bad = n_anc < 0 || n_anc > GR_ATTN_ANC_MAX || limit < 0 || limit + n_anc < 1 || s.n_slot < 0 ||
                     s.n_slot > a.shape.n_slot_max;
    const bool below = s.sparse && (limit < s.dense_from || s.dense_from % GR_KV_BLOCK_TOKENS != 0);
    if (__any_sync(~0u, bad || below)) {
        atomicMax(&sh.error, bad ? GR_CUDA_ATTN_SLOTS : GR_CUDA_ATTN_SPAN);
        return;
    }
    if (WINDOW && s.sparse) {
        atomicMax(&sh.error, GR_CUDA_ATTN_VIEW);
        return;
    }
    const int pos = limit + n_anc - 1, from = WINDOW ? window_near(a.window, pos) : near_from(s, row);
    const int first = __reduce_min_sync(~0u, from) / GR_KV_BLOCK_TOKENS;
    const int n_pool = max(0, (__reduce_max_sync(~0u, limit) + GR_KV_BLOCK_TOKENS - 1) / GR_KV_BLOCK_TOKENS - first);
    if (n_pool > NEAR_POOL_BLOCKS) {
        atomicMax(&sh.error, GR_CUDA_ATTN_SPAN);
        return;
    }
    const int n_block = n_pool + (s.n_slot + GR_KV_BLOCK_TOKENS - 1) / GR_KV_BLOCK_TOKENS;
    if (lane == 0) {
        g.row0 = s.row0 + row0, g.n_row = n_row, g.n_pool = n_pool, g.n_block = n_block;
    }
    if (lane < NEAR_BLOCKS_MAX) {
        g.block[lane] = lane < n_pool ? s.block[first + lane] : lane < n_block ? s.scratch_block[lane - n_pool] : 0;
    }
    if (lane < n_row) {
        const int far = far_len(s, row), len = split_len(a.shape, far);
        g.n_key[lane] = (int16_t)(pos - from + 1);
        g.n_split[lane] = (int16_t)(WINDOW ? n_window_split(a, pos) : len == 0 ? 0 : (far + len - 1) / len);
    }
    __syncwarp();
    for (int r = 0; r < n_row; r++) {
        const int start = __shfl_sync(~0u, from, r), end = __shfl_sync(~0u, pos, r);
        for (int key = lane; key < NEAR_KEYS; key += 32) {
            g.cell[r][key % 8][key / 8] = (uint16_t)near_cell(sh, s, n_pool, first, row0 + r, min(start + key, end));
        }
        __syncwarp();
    }
}

/* Far keys below this one were there before the pass: chain rows write theirs in it. Per thread: its rows only. */
static __device__ int first_new(const gr_attn_seq &s, int row)
{
    return s.n_anc[row] == 0 ? s.limit[row] - 1 : NOWHERE;
}

/* A warp: up to tile_rows rows, a tile of them for each split_len among them, smallest first. Lane l has rows l and
 * l + 32. */
static __device__ void plan_tiles(const PlanArgs &a, PlanShared &sh, int i_seq, int row0, int n_row, int lane)
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
        int lo = NOWHERE, hi = 0, at = lane == 0 ? atomicAdd(&sh.n_tile, 1) : 0;
        at = __shfl_sync(~0u, at, 0);
        if (at >= n_tile_max(a.shape)) {
            atomicMax(&sh.error, GR_CUDA_ATTN_SPAN);
            return;
        }
        Tile &t = a.plan.raw[at];
        for (int h = 0; h < 2; h++) {
            const bool in = len[h] == done;
            t.far[lane + 32 * h] = in ? far[h] : NOT_HERE;
            lo = in ? min(lo, far[h]) : lo;
            hi = in ? max(hi, far[h]) : hi;
        }
        lo = __reduce_min_sync(~0u, lo);
        hi = __reduce_max_sync(~0u, hi);
        if (lane == 0) {
            sh.splits[at] = {(uint16_t)(done / GR_CUDA_KEY_TILE), (uint16_t)((hi + done - 1) / done)};
            t.seq = i_seq, t.row0 = s.row0 + row0, t.n_row = n_row, t.far_len = hi, t.far_min = lo;
            t.split_len = done, t.n_split = (hi + done - 1) / done;
            t.old = fresh >= (s.sparse ? hi - s.n_sparse * GR_KV_BLOCK_TOKENS + s.dense_from : hi);
        }
    }
}

/* The same with a window: one tile of all rows that have far keys, since all splits are cut at the same positions. */
static __device__ void plan_window_tile(const PlanArgs &a, PlanShared &sh, int i_seq, int row0, int n_row, int lane)
{
    const gr_attn_seq &s = a.seq[i_seq];
    int pos[2], lo = NOWHERE, hi = 0, fresh = lane < s.n_row ? first_new(s, 0) : NOWHERE;
    for (int h = 0; h < 2; h++) {
        const int row = row0 + lane + 32 * h, at = lane + 32 * h < n_row ? s.limit[row] + s.n_anc[row] - 1 : 0;
        const int from = window_first(a.window, at), to = window_near(a.window, at);
        pos[h] = from < to ? at : NOT_HERE;
        lo = from < to ? min(lo, from) : lo;
        hi = from < to ? max(hi, to) : hi;
    }
    lo = __reduce_min_sync(~0u, lo);
    hi = __reduce_max_sync(~0u, hi);
    if (hi == 0) {
        return;
    }
    const int len = window_split(a.shape, a.window), n_split = (hi - 1) / len - lo / len + 1;
    const int at = __shfl_sync(~0u, lane == 0 ? atomicAdd(&sh.n_tile, 1) : 0, 0);
    if (n_split > 2 * GR_CUDA_SPLIT_MAX) { /* as many items as there is room for; half as many tiles */
        atomicMax(&sh.error, GR_CUDA_ATTN_SPAN);
        return;
    }
    Tile &t = a.plan.raw[at];
    for (int h = 0; h < 2; h++) {
        t.far[lane + 32 * h] = pos[h];
    }
    if (lane == 0) {
        sh.splits[at] = {(uint16_t)(len / GR_CUDA_KEY_TILE), (uint16_t)n_split};
        t.seq = i_seq, t.row0 = s.row0 + row0, t.n_row = n_row, t.far_len = hi, t.far_min = lo;
        t.split_len = len, t.n_split = n_split, t.old = fresh >= hi;
    }
}

/* Where tile i goes among the others, longest splits first, and the first of its items. A warp. */
struct TilePlace {
    int tile, item;
};
static __device__ __forceinline__ TilePlace place_of(const PlanArgs &a, const PlanShared &sh, int i, int lane)
{
    int place = 0, first = 0;
    for (int k = lane; k < sh.n_tile; k += 32) {
        const PlanSplits other = sh.splits[k];
        if (other.tiles > sh.splits[i].tiles || (other.tiles == sh.splits[i].tiles && k < i)) {
            place++;
            first += other.n * a.shape.n_kv_head;
        }
    }
    return {__reduce_add_sync(~0u, place), __reduce_add_sync(~0u, first)};
}

static __device__ __forceinline__ void copy_tile(const PlanArgs &a, const Tile &t, int place, int lane)
{
    for (int k = lane; k < (int)sizeof(Tile) / 4; k += 32) {
        ((int *)(a.plan.tile + place))[k] = ((const int *)&t)[k];
    }
}

/* A warp: a tile to its place, and its items. */
static __device__ void place_tile(const PlanArgs &a, PlanShared &sh, int i, int lane)
{
    const Tile &t = a.plan.raw[i];
    const gr_attn_seq &s = a.seq[t.seq];
    const TilePlace to = place_of(a, sh, i, lane);
    copy_tile(a, t, to.tile, lane);
    for (int k = lane; k < a.shape.n_kv_head * t.n_split; k += 32) {
        Item it{};
        it.tile = to.tile, it.kv_head = k / t.n_split, it.split = k % t.n_split, it.n_row = t.n_row;
        it.first = it.split * t.split_len;
        it.n_key = min(t.split_len, t.far_len - it.first);
        it.n_whole = max(0, min(it.n_key, t.far_min - it.first)) / GR_CUDA_KEY_TILE;
        it.old = t.old;
        it.block = s.block, it.sparse = s.sparse;
        it.row0 = t.row0;
        it.sparse_stride = s.sparse_stride, it.n_sparse = s.n_sparse,
        it.dense_block = s.dense_from / GR_KV_BLOCK_TOKENS;
        a.plan.item[to.item + k] = it;
    }
    if (lane == 0) {
        atomicAdd(&sh.n_item, t.n_split * a.shape.n_kv_head);
    }
}

/* The same with a window. Items' splits are numbered from position 0 on. */
static __device__ void place_window_tile(const PlanArgs &a, PlanShared &sh, int i, int lane)
{
    const Tile &t = a.plan.raw[i];
    const TilePlace to = place_of(a, sh, i, lane);
    int last_from = 0, first_to = NOWHERE; /* of its rows: all of them see the keys from last_from to first_to */
    copy_tile(a, t, to.tile, lane);
    for (int h = 0; h < 2; h++) {
        const int pos = t.far[lane + 32 * h];
        last_from = pos == NOT_HERE ? last_from : max(last_from, window_first(a.window, pos));
        first_to = pos == NOT_HERE ? first_to : min(first_to, window_near(a.window, pos));
    }
    last_from = __reduce_max_sync(~0u, last_from);
    first_to = __reduce_min_sync(~0u, first_to);
    for (int k = lane; k < a.shape.n_kv_head * t.n_split; k += 32) {
        Item it{};
        it.tile = to.tile, it.kv_head = k / t.n_split, it.split = t.far_min / t.split_len + k % t.n_split;
        it.n_row = t.n_row;
        it.first = max(it.split * t.split_len, t.far_min / GR_CUDA_KEY_TILE * GR_CUDA_KEY_TILE);
        const int end = min((it.split + 1) * t.split_len, t.far_len);
        it.n_key = end - it.first;
        it.n_front = (max(0, last_from - it.first) + GR_CUDA_KEY_TILE - 1) / GR_CUDA_KEY_TILE;
        it.n_whole = max(0, min(end, first_to) - it.first) / GR_CUDA_KEY_TILE;
        it.old = t.old;
        it.block = a.seq[t.seq].block;
        it.row0 = t.row0;
        a.plan.item[to.item + k] = it;
    }
    if (lane == 0) {
        atomicAdd(&sh.n_item, t.n_split * a.shape.n_kv_head);
    }
}

/* One thread. */
static __device__ void count_rows(const PlanArgs &a, PlanShared &sh, int n_seq, int step)
{
    int n_row = 0, n_group = 0, n_piece = 0;
    sh.error = sh.n_tile = sh.n_item = 0;
    for (int i = 0; i < n_seq && i < a.shape.n_seq_max; i++) {
        const int n = sh.group[i]; /* rows, for now */
        sh.group[i] = n_group;
        sh.piece[i] = n_piece;
        n_row += n;
        n_group += (n + NEAR_ROWS - 1) / NEAR_ROWS;
        n_piece += (n + step - 1) / step;
    }
    sh.fits = n_seq >= 1 && n_seq <= a.shape.n_seq_max && n_row <= a.shape.n_row_max;
    if (!sh.fits) {
        sh.error = GR_CUDA_ATTN_ROWS;
        return;
    }
    sh.group[n_seq] = n_group;
    sh.piece[n_seq] = n_piece;
}

/* Tiles as they are found, and groups; false: something is wrong. */
template <bool WINDOW> static __device__ __forceinline__ bool find_parts(const PlanArgs &a, PlanShared &sh, int n_seq)
{
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const int step = tile_rows(a.shape.n_head / a.shape.n_kv_head);
    if ((int)threadIdx.x < min(n_seq, a.shape.n_seq_max)) {
        sh.group[threadIdx.x] = a.seq[threadIdx.x].n_row;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        count_rows(a, sh, n_seq, step);
    }
    __syncthreads();
    if (!sh.fits) {
        return false;
    }
    const int n_group = sh.group[n_seq], n_piece = sh.piece[n_seq];
    for (int i = warp; i < n_piece; i += N_PLAN_WARP) {
        const int k = seq_of(sh.piece, n_seq, i), row0 = (i - sh.piece[k]) * step;
        const int n_row = min(step, a.seq[k].n_row - row0);
        if (WINDOW) {
            plan_window_tile(a, sh, k, row0, n_row, lane);
        } else {
            plan_tiles(a, sh, k, row0, n_row, lane);
        }
    }
    for (int i = N_PLAN_WARP - 1 - warp; i < n_group; i += N_PLAN_WARP) {
        const int k = seq_of(sh.group, n_seq, i);
        plan_group<WINDOW>(a, sh, a.seq[k], (i - sh.group[k]) * NEAR_ROWS, a.plan.group[i], lane);
    }
    __syncthreads();
    return sh.error == 0;
}

/* All threads of one block of N_PLAN_THREAD. Kernels after it read the plan without waiting for this one, so that
 * none may start before the plan is everybody's to see: the block never lets the next start by itself. */
template <bool WINDOW> static __device__ __forceinline__ void make_plan(const PlanArgs &a, PlanShared &sh)
{
    const int n_seq = *a.n_seq;
    const bool ok = find_parts<WINDOW>(a, sh, n_seq);
    for (int i = (int)threadIdx.x / 32; ok && i < sh.n_tile; i += N_PLAN_WARP) {
        if (WINDOW) {
            place_window_tile(a, sh, i, (int)threadIdx.x % 32);
        } else {
            place_tile(a, sh, i, (int)threadIdx.x % 32);
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        *a.plan.head = {sh.error, ok ? sh.n_tile : 0, ok ? sh.n_item : 0, ok ? sh.group[n_seq] : 0};
        if (a.error != nullptr) {
            *a.error = sh.error;
        }
    }
    __threadfence();
}

} // namespace gr

#endif
