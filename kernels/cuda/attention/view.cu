/* Partial views: summaries, scores, lists.
 *
 * Scores go through the matrix units (mma.sync): a warp keeps the summaries of 16 blocks in its registers and runs all
 * query rows of the KV head past them. The order of the dimensions is nothing to a product, so both operands are taken
 * as 16-byte pieces as they lie. The warp that scores a block makes its summary first, where there is none: so a layer
 * is one kernel. Lists need all scores of a KV head; they are made for all layers at once, by a radix select in shared
 * memory. */
#include "kernels/cuda/attention/view.h"

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/device/cuda_status.cuh"
#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/device/kv_layout.h"
#include "kernels/cuda/device/launch.cuh"

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstdio>

namespace gr
{

constexpr int SCORE_THREADS = 128;      /* four warps, each with a tile of its own */
constexpr int SCORE_GRID_MAX = 3 * 132; /* blocks that are on the device at a time: three a multiprocessor */
constexpr int TILE_BLOCKS = 16;         /* key blocks that a warp scores together */

constexpr int LIST_THREADS = 1024; /* one block makes the list of a layer and KV head */
constexpr int LIST_WARPS = LIST_THREADS / 32;
constexpr int N_BIN = 256; /* values of a byte: the largest scores are found a byte at a time */

struct ScoreArgs {
    gr_cuda_views v;
    gr_cuda_view_layer l;
};

/* A refresh, a KV head, and blocks [first, end). */
struct ViewTile {
    const gr_cuda_refresh &r;
    int i_refresh, kv_head, first, end;
};

static __device__ __forceinline__ uint32_t max2(uint32_t a, uint32_t b)
{
    const __nv_bfloat162 m = __hmax2(*(__nv_bfloat162 *)&a, *(__nv_bfloat162 *)&b);
    return *(const uint32_t *)&m;
}

static __device__ __forceinline__ uint32_t min2(uint32_t a, uint32_t b)
{
    const __nv_bfloat162 m = __hmin2(*(__nv_bfloat162 *)&a, *(__nv_bfloat162 *)&b);
    return *(const uint32_t *)&m;
}

struct Extremes {
    uint4 hi, lo;
    __device__ __forceinline__ void take(const uint4 &h, const uint4 &l)
    {
        hi = make_uint4(max2(hi.x, h.x), max2(hi.y, h.y), max2(hi.z, h.z), max2(hi.w, h.w));
        lo = make_uint4(min2(lo.x, l.x), min2(lo.y, l.y), min2(lo.z, l.z), min2(lo.w, l.w));
    }
};

static __device__ __forceinline__ uint4 shuffle(const uint4 &v, int mask)
{
    return make_uint4(__shfl_xor_sync(~0u, v.x, mask), __shfl_xor_sync(~0u, v.y, mask), __shfl_xor_sync(~0u, v.z, mask),
                      __shfl_xor_sync(~0u, v.w, mask));
}

/* A warp: the summary of a block of keys. A lane has eight dimensions of some of the 16 cells. */
template <int HD> static __device__ void summarize(const uint16_t *keys, uint16_t *summary, int lane)
{
    constexpr int PIECES = HD / 8, CELLS = HD / 16; /* cells of a lane: 32 / PIECES lanes share a piece */
    const int d = lane % PIECES * 8, first = lane / PIECES * CELLS;
    uint4 key[CELLS];
#pragma unroll
    for (int i = 0; i < CELLS; i++) {
        key[i] = *(const uint4 *)(keys + gr_cuda_key_at(first + i, d, HD));
    }
    Extremes e{key[0], key[0]};
#pragma unroll
    for (int i = 1; i < CELLS; i++) {
        e.take(key[i], key[i]);
    }
#pragma unroll
    for (int mask = PIECES; mask < 32; mask *= 2) {
        e.take(shuffle(e.hi, mask), shuffle(e.lo, mask));
    }
    if (lane < 2 * PIECES) {
        *(uint4 *)(summary + lane / PIECES * HD + d) = lane < PIECES ? e.hi : e.lo;
    }
}

/* Sixteen dimensions of 16 rows by 8 columns, added. The halves of a and b are those of a 16-byte piece. */
static __device__ __forceinline__ void multiply(float (&c)[4], const uint2 &a0, const uint2 &a1, const uint2 &b)
{
    multiply_16x8(c[0], c[1], c[2], c[3], a0.x, a1.x, a0.y, a1.y, b.x, b.y);
}

static __device__ __forceinline__ uint2 half_of(const uint4 &v, int half)
{
    return half ? make_uint2(v.z, v.w) : make_uint2(v.x, v.y);
}

/* Scores of a tile's blocks. Lane l has column l / 4 of both groups of eight blocks, and rows l / 4 and 8 more of 16
 * pairs of (query row, head of the group); of the products, columns l % 4 * 2 and the next. */
template <int HD> struct Scorer {
    static constexpr int CHUNKS = HD / 32;
    uint4 hi[2][CHUNKS], lo[2][CHUNKS];
    float sum[2][2];
    bool use_max;

    /* Past the end the last block stands in; nobody writes its score. */
    __device__ __forceinline__ void load(const uint16_t *summary, const ViewTile &t, int lane)
    {
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const uint16_t *from = summary + (size_t)min(t.first + 8 * j + lane / 4, t.end - 1) * (2 * HD);
#pragma unroll
            for (int c = 0; c < CHUNKS; c++) {
                hi[j][c] = *(const uint4 *)(from + 32 * c + lane % 4 * 8);
                lo[j][c] = *(const uint4 *)(from + HD + 32 * c + lane % 4 * 8);
            }
            sum[j][0] = sum[j][1] = use_max ? -INFINITY : 0.0f;
        }
    }

