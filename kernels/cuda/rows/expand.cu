/* Rows of an expanded tensor: bound by the memory that is written. A thread has eight columns, 16 bytes, of every
 * gridDim.y-th row: where columns come from takes divisions, and is found out once. */
#include "kernels/cuda/rows/expand.h"

#include "kernels/cuda/device/cuda_status.cuh"
#include "kernels/cuda/device/launch.cuh"

#include <algorithm>
#include <cstdio>

namespace gr
{

constexpr int N_EXPAND_THREAD = 128; /* threads of a block */
constexpr int N_STRIP_MAX = 1024;    /* of rows: eight blocks for a multiprocessor and more, whatever the width */

static __global__ void __launch_bounds__(N_EXPAND_THREAD) expand_kernel(const gr_cuda_expand_args a)
{
    const int32_t col = (int32_t)(blockIdx.x * N_EXPAND_THREAD + threadIdx.x) * 8;
    if (col >= a.rule.n_in) {
        return;
    }
    int32_t col_from[8];
    gr_expand_columns(&a.rule, col, col_from);
    gr_expand_columns(&a.rule, col + 4, col_from + 4);
    for (int r = (int)blockIdx.y; r < a.n_row; r += (int)gridDim.y) {
        const gr_expand_row row = gr_expand_row_of(&a.rule, a.row0 + r);
        const ulonglong2 eight = {gr_expand_four(&row, col, col_from, a.from),
                                  gr_expand_four(&row, col + 4, col_from + 4, a.from)};
        *(ulonglong2 *)(a.out + (size_t)r * (size_t)a.rule.n_in + (size_t)col) = eight;
    }
}

static bool refused(const gr_cuda_expand_args &a)
{
    return a.out == nullptr || (size_t)a.out % 16 != 0 || (a.from == nullptr) != (a.rule.n_out_from == 0) ||
           a.rule.n_in < 8 || a.rule.n_in % 8 != 0 || a.row0 < 0 || a.n_row < 1 || a.row0 > a.rule.n_out - a.n_row;
}

} // namespace gr

enum gr_status gr_cuda_expand(const struct gr_cuda_expand_args *a, struct CUstream_st *stream)
{
    if (gr::refused(*a)) {
        fprintf(stderr,
                "cuda: expanding rows %d to %d of %d with %d columns (a multiple of 8) from (%d, %d) at %p to %p"
                " (aligned to 16)\n",
                a->row0, a->row0 + a->n_row, a->rule.n_out, a->rule.n_in, a->rule.n_out_from, a->rule.n_in_from,
                (const void *)a->from, (void *)a->out);
        return GR_EINVAL;
    }
    const dim3 grid((unsigned)((a->rule.n_in / 8 + gr::N_EXPAND_THREAD - 1) / gr::N_EXPAND_THREAD),
                    (unsigned)std::min(a->n_row, gr::N_STRIP_MAX));
    return cuda_status_of(gr::launch_after(gr::expand_kernel, grid, gr::N_EXPAND_THREAD, 0, stream, *a),
                          "expanding of rows");
}
