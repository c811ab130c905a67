/* The best ids of a row for a drafter: blocks of 256 threads share a row, each gives its best ids in order and its part
 * of the sum, the row's last block merges them. Compile with -fmad=false (pick_row.cuh).
 *
 * The best k of a block's keys: among the best of groups of threads, at least twice as many groups as k, the k-th is a
 * threshold that at least k keys reach. Only keys of k groups can reach it, which bounds what is collected; that is
 * ranked by counting. */
#include "kernels/cuda/pick/pick.h"

#include "kernels/cuda/device/cuda_status.cuh"
#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/pick/pick_row.cuh"

#include <cuda_runtime.h>

#include <cstdio>

namespace gr
{

constexpr int TOP_SLOTS = 4 * PICK_QUADS; /* keys of a thread, at most */
constexpr int TOP_GROUPS = PICK_THREADS / 2;
/* All keys of k - 1 groups and the threshold; k - 1 <= 15, 31, 62 groups of 8, 4, 2 threads. */
constexpr int TOP_LIST = 31 * 4 * TOP_SLOTS + 1;
constexpr int TOP_AT_LEAST = 2048; /* ids of a block */
static_assert(GR_TOP_MAX < TOP_GROUPS && (GR_TOP_MAX - 1) * 2 <= 31 * 4, "the largest k");
static_assert(PICK_SPLITS / 32 * ((GR_TOP_MAX + PICK_WARPS - 1) / PICK_WARPS) <= TOP_SLOTS, "keys of all blocks");
static_assert(sizeof(gr_top_row) == 512, "32 threads write it");

/* What a block found: its best keys in order, 0 past the last, and sum exp(value - max). */
struct alignas(16) TopPart {
    float max, sum; /* max: NaN where a raw logit is not finite */
    uint64_t key[GR_TOP_MAX];
};

struct alignas(16) TopShared {
    union {
        uint64_t key[TOP_SLOTS][PICK_THREADS]; /* 0: none */
        struct gr_top_row row;
    };
    uint64_t list[TOP_LIST]; /* first the groups' best, then the keys that reach the threshold */
    uint64_t threshold;
    int n_list, last;
    union {
        uint32_t max[PICK_WARPS];
        float log_sum;
    };
    float sum[PICK_WARPS];
};

static_assert(sizeof(TopShared) <= 48 * 1024, "static shared memory");

/* How many of n distinct keys are larger. */
static __device__ __forceinline__ int rank_of(uint64_t key, const uint64_t *all, int n)
{
    int rank = 0;
#pragma unroll 8
    for (int i = 0; i < n; i++) {
        rank += all[i] > key;
    }
    return rank;
}

/* The k-th largest of the groups' best; with fewer keys than that, what every key reaches. */
static __device__ void find_threshold(TopShared &s, uint64_t mine, int k)
{
    const int t = (int)threadIdx.x, group = k <= 16 ? 8 : k <= 32 ? 4 : 2, n_group = PICK_THREADS / group;
    for (int d = group / 2; d > 0; d /= 2) {
        const uint64_t other = __shfl_xor_sync(~0u, mine, d);
        mine = mine > other ? mine : other;
    }
    if (t % group == 0) {
        s.list[t / group] = mine > 0 ? mine : (uint64_t)t + 1; /* below every key, and distinct */
    }
    if (t == 0) {
        s.n_list = 0;
        s.threshold = ~0ull; /* k = 0 */
    }
    __syncthreads();
    if (t < n_group && rank_of(s.list[t], s.list, n_group) == k - 1) {
        s.threshold = s.list[t] >> 32 != 0 ? s.list[t] : 1;
    }
    __syncthreads();
}

/* The k best keys of the block, out(rank, key) once for each in some thread. mine: the best of this thread's n_slot.
 * Returns how many there are. */
template <class Out> static __device__ int select_best(TopShared &s, int n_slot, uint64_t mine, int k, Out out)
{
    const int t = (int)threadIdx.x;
    find_threshold(s, mine, k);
    const uint64_t least = s.threshold;
    for (int j = 0; j < n_slot && mine >= least; j++) {
        if (s.key[j][t] >= least) {
            s.list[atomicAdd(&s.n_list, 1)] = s.key[j][t];
        }
    }
    __syncthreads();
    const int n = s.n_list;
    for (int c = t; c < n; c += PICK_THREADS) {
        const uint64_t key = s.list[c];
        const int rank = rank_of(key, s.list, n);
        if (rank < k) {
            out(rank, key);
        }
    }
    return min(n, k);
}

/* Puts the keys of this thread's ids where select_best() finds them; returns the best, or ODD_KEY. */
static __device__ uint64_t fill_keys(const gr_cuda_top_args &a, const PickHow &how, Range r, int n_quad, TopShared &s)
{
    const float *logits = a.logits + (size_t)blockIdx.y * a.stride;
    const bool warm = !gr_temperature_is_greedy(how.temperature);
    uint64_t mine = 0;
    Magnitude raw;
    float4 next = quad_id(r, 0) < r.end ? *(const float4 *)(logits + quad_id(r, 0)) : float4{};
#pragma unroll 1
    for (int j = 0; j < n_quad; j++) {
        const int id = quad_id(r, j);
        const float x[4] = {next.x, next.y, next.z, next.w};
        uint32_t word[4] = {0, 0, 0, 0};
        if (j + 1 < n_quad && quad_id(r, j + 1) < r.end) {
            next = *(const float4 *)(logits + quad_id(r, j + 1));
        }
        if (warm && a.to_target == nullptr) {
            noise_words(how, (uint32_t)id / 4, word);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (warm && a.to_target != nullptr && id + i < r.end) {
                const uint32_t to = (uint32_t)a.to_target[id + i];
                uint32_t w[4];
                noise_words(how, to / 4, w);
                word[i] = to & 2 ? (to & 1 ? w[3] : w[2]) : (to & 1 ? w[1] : w[0]);
            }
            const float v = warm ? noisy(how, x[i], word[i]) : x[i];
            raw.add(x[i], id + i < r.end);
            const uint64_t key = id + i < r.end ? key_of(v, id + i) : 0;
            s.key[4 * j + i][threadIdx.x] = key;
            mine = key > mine ? key : mine;
        }
    }
    return raw.odd() ? ODD_KEY : mine;
}

/* The largest value of the block's keys; -inf where there is none, NaN where one is ODD_KEY. */
static __device__ float block_max(uint64_t mine, TopShared &s)
{
    const uint32_t order = __reduce_max_sync(~0u, key_order(mine));
    if (threadIdx.x % 32 == 0) {
        s.max[threadIdx.x / 32] = order;
    }
    __syncthreads();
    return value_of(__reduce_max_sync(~0u, s.max[threadIdx.x % PICK_WARPS]));
}

static __device__ float warp_sum(float x)
{
#pragma unroll
    for (int d = 16; d > 0; d /= 2) {
        x += __shfl_xor_sync(~0u, x, d);
    }
    return x;
}

/* Each warp's sum exp(value - max); finish_sum() adds them, after a barrier. */
static __device__ void sum_exp(int n_slot, float max, TopShared &s)
{
    float sum = 0.0f;
#pragma unroll 1
    for (int j = 0; j < n_slot; j++) {
        const uint64_t key = s.key[j][threadIdx.x];
        sum += key != 0 ? gr_expf(value_of(key_order(key)) - max) : 0.0f;
    }
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) {
        s.sum[threadIdx.x / 32] = sum;
    }
}

