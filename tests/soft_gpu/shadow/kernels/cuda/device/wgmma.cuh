/* The matrix instructions of kernels/cuda/device/wgmma.cuh, in software. */
#ifndef GR_KERNELS_CUDA_WGMMA_CUH
#define GR_KERNELS_CUDA_WGMMA_CUH

#include <cuda_runtime.h>

namespace gr
{

static inline uint64_t wgmma_desc(uint32_t addr, uint32_t lead, uint32_t stride)
{
    return (uint64_t)((addr & 0x3FFFF) >> 4) | (uint64_t)(lead >> 4) << 16 | (uint64_t)(stride >> 4) << 32 | 1ull << 62;
}

static inline uint64_t wgmma_uniform(uint64_t desc)
{
    return __shfl_sync(~0u, desc, 0);
}

static inline uint64_t wgmma_step(uint64_t desc, uint32_t bytes)
{
    return desc + (bytes >> 4);
}

static inline void wgmma_fence()
{
}

static inline void wgmma_commit()
{
    soft_gpu::multiply_commit();
}

template <int N> static inline void wgmma_wait()
{
    soft_gpu::multiply_wait(N);
}

template <int N> static inline void wgmma_hold(float (&)[N])
{
}

template <int N> static inline void wgmma_ss(float (&d)[N / 2], uint64_t a, uint64_t b, int accumulate)
{
    soft_gpu::multiply({N, d, nullptr, a, b, true, accumulate != 0});
}

template <int N> static inline void wgmma_rs(float (&d)[N / 2], const uint32_t *a, uint64_t b)
{
    soft_gpu::multiply({N, d, a, 0, b, false, true});
}

} // namespace gr

#endif
