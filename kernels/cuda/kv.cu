/* Rotary embedding with the store of keys and values, and the copy of cells: memory-bound, 16 bytes a thread. */
#include "kernels/cuda/kv.h"

#include "kernels/cuda/eight.cuh"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/kv_layout.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/cuda_status.cuh"

#include <cuda_runtime.h>

#include <cstdio>

namespace gr
{

/* Eight dimensions from i on and their partners half a head further. */
static __device__ __forceinline__ void turn(const float *cos, const float *sin, uint4 &lo, uint4 &hi)
{
    Eight a = unpack(lo), b = unpack(hi);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const float x = a.x[i], y = b.x[i];
        a.x[i] = __fmaf_rn(x, cos[i], -__fmul_rn(y, sin[i]));
        b.x[i] = __fmaf_rn(y, cos[i], __fmul_rn(x, sin[i]));
    }
    lo = pack(a);
    hi = pack(b);
}

/* A block: a row. A thread: 8 + 8 dimensions of a head at a time. */
__global__ void __launch_bounds__(256) rope_store_kernel(const gr_cuda_rope_store_args a)
{
    wait_for_previous();
    let_next_start();
    const int row = (int)blockIdx.x, half = a.head_dim / 2, per_head = half / 8;
    if (row >= *a.n_row_true) {
        return;
    }
    const int cell = a.cell[row], lane = cell % 16, pos = a.pos[row];
    const uint16_t *from = a.qkv + (size_t)row * a.qkv_stride;
    for (int i = (int)threadIdx.x; i < (a.n_head + 2 * a.n_kv_head) * per_head; i += 256) {
        const int head = i / per_head, d = i % per_head * 8;
        uint4 lo = *(const uint4 *)(from + head * a.head_dim + d);
        uint4 hi = *(const uint4 *)(from + head * a.head_dim + half + d);
        if (head < a.n_head + a.n_kv_head) {
            turn(a.cos + (size_t)pos * half + d, a.sin + (size_t)pos * half + d, lo, hi);
        }
        uint16_t *to_lo, *to_hi;
        if (head < a.n_head) {
            to_lo = a.q + (size_t)row * a.q_stride + head * a.head_dim + d;
            to_hi = to_lo + half;
        } else {
            const bool key = head < a.n_head + a.n_kv_head;
            const int kv_head = (head - a.n_head) % a.n_kv_head;
            uint16_t *block = (uint16_t *)a.kv + gr_cuda_block_at(cell / 16, kv_head, a.n_kv_head, a.head_dim) +
                              (key ? 0 : gr_cuda_block_size(a.head_dim));
            to_lo = block + (key ? gr_cuda_key_at(lane, d, a.head_dim) : gr_cuda_value_at(lane, d));
            to_hi = block + (key ? gr_cuda_key_at(lane, half + d, a.head_dim) : gr_cuda_value_at(lane, half + d));
        }
        *(uint4 *)to_lo = lo;
        *(uint4 *)to_hi = hi;
    }
}

/* A block: a layer and a KV head. All cells are read before one is written. */
__global__ void __launch_bounds__(256) kv_copy_kernel(const gr_cuda_kv_copy_args a)
{
    extern __shared__ uint4 held[]; /* (n, 2, head_dim / 8) */
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
            uint16_t *block = kv + gr_cuda_block_at(cell / 16, kv_head, a.n_kv_head, a.head_dim) +
                              part * gr_cuda_block_size(a.head_dim);
            uint4 *at =
                (uint4 *)(block + (part ? gr_cuda_value_at(cell % 16, d) : gr_cuda_key_at(cell % 16, d, a.head_dim)));
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

enum gr_status gr_cuda_rope_store(const struct gr_cuda_rope_store_args *a, struct CUstream_st *stream)
{
    if ((a->head_dim != 64 && a->head_dim != 128) || a->qkv_stride % 8 != 0 || a->q_stride % 8 != 0 || a->n_row < 1) {
        fprintf(stderr, "cuda: rope: head_dim %d, %d rows, strides %d and %d\n", a->head_dim, a->n_row, a->qkv_stride,
                a->q_stride);
        return GR_EUNSUPPORTED;
    }
    return cuda_status_of(gr::launch_early(gr::rope_store_kernel, dim3((unsigned)a->n_row), 256, 0, stream, *a), "rope");
}

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
