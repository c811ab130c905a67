/* What is done with what a library has brought from another rank (model/cuda/ranks_nccl.c). None of these kernels
 * starts before all that was enqueued has ended, so that those after it may start early. Pointers are the device's. */
#ifndef GR_KERNELS_CUDA_GROUP_ADD_H
#define GR_KERNELS_CUDA_GROUP_ADD_H

#include "common/base/status.h"

#include <stddef.h>

struct CUstream_st;

#ifdef __cplusplus
extern "C" {
#endif

/* x += y. x, y: (n), aligned to 16; n a multiple of 4. Each sum of two is rounded once, whichever comes first. */
GR_NODISCARD enum gr_status gr_cuda_add(float *x, const float *y, size_t n, struct CUstream_st *stream);
/* Rows of `width` values, one after the other, to rows that are to_stride apart. */
GR_NODISCARD enum gr_status gr_cuda_place(float *to, size_t to_stride, const float *from, size_t width, int n_row,
                                          struct CUstream_st *stream);
/* Does nothing. */
GR_NODISCARD enum gr_status gr_cuda_pause(struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif

#endif
