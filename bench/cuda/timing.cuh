/* How the benchmarks of kernels take times: events around what is repeated. */
#ifndef GR_BENCH_CUDA_TIMING_CUH
#define GR_BENCH_CUDA_TIMING_CUH

#include "kernels/cuda/device/cuda_status.cuh"

#include <algorithm>
#include <vector>

struct Times {               /* ms */
    float median, low, high; /* 10 % and 90 % */
};

/* f enqueues on stream; after 5 times that do not count, n_rep of them. */
template <class F> static Times time_of(cudaStream_t stream, int n_rep, F f)
{
    cudaEvent_t e0, e1;
    CUDA_OK(cudaEventCreate(&e0));
    CUDA_OK(cudaEventCreate(&e1));
    std::vector<float> ms;
    for (int i = 0; i < n_rep + 5; i++) {
        float t;
        CUDA_OK(cudaEventRecord(e0, stream));
        f();
        CUDA_OK(cudaEventRecord(e1, stream));
        CUDA_OK(cudaEventSynchronize(e1));
        CUDA_OK(cudaEventElapsedTime(&t, e0, e1));
        if (i >= 5) {
            ms.push_back(t);
        }
    }
    std::sort(ms.begin(), ms.end());
    CUDA_OK(cudaEventDestroy(e0));
    CUDA_OK(cudaEventDestroy(e1));
    return {ms[ms.size() / 2], ms[ms.size() / 10], ms[ms.size() * 9 / 10]};
}

#endif
