/* The ceiling that everything bound by memory is held against. */
#ifndef GR_KERNELS_CUDA_DEVICE_READ_ALL_CUH
#define GR_KERNELS_CUDA_DEVICE_READ_ALL_CUH

#include <cstddef>
#include <cstdint>
#include <cuda_runtime.h>

/* Reads n times 16 bytes and does nothing with them: what memory gives. */
static __global__ void read_all(const uint4 *p, size_t n, uint32_t *out)
{
    uint32_t a = 0;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        const uint4 v = __ldcs(p + i);
        a ^= v.x ^ v.y ^ v.z ^ v.w;
    }
    if (a == 0x12345) {
        *out = a;
    }
}

#endif