static __device__ float finish_sum(const TopShared &s)
{
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < PICK_WARPS; w++) {
        sum += s.sum[w];
    }
    return sum;
}

/* The whole of a block's part. */
static __device__ void find_part(const gr_cuda_top_args &a, const PickHow &how, int k, TopPart *part, TopShared &s)
{
    const int n_quad = (chunk_of(a.n) / 4 + PICK_THREADS - 1) / PICK_THREADS, t = (int)threadIdx.x;
    const uint64_t mine = fill_keys(a, how, my_range(a.n), n_quad, s);
    const float max = block_max(mine, s);
    if (!(max < INFINITY)) { /* the same in all threads; nobody reads more of this row */
        if (t == 0) {
            part->max = __uint_as_float(0x7fffffffu);
        }
        return;
    }
    sum_exp(4 * n_quad, max, s);
    const int n = select_best(s, 4 * n_quad, mine, k, [&](int rank, uint64_t key) { part->key[rank] = key; });
    if (t >= n && t < k) {
        part->key[t] = 0;
    }
    if (t == 0) {
        part->max = max;
        part->sum = finish_sum(s);
    }
}

/* log(sum exp(value)) of the row, in warp 0; NaN where it is not finite. The blocks' parts in a fixed order. */
static __device__ float log_sum_of(const TopPart *part, int n_split)
{
    static_assert(PICK_SPLITS == 64, "two for a lane");
    const int lane = (int)threadIdx.x;
    float max[2], sum[2];
    for (int i = 0; i < 2; i++) {
        const int b = lane + 32 * i;
        max[i] = b < n_split ? __ldcg(&part[b].max) : -INFINITY;
        sum[i] = b < n_split ? __ldcg(&part[b].sum) : 0.0f;
    }
    if (__any_sync(~0u, max[0] != max[0] || max[1] != max[1])) {
        return __uint_as_float(0x7fffffffu);
    }
    const float top = value_of(__reduce_max_sync(~0u, ::max(order_of(max[0]), order_of(max[1]))));
    float mine = 0.0f;
    for (int i = 0; i < 2; i++) {
        mine += max[i] > -INFINITY ? sum[i] * gr_expf(max[i] - top) : 0.0f;
    }
    mine = warp_sum(mine);
    return top > -INFINITY ? gr_logf(mine) + top : -INFINITY;
}

