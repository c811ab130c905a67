/* Eight values: what a 16-byte access of bf16 brings. */
#ifndef GR_KERNELS_CUDA_DEVICE_EIGHT_CUH
#define GR_KERNELS_CUDA_DEVICE_EIGHT_CUH

#include "kernels/cuda/device/device.cuh"

#include <cstdint>

namespace gr
{

struct Eight {
    float x[8];
};

__device__ __forceinline__ Eight unpack(uint4 v)
{
    const uint32_t w[4] = {v.x, v.y, v.z, v.w};
    Eight e;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        e.x[2 * i] = __uint_as_float(w[i] << 16);
        e.x[2 * i + 1] = __uint_as_float(w[i] & 0xffff0000u);
    }
    return e;
}

__device__ __forceinline__ uint4 pack_eight(const float (&v)[8])
{
    return make_uint4(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]), pack_bf16(v[4], v[5]), pack_bf16(v[6], v[7]));
}

} // namespace gr

#endif
