/* What starts the kernels of linear_mma.cuh. Those with one warpgroup and those with two are compiled in two files, at
 * the same time: together they are most of what the compiler has to do here. */
#include "kernels/cuda/linear_out.cuh"

namespace gr
{

/* For up to 64 rows, and for more. */
template <int R> cudaError_t launch_widths(LinearArgs &f, const LinearCut &cut, cudaStream_t stream);
extern template cudaError_t launch_widths<1>(LinearArgs &f, const LinearCut &cut, cudaStream_t stream);
extern template cudaError_t launch_widths<2>(LinearArgs &f, const LinearCut &cut, cudaStream_t stream);

cudaError_t launch_linear(const gr_cuda_linear_args &a, const LinearCut &cut, cudaStream_t stream)
{
    LinearArgs f{};
    f.w = (const uint8_t *)a.w, f.x = (const uint8_t *)a.x, f.bias = a.bias, f.y = a.y, f.n_row_true = a.n_row_true;
    f.out = a.out, f.n_out = a.n_out, f.n_box = cut.n_box, f.n_tile = cut.n_tile, f.parts = cut.parts;
    f.y_stride = a.y_stride, f.n_row = a.n_row;
    f.norm = a.norm, f.next = a.next, f.clear = a.clear, f.heads = a.heads;
    f.wide_y = a.y_stride % 8 == 0 && (size_t)a.y % 16 == 0;
    return f.n_row <= 64 ? launch_widths<1>(f, cut, stream) : launch_widths<2>(f, cut, stream);
}

} // namespace gr
