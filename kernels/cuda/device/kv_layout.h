/* Where a key and a value lie in GPU memory; device code, host code and tests share it.
 *
 * One layer is (n_block, n_kv_head, 2, 16 * head_dim) of bf16: a block of 16 cells and a KV head is its keys, then its
 * values, in one piece. Both are kept as shared memory wants them for the matrix units, so that a block is loaded by
 * one plain copy: rows of 64 dimensions (128 bytes) whose 16-byte pieces are XORed with the cell's number modulo 8.
 *   keys:   (2 groups of 8 cells, head_dim / 64, 8 cells, 64)
 *   values: (head_dim / 64, 16 cells, 64)
 * head_dim is 64 or 128. Common subset of C and CUDA C++. */
#ifndef GR_KERNELS_CUDA_DEVICE_KV_LAYOUT_H
#define GR_KERNELS_CUDA_DEVICE_KV_LAYOUT_H

#include "common/rules/kv_block.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __CUDACC__
#define GR_HOST_DEVICE __host__ __device__
#else
#define GR_HOST_DEVICE
#endif

/* bf16 values of a block: its keys, or its values. */
GR_HOST_DEVICE static inline int gr_cuda_block_size(int head_dim)
{
    return GR_KV_BLOCK_TOKENS * head_dim;
}

/* Offset of a block of a KV head in its layer, in values. */
GR_HOST_DEVICE static inline size_t gr_cuda_block_at(int32_t block, int kv_head, int n_kv_head, int head_dim)
{
    return ((size_t)block * (size_t)n_kv_head + (size_t)kv_head) * (size_t)(2 * GR_KV_BLOCK_TOKENS * head_dim);
}

/* Offset of dimension d of a key in its block. */
GR_HOST_DEVICE static inline int gr_cuda_key_at(int lane, int d, int head_dim)
{
    return (lane / 8 * (head_dim / 64) + d / 64) * 512 + lane % 8 * 64 + ((d % 64 / 8) ^ (lane % 8)) * 8 + d % 8;
}

/* The same of a value, from the start of the values. */
GR_HOST_DEVICE static inline int gr_cuda_value_at(int lane, int d)
{
    return d / 64 * (GR_KV_BLOCK_TOKENS * 64) + lane * 64 + ((d % 64 / 8) ^ (lane % 8)) * 8 + d % 8;
}

#endif
