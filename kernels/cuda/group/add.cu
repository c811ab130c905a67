/* Sums of two, and rows (add.h). Bound by memory. */
#include "kernels/cuda/group/add.h"

#include "kernels/cuda/device/cuda_status.cuh"
#include "kernels/cuda/device/launch.cuh"

#include <algorithm>
#include <cstdio>

namespace gr
{

constexpr int N_ADD_THREAD = 256, N_ADD_BLOCK = 264;

__global__ void __launch_bounds__(N_ADD_THREAD) add_kernel(float4 *x, const float4 *y, size_t n)
{
    for (size_t i = blockIdx.x * (size_t)N_ADD_THREAD + threadIdx.x; i < n; i += (size_t)gridDim.x * N_ADD_THREAD) {
        float4 v = x[i];
        const float4 w = y[i];
        v.x += w.x, v.y += w.y, v.z += w.z, v.w += w.w;
        x[i] = v;
    }
}

__global__ void __launch_bounds__(N_ADD_THREAD)
    place_kernel(float *to, size_t to_stride, const float *from, size_t width)
{
    for (size_t i = blockIdx.x * (size_t)N_ADD_THREAD + threadIdx.x; i < width; i += (size_t)gridDim.x * N_ADD_THREAD) {
        to[blockIdx.y * to_stride + i] = from[blockIdx.y * width + i];
    }
}

__global__ void __launch_bounds__(32) pause_kernel(int)
{
}

} // namespace gr

enum gr_status gr_cuda_add(float *x, const float *y, size_t n, struct CUstream_st *stream)
{
    if (n == 0 || n % 4 != 0 || (size_t)x % 16 != 0 || (size_t)y % 16 != 0) {
        fprintf(stderr, "cuda: sum of %zu values (a multiple of 4) at %p and %p (aligned to 16)\n", n, (void *)x,
                (const void *)y);
        return GR_EINVAL;
    }
    const size_t n_block = std::min((n / 4 + gr::N_ADD_THREAD - 1) / gr::N_ADD_THREAD, (size_t)gr::N_ADD_BLOCK);
    return cuda_status_of(gr::launch_after(gr::add_kernel, dim3((unsigned)n_block), gr::N_ADD_THREAD, 0, stream,
                                           (float4 *)x, (const float4 *)y, n / 4),
                          "sum of two ranks");
}

enum gr_status gr_cuda_place(float *to, size_t to_stride, const float *from, size_t width, int n_row,
                             struct CUstream_st *stream)
{
    if (n_row < 1 || width == 0 || width > to_stride) {
        fprintf(stderr, "cuda: %d rows of %zu values, %zu apart\n", n_row, width, to_stride);
        return GR_EINVAL;
    }
    const size_t n_block = std::min((width + gr::N_ADD_THREAD - 1) / gr::N_ADD_THREAD, (size_t)16);
    return cuda_status_of(gr::launch_after(gr::place_kernel, dim3((unsigned)n_block, (unsigned)n_row), gr::N_ADD_THREAD,
                                           0, stream, to, to_stride, from, width),
                          "columns of a rank");
}

enum gr_status gr_cuda_pause(struct CUstream_st *stream)
{
    return cuda_status_of(gr::launch_after(gr::pause_kernel, dim3(1), 32, 0, stream, 0), "pause");
}
