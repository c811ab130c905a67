/* Lists of bans, biases and penalties, applied to logits: a block a row, a thread an entry. Compile with -fmad=false,
 * so that a product and a difference are rounded as on the CPU. */
#include "kernels/cuda/pick/adjust.h"

#include "kernels/cuda/device/cuda_status.cuh"
#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/device/launch.cuh"

#include <cuda_runtime.h>

#include <cstdio>

namespace gr
{

constexpr int ADJUST_THREADS = 256;

static __device__ float adjusted(const gr_adjust_entry &e, gr_penalties p, float raw)
{
    const bool odd = (__float_as_uint(raw) & 0x7fffffffu) >= 0x7f800000u;
    const float v = gr_adjust_value(&e, p, raw);
    return odd ? __uint_as_float(0x7fffffffu) : v > -INFINITY ? v : __uint_as_float(GR_CUDA_TAKEN_OUT);
}

static __global__ void __launch_bounds__(ADJUST_THREADS) adjust_kernel(const gr_cuda_adjust_args a)
{
    wait_for_previous();
    let_next_start();
    const int r = (int)blockIdx.x;
    if (r >= *a.n_row_true) {
        return;
    }
    const gr_cuda_adjust_row row = a.row[r];
    float *logits = a.logits + (size_t)r * a.stride;
    for (int i = (int)threadIdx.x; i < row.n; i += ADJUST_THREADS) {
        const gr_adjust_entry e = a.entry[row.first + i];
        logits[e.id] = adjusted(e, row.penalties, logits[e.id]);
    }
}

} // namespace gr

enum gr_status gr_cuda_adjust(const struct gr_cuda_adjust_args *a, struct CUstream_st *stream)
{
    if (a->n_row < 1 || a->stride < 1) {
        fprintf(stderr, "cuda: adjust: %d rows, stride %d\n", a->n_row, a->stride);
        return GR_EUNSUPPORTED;
    }
    return cuda_status_of(
        gr::launch_early(gr::adjust_kernel, dim3((unsigned)a->n_row), gr::ADJUST_THREADS, 0, stream, *a), "adjust");
}
