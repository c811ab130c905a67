/* What starts the kernels of linear_mma.cuh. Those with one warpgroup and those with two are compiled in two files, at
 * the same time: together they are most of what the compiler has to do here. */
#include "kernels/cuda/linear/linear_out.cuh"

namespace gr
{

/* For up to 64 rows, and for more. */
template <int R> cudaError_t launch_widths(LinearArgs &f, const LinearCut &cut, cudaStream_t stream);
extern template cudaError_t launch_widths<1>(LinearArgs &f, const LinearCut &cut, cudaStream_t stream);
extern template cudaError_t launch_widths<2>(LinearArgs &f, const LinearCut &cut, cudaStream_t stream);

cudaError_t launch_linear(const gr_cuda_linear_args &a, const LinearCut &cut, cudaStream_t stream)
{
    LinearArgs f = linear_args(a, cut);
    return f.n_row <= 64 ? launch_widths<1>(f, cut, stream) : launch_widths<2>(f, cut, stream);
}

} // namespace gr
