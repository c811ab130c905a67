/* Look-up, norms, captures, inputs and outputs of a pass: bound by latency, so a block of 512 threads has a row, all
 * loads of a thread are on their way before the first is used, and what no kernel writes is loaded before the kernel
 * before is waited for. The shape of a block and the order of sums depend on n alone. */
#include "kernels/cuda/rows.h"

#include "kernels/cuda/cuda_status.cuh"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/eight.cuh"
#include "kernels/cuda/launch.cuh"

#include <cuda_runtime.h>

#include <cstdio>

namespace gr
{

constexpr int ROW_THREADS = 512;
constexpr int ROW_WARPS = ROW_THREADS / 32;
constexpr int NORM_N_MAX = 4 * ROW_THREADS * 8; /* a thread holds up to four times eight values */

constexpr int COPY_THREADS = 512;
constexpr int COPY_DEPTH = 4; /* loads of a thread on their way: one over PCIe takes about a microsecond */
constexpr int INPUT_BLOCKS = 16;
constexpr int OUTPUT_BLOCKS_MAX = 132;

/* Copies of 16-byte pieces [0, n), place(i) being where piece i lies in both; all blocks take part. */
template <class Place> static __device__ void copy_pieces(const uint4 *from, uint4 *to, size_t n, Place place)
{
    const size_t n_thread = (size_t)gridDim.x * COPY_THREADS, me = (size_t)blockIdx.x * COPY_THREADS + threadIdx.x;
    for (size_t first = me; first < n; first += n_thread * COPY_DEPTH) {
        uint4 v[COPY_DEPTH];
        size_t at[COPY_DEPTH];
#pragma unroll
        for (int i = 0; i < COPY_DEPTH; i++) {
            if (first + i * n_thread < n) {
                at[i] = place(first + i * n_thread);
                v[i] = from[at[i]];
            }
        }
#pragma unroll
        for (int i = 0; i < COPY_DEPTH; i++) {
            if (first + i * n_thread < n) {
                to[at[i]] = v[i];
            }
        }
    }
}

static __global__ void __launch_bounds__(COPY_THREADS) input_kernel(const uint4 *from, uint4 *to)
{
    __shared__ union {
        uint4 piece[sizeof(gr_cuda_input_head) / 16];
        gr_cuda_input_head head;
    } s;
    if (threadIdx.x < sizeof(s) / 16) {
        s.piece[threadIdx.x] = from[threadIdx.x];
    }
    wait_for_previous();
    let_next_start();
    __syncthreads();
    const uint32_t n_part = s.head.n_part;
    if (n_part > GR_CUDA_INPUT_PARTS) {
        __trap();
    }
    uint32_t n = 0;
    for (uint32_t p = 0; p < n_part; p++) {
        n += s.head.part[p].bytes / 16;
    }
    copy_pieces(from, to, n, [&](size_t i) {
        uint32_t left = (uint32_t)i, p = 0;
        while (left >= s.head.part[p].bytes / 16) {
            left -= s.head.part[p++].bytes / 16;
        }
        return s.head.part[p].offset / 16 + left;
    });
}

static __global__ void __launch_bounds__(COPY_THREADS) output_kernel(const gr_cuda_output_args a)
{
    wait_for_previous();
    let_next_start();
    const size_t n = (size_t)min(a.n_row, *a.n_row_true) * (size_t)a.n;
    copy_pieces((const uint4 *)a.from, (uint4 *)a.to, n / 4, [](size_t i) { return i; });
    const size_t last = n / 4 * 4 + threadIdx.x;
    if (blockIdx.x == 0 && last < n) {
        a.to[last] = a.from[last];
    }
}

static __device__ __forceinline__ void store_eight(float *to, const Eight &e)
{
    ((float4 *)to)[0] = make_float4(e.x[0], e.x[1], e.x[2], e.x[3]);
    ((float4 *)to)[1] = make_float4(e.x[4], e.x[5], e.x[6], e.x[7]);
}

static __device__ __forceinline__ Eight load_eight(const float *from)
{
    const float4 a = ((const float4 *)from)[0], b = ((const float4 *)from)[1];
    return {{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}};
}

static __global__ void __launch_bounds__(ROW_THREADS) embed_kernel(const gr_cuda_embed_args a)
{
    wait_for_previous();
    let_next_start();
    const int row = (int)blockIdx.x, n_row = *a.n_row_true, id = a.id[row];
    if (row >= n_row) {
        return;
    }
    const uint4 *from = (const uint4 *)(a.table + (size_t)id * a.n);
    for (int i = (int)threadIdx.x; i < a.n / 8; i += ROW_THREADS) {
        store_eight(a.y + (size_t)row * a.n + 8 * i, unpack(from[i]));
    }
}

/* The same in every thread. */
static __device__ float block_sum(float x, float *shared /* (ROW_WARPS) */)
{
#pragma unroll
    for (int d = 16; d > 0; d /= 2) {
        x += __shfl_xor_sync(~0u, x, d);
    }
    if (threadIdx.x % 32 == 0) {
        shared[threadIdx.x / 32] = x;
    }
    __syncthreads();
    x = shared[threadIdx.x % ROW_WARPS];
#pragma unroll
    for (int d = ROW_WARPS / 2; d > 0; d /= 2) {
        x += __shfl_xor_sync(~0u, x, d);
    }
    return x;
}

/* N: times eight values that a thread holds. */
template <int N> static __global__ void __launch_bounds__(ROW_THREADS) norm_kernel(const gr_cuda_norm_args a)
{
    __shared__ float shared[ROW_WARPS];
    Eight w[N], x[N];
#pragma unroll
    for (int j = 0; j < N; j++) {
        const int col = 8 * ((int)threadIdx.x + j * ROW_THREADS);
        if (a.w != nullptr && col < a.n) {
            w[j] = load_eight(a.w + col);
        }
    }
    wait_for_previous();
    let_next_start();
    const int row = (int)blockIdx.x, n_row = *a.n_row_true, from = a.row != nullptr ? a.row[row] : row;
    if (row >= n_row) {
        return;
    }
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < N; j++) {
        const int col = 8 * ((int)threadIdx.x + j * ROW_THREADS);
        if (col < a.n) {
            x[j] = load_eight(a.x + (size_t)from * a.x_stride + col);
        }
    }
#pragma unroll
    for (int j = 0; j < N; j++) {
        const int col = 8 * ((int)threadIdx.x + j * ROW_THREADS);
        if (col < a.n) {
#pragma unroll
            for (int i = 0; i < 8; i++) {
                sum = fmaf(x[j].x[i], x[j].x[i], sum);
            }
        }
    }
    const float inv = a.w != nullptr ? 1.0f / sqrtf(block_sum(sum, shared) / (float)a.n + a.eps) : 1.0f;
#pragma unroll
    for (int j = 0; j < N; j++) {
        const int col = 8 * ((int)threadIdx.x + j * ROW_THREADS);
        if (col >= a.n) {
            continue;
        }
        if (a.capture != nullptr) {
            *(uint4 *)(a.capture + gr_cuda_tile_at(row, a.capture_col + col, a.capture_n)) = pack_eight(x[j].x);
        }
#pragma unroll
        for (int i = 0; i < 8; i++) {
            x[j].x[i] = a.w != nullptr ? x[j].x[i] * inv * w[j].x[i] : x[j].x[i];
        }
        *(uint4 *)(a.y + gr_cuda_tile_at(row, a.y_col + col, a.y_n)) = pack_eight(x[j].x);
    }
}

