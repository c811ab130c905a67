/* The pick of a row: blocks of 256 threads share a row, each keeps the best value and the next best, the row's last
 * block combines them. Compile with -fmad=false (pick_row.cuh).
 *
 * A raw logit that is not finite makes its thread's best key the largest there is, which then wins wherever keys meet:
 * the row is known for it at the end, for one instruction or two a logit and none in between.
 *
 * With noise, only ids that can be one of the block's best two get their exact value, by the instructions that the CPU
 * uses: the others' upper bound (noise_bounds.cuh) is below the lower bounds of two ids. */
#include "kernels/cuda/pick/pick.h"

#include "kernels/cuda/device/cuda_status.cuh"
#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/pick/adjust.h"
#include "kernels/cuda/pick/noise_bounds.cuh"
#include "kernels/cuda/pick/pick_row.cuh"

#include <cuda_runtime.h>

#include <cfloat>
#include <cstdio>

namespace gr
{

/* The best of some ids, and the value of the next. */
struct alignas(16) Two {
    uint64_t best;   /* key_of() the best id */
    uint32_t second; /* order_of() the next best value */
};

struct PickShared {
    Two two[PICK_WARPS];
    uint2 low[PICK_WARPS]; /* the two largest lower bounds */
};

__device__ __forceinline__ Two join(Two a, Two b)
{
    const uint64_t best = a.best > b.best ? a.best : b.best, next = a.best > b.best ? b.best : a.best;
    return {best, max(key_order(next), max(a.second, b.second))};
}

/* Of the warp's lanes; the same in all. */
static __device__ Two warp_two(Two t)
{
    const uint32_t order = __reduce_max_sync(~0u, key_order(t.best));
    const uint32_t low = __reduce_max_sync(~0u, key_order(t.best) == order ? (uint32_t)t.best : 0);
    const uint64_t best = (uint64_t)order << 32 | low;
    return {best, __reduce_max_sync(~0u, t.best == best ? t.second : key_order(t.best))};
}

/* In warp 0. */
static __device__ Two block_two(Two t, PickShared &s)
{
    t = warp_two(t);
    if (threadIdx.x % 32 == 0) {
        s.two[threadIdx.x / 32] = t;
    }
    __syncthreads();
    return threadIdx.x < 32 ? warp_two(threadIdx.x < PICK_WARPS ? s.two[threadIdx.x] : Two{0, 0}) : t;
}

/* Values in increasing order of ids. */
struct Running {
    float best = -INFINITY, second = -INFINITY;
    int id = 0;
    __device__ __forceinline__ void add(float v, int i)
    {
        v = fmaxf(v, -INFINITY); /* NaN */
        second = fmaxf(second, fminf(best, v));
        id = v > best ? i : id;
        best = fmaxf(best, v);
    }
    __device__ __forceinline__ Two two() const
    {
        return {key_of(best, id), order_of(second)};
    }
};

/* This thread's logits; -inf past the end. */
struct Logits {
    float x[PICK_QUADS][4];
    bool odd; /* one is not finite */
};

/* Of rows that were adjusted: what was taken out is as good as a number, since all that is odd stays a NaN. */
struct AdjustedMagnitude : Magnitude {
    __device__ __forceinline__ void add(float logit, bool is_one)
    {
        Magnitude::add(logit, is_one && __float_as_uint(logit) != GR_CUDA_TAKEN_OUT);
    }
};

template <class Raw> static __device__ __forceinline__ Logits load_logits(const float *row, Range r)
{
    Logits l;
    Raw raw;
#pragma unroll
    for (int j = 0; j < PICK_QUADS; j++) {
        const int id = quad_id(r, j);
        const float4 v =
            id < r.end ? *(const float4 *)(row + id) : make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
        const float x[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            l.x[j][i] = id + i < r.end ? x[i] : -INFINITY;
            raw.add(x[i], id + i < r.end);
        }
    }
    l.odd = raw.odd();
    return l;
}

static __device__ Two best_plain(const Logits &l, Range r)
{
    Running run;
#pragma unroll
    for (int j = 0; j < PICK_QUADS; j++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            run.add(l.x[j][i], quad_id(r, j) + i);
        }
    }
    return run.two();
}