    __device__ __forceinline__ void add(int j, int col, float score)
    {
        sum[j][col] = use_max ? fmaxf(sum[j][col], score) : __fadd_rn(sum[j][col], score);
    }

    /* 16 pairs; row[h] NULL: there is none. */
    __device__ __forceinline__ void add_pairs(const uint16_t *const (&row)[2], int lane)
    {
        uint4 q[2][CHUNKS];
        float up[2][4] = {}, down[2][4] = {};
#pragma unroll
        for (int h = 0; h < 2; h++) {
#pragma unroll
            for (int c = 0; c < CHUNKS; c++) {
                q[h][c] = row[h] != nullptr ? *(const uint4 *)(row[h] + 32 * c + lane % 4 * 8) : make_uint4(0, 0, 0, 0);
            }
        }
#pragma unroll
        for (int c = 0; c < 2 * CHUNKS; c++) {
            const uint2 a0 = half_of(q[0][c / 2], c % 2), a1 = half_of(q[1][c / 2], c % 2);
#pragma unroll
            for (int j = 0; j < 2; j++) {
                multiply(up[j], a0, a1, half_of(hi[j][c / 2], c % 2));
                multiply(down[j], a0, a1, half_of(lo[j][c / 2], c % 2));
            }
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (row[i / 2] != nullptr) {
                add(0, i % 2, fmaxf(up[0][i], down[0][i]));
                add(1, i % 2, fmaxf(up[1][i], down[1][i]));
            }
        }
    }

    /* Over the lanes that have the same columns. */
    __device__ __forceinline__ void merge()
    {
#pragma unroll
        for (int mask = 4; mask < 32; mask *= 2) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                add(i / 2, i % 2, __shfl_xor_sync(~0u, sum[i / 2][i % 2], mask));
            }
        }
    }
};

