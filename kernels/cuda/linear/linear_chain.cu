/* What starts the kernel of linear_chain.cuh. */
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/linear/linear_chain.cuh"

namespace gr
{

static bool chainable(const gr_cuda_linear_args &a, const LinearCut &cut)
{
    const bool out =
        (a.out == GR_CUDA_OUT_ADD && a.bias == nullptr) || a.out == GR_CUDA_OUT_SILU || a.out == GR_CUDA_OUT_HEADS;
    return out && cut.n_tile > 0 && cut.width <= CHAIN_WIDTH_MAX && a.n_row <= 64;
}

/* Blocks that have a tile, of as many as there are. */
static int n_block_of(const LinearCut &cut, int n_block)
{
    return std::min(cut.n_tile * cut.parts, n_block / cut.parts * cut.parts);
}

static int chain_blocks(const LinearCut *cut, int n)
{
    int most = 0;
    for (int i = 0; i < n; i++) {
        most = std::max(most, cut[i].n_cluster() * cut[i].parts);
    }
    return std::min(132, (most + CHAIN_CLUSTER - 1) / CHAIN_CLUSTER * CHAIN_CLUSTER);
}

/* Whether so many blocks can be there at once. */
static bool has_room(int n_block)
{
    static thread_local int known_device = -1, known = 0;
    int device = 0;
    if (cudaGetDevice(&device) != cudaSuccess) {
        return false;
    }
    if (device != known_device) {
        if (cudaFuncSetAttribute(chain_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, CHAIN_SMEM) !=
                cudaSuccess ||
            clusters_at_once(CHAIN_CLUSTER, chain_kernel, dim3(132), ChainThreads::ALL, CHAIN_SMEM, &known) !=
                cudaSuccess) {
            return false;
        }
        known_device = device;
    }
    return known * CHAIN_CLUSTER >= n_block;
}

bool can_chain(const gr_cuda_linear_args *a, const LinearCut *cut, int n)
{
    for (int i = 0; i < n; i++) {
        if (!chainable(a[i], cut[i]) || a[i].n_row != a[0].n_row || a[i].n_row_true != a[0].n_row_true) {
            return false;
        }
    }
    return n >= 1 && n <= GR_CUDA_CHAIN_MAX && has_room(chain_blocks(cut, n));
}

cudaError_t launch_chain(const gr_cuda_linear_args *a, const LinearCut *cut, int n, gr_cuda_chain *chain,
                         cudaStream_t stream)
{
    const int n_block = chain_blocks(cut, n);
    const ChainMemory memory(a->n_row);
    ChainArgs c{};
    c.n = n, c.chain = chain, c.w_bytes = memory.w_bytes;
    for (int i = 0; i < n; i++) {
        c.layer[i] = linear_args(a[i], cut[i]);
        c.layer[i].n_slot = W_SLOT_MAX, c.layer[i].x_bytes = memory.x_bytes, c.layer[i].w_bytes = memory.w_bytes;
        c.layer[i].made = i < n - 1 ? &chain->made[i] : nullptr;
        c.layer[i].squared = i < n - 1 ? &chain->squared[i] : nullptr;
        c.width[i] = cut[i].width, c.n_block[i] = n_block_of(cut[i], n_block);
    }
    const cudaError_t e = cudaFuncSetAttribute(chain_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, CHAIN_SMEM);
    if (e != cudaSuccess) {
        return e;
    }
    return launch_as({CHAIN_CLUSTER, false, true}, chain_kernel, dim3((unsigned)n_block), ChainThreads::ALL, CHAIN_SMEM,
                     stream, c);
}

} // namespace gr
