/* Keys and values from cell to cell of a GPU's KV blocks (kv_layout.h); linear.h puts them there. All pointers are the
 * device's and borrowed; nothing allocates. Common subset of C and CUDA C++. */
#ifndef GR_KERNELS_CUDA_ROWS_KV_H
#define GR_KERNELS_CUDA_ROWS_KV_H

#include "common/base/status.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st;

enum {
    GR_CUDA_COPY_MAX = 64, /* cells of one gr_cuda_kv_copy() */
};

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