/* The second largest x of the block's threads; -inf where there are fewer. */
static __device__ float block_second(float x, PickShared &s)
{
    const uint32_t order = order_of(x), first = __reduce_max_sync(~0u, order);
    const int owner = __ffs((int)__ballot_sync(~0u, order == first)) - 1, lane = (int)threadIdx.x % 32;
    const uint32_t next = __reduce_max_sync(~0u, lane == owner ? 0 : order);
    if (lane == 0) {
        s.low[threadIdx.x / 32] = make_uint2(first, next);
    }
    __syncthreads();
    uint2 two = make_uint2(0, 0);
#pragma unroll
    for (int w = 0; w < PICK_WARPS; w++) {
        const uint2 o = s.low[w];
        two.y = max(min(two.x, o.x), max(two.y, o.y));
        two.x = max(two.x, o.x);
    }
    return value_of(two.y);
}

struct Bounded {
    float least; /* no value of the block's best two is less: its second largest lower bound */
    float high;  /* the largest upper bound of this thread */
};

/* Upper bounds of this thread's values, in place of the logits. */
static __device__ Bounded bound_values(Logits &l, Range r, const PickHow &how, PickShared &s)
{
    const float inv = 1.0f / how.temperature;
    float low = -INFINITY, high = -INFINITY;
#pragma unroll
    for (int j = 0; j < PICK_QUADS; j++) {
        if (r.begin + PICK_THREADS * 4 * j >= r.end) {
            break;
        }
        uint32_t word[4];
        noise_words(how, (uint32_t)quad_id(r, j) / 4, word);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            /* What was rounded differs by a few units in the last place from l / temperature + noise. */
            const float v = fmaxf(l.x[j][i] * inv, -3e38f), slack = fmaf(fabsf(v), 1e-6f, 1e-5f);
            const NoiseBounds b = noise_bounds(word[i]);
            low = fmaxf(low, v - slack + b.low);
            l.x[j][i] = v + slack + b.high;
            high = fmaxf(high, l.x[j][i]);
        }
    }
    low = low > -2.9e38f ? low : -INFINITY; /* -3e38: what was less, or no value */
    return {block_second(low, s), high};
}

/* A bit for each of this thread's ids that can be one of the block's best two. */
static __device__ uint32_t wanted_ids(const Logits &high, Range r, float least)
{
    uint32_t wanted = 0;
#pragma unroll
    for (int j = 0; j < PICK_QUADS; j++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            wanted |= (uint32_t)(!(high.x[j][i] < least) && quad_id(r, j) + i < r.end) << (4 * j + i);
        }
    }
    return wanted;
}

static __device__ Two best_noisy(Logits &l, const float *row, Range r, const PickHow &how, PickShared &s)
{
    const Bounded b = bound_values(l, r, how, s);
    Running run;
    for (uint32_t left = b.high < b.least ? 0 : wanted_ids(l, r, b.least); left != 0; left &= left - 1) {
        const int k = __ffs((int)left) - 1, id = quad_id(r, k / 4) + k % 4;
        uint32_t word[4];
        noise_words(how, (uint32_t)id / 4, word);
        const uint32_t w = id & 2 ? (id & 1 ? word[3] : word[2]) : (id & 1 ? word[1] : word[0]);
        run.add(noisy(how, row[id], w), id);
    }
    return run.two();
}

static __device__ gr_picked picked_of(Two t)
{
    const bool gap = t.second != 0 && t.second != key_order(t.best);
    if (t.best == 0 || key_order(t.best) >= INF_ORDER) {
        return {GR_PICK_NOT_FINITE, 0.0f};
    }
    return {key_id(t.best), gap ? value_of(key_order(t.best)) - value_of(t.second) : 0.0f};
}