template <int HD>
static __device__ void score_tile(const ScoreArgs &a, const ViewTile &t, const uint16_t *summary, int lane)
{
    const gr_cuda_view_shape &s = a.v.shape;
    const int group = s.n_head / s.n_kv_head, n_pair = t.r.n_row * group;
    const uint16_t *q = a.l.q + (size_t)t.r.row0 * a.l.q_stride + t.kv_head * group * HD;
    Scorer<HD> scorer;
    scorer.use_max = t.r.use_max != 0;
    scorer.load(summary, t, lane);
    for (int m0 = 0; m0 < n_pair; m0 += 16) {
        const uint16_t *row[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int pair = m0 + 8 * h + lane / 4;
            row[h] = pair < n_pair ? q + (size_t)(pair / group) * a.l.q_stride + pair % group * HD : nullptr;
        }
        scorer.add_pairs(row, lane);
    }
    scorer.merge();
    const float scale = scorer.use_max ? 1.0f : 1.0f / (float)n_pair;
    float *to =
        a.v.score + (((size_t)t.i_refresh * s.n_layer + a.l.layer) * s.n_kv_head + t.kv_head) * (size_t)s.n_block_max;
    for (int i = 0; lane < 4 && i < 4; i++) {
        const int block = t.first + i / 2 * 8 + lane * 2 + i % 2;
        if (block >= t.r.n_fixed && block < t.r.n_below) {
            to[block] = scorer.sum[i / 2][i % 2] * scale;
        }
    }
}

template <int HD> static __device__ void run_tile(const ScoreArgs &a, const ViewTile &t, int lane)
{
    const gr_cuda_view_shape &s = a.v.shape;
    const size_t first = ((size_t)t.r.view * s.n_layer + a.l.layer) * s.n_kv_head + t.kv_head;
    uint16_t *summary = a.v.summary + first * (size_t)s.n_block_max * (2 * HD);
    for (int b = max(t.first, t.r.n_summed); b < t.end; b++) {
        const uint16_t *keys = (const uint16_t *)a.l.kv + gr_cuda_block_at(t.r.block[b], t.kv_head, s.n_kv_head, HD);
        summarize<HD>(keys, summary + (size_t)b * (2 * HD), lane);
    }
    __syncwarp();
    if (t.r.n_list > t.r.n_fixed && t.first < t.r.n_below && t.end > t.r.n_fixed) {
        score_tile<HD>(a, t, summary, lane);
    }
}

/* Warps take tiles in turn, through all refreshes. */
template <int HD> static __global__ void __launch_bounds__(SCORE_THREADS, 3) score_kernel(const ScoreArgs a)
{
    wait_for_previous();
    let_next_start();
    const int n_warp = (int)gridDim.x * (SCORE_THREADS / 32), n_refresh = *a.v.n_refresh, lane = (int)threadIdx.x % 32;
    int i = (int)blockIdx.x * (SCORE_THREADS / 32) + (int)threadIdx.x / 32;
    for (int k = 0; k < n_refresh; k++) {
        const gr_cuda_refresh &r = a.v.refresh[k];
        const int n_tile = (r.n_whole + TILE_BLOCKS - 1) / TILE_BLOCKS, n = n_tile * a.v.shape.n_kv_head;
        for (; i < n; i += n_warp) {
            const int first = i % n_tile * TILE_BLOCKS;
            run_tile<HD>(a, ViewTile{r, k, i / n_tile, first, min(first + TILE_BLOCKS, r.n_whole)}, lane);
        }
        i -= n;
    }
}

/* ---- lists ---- */

