/* Code that may be rehearsed. Instructions that nobody has run for a while come from far away, a kernel's last ones at
 * every launch; so a thread that has time goes through them once before, and touches no memory. It must go the same way
 * then: loads and stores are skipped one by one, by predicates, not by a branch around them. Decision D-013. */
#ifndef GR_KERNELS_CUDA_DEVICE_REHEARSAL_CUH
#define GR_KERNELS_CUDA_DEVICE_REHEARSAL_CUH

#include "kernels/cuda/device/device.cuh"

namespace gr
{

/* Do loads and stores happen? In kernels that nobody rehearses, always. */
struct Always {
    __device__ explicit Always(bool)
    {
    }
    __device__ __forceinline__ explicit operator bool() const
    {
        return true;
    }
};

/* In those that somebody rehearses, when it is real. */
struct Perhaps {
    uint32_t real;
    __device__ explicit Perhaps(bool real_) : real(real_)
    {
    }
    __device__ __forceinline__ explicit operator bool() const
    {
        return real != 0;
    }
};

template <class T> __device__ __forceinline__ void store_if(Always, void *to, T v)
{
    *(T *)to = v;
}

__device__ __forceinline__ void store_if(Perhaps when, void *to, uint4 v)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %5, 0;\n@p st.global.v4.b32 [%0], {%1, %2, %3, %4};\n}" ::"l"(to),
                 "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "r"(when.real)
                 : "memory");
}

__device__ __forceinline__ void store_if(Perhaps when, void *to, uint2 v)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %3, 0;\n@p st.global.v2.b32 [%0], {%1, %2};\n}" ::"l"(to), "r"(v.x),
                 "r"(v.y), "r"(when.real)
                 : "memory");
}

__device__ __forceinline__ void store_if(Perhaps when, void *to, float4 v)
{
    store_if(when, to,
             make_uint4(__float_as_uint(v.x), __float_as_uint(v.y), __float_as_uint(v.z), __float_as_uint(v.w)));
}

/* From shared memory; zeroes in a rehearsal. */
__device__ __forceinline__ float2 load_shared_if(Always, const uint8_t *from)
{
    return *(const float2 *)from;
}

__device__ __forceinline__ float2 load_shared_if(Perhaps when, const uint8_t *from)
{
    float2 v = make_float2(0.0f, 0.0f);
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %3, 0;\n@p ld.shared.v2.f32 {%0, %1}, [%2];\n}"
                 : "+f"(v.x), "+f"(v.y)
                 : "r"(smem_addr(from)), "r"(when.real)
                 : "memory");
    return v;
}

} // namespace gr

#endif
