/* What this GPU can do, measured now: the ceilings that results are stated against. Common subset of C and CUDA C++. */
#ifndef GR_KERNELS_CUDA_DEVICE_CEILING_H
#define GR_KERNELS_CUDA_DEVICE_CEILING_H

#include "common/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

struct gr_cuda_ceilings {
    double read_bytes_per_s; /* memory, 4 GiB read once; median of 20 */
    double matrix_flops;     /* attention's own products, bf16, on operands that stay; median of 20 */
};

/* Of the current device; takes 4 GiB of its memory for the time. Not for use while something else runs there. */
GR_NODISCARD enum gr_status gr_cuda_measure_ceilings(struct gr_cuda_ceilings *out);

#ifdef __cplusplus
}
#endif

#endif
