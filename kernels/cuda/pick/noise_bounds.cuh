/* What the noise of a random word lies between, for a fraction of what the noise costs. */
#ifndef GR_KERNELS_CUDA_PICK_NOISE_BOUNDS_CUH
#define GR_KERNELS_CUDA_PICK_NOISE_BOUNDS_CUH

#include "kernels/cuda/device/device.cuh"

#include <cmath>
#include <cstdint>

namespace gr
{

struct NoiseBounds {
    float low, high;
};

/* Noise is -log(-log(1 - v)), v = (word + 1/2) / 2^32 (gr_math.h). With v <= -log(1 - v) <= v / (1 - v) it lies between
 * -log v + log(1 - v) and -log v, and log(1 - v) >= -2 v for v < 1/2. 1e-4 covers the approximate logarithm (relative
 * error 2^-22 of at most 32) and the rounding of the noise itself; the tests compare all words. */
__device__ __forceinline__ NoiseBounds noise_bounds(uint32_t word)
{
    const float u = (float)word + 0.5f;
    const float near = fmaf(log2_fast(u), -0.693147181f, 22.1807098f); /* 32 log 2 */
    return {u < 2147483648.0f ? fmaf(u, -4.65661287e-10f, near - 1e-4f) : -INFINITY, near + 1e-4f};
}

} // namespace gr

#endif