static bool aligned(const void *p)
{
    return (uintptr_t)p % 16 == 0;
}

/* Columns [col, col + n) of tiles of width `width`. */
static bool fits(int width, int col, int n)
{
    return width % 64 == 0 && col % 8 == 0 && col >= 0 && col + n <= width;
}

} // namespace gr

enum gr_status gr_cuda_input(const void *from, void *to, struct CUstream_st *stream)
{
    if (!gr::aligned(from) || !gr::aligned(to)) {
        fprintf(stderr, "cuda: input: %p to %p is not aligned to 16 bytes\n", from, to);
        return GR_EUNSUPPORTED;
    }
    return cuda_status_of(gr::launch_early(gr::input_kernel, dim3(gr::INPUT_BLOCKS), gr::COPY_THREADS, 0, stream,
                                           (const uint4 *)from, (uint4 *)to),
                          "input");
}

enum gr_status gr_cuda_output(const struct gr_cuda_output_args *a, struct CUstream_st *stream)
{
    if (a->n_row < 1 || a->n < 1 || !gr::aligned(a->from) || !gr::aligned(a->to)) {
        fprintf(stderr, "cuda: output: %d rows of %d, or %p to %p is not aligned to 16 bytes\n", a->n_row, a->n,
                (const void *)a->from, (void *)a->to);
        return GR_EUNSUPPORTED;
    }
    const int per = gr::COPY_THREADS * gr::COPY_DEPTH * 4;
    const long n_block = ((long)a->n_row * a->n + per - 1) / per;
    const dim3 grid((unsigned)(n_block < gr::OUTPUT_BLOCKS_MAX ? n_block : gr::OUTPUT_BLOCKS_MAX));
    return cuda_status_of(gr::launch_early(gr::output_kernel, grid, gr::COPY_THREADS, 0, stream, *a), "output");
}

