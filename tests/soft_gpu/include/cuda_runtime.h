/* CUDA C++ as graft's kernels use it, for the GPU in software (tests/soft_gpu): keywords, built-in types, variables and
 * functions, launches. In C: the run time alone. */
#ifndef GR_SOFT_GPU_CUDA_RUNTIME_H
#define GR_SOFT_GPU_CUDA_RUNTIME_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus

#include "tests/soft_gpu/engine.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <type_traits>

#define __host__
#define __device__
#define __global__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
#define __cluster_dims__(x, y, z) /* launches say it, too */

/* ---- types ---- */

struct alignas(8) int2 {
    int x, y;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(16) ulonglong2 {
    unsigned long long x, y;
};

static inline uint2 make_uint2(unsigned x, unsigned y)
{
    return {x, y};
}

static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w)
{
    return {x, y, z, w};
}

static inline float2 make_float2(float x, float y)
{
    return {x, y};
}

static inline float4 make_float4(float x, float y, float z, float w)
{
    return {x, y, z, w};
}

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_)
    {
    }
};

/* ---- functions ---- */

using std::isnan;

template <class A, class B> static inline std::common_type_t<A, B> min(A a, B b)
{
    using T = std::common_type_t<A, B>;
    return (T)b < (T)a ? (T)b : (T)a;
}

template <class A, class B> static inline std::common_type_t<A, B> max(A a, B b)
{
    using T = std::common_type_t<A, B>;
    return (T)a < (T)b ? (T)b : (T)a;
}

template <class To, class From> static inline To soft_gpu_as(From from)
{
    static_assert(sizeof(To) == sizeof(From), "as many bits");
    To to;
    memcpy(&to, &from, sizeof(to));
    return to;
}

static inline unsigned __float_as_uint(float x)
{
    return soft_gpu_as<unsigned>(x);
}

static inline int __float_as_int(float x)
{
    return soft_gpu_as<int>(x);
}

static inline float __uint_as_float(unsigned x)
{
    return soft_gpu_as<float>(x);
}

static inline float __fmaf_rn(float x, float y, float z)
{
    return fmaf(x, y, z);
}

static inline float __fadd_rn(float x, float y)
{
    return x + y;
}

static inline float __fmul_rn(float x, float y)
{
    return x * y;
}

static inline float __frcp_rn(float x)
{
    return 1.0f / x;
}

static inline float __fdividef(float x, float y)
{
    return x / y;
}

#define __expf soft_gpu_expf /* the C library declares one of its own */
static inline float soft_gpu_expf(float x)
{
    return expf(x);
}

static inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}

static inline int __ffs(int x)
{
    return __builtin_ffs(x);
}

template <class T> static inline T __ldcg(const T *p)
{
    return *p;
}

template <class T> static inline T __ldcs(const T *p)
{
    return *p;
}

template <class T> static inline T atomicAdd(T *p, T x)
{
    return __atomic_fetch_add(p, x, __ATOMIC_SEQ_CST);
}

template <class A, class B> static inline A atomicMax(A *p, B x)
{
    const A before = *p;
    *p = max(before, (A)x);
    return before;
}

static inline void __threadfence()
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

[[noreturn]] static inline void __trap()
{
    soft_gpu::fail("__trap()");
}

/* ---- a warp's lanes together; only whole warps ---- */

static inline void __syncthreads()
{
    soft_gpu::sync_threads(0, 0);
}

static inline void __syncwarp()
{
    (void)soft_gpu::meet_warp("__syncwarp", 0);
}

static inline void soft_gpu_whole(unsigned mask)
{
    if (mask != ~0u) {
        soft_gpu::fail("a mask of some lanes, %08x", mask);
    }
}

template <class T> static inline uint64_t soft_gpu_word(T x)
{
    uint64_t word = 0;
    static_assert(sizeof(x) <= sizeof(word), "a register or two");
    memcpy(&word, &x, sizeof(x));
    return word;
}

template <class T> static inline T soft_gpu_unword(uint64_t word)
{
    T x;
    memcpy(&x, &word, sizeof(x));
    return x;
}

template <class T> static inline T __shfl_sync(unsigned mask, T x, int lane)
{
    soft_gpu_whole(mask);
    return soft_gpu_unword<T>(soft_gpu::meet_warp("__shfl_sync", soft_gpu_word(x))[lane % 32]);
}

