/* Linear layers on the matrix units, each by itself: y = x W^T for few rows, at the speed at which weights can be read.
 * One thread streams weights through a ring of slots in shared memory, from the moment that the block starts: before
 * the kernel before this one has ended. Another streams x, after that (linear_ring.cuh). What multiplies, and what
 * becomes of the sums: linear_worker.cuh. */
#ifndef GR_KERNELS_CUDA_LINEAR_LINEAR_MMA_CUH
#define GR_KERNELS_CUDA_LINEAR_LINEAR_MMA_CUH

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/linear/linear_worker.cuh"

namespace gr
{

/* R warpgroups that multiply, then a warp for weights and one for x. Two more warps help a single warpgroup to store;
 * with two, they make a whole warpgroup of those that load, which can leave its registers to the others. */
template <int N, int R>
__global__ void __launch_bounds__(LinearThreads<R, 1>::ALL, 1) linear_kernel(const __grid_constant__ LinearArgs a)
{
    GR_DYNAMIC_SHARED(uint8_t, linear_smem, 1024);
    uint8_t *w_slots = linear_smem, *x_slots = w_slots + a.n_slot * stage_bytes(N);
    LinearBars *bars = (LinearBars *)(x_slots + a.x_bytes);
    const int warp = (int)threadIdx.x / 32 - 4 * R; /* of those that load */
    make_bars<R, 1>(bars, warp, a.parts);
    meet<LinearThreads<R, 1>>(a.parts, warp == 0);
    if (warp >= 0 && warp < 2 * R) {
        if (R == 2) {
            regs_fewer<56>();
        }
        if (warp == 0) {
            if (threadIdx.x % 32 == 0) {
                stream_weights<N, R>(a, w_slots, bars);
            }
            meet_last(a.parts);
        } else {
            if (warp == 1 && threadIdx.x % 32 == 0) {
                stream_x<R>(a, x_slots, bars);
            }
        }
    } else {
        if (R == 2) {
            regs_more<224>();
        }
        wait_for_previous();
        LinearProgress<false> at;
        LinearWorker<N, R, 1, false> worker(a, w_slots, x_slots, bars, read_n_row(a), (int)threadIdx.x, at);
        switch (a.out) {
        case GR_CUDA_OUT_BF16:
            return worker.template run<GR_CUDA_OUT_BF16>();
        case GR_CUDA_OUT_F32:
            return worker.template run<GR_CUDA_OUT_F32>();
        case GR_CUDA_OUT_PART:
            return worker.template run<GR_CUDA_OUT_PART>();
        case GR_CUDA_OUT_ADD:
            return worker.template run<GR_CUDA_OUT_ADD>();
        case GR_CUDA_OUT_SILU:
            return worker.template run<GR_CUDA_OUT_SILU>();
        case GR_CUDA_OUT_HEADS:
            return worker.template run<GR_CUDA_OUT_HEADS>();
        }
    }
}

/* Shared memory of a block: so much that a multiprocessor has room for one. With two, so that the next kernel's ring
 * fills while this kernel drains, it happens that two of one kernel are in one place and none in another. The weights'
 * ring must have room for a tile's sums, 256 R bytes an output: at 248 outputs it just has. */
struct LinearMemory {
    int n_slot, x_bytes;
    int bytes(int width) const
    {
        return n_slot * stage_bytes(width) + x_bytes + (int)sizeof(LinearBars);
    }
};

static LinearMemory linear_memory(int width, int n_row)
{
    const int x_bytes = (n_row <= 16 ? 40 : 64) * 1024, bytes = 216 * 1024;
    return {std::min(12, (bytes - x_bytes) / stage_bytes(width)), x_bytes};
}

template <int N, int R> static cudaError_t launch(LinearArgs &f, const LinearCut &cut, cudaStream_t stream)
{
    const LinearMemory m = linear_memory(N, f.n_row);
    const cudaError_t e =
        cudaFuncSetAttribute(linear_kernel<N, R>, cudaFuncAttributeMaxDynamicSharedMemorySize, m.bytes(N));
    if (e != cudaSuccess) {
        return e;
    }
    f.n_slot = m.n_slot, f.x_bytes = m.x_bytes;
    return launch_as({cut.parts, false, true}, linear_kernel<N, R>, dim3((unsigned)(cut.n_cluster() * cut.parts)),
                     LinearThreads<R, 1>::ALL, (size_t)m.bytes(N), stream, f);
}

template <int R> cudaError_t launch_widths(LinearArgs &f, const LinearCut &cut, cudaStream_t stream)
{
    switch (cut.width) {
    case 16:
        return launch<16, R>(f, cut, stream);
    case 32:
        return launch<32, R>(f, cut, stream);
    case 64:
        return launch<64, R>(f, cut, stream);
    case 96:
        return launch<96, R>(f, cut, stream);
    case 128:
        return launch<128, R>(f, cut, stream);
    case 192:
        return launch<192, R>(f, cut, stream);
    case 224:
        return launch<224, R>(f, cut, stream);
    default:
        return launch<248, R>(f, cut, stream);
    }
}

} // namespace gr

#endif
