/* A row's norm by the first 512 threads of a block: sums are made in an order that the row's width decides. */
#ifndef GR_KERNELS_CUDA_ROWS_NORM_ROW_CUH
#define GR_KERNELS_CUDA_ROWS_NORM_ROW_CUH

#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/device/eight.cuh"
#include "kernels/cuda/rows/rows.h"

namespace gr
{

constexpr int ROW_THREADS = 512; /* threads that share a row */
constexpr int ROW_WARPS = ROW_THREADS / 32;
using RowSums = float[ROW_WARPS];
constexpr int NORM_N_MAX = 4 * ROW_THREADS * 8; /* a thread holds up to four times eight values */

__device__ __forceinline__ void store_eight(float *to, const Eight &e)
{
    ((float4 *)to)[0] = make_float4(e.x[0], e.x[1], e.x[2], e.x[3]);
    ((float4 *)to)[1] = make_float4(e.x[4], e.x[5], e.x[6], e.x[7]);
}

__device__ __forceinline__ Eight load_eight(const float *from)
{
    const float4 a = ((const float4 *)from)[0], b = ((const float4 *)from)[1];
    return {{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}};
}

/* The same in every thread of the 512. */
static __device__ float row_sum(float x, float *shared /* (ROW_WARPS) */)
{
#pragma unroll
    for (int d = 16; d > 0; d /= 2) {
        x += __shfl_xor_sync(~0u, x, d);
    }
    if (threadIdx.x % 32 == 0) {
        shared[threadIdx.x / 32] = x;
    }
    named_sync(1, ROW_THREADS);
    x = shared[threadIdx.x % ROW_WARPS];
#pragma unroll
    for (int d = ROW_WARPS / 2; d > 0; d /= 2) {
        x += __shfl_xor_sync(~0u, x, d);
    }
    return x;
}

/* N: times eight values that a thread holds. */
template <int N> struct NormRow {
    Eight w[N], x[N];

    static __device__ __forceinline__ int col(int j)
    {
        return 8 * ((int)threadIdx.x + j * ROW_THREADS);
    }

    __device__ __forceinline__ void load_weights(const gr_cuda_norm_args &a)
    {
#pragma unroll
        for (int j = 0; j < N; j++) {
            if (a.w != nullptr && col(j) < a.n) {
                w[j] = load_eight(a.w + col(j));
            }
        }
    }

    __device__ __forceinline__ void load(const gr_cuda_norm_args &a, const float *from)
    {
#pragma unroll
        for (int j = 0; j < N; j++) {
            if (col(j) < a.n) {
                x[j] = load_eight(from + col(j));
            }
        }
    }

    __device__ __forceinline__ void load(const gr_cuda_norm_args &a, const uint16_t *from)
    {
#pragma unroll
        for (int j = 0; j < N; j++) {
            if (col(j) < a.n) {
                x[j] = unpack(*(const uint4 *)(from + col(j)));
            }
        }
    }

    __device__ __forceinline__ float scale(const gr_cuda_norm_args &a, float *shared) const
    {
        float sum = 0.0f;
#pragma unroll
        for (int j = 0; j < N; j++) {
            if (col(j) < a.n) {
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    sum = fmaf(x[j].x[i], x[j].x[i], sum);
                }
            }
        }
        return 1.0f / sqrtf(row_sum(sum, shared) / (float)a.n + a.eps);
    }

    /* The capture, and the norm or what there is without one. shared: (ROW_WARPS), for this row alone. */
    __device__ __forceinline__ void store(const gr_cuda_norm_args &a, int row, float *shared)
    {
        const float inv = a.w != nullptr ? scale(a, shared) : 1.0f;
#pragma unroll
        for (int j = 0; j < N; j++) {
            if (col(j) >= a.n) {
                continue;
            }
            if (a.capture != nullptr) {
                *(uint4 *)(a.capture + gr_cuda_tile_at(row, a.capture_col + col(j), a.capture_n)) = pack_eight(x[j].x);
            }
#pragma unroll
            for (int i = 0; i < 8; i++) {
                x[j].x[i] = a.w != nullptr ? x[j].x[i] * inv * w[j].x[i] : x[j].x[i];
            }
            *(uint4 *)(a.y + gr_cuda_tile_at(row, a.y_col + col(j), a.y_n)) = pack_eight(x[j].x);
        }
    }
};

inline bool aligned(const void *p)
{
    return (uintptr_t)p % 16 == 0;
}

/* Columns [col, col + n) of tiles of width `width`. */
inline bool fits(int width, int col, int n)
{
    return width % 64 == 0 && col % 8 == 0 && col >= 0 && col + n <= width;
}

inline bool norm_is_supported(const gr_cuda_norm_args &a)
{
    return a.n_row >= 1 && a.n >= 64 && a.n % 64 == 0 && a.n <= NORM_N_MAX && a.x_stride % 4 == 0 &&
           a.x_stride >= a.n && fits(a.y_n, a.y_col, a.n) &&
           (a.capture == nullptr || fits(a.capture_n, a.capture_col, a.n)) && aligned(a.x) && aligned(a.w) &&
           aligned(a.y) && aligned(a.capture);
}

} // namespace gr

#endif