/* Grows with the score; equal scores are equal. */
static __device__ __forceinline__ uint32_t order_of(float score)
{
    const float s = isnan(score) ? -INFINITY : score == 0.0f ? 0.0f : score;
    const uint32_t bits = __float_as_uint(s);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

struct ListShared {
    uint32_t n_in[N_BIN]; /* keys whose next digit it is */
    uint32_t digit, wanted;
    uint32_t warp_sum[LIST_WARPS];
};

/* A warp: the digit of the wanted-th largest key, and which one it is among those with that digit. Lane l has digits
 * 255 - 8 l and the seven below. */
static __device__ void find_digit(ListShared &s, uint32_t wanted, int lane)
{
    uint32_t n = 0;
    for (int i = 0; i < 8; i++) {
        n += s.n_in[N_BIN - 1 - 8 * lane - i];
    }
    uint32_t to_here = n;
    for (int d = 1; d < 32; d *= 2) {
        const uint32_t before = __shfl_up_sync(~0u, to_here, d);
        to_here += lane >= d ? before : 0;
    }
    const uint32_t mask = __ballot_sync(~0u, to_here >= wanted);
    if (lane == __ffs((int)mask) - 1) {
        uint32_t left = wanted - (to_here - n), digit = N_BIN - 1 - 8 * lane;
        while (s.n_in[digit] < left) {
            left -= s.n_in[digit--];
        }
        s.digit = digit;
        s.wanted = left;
    }
}

struct Threshold {
    uint32_t key;
    uint32_t n_equal; /* that are chosen */
};

/* The wanted-th largest of n keys; 1 <= wanted <= n. All threads. */
static __device__ Threshold find_threshold(const uint32_t *key, int n, uint32_t wanted, ListShared &s)
{
    uint32_t found = 0, known = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        for (int i = (int)threadIdx.x; i < N_BIN; i += LIST_THREADS) {
            s.n_in[i] = 0;
        }
        __syncthreads();
        for (int i = (int)threadIdx.x; i < n; i += LIST_THREADS) {
            if ((key[i] & known) == found) {
                atomicAdd(&s.n_in[key[i] >> shift & 255], 1u);
            }
        }
        __syncthreads();
        if (threadIdx.x < 32) {
            find_digit(s, wanted, (int)threadIdx.x);
        }
        __syncthreads();
        found |= s.digit << shift;
        known |= 255u << shift;
        wanted = s.wanted;
    }
    return {found, wanted};
}

/* Sum of the threads before this one. */
static __device__ uint32_t sum_before(uint32_t x, ListShared &s)
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    uint32_t to_here = x, before = 0;
    for (int d = 1; d < 32; d *= 2) {
        const uint32_t y = __shfl_up_sync(~0u, to_here, d);
        to_here += lane >= d ? y : 0;
    }
    if (lane == 31) {
        s.warp_sum[warp] = to_here;
    }
    __syncthreads();
    for (int w = 0; w < warp; w++) {
        before += s.warp_sum[w];
    }
    return before + to_here - x;
}

/* The n_top largest of n keys, as their numbers and `first`, increasing. A thread has keys beside each other; counts of
 * larger and equal keys share a word: there are fewer than 65,536. */
static __device__ void write_top(const uint32_t *key, int n, int n_top, int first, int32_t *out, ListShared &s)
{
    const Threshold least = find_threshold(key, n, (uint32_t)n_top, s);
    const int per = (n + LIST_THREADS - 1) / LIST_THREADS;
    const int begin = min(n, (int)threadIdx.x * per), end = min(n, begin + per);
    uint32_t count = 0;
    for (int i = begin; i < end; i++) {
        count += key[i] > least.key ? 0x10000u : key[i] == least.key;
    }
    const uint32_t before = sum_before(count, s);
    uint32_t n_equal = before & 0xffff;
    uint32_t at = (before >> 16) + min(n_equal, least.n_equal);
    for (int i = begin; i < end; i++) {
        const bool equal = key[i] == least.key;
        if (key[i] > least.key || (equal && n_equal < least.n_equal)) {
            out[at++] = first + i;
        }
        n_equal += equal;
    }
}

