/* The kernels with two warpgroups that multiply, for more than 64 rows. */
#include "kernels/cuda/linear/linear_mma.cuh"

namespace gr
{

template cudaError_t launch_widths<2>(LinearArgs &f, const LinearCut &cut, cudaStream_t stream);

} // namespace gr