template <class T> static inline T __shfl_xor_sync(unsigned mask, T x, int with)
{
    soft_gpu_whole(mask);
    const uint64_t *v = soft_gpu::meet_warp("__shfl_xor_sync", soft_gpu_word(x));
    return soft_gpu_unword<T>(v[(threadIdx.x % 32) ^ (unsigned)with]);
}

template <class T> static inline T __shfl_up_sync(unsigned mask, T x, unsigned by)
{
    soft_gpu_whole(mask);
    const uint64_t *v = soft_gpu::meet_warp("__shfl_up_sync", soft_gpu_word(x));
    const unsigned lane = threadIdx.x % 32;
    return soft_gpu_unword<T>(v[lane >= by ? lane - by : lane]);
}

static inline unsigned __ballot_sync(unsigned mask, int x)
{
    soft_gpu_whole(mask);
    const uint64_t *v = soft_gpu::meet_warp("__ballot_sync", x != 0);
    unsigned bits = 0;
    for (int i = 0; i < 32; i++) {
        bits |= (unsigned)v[i] << i;
    }
    return bits;
}

static inline int __any_sync(unsigned mask, int x)
{
    return __ballot_sync(mask, x) != 0;
}

template <class T, class F> static inline T soft_gpu_reduce(const char *what, unsigned mask, T x, F join)
{
    soft_gpu_whole(mask);
    const uint64_t *v = soft_gpu::meet_warp(what, soft_gpu_word(x));
    T all = soft_gpu_unword<T>(v[0]);
    for (int i = 1; i < 32; i++) {
        all = join(all, soft_gpu_unword<T>(v[i]));
    }
    return all;
}

template <class T> static inline T __reduce_max_sync(unsigned mask, T x)
{
    return soft_gpu_reduce("__reduce_max_sync", mask, x, [](T a, T b) { return a < b ? b : a; });
}

template <class T> static inline T __reduce_min_sync(unsigned mask, T x)
{
    return soft_gpu_reduce("__reduce_min_sync", mask, x, [](T a, T b) { return b < a ? b : a; });
}

template <class T> static inline T __reduce_add_sync(unsigned mask, T x)
{
    return soft_gpu_reduce("__reduce_add_sync", mask, x, [](T a, T b) { return a + b; });
}

/* ---- launches ---- */

enum cudaLaunchAttributeID {
    cudaLaunchAttributeIgnore = 0, /* what graft ignores so is the cluster's dimension */
    cudaLaunchAttributeClusterDimension = 4,
    cudaLaunchAttributeProgrammaticStreamSerialization = 6,
};

struct cudaLaunchAttribute {
    cudaLaunchAttributeID id;
    union {
        struct {
            unsigned x, y, z;
        } clusterDim;
        int programmaticStreamSerializationAllowed;
    } val;
};

struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
    cudaLaunchAttribute *attrs;
    unsigned numAttrs;
};

enum cudaFuncAttribute {
    cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
};

/* Runs it, or records it for the stream's graph. */
cudaError_t soft_gpu_launch(const cudaLaunchConfig_t *config, const void *kernel, std::function<void()> body);
cudaError_t soft_gpu_shared_max(const void *kernel, int bytes);

template <class... P, class... A>
static inline cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *config, void (*kernel)(P...), A... a)
{
    return soft_gpu_launch(config, (const void *)kernel, [kernel, a...] { kernel(a...); });
}

/* Of blocks that are alone on their multiprocessors. */
template <class T>
static inline cudaError_t cudaOccupancyMaxActiveClusters(int *n, T *, const cudaLaunchConfig_t *config)
{
    *n = soft_gpu::N_BLOCK_AT_ONCE / (int)config->attrs[0].val.clusterDim.x;
    return cudaSuccess;
}

template <class T> static inline cudaError_t cudaFuncSetAttribute(T *kernel, cudaFuncAttribute attribute, int value)
{
    return attribute == cudaFuncAttributeMaxDynamicSharedMemorySize ? soft_gpu_shared_max((const void *)kernel, value)
                                                                    : cudaErrorInvalidValue;
}

template <class T> static inline cudaError_t cudaMalloc(T **p, size_t bytes)
{
    return cudaMalloc((void **)p, bytes);
}

template <class T> static inline cudaError_t cudaHostAlloc(T **p, size_t bytes, unsigned flags)
{
    return cudaHostAlloc((void **)p, bytes, flags);
}

template <class T> static inline cudaError_t cudaHostGetDevicePointer(T **device, void *host, unsigned flags)
{
    return cudaHostGetDevicePointer((void **)device, host, flags);
}

#endif

#endif
