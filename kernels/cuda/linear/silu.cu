/* Gate and up with biases to activations (silu.h): a thread has eight of them. Bound by latency as the norms of rows.cu
 * are; biases, which no kernel writes, are loaded before the kernel before is waited for. */
#include "kernels/cuda/linear/silu.h"

#include "kernels/cuda/device/cuda_status.cuh"
#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/linear/linear_out.cuh"

#include <cstdio>

namespace gr
{

constexpr int SILU_THREADS = 128;

template <int N> static __device__ __forceinline__ void load_floats(float (&to)[N], const float *from)
{
#pragma unroll
    for (int i = 0; i < N; i += 4) {
        const float4 v = *(const float4 *)(from + i);
        to[i] = v.x, to[i + 1] = v.y, to[i + 2] = v.z, to[i + 3] = v.w;
    }
}

static __global__ void __launch_bounds__(SILU_THREADS) silu_kernel(const gr_cuda_silu_args a)
{
    const int row = (int)blockIdx.y, col = ((int)blockIdx.x * SILU_THREADS + (int)threadIdx.x) * 8;
    const bool inside = col < a.n;
    float gate_bias[8]{}, up_bias[8]{}, x[16], y[8];
    if (inside) {
        load_floats(gate_bias, a.gate_bias + col);
        load_floats(up_bias, a.up_bias + col);
    }
    wait_for_previous();
    let_next_start();
    if (!inside || row >= *a.n_row_true) {
        return;
    }
    load_floats(x, a.x + (size_t)row * 2 * a.n + 2 * col);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        y[i] = silu(__fadd_rn(x[2 * i], gate_bias[i])) * __fadd_rn(x[2 * i + 1], up_bias[i]);
    }
    *(uint4 *)(a.y + gr_cuda_tile_at(row, col, a.n)) = pack_eight(y);
}

static bool is_aligned(const void *p)
{
    return p != nullptr && (size_t)p % 16 == 0;
}

} // namespace gr

enum gr_status gr_cuda_silu(const struct gr_cuda_silu_args *a, struct CUstream_st *stream)
{
    if (a->n_row < 1 || a->n_row > 65535 || a->n < 64 || a->n % 64 != 0 || a->n > 1 << 24 || !gr::is_aligned(a->x) ||
        !gr::is_aligned(a->gate_bias) || !gr::is_aligned(a->up_bias) || !gr::is_aligned(a->y) || !a->n_row_true) {
        fprintf(stderr,
                "cuda: silu: %d rows of %d (a multiple of 64); x at %p, biases at %p and %p, y at %p (aligned to 16)\n",
                a->n_row, a->n, (const void *)a->x, (const void *)a->gate_bias, (const void *)a->up_bias, (void *)a->y);
        return GR_EINVAL;
    }
    const int per = gr::SILU_THREADS * 8;
    const dim3 grid((unsigned)((a->n + per - 1) / per), (unsigned)a->n_row);
    return cuda_status_of(gr::launch_early(gr::silu_kernel, grid, gr::SILU_THREADS, 0, stream, *a), "silu");
}
