/* Keys and values into a GPU's KV blocks (kv_layout.h), and from cell to cell. All pointers are the device's and
 * borrowed; nothing allocates. Common subset of C and CUDA C++. */
#ifndef GR_KERNELS_CUDA_KV_H
#define GR_KERNELS_CUDA_KV_H

#include "common/status.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st;

enum {
    GR_CUDA_COPY_MAX = 64, /* cells of one gr_cuda_kv_copy() */
};

/* What the linear layer made of row r, (n_head + 2 n_kv_head) heads of head_dim: queries are turned (half-split form,
 * as gr_rope_fn in kernels.h, in f32 from bf16 and rounded once) into q, keys turned into cell[r], values copied there.
 * n_row is an upper bound (a graph's bucket); rows from *n_row_true on are left alone. */
struct gr_cuda_rope_store_args {
    const uint16_t *qkv;    /* bf16 (n_row, qkv_stride) */
    uint16_t *q;            /* bf16 (n_row, q_stride) */
    void *kv;               /* the layer's blocks */
    const int32_t *pos;     /* (n_row) */
    const int32_t *cell;    /* (n_row), block * 16 + lane */
    const float *cos, *sin; /* (n_pos, head_dim / 2) */
    const int32_t *n_row_true;
    int n_row, qkv_stride, q_stride; /* strides: multiples of 8 */
    int n_head, n_kv_head, head_dim; /* head_dim 64 or 128 */
};
GR_NODISCARD enum gr_status gr_cuda_rope_store(const struct gr_cuda_rope_store_args *a, struct CUstream_st *stream);

/* Cells src[i] -> dst[i], i < *n, as if all were read before any is written (a dst is never a later src, so that is the
 * same as in order), in every layer. More than GR_CUDA_COPY_MAX are not copied: *error becomes 1. */
struct gr_cuda_kv_copy_args {
    void *kv; /* of the first layer */
    size_t layer_bytes;
    const int32_t *src, *dst, *n;
    int32_t *error;
    int n_layer, n_kv_head, head_dim;
};
GR_NODISCARD enum gr_status gr_cuda_kv_copy(const struct gr_cuda_kv_copy_args *a, struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif

#endif
