/* What to do about an error of the CUDA runtime. */
#ifndef GR_KERNELS_CUDA_DEVICE_CUDA_STATUS_CUH
#define GR_KERNELS_CUDA_DEVICE_CUDA_STATUS_CUH

#include "common/base/status.h"

#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>

/* In the engine: one line, and the caller is told. what: the operation. */
static inline enum gr_status cuda_status_of(cudaError_t e, const char *what)
{
    if (e == cudaSuccess) {
        return GR_OK;
    }
    fprintf(stderr, "cuda: %s: %s\n", what, cudaGetErrorString(e));
    (void)cudaGetLastError();
    return GR_ECUDA;
}

/* In tests and benchmarks: one line, and the end. */
#define CUDA_OK(e)                                                                              \
    do {                                                                                        \
        const cudaError_t e_ = (e);                                                             \
        if (e_ != cudaSuccess) {                                                                \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #e, cudaGetErrorString(e_)); \
            exit(1);                                                                            \
        }                                                                                       \
    } while (0)

#endif
