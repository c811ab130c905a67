/* Norms, captures, inputs and outputs of a pass: bound by latency, so a block of 512 threads has a row, all
 * loads of a thread are on their way before the first is used, and what no kernel writes is loaded before the kernel
 * before is waited for. The shape of a block and the order of sums depend on n alone. */
#include "kernels/cuda/rows/rows.h"

#include "kernels/cuda/device/cuda_status.cuh"
#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/rows/norm_row.cuh"

#include <cuda_runtime.h>

#include <cstdio>

namespace gr
{

constexpr int COPY_THREADS = 512;      /* threads of a block that copies */
constexpr int COPY_DEPTH = 4;          /* loads of a thread on their way: one over PCIe takes about a microsecond */
constexpr int INPUT_BLOCKS = 16;       /* blocks that fetch a pass's input from the host */
constexpr int OUTPUT_BLOCKS_MAX = 132; /* the multiprocessors of an H200 */

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

static_assert(sizeof(gr_cuda_input_head) % 16 == 0, "the head is whole pieces");

union InputHead {
    uint4 piece[sizeof(gr_cuda_input_head) / 16];
    gr_cuda_input_head head;
};

static __global__ void __launch_bounds__(COPY_THREADS) input_kernel(const uint4 *from, uint4 *to)
{
    GR_SHARED(InputHead, s);
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

static __global__ void __launch_bounds__(COPY_THREADS) keep_kernel(const gr_cuda_keep_args a)
{
    wait_for_previous();
    let_next_start();
    const int row = (int)blockIdx.x, n_row = *a.n_row_true, number = a.number[row];
    const uint4 *from = (const uint4 *)(a.from + (size_t)row * a.n);
    for (int i = (int)threadIdx.x; row < n_row && number >= 0 && i < a.n / 4; i += COPY_THREADS) {
        ((uint4 *)(a.to + (size_t)number * a.n))[i] = from[i];
    }
}

/* N: times eight values that a thread holds. */
template <int N> static __global__ void __launch_bounds__(ROW_THREADS) norm_kernel(const gr_cuda_norm_args a)
{
    GR_SHARED(RowSums, sums);
    NormRow<N> r;
    r.load_weights(a);
    wait_for_previous();
    let_next_start();
    const int row = (int)blockIdx.x, n_row = *a.n_row_true, from = a.row != nullptr ? a.row[row] : row;
    if (row >= n_row) {
        return;
    }
    r.load(a, a.x + (size_t)from * a.x_stride);
    r.store(a, row, sums);
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

enum gr_status gr_cuda_keep(const struct gr_cuda_keep_args *a, struct CUstream_st *stream)
{
    if (a->n_row < 1 || a->n < 1 || a->n % 4 != 0 || !gr::aligned(a->from) || !gr::aligned(a->to)) {
        fprintf(stderr, "cuda: keep: %d rows of %d (a multiple of 4), or %p to %p is not aligned to 16 bytes\n",
                a->n_row, a->n, (const void *)a->from, (void *)a->to);
        return GR_EUNSUPPORTED;
    }
    return cuda_status_of(gr::launch_early(gr::keep_kernel, dim3((unsigned)a->n_row), gr::COPY_THREADS, 0, stream, *a),
                          "keep");
}

enum gr_status gr_cuda_norm(const struct gr_cuda_norm_args *a, struct CUstream_st *stream)
{
    if (!gr::norm_is_supported(*a)) {
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