/* The row's last block: the best of all parts, into shared memory, then to the reader. */
static __device__ void merge_parts(const gr_cuda_top_args &a, const TopPart *part, int k, TopShared &s)
{
    const int n_split = (int)gridDim.x, t = (int)threadIdx.x;
    if (t < 32) {
        const float log_sum = log_sum_of(part, n_split);
        if (t == 0) {
            s.log_sum = log_sum;
        }
    }
    __syncthreads();
    if (s.log_sum != s.log_sum) {
        if (t == 0) {
            a.top[blockIdx.y].n = GR_PICK_NOT_FINITE;
        }
        return;
    }
    const int n_half = (n_split + 31) / 32, n_slot = n_half * ((k + PICK_WARPS - 1) / PICK_WARPS);
    uint64_t mine = 0;
    /* A lane: a block or two; a warp: ranks. So the best keys are spread over all groups of threads. */
#pragma unroll 4
    for (int j = 0; j < n_slot; j++) {
        const int b = t % 32 + (j & (n_half - 1)) * 32, rank = t / 32 + j / n_half * PICK_WARPS;
        const uint64_t key = b < n_split && rank < k ? __ldcg((const unsigned long long *)&part[b].key[rank]) : 0;
        s.key[j][t] = key;
        mine = key > mine ? key : mine;
    }
    /* `row` lies where the keys do, which nobody reads any more when ranks are known. */
    const int n = select_best(s, n_slot, mine, k, [&](int rank, uint64_t key) {
        s.row.id[rank] = a.to_target != nullptr ? a.to_target[key_id(key)] : key_id(key);
        s.row.edge[rank] = value_of(key_order(key)) - s.log_sum;
    });
    if (t >= n && t < GR_TOP_MAX) {
        s.row.id[t] = -1;
        s.row.edge[t] = 0.0f;
    }
    if (t == 0) {
        s.row.n = n;
        s.row.log_sum = s.log_sum;
    }
    __syncthreads();
    if (t < 32) {
        ((uint4 *)&a.top[blockIdx.y])[t] = ((const uint4 *)&s.row)[t];
    }
}

/* Blocks: (split, row). */
static __global__ void __launch_bounds__(PICK_THREADS) top_kernel(const gr_cuda_top_args a)
{
    GR_SHARED(TopShared, s);
    wait_for_previous();
    let_next_start();
    const int row = (int)blockIdx.y, k = a.n_top[row];
    const PickHow how = a.how[row];
    const bool real = row < *a.n_row_true, mine = real && how.host == 0;
    RowWork<TopPart> *work = row_work<TopPart>(a.work);
    if (mine && (unsigned)k > GR_TOP_MAX) {
        __trap();
    }
    if (mine) {
        find_part(a, how, k, &work->part[blockIdx.x], s);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        s.last = is_last_block(&work->n_block);
    }
    __syncthreads();
    if (!s.last) {
        return;
    }
    if (mine) {
        merge_parts(a, work->part, k, s);
    } else if (real && threadIdx.x == 0) {
        a.top[row].n = GR_PICK_TO_HOST;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        row_is_done(a.work, a.ticket, a.done);
    }
}

} // namespace gr

size_t gr_cuda_top_work_bytes(int n_row)
{
    return gr::row_work_bytes<gr::TopPart>(n_row);
}

enum gr_status gr_cuda_top(const struct gr_cuda_top_args *a, struct CUstream_st *stream)
{
    if (a->n_row < 1 || a->n < 1 || a->n > GR_CUDA_PICK_N_MAX || a->stride < a->n || a->stride % 4 != 0 ||
        (uintptr_t)a->logits % 16 != 0 || (uintptr_t)a->top % 16 != 0) {
        fprintf(stderr,
                "cuda: best ids: %d rows of %d logits (at most %d), stride %d (a multiple of 4), or %p, %p are not "
                "aligned to 16 bytes\n",
                a->n_row, a->n, GR_CUDA_PICK_N_MAX, a->stride, (const void *)a->logits, (void *)a->top);
        return GR_EUNSUPPORTED;
    }
    const dim3 grid((unsigned)gr::pick_splits(a->n, gr::TOP_AT_LEAST), (unsigned)a->n_row);
    return cuda_status_of(gr::launch_early(gr::top_kernel, grid, gr::PICK_THREADS, 0, stream, *a), "best ids");
}
