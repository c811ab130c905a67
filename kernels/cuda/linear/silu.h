/* What GR_CUDA_OUT_SILU (linear.h) makes of gate and up, for families whose gate and up have biases: their sums come as
 * f32. Common subset of C and CUDA C++. */
#ifndef GR_KERNELS_CUDA_LINEAR_SILU_H
#define GR_KERNELS_CUDA_LINEAR_SILU_H

#include "common/base/status.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st;

/* y[r][i] = silu(x[r][2 i] + gate_bias[i]) * (x[r][2 i + 1] + up_bias[i]), in f32 and rounded once; without biases
 * GR_CUDA_OUT_SILU's bits. x: f32 (n_row, 2 n), gate and up in turn; y: bf16 tiles (tiles.h) of width n, a multiple of
 * 64; biases (n). All aligned to 16 bytes. Rows from *n_row_true on are left alone. All pointers are the device's and
 * borrowed; a row's bits depend on that row alone. */
struct gr_cuda_silu_args {
    const float *x;
    const float *gate_bias, *up_bias;
    uint16_t *y;
    int n_row, n;
    const int32_t *n_row_true;
};
GR_NODISCARD enum gr_status gr_cuda_silu(const struct gr_cuda_silu_args *a, struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif

#endif
