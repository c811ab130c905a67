/* How kernels are launched: by itself, or so that it overlaps with the one before (device.cuh: wait_for_previous,
 * let_next_start), alone or in clusters of blocks. */
#ifndef GR_KERNELS_CUDA_DEVICE_LAUNCH_CUH
#define GR_KERNELS_CUDA_DEVICE_LAUNCH_CUH

#include <cuda_runtime.h>

namespace gr
{

/* cluster: blocks of one, along x; compiled: for no other number (__cluster_dims__), so the driver knows it. early: the
 * kernel may start while the one before it still runs. */
struct LaunchHow {
    int cluster;
    bool compiled, early;
};

struct LaunchConfig {
    cudaLaunchAttribute attr[2]{};
    cudaLaunchConfig_t config{}; /* points to attr */

    LaunchConfig(LaunchHow how, dim3 grid, int n_thread, size_t smem)
    {
        config.gridDim = grid, config.blockDim = dim3((unsigned)n_thread), config.dynamicSmemBytes = smem;
        config.attrs = attr;
        if (how.early) {
            attr[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
            attr[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
        }
        if (how.cluster > 1) {
            attr[config.numAttrs].id = how.compiled ? cudaLaunchAttributeIgnore : cudaLaunchAttributeClusterDimension;
            attr[config.numAttrs].val.clusterDim.x = (unsigned)how.cluster;
            attr[config.numAttrs].val.clusterDim.y = attr[config.numAttrs].val.clusterDim.z = 1;
            config.numAttrs++;
        }
    }
    LaunchConfig(const LaunchConfig &) = delete;
};

template <class... P, class... A>
static cudaError_t launch_as(LaunchHow how, void (*kernel)(P...), dim3 grid, int n_thread, size_t smem,
                             cudaStream_t stream, A... a)
{
    LaunchConfig c(how, grid, n_thread, smem);
    c.config.stream = stream;
    return cudaLaunchKernelEx(&c.config, kernel, a...);
}

/* Of a kernel's clusters of so many blocks, how many an idle device runs at the same time. */
template <class... P>
static cudaError_t clusters_at_once(int cluster, void (*kernel)(P...), dim3 grid, int n_thread, size_t smem, int *out)
{
    const LaunchConfig c({cluster, false, false}, grid, n_thread, smem);
    return cudaOccupancyMaxActiveClusters(out, kernel, &c.config);
}

template <class... P, class... A>
static cudaError_t launch_early(void (*kernel)(P...), dim3 grid, int n_thread, size_t smem, cudaStream_t stream, A... a)
{
    return launch_as({1, false, true}, kernel, grid, n_thread, smem, stream, a...);
}

template <class... P, class... A>
static cudaError_t launch_after(void (*kernel)(P...), dim3 grid, int n_thread, size_t smem, cudaStream_t stream, A... a)
{
    return launch_as({1, false, false}, kernel, grid, n_thread, smem, stream, a...);
}

} // namespace gr

#endif