/* A block: a layer and a KV head. */
static __global__ void __launch_bounds__(LIST_THREADS) list_kernel(const gr_cuda_views v)
{
    GR_DYNAMIC_SHARED(uint32_t, key, 16); /* (candidates) */
    GR_SHARED(ListShared, shared);
    wait_for_previous();
    let_next_start();
    const size_t n_head = gridDim.x, head = blockIdx.x;
    const int n_refresh = *v.n_refresh;
    for (int k = 0; k < n_refresh; k++) {
        const gr_cuda_refresh &r = v.refresh[k];
        const int n = r.n_below - r.n_fixed, n_top = r.n_list - r.n_fixed;
        const float *score = v.score + ((size_t)k * n_head + head) * (size_t)v.shape.n_block_max + r.n_fixed;
        int32_t *list = v.list + ((size_t)r.view * n_head + head) * (size_t)v.shape.n_list_max;
        for (int i = (int)threadIdx.x; i < r.n_fixed; i += LIST_THREADS) {
            list[i] = i;
        }
        if (n_top > 0) {
            for (int i = (int)threadIdx.x; i < n; i += LIST_THREADS) {
                key[i] = order_of(score[i]);
            }
            write_top(key, n, n_top, r.n_fixed, list + r.n_fixed, shared); /* it meets before it reads keys */
            __syncthreads();
        }
    }
}

} // namespace gr

enum gr_status gr_cuda_view_check(const struct gr_cuda_view_shape *s)
{
    const int group = s->n_kv_head > 0 ? s->n_head / s->n_kv_head : 0;
    if ((s->head_dim != 64 && s->head_dim != 128) || group < 1 || group > GR_CUDA_GROUP_MAX ||
        s->n_head % s->n_kv_head != 0 || s->n_layer < 1 || s->n_view < 1 || s->n_refresh_max < 1 || s->n_list_max < 1 ||
        s->n_block_max < 1 || s->n_block_max % 16 != 0 || s->n_block_max > GR_CUDA_VIEW_BLOCKS_MAX) {
        fprintf(stderr,
                "cuda: partial views of %d query heads, %d KV heads of %d, contexts of %d blocks (a multiple of 16, at "
                "most %d) and lists of %d are not built\n",
                s->n_head, s->n_kv_head, s->head_dim, s->n_block_max, (int)GR_CUDA_VIEW_BLOCKS_MAX, s->n_list_max);
        return GR_EUNSUPPORTED;
    }
    return GR_OK;
}

enum gr_status gr_cuda_view_scores(const struct gr_cuda_views *v, const struct gr_cuda_view_layer *l,
                                   struct CUstream_st *stream)
{
    const struct gr_cuda_view_shape *s = &v->shape;
    GR_TRY(gr_cuda_view_check(s));
    if (l->layer < 0 || l->layer >= s->n_layer || l->q_stride % 8 != 0 || (uintptr_t)l->q % 16 != 0) {
        fprintf(stderr, "cuda: scores of layer %d of %d, queries at %p in rows of %d (multiples of 16 bytes)\n",
                l->layer, s->n_layer, (const void *)l->q, l->q_stride);
        return GR_EINVAL;
    }
    const int n_tile = s->n_block_max / gr::TILE_BLOCKS * s->n_kv_head, warps = gr::SCORE_THREADS / 32;
    const int n = (n_tile + warps - 1) / warps;
    const dim3 grid((unsigned)(n < gr::SCORE_GRID_MAX ? n : gr::SCORE_GRID_MAX));
    return cuda_status_of(gr::launch_early(s->head_dim == 64 ? gr::score_kernel<64> : gr::score_kernel<128>, grid,
                                           gr::SCORE_THREADS, 0, stream, gr::ScoreArgs{*v, *l}),
                          "scores of blocks");
}

enum gr_status gr_cuda_view_lists(const struct gr_cuda_views *v, struct CUstream_st *stream)
{
    const struct gr_cuda_view_shape *s = &v->shape;
    const size_t smem = (size_t)s->n_block_max * sizeof(uint32_t);
    GR_TRY(gr_cuda_view_check(s));
    GR_TRY(cuda_status_of(cudaFuncSetAttribute(gr::list_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem),
                          "lists"));
    return cuda_status_of(gr::launch_early(gr::list_kernel, dim3((unsigned)(s->n_layer * s->n_kv_head)),
                                           gr::LIST_THREADS, smem, stream, *v),
                          "lists of blocks");
}