enum gr_status gr_cuda_embed(const struct gr_cuda_embed_args *a, struct CUstream_st *stream)
{
    if (a->n_row < 1 || a->n < 8 || a->n % 8 != 0 || !gr::aligned(a->table) || !gr::aligned(a->y)) {
        fprintf(stderr, "cuda: embed: %d rows of %d (a multiple of 8), or %p, %p are not aligned to 16 bytes\n",
                a->n_row, a->n, (const void *)a->table, (void *)a->y);
        return GR_EUNSUPPORTED;
    }
    return cuda_status_of(gr::launch_early(gr::embed_kernel, dim3((unsigned)a->n_row), gr::ROW_THREADS, 0, stream, *a),
                          "embed");
}

static bool norm_is_supported(const struct gr_cuda_norm_args *a)
{
    return a->n_row >= 1 && a->n >= 64 && a->n % 64 == 0 && a->n <= gr::NORM_N_MAX && a->x_stride % 4 == 0 &&
           a->x_stride >= a->n && gr::fits(a->y_n, a->y_col, a->n) &&
           (a->capture == nullptr || gr::fits(a->capture_n, a->capture_col, a->n)) && gr::aligned(a->x) &&
           gr::aligned(a->w) && gr::aligned(a->y) && gr::aligned(a->capture);
}

enum gr_status gr_cuda_norm(const struct gr_cuda_norm_args *a, struct CUstream_st *stream)
{
    if (!norm_is_supported(a)) {
        fprintf(stderr,
                "cuda: norm: %d rows of %d (a multiple of 64, at most %d), stride %d (of 4), to columns %d of %d and "
                "%d of %d (multiples of 8 and 64), or an address is not aligned to 16 bytes\n",
                a->n_row, a->n, gr::NORM_N_MAX, a->x_stride, a->y_col, a->y_n, a->capture_col, a->capture_n);
        return GR_EUNSUPPORTED;
    }
    void (*const kernels[])(gr_cuda_norm_args) = {gr::norm_kernel<1>, gr::norm_kernel<2>, gr::norm_kernel<3>,
                                                  gr::norm_kernel<4>};
    const int n_held = (a->n + gr::ROW_THREADS * 8 - 1) / (gr::ROW_THREADS * 8);
    return cuda_status_of(
        gr::launch_early(kernels[n_held - 1], dim3((unsigned)a->n_row), gr::ROW_THREADS, 0, stream, *a), "norm");
}
