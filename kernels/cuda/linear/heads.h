/* Query, key and value heads from the sums of their linear layer, for families whose heads are more than turned: an
 * RMSNorm over each head of q and k, or a bias, which that layer adds. Others have them straight from the layer
 * (linear.h: GR_CUDA_OUT_HEADS), whose bits these are where there is no norm. Common subset of C and CUDA C++. */
#ifndef GR_KERNELS_CUDA_LINEAR_HEADS_H
#define GR_KERNELS_CUDA_LINEAR_HEADS_H

#include "kernels/cuda/linear/linear.h"

#ifdef __cplusplus
extern "C" {
#endif

/* x: f32 (n_row, x_stride), heads of q, then of k, then of v, dimensions in order. Each head of q and k is multiplied
 * by q_norm or k_norm (head_dim; NULL: there is no norm) / sqrt(mean(x^2) + eps), in f32 from the sums, turned, and
 * rounded once. Rows from *n_row_true on are left alone. All pointers are the device's and borrowed; a row's bits
 * depend on that row alone. */
struct gr_cuda_place_heads_args {
    const float *x;
    const float *q_norm, *k_norm;
    struct gr_cuda_heads heads; /* where to, and by what they are turned */
    int n_row, x_stride;
    float eps;
    const int32_t *n_row_true;
};
GR_NODISCARD enum gr_status gr_cuda_place_heads(const struct gr_cuda_place_heads_args *a, struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif

#endif
