/* Rows of activations as the matrix units want them: bf16 (tiles of 64 rows, n / 64, 64 rows, 64), each tile 8 KiB in
 * the 128-byte swizzle (the eight 16-byte pieces of a row XORed with the row's number modulo 8), so that one plain copy
 * brings a tile, or its first groups of 8 rows, into shared memory. n: width of a row, a multiple of 64. Common subset
 * of C and CUDA C++. */
#ifndef GR_KERNELS_CUDA_DEVICE_TILES_H
#define GR_KERNELS_CUDA_DEVICE_TILES_H

#include "kernels/cuda/device/kv_layout.h"

enum {
    GR_CUDA_TILE_ROWS = 64,
};

/* Offset of a value, in values. */
GR_HOST_DEVICE static inline size_t gr_cuda_tile_at(int row, int col, int n)
{
    const uint32_t r = (uint32_t)row, c = (uint32_t)col; /* whose quotients take fewer instructions */
    return ((size_t)(r / 64) * ((uint32_t)n / 64) + c / 64) * 4096 +
           (r % 64 * 64 + ((c % 64 / 8) ^ (r % 8)) * 8 + c % 8);
}

/* Bytes of n_row rows: whole tiles. */
GR_HOST_DEVICE static inline size_t gr_cuda_tile_bytes(int n_row, int n)
{
    return (size_t)((n_row + 63) / 64) * 64 * (size_t)n * 2;
}

#endif
