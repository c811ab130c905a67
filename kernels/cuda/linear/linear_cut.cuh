/* How a matrix is cut for the matrix units. Where nobody has measured, the shape alone decides; a cut that was (cut.h)
 * belongs to the matrix. So packing, order of sums and bits do not depend on the number of rows or on the device.
 *
 * Packed: bf16 (n_tile, n_in / 64, width, 64): boxes of 64 k of the `width` outputs of a tile, 128 bytes a row in the
 * 128-byte swizzle; outputs past n_out are zeroes. A tile is worked on by a cluster of `parts` blocks, one or two:
 * block i has the boxes [n_box i / parts, n_box (i + 1) / parts), each output is one chain over them in one
 * accumulator, and the sum is the first block's chain plus the second's. Of a matrix with segments the first block has
 * those of the left half of their tree, so that this sum is the tree's last join. More parts would read less of x, but
 * of clusters of four not as many fit as there are multiprocessors for. */
#ifndef GR_KERNELS_CUDA_LINEAR_LINEAR_CUT_CUH
#define GR_KERNELS_CUDA_LINEAR_LINEAR_CUT_CUH

#include "kernels/cuda/linear/linear.h"

#include <algorithm>
#include <cstddef>
#include <cuda_runtime.h>

namespace gr
{

struct LinearCut {
    int n_box, width, parts, n_tile;
    int n_cluster() const /* as many as an H100 or H200 has room for at once, each block on its own multiprocessor */
    {
        return std::min(n_tile, 132 / parts);
    }
    size_t bytes() const
    {
        return (size_t)n_tile * (size_t)width * (size_t)n_box * 128;
    }
};

/* Time of a cut, in rows of 128 bytes that the busiest block reads: of the weights, and of 64 rows of x, which come
 * from the L2 cache at about three times the rate. The last, incomplete round counts by its tiles, but at least 0.4:
 * one multiprocessor alone takes about that share of what it takes among all others. A sum across blocks costs
 * a microsecond and a half, 50 KiB. */
static inline double linear_cut_cost(const LinearCut &c)
{
    const int n_slot = 132 / c.parts;
    const int whole = c.n_tile / n_slot, rest = c.n_tile % n_slot;
    const double share = whole == 0 ? 1.0 : std::max(0.4, (double)rest / n_slot);
    const double rounds = whole + (rest > 0 ? share : 0.0), box = (c.n_box + c.parts - 1) / c.parts;
    return rounds * (box * (c.width + 64 * 0.35) + (c.parts > 1 ? 400.0 : 0.0));
}

static inline LinearCut linear_cut_of(int n_out, int n_in, gr_cuda_cut cut)
{
    return LinearCut{n_in / 64, cut.width, cut.parts, (n_out + cut.width - 1) / cut.width};
}

static inline LinearCut better_cut(const LinearCut &a, const LinearCut &b)
{
    return a.n_tile == 0 || (b.n_tile != 0 && linear_cut_cost(b) < linear_cut_cost(a)) ? b : a;
}

static inline LinearCut linear_cut_in(int n_out, int n_in, int parts)
{
    LinearCut best{};
    for (int width : gr_cuda_cut_width) {
        if (gr_cuda_cut_allowed(n_in, {width, parts})) {
            best = better_cut(best, linear_cut_of(n_out, n_in, {width, parts}));
        }
    }
    return best;
}

static inline LinearCut linear_cut(int n_out, int n_in)
{
    LinearCut best{};
    for (int parts = 1; parts <= GR_CUDA_CUT_PARTS_MAX; parts++) {
        best = better_cut(best, linear_cut_in(n_out, n_in, parts));
    }
    return best;
}

/* linear_mma.cu */
cudaError_t launch_linear(const gr_cuda_linear_args &a, const LinearCut &cut, cudaStream_t stream);
/* linear_chain.cu */
bool can_chain(const gr_cuda_linear_args *a, const LinearCut *cut, int n);
cudaError_t launch_chain(const gr_cuda_linear_args *a, const LinearCut *cut, int n, gr_cuda_chain *chain,
                         cudaStream_t stream);

} // namespace gr

#endif
