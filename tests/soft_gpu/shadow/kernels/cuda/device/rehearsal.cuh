/* Code that may be rehearsed (kernels/cuda/device/rehearsal.cuh), in software. */
#ifndef GR_KERNELS_CUDA_REHEARSAL_CUH
#define GR_KERNELS_CUDA_REHEARSAL_CUH

#include "kernels/cuda/device/device.cuh"

namespace gr
{

struct Always {
    explicit Always(bool)
    {
    }
    explicit operator bool() const
    {
        return true;
    }
};

struct Perhaps {
    uint32_t real;
    explicit Perhaps(bool real_) : real(real_)
    {
    }
    explicit operator bool() const
    {
        return real != 0;
    }
};

template <class When, class T> static inline void store_if(When when, void *to, T v)
{
    if (when) {
        *(T *)to = v;
    }
}

template <class When> static inline float2 load_shared_if(When when, const uint8_t *from)
{
    return when ? *(const float2 *)from : make_float2(0.0f, 0.0f);
}

} // namespace gr

#endif
