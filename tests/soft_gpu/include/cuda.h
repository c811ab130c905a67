/* The part of CUDA's driver API that graft names, for the GPU in software (tests/soft_gpu): types alone. Nothing of it
 * is found by cudaGetDriverEntryPointByVersion. */
#ifndef GR_SOFT_GPU_CUDA_H
#define GR_SOFT_GPU_CUDA_H

typedef enum cudaError_enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_NOT_SUPPORTED = 801,
} CUresult;

typedef enum CUmemRangeHandleType_enum {
    CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD = 1,
} CUmemRangeHandleType;

typedef unsigned long long CUdeviceptr;

#endif
