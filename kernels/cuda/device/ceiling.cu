/* The ceilings of a GPU. */
#include "kernels/cuda/device/ceiling.h"

#include "kernels/cuda/device/cuda_status.cuh"
#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/read_all.cuh"
#include "kernels/cuda/device/wgmma.cuh"

#include <algorithm>

namespace gr
{

constexpr size_t N_READ = (size_t)4 << 30; /* bytes that are read, more than any cache holds */
constexpr int N_REP = 20, N_STEP = 8000;   /* of products: about 10 ms */
constexpr size_t MATRIX_SMEM = 99 * 1024;

static __global__ void fill(uint4 *p, size_t n)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        uint64_t z = (i + 1) * 0x9E3779B97F4A7C15ull;
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
        const uint32_t w = ((uint32_t)(z >> 32) & 0x807f807fu) | 0x3c803c80u; /* bf16 near 2^-6 */
        p[i] = make_uint4(w, ~w & 0x807f807fu | 0x3c803c80u, w ^ 0x00150015u, w ^ 0x80008000u);
    }
}

/* The products of attention on operands that stay: what the matrix units give. Two warpgroups, scores and weighted
 * sums. */
static __global__ void __launch_bounds__(256, 1) matrix_rate(const uint4 *from, int n, float *out)
{
    GR_DYNAMIC_SHARED(uint8_t, raw, 16);
    uint8_t *smem = (uint8_t *)(((uintptr_t)raw + 1023) & ~(uintptr_t)1023);
    for (int i = (int)threadIdx.x; i < 6144; i += 256) {
        ((uint4 *)smem)[i] = from[i];
    }
    gr::fence_async_shared();
    __syncthreads();
    float s[64], o[64];
    uint32_t p[32];
    for (int i = 0; i < 64; i++) {
        s[i] = o[i] = 0.0f;
        p[i / 2] = ((const uint32_t *)from)[threadIdx.x * 32 + i / 2];
    }
    const uint32_t q = gr::smem_addr(smem) + threadIdx.x / 128 * 16384, k = gr::smem_addr(smem) + 32768, v = k + 32768;
    for (int i = 0; i < n; i++) {
        gr::wgmma_fence();
#pragma unroll
        for (int j = 0; j < 8; j++) {
            gr::wgmma_ss<128>(s, gr::wgmma_desc(q + j / 4 * 8192 + j % 4 * 32, 16, 1024),
                              gr::wgmma_desc(k + j / 4 * 1024 + j % 4 * 32, 16, 2048), 1);
        }
#pragma unroll
        for (int j = 0; j < 8; j++) {
            gr::wgmma_rs<128>(o, p + 4 * j, gr::wgmma_desc(v + j * 4096, 2048, 1024));
        }
        gr::wgmma_commit();
        gr::wgmma_wait<0>();
    }
    gr::wgmma_hold(s);
    gr::wgmma_hold(o);
    out[threadIdx.x] = s[0] + o[0];
}

template <class F> static enum gr_status median_ms(F launch, float *out)
{
    cudaEvent_t begin, end;
    float ms[N_REP];
    GR_TRY(cuda_status_of(cudaEventCreate(&begin), "ceilings"));
    GR_TRY(cuda_status_of(cudaEventCreate(&end), "ceilings"));
    for (int i = -5; i < N_REP; i++) {
        float t = 0.0f;
        GR_TRY(cuda_status_of(cudaEventRecord(begin, nullptr), "ceilings"));
        GR_TRY(cuda_status_of(launch(), "ceilings"));
        GR_TRY(cuda_status_of(cudaEventRecord(end, nullptr), "ceilings"));
        GR_TRY(cuda_status_of(cudaEventSynchronize(end), "ceilings"));
        GR_TRY(cuda_status_of(cudaEventElapsedTime(&t, begin, end), "ceilings"));
        ms[std::max(i, 0)] = t;
    }
    std::sort(ms, ms + N_REP);
    *out = ms[N_REP / 2];
    (void)cudaEventDestroy(begin);
    (void)cudaEventDestroy(end);
    return GR_OK;
}

static enum gr_status measure(uint4 *buffer, int n_sm, gr_cuda_ceilings *out)
{
    float read_ms = 0.0f, matrix_ms = 0.0f;
    GR_TRY(cuda_status_of(launch_after(fill, dim3(1056), 512, 0, nullptr, buffer, N_READ / 16 + 64), "ceilings"));
    const auto read = [&] {
        return launch_after(read_all, dim3(1056), 512, 0, nullptr, (const uint4 *)buffer, N_READ / 16,
                            (uint32_t *)(buffer + N_READ / 16));
    };
    const auto multiply = [&] {
        return launch_after(matrix_rate, dim3((unsigned)n_sm), 256, MATRIX_SMEM, nullptr, (const uint4 *)buffer, N_STEP,
                            (float *)(buffer + N_READ / 16));
    };
    GR_TRY(median_ms(read, &read_ms));
    GR_TRY(cuda_status_of(
        cudaFuncSetAttribute(matrix_rate, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)MATRIX_SMEM), "ceilings"));
    GR_TRY(median_ms(multiply, &matrix_ms));
    out->read_bytes_per_s = (double)N_READ / read_ms * 1e3;
    out->matrix_flops = 2.0 * N_STEP * 4 * 64 * 128 * 128 * n_sm / matrix_ms * 1e3;
    return GR_OK;
}

} // namespace gr

enum gr_status gr_cuda_measure_ceilings(struct gr_cuda_ceilings *out)
{
    uint4 *buffer = nullptr;
    int device = 0, n_sm = 0;
    GR_TRY(cuda_status_of(cudaGetDevice(&device), "ceilings"));
    GR_TRY(cuda_status_of(cudaDeviceGetAttribute(&n_sm, cudaDevAttrMultiProcessorCount, device), "ceilings"));
    GR_TRY(cuda_status_of(cudaMalloc(&buffer, gr::N_READ + 1024), "4 GiB for the ceilings"));
    const enum gr_status st = gr::measure(buffer, n_sm, out);
    (void)cudaFree(buffer);
    return st;
}