/* Warp 0: the parts of a row meet. True in its last block, with the row's best two. */
static __device__ bool combine(const gr_cuda_pick_args &a, Two mine, Two &row_two)
{
    RowWork<Two> *work = row_work<Two>(a.work);
    const int lane = (int)threadIdx.x;
    bool last = false;
    if (lane == 0) {
        work->part[blockIdx.x] = mine;
        last = is_last_block(&work->n_block);
    }
    last = __shfl_sync(~0u, last, 0);
    if (last) {
        Two t{0, 0};
        for (int i = lane; i < (int)gridDim.x; i += 32) {
            const uint4 v = __ldcg((const uint4 *)&work->part[i]);
            t = join(t, Two{(uint64_t)v.y << 32 | v.x, v.z});
        }
        row_two = warp_two(t);
    }
    return last;
}

/* Blocks: (split, row). Raw: how a logit is known that is not finite. A NaN is no value to best_plain() and
 * best_noisy(), as -inf is. */
template <class Raw> static __global__ void __launch_bounds__(PICK_THREADS) pick_kernel(const gr_cuda_pick_args a)
{
    GR_SHARED(PickShared, s);
    wait_for_previous();
    let_next_start();
    const int row = (int)blockIdx.y;
    const PickHow how = a.how[row];
    const bool real = row < *a.n_row_true, mine = real && how.host == 0;
    Two two{0, 0};
    if (mine) {
        const float *logits = a.logits + (size_t)row * a.stride;
        const Range r = my_range(a.n);
        Logits l = load_logits<Raw>(logits, r);
        const bool odd = l.odd;
        two = gr_temperature_is_greedy(how.temperature) ? best_plain(l, r) : best_noisy(l, logits, r, how, s);
        two = block_two(odd ? Two{ODD_KEY, 0} : two, s);
    }
    if (threadIdx.x >= 32 || !combine(a, two, two) || threadIdx.x != 0) {
        return;
    }
    if (real) {
        a.picked[row] = mine ? picked_of(two) : gr_picked{GR_PICK_TO_HOST, 0.0f};
    }
    row_is_done(a.work, a.ticket, a.done);
}

} // namespace gr

size_t gr_cuda_pick_work_bytes(int n_row)
{
    return gr::row_work_bytes<gr::Two>(n_row);
}

static enum gr_status launch_pick(void (*kernel)(gr_cuda_pick_args), const struct gr_cuda_pick_args *a,
                                  struct CUstream_st *stream)
{
    if (a->n_row < 1 || a->n < 1 || a->n > GR_CUDA_PICK_N_MAX || a->stride < a->n || a->stride % 4 != 0 ||
        (uintptr_t)a->logits % 16 != 0) {
        fprintf(stderr,
                "cuda: pick: %d rows of %d logits (at most %d), stride %d (a multiple of 4), or %p is not aligned to "
                "16 bytes\n",
                a->n_row, a->n, GR_CUDA_PICK_N_MAX, a->stride, (const void *)a->logits);
        return GR_EUNSUPPORTED;
    }
    const dim3 grid((unsigned)gr::pick_splits(a->n, gr::PICK_CHUNK), (unsigned)a->n_row);
    return cuda_status_of(gr::launch_early(kernel, grid, gr::PICK_THREADS, 0, stream, *a), "pick");
}

enum gr_status gr_cuda_pick(const struct gr_cuda_pick_args *a, struct CUstream_st *stream)
{
    return launch_pick(gr::pick_kernel<gr::Magnitude>, a, stream);
}

enum gr_status gr_cuda_pick_adjusted(const struct gr_cuda_pick_args *a, struct CUstream_st *stream)
{
    return launch_pick(gr::pick_kernel<gr::AdjustedMagnitude>, a, stream);
}
