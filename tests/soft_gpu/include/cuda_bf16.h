/* bf16 as kernels use it, for the GPU in software. */
#ifndef GR_SOFT_GPU_CUDA_BF16_H
#define GR_SOFT_GPU_CUDA_BF16_H

#include <cmath>
#include <cstdint>
#include <cstring>

struct __nv_bfloat16 {
    uint16_t bits;
};

struct alignas(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;
};

static inline float soft_gpu_value(__nv_bfloat16 h)
{
    const uint32_t word = (uint32_t)h.bits << 16;
    float f;
    memcpy(&f, &word, sizeof(f));
    return f;
}

/* Of two numbers the larger or smaller one, and of a number and a NaN the number; -0 is below +0. */
static inline __nv_bfloat16 soft_gpu_extreme(__nv_bfloat16 a, __nv_bfloat16 b, bool largest)
{
    const float x = soft_gpu_value(a), y = soft_gpu_value(b);
    if (std::isnan(x) || std::isnan(y)) {
        return std::isnan(x) ? b : a;
    }
    const bool a_first = x == y ? std::signbit(x) : x < y;
    return a_first == largest ? b : a;
}

static inline __nv_bfloat162 __hmax2(__nv_bfloat162 a, __nv_bfloat162 b)
{
    return {soft_gpu_extreme(a.x, b.x, true), soft_gpu_extreme(a.y, b.y, true)};
}

static inline __nv_bfloat162 __hmin2(__nv_bfloat162 a, __nv_bfloat162 b)
{
    return {soft_gpu_extreme(a.x, b.x, false), soft_gpu_extreme(a.y, b.y, false)};
}

#endif
