/* What picks and best ids share: how a row is dealt out to blocks, values that sort, and how the last block of a row,
 * and of all rows, is found. Included by files that are compiled without contraction (-fmad=false), so that gr_math.h
 * gives the CPU's bits. */
#ifndef GR_KERNELS_CUDA_PICK_PICK_ROW_CUH
#define GR_KERNELS_CUDA_PICK_PICK_ROW_CUH

#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/pick/pick.h"

#include <cstdint>

namespace gr
{

using PickHow = struct gr_cuda_pick; /* a function has that name too */

constexpr int PICK_THREADS = 256; /* threads that share a row of logits */
constexpr int PICK_WARPS = PICK_THREADS / 32;
constexpr int PICK_QUADS = 4;                                /* groups of four ids that a thread has, at most */
constexpr int PICK_CHUNK = 4 * PICK_QUADS * PICK_THREADS;    /* ids of a block, at most */
constexpr int PICK_SPLITS = GR_CUDA_PICK_N_MAX / PICK_CHUNK; /* blocks of a row, at most: two for a lane */
static_assert(PICK_SPLITS == 64, "two of a warp's lane");

/* Blocks of a row, each with `at_least` ids while there are no more than 32 of them. n alone decides. */
__host__ __device__ inline int pick_splits(int n, int at_least)
{
    const int few = (n + at_least - 1) / at_least, many = (n + PICK_CHUNK - 1) / PICK_CHUNK;
    return few < 32 ? few : many > 32 ? many : 32;
}

/* Ids [begin, end) of this block's row. */
struct Range {
    int begin, end;
};

/* As many for each block of the row, a multiple of 4. */
__device__ __forceinline__ int chunk_of(int n)
{
    return ((n + (int)gridDim.x - 1) / (int)gridDim.x + 3) / 4 * 4;
}

__device__ __forceinline__ Range my_range(int n)
{
    const int begin = (int)blockIdx.x * chunk_of(n);
    return {begin, min(begin + chunk_of(n), n)};
}

/* The first of this thread's j-th four ids. */
__device__ __forceinline__ int quad_id(Range r, int j)
{
    return r.begin + 4 * ((int)threadIdx.x + PICK_THREADS * j);
}

/* Larger for a larger value, equal for the two zeros; 0 for what is no value: NaN, -inf. */
__device__ __forceinline__ uint32_t order_of(float v)
{
    const uint32_t u = __float_as_uint(v + 0.0f);
    return !(v > -INFINITY) ? 0 : u >> 31 ? ~u : u | 0x80000000u;
}

__device__ __forceinline__ float value_of(uint32_t order)
{
    return order == 0 ? -INFINITY : __uint_as_float(order >> 31 ? order & 0x7fffffffu : ~order);
}

/* The same, and lower ids before higher ones: no two ids of a row have equal keys but 0. */
__device__ __forceinline__ uint64_t key_of(float v, int id)
{
    const uint32_t order = order_of(v);
    return order == 0 ? 0 : (uint64_t)order << 32 | ~(uint32_t)id;
}

/* Above every key: of a thread that met a raw logit which is not finite, and so of its row. */
constexpr uint64_t ODD_KEY = ~0ull;
/* The order of +inf; that of ODD_KEY is above it. */
constexpr uint32_t INF_ORDER = 0xff800000u;

/* Raw logits as they are met; odd() when one was not finite. */
struct Magnitude {
    uint32_t most = 0;
    __device__ __forceinline__ void add(float logit, bool is_one)
    {
        most = max(most, is_one ? __float_as_uint(logit) & 0x7fffffffu : 0);
    }
    __device__ __forceinline__ bool odd() const
    {
        return most >= 0x7f800000u;
    }
};

__device__ __forceinline__ uint32_t key_order(uint64_t key)
{
    return (uint32_t)(key >> 32);
}

__device__ __forceinline__ int key_id(uint64_t key)
{
    return (int)~(uint32_t)key;
}

/* A logit with its noise, as gr_sampler_pick() computes it. */
__device__ __forceinline__ float noisy(const PickHow &how, float logit, uint32_t word)
{
    const float v = logit / how.temperature;
    return v > -INFINITY ? v + gr_gumbel_of_word(word) : -INFINITY;
}

/* The words of ids 4 i .. 4 i + 3. */
__device__ __forceinline__ void noise_words(const PickHow &how, uint32_t i, uint32_t word[4])
{
    const uint32_t counter[4] = {how.pos, i, how.choice, 0};
    gr_philox4x32(counter, how.seed, word);
}

/* Memory that calls keep between them, the same for every n_row: how many rows are through, then a record for each
 * row, of how many blocks are through and what they found. Counters go back to zero, so that the next call finds them
 * as this one did. */
constexpr size_t WORK_HEAD = 256;

template <class Part> struct alignas(16) RowWork {
    uint32_t n_block, pad[3];
    Part part[PICK_SPLITS];
};

template <class Part> __host__ __device__ inline size_t row_work_bytes(int n_row)
{
    return WORK_HEAD + (size_t)n_row * sizeof(RowWork<Part>);
}

template <class Part> __device__ __forceinline__ RowWork<Part> *row_work(void *work)
{
    return (RowWork<Part> *)((uint8_t *)work + WORK_HEAD) + blockIdx.y;
}

/* One thread, after a barrier after the block's writes: true in the row's last block, which sees those of all after
 * the next barrier. */
__device__ __forceinline__ bool is_last_block(uint32_t *n_block)
{
    const bool last = count_up(n_block) == gridDim.x - 1;
    if (last) {
        *n_block = 0;
    }
    return last;
}

/* One thread of a row's last block, after a barrier after its writes. The counter orders what all rows wrote before
 * the last one's release of the flag, to the host too. */
__device__ __forceinline__ void row_is_done(void *work, const uint32_t *ticket, uint32_t *done)
{
    uint32_t *n_row = (uint32_t *)work;
    const uint32_t value = done != nullptr ? *ticket : 0;
    if (count_up(n_row) != gridDim.y - 1) {
        return;
    }
    *n_row = 0;
    if (done != nullptr) {
        publish(done, value);
    }
}

} // namespace gr

#endif
