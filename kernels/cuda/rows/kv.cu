/* The copy of cells: memory-bound, 16 bytes a thread. */
#include "kernels/cuda/rows/kv.h"

#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/device/kv_layout.h"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/cuda_status.cuh"

#include <cuda_runtime.h>

#include <cstdio>

namespace gr
{

/* A block: a layer and a KV head. All cells are read before one is written. */
__global__ void __launch_bounds__(256) kv_copy_kernel(const gr_cuda_kv_copy_args a)
{
    GR_DYNAMIC_SHARED(uint4, held, 16); /* (n, 2, head_dim / 8) */
    wait_for_previous();
    let_next_start();
    const int n = *a.n, pieces = a.head_dim / 8, kv_head = (int)blockIdx.x;
    if (n > GR_CUDA_COPY_MAX) {
        *a.error = 1;
        return;
    }
    uint16_t *kv = (uint16_t *)((uint8_t *)a.kv + blockIdx.y * a.layer_bytes);
    for (int write = 0; write < 2; write++) {
        for (int i = (int)threadIdx.x; i < n * 2 * pieces; i += 256) {
            const int cell = (write ? a.dst : a.src)[i / (2 * pieces)], part = i / pieces % 2, d = i % pieces * 8;
            uint16_t *block = kv + gr_cuda_block_at(cell / GR_KV_BLOCK_TOKENS, kv_head, a.n_kv_head, a.head_dim) +
                              part * gr_cuda_block_size(a.head_dim);
            uint4 *at = (uint4 *)(block + (part ? gr_cuda_value_at(cell % GR_KV_BLOCK_TOKENS, d)
                                                : gr_cuda_key_at(cell % GR_KV_BLOCK_TOKENS, d, a.head_dim)));
            if (write) {
                *at = held[i];
            } else {
                held[i] = *at;
            }
        }
        __syncthreads();
    }
}

} // namespace gr

enum gr_status gr_cuda_kv_copy(const struct gr_cuda_kv_copy_args *a, struct CUstream_st *stream)
{
    if ((a->head_dim != 64 && a->head_dim != 128) || a->n_layer < 1 || a->n_kv_head < 1) {
        fprintf(stderr, "cuda: copy of cells: head_dim %d, %d layers, %d KV heads\n", a->head_dim, a->n_layer,
                a->n_kv_head);
        return GR_EUNSUPPORTED;
    }
    const dim3 grid((unsigned)a->n_kv_head, (unsigned)a->n_layer);
    const size_t held = (size_t)GR_CUDA_COPY_MAX * 4 * a->head_dim;
    return cuda_status_of(gr::launch_early(gr::kv_copy_kernel, grid, 256, held, stream, *a), "copy of cells");
}
