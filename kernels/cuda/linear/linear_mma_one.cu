/* The kernels with one warpgroup that multiplies, for up to 64 rows. */
#include "kernels/cuda/linear/linear_mma.cuh"

namespace gr
{

template cudaError_t launch_widths<1>(LinearArgs &f, const LinearCut &cut, cudaStream_t stream);

} // namespace gr
