/* How kernels are launched that overlap with the one before (device.cuh: wait_for_previous, let_next_start). */
#ifndef GR_KERNELS_CUDA_LAUNCH_CUH
#define GR_KERNELS_CUDA_LAUNCH_CUH

#include <cuda_runtime.h>

namespace gr
{

/* A kernel that may start while the one before it still runs. */
template <class... P, class... A>
static cudaError_t launch_early(void (*kernel)(P...), dim3 grid, int n_thread, size_t smem, cudaStream_t stream, A... a)
{
    cudaLaunchAttribute attr{};
    attr.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attr.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = grid, config.blockDim = dim3((unsigned)n_thread), config.dynamicSmemBytes = smem;
    config.stream = stream, config.attrs = &attr, config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, kernel, a...);
}

} // namespace gr

#endif
