/* How a matrix may be cut for the matrix units (linear_cut.cuh says what for): what a file of measured shapes is
 * checked against, also where no CUDA is built. A matrix is packed in one cut and can be used in no other, and the
 * order of its sums is the cut's, so a cut is chosen once, when a model is created, and handed to packing and launch
 * alike: there is no table that both look at. Common subset of C and CUDA C++. */
#ifndef GR_KERNELS_CUDA_LINEAR_CUT_H
#define GR_KERNELS_CUDA_LINEAR_CUT_H

#include <stdbool.h>

/* Outputs of a tile, and blocks that share its k. width 0: the one that linear_cut.cuh computes. */
struct gr_cuda_cut {
    int width, parts;
};

enum {
    GR_CUDA_CUT_WIDTHS = 8,
    GR_CUDA_CUT_PARTS_MAX = 2,
};

static const int gr_cuda_cut_width[GR_CUDA_CUT_WIDTHS] = {16, 32, 64, 96, 128, 192, 224, 248};
#define GR_CUDA_CUT_WIDTHS_TEXT "16, 32, 64, 96, 128, 192, 224, 248"

/* Two blocks each add the sums of half of the columns, in eights. */
static inline bool gr_cuda_cut_allowed(int n_in, struct gr_cuda_cut cut)
{
    bool known = false;
    for (int i = 0; i < GR_CUDA_CUT_WIDTHS; i++) {
        known = known || gr_cuda_cut_width[i] == cut.width;
    }
    return known && cut.parts >= 1 && cut.parts <= GR_CUDA_CUT_PARTS_MAX && n_in / 64 >= cut.parts &&
           (cut.parts == 1 || cut.width % 16 == 0);
}

#endif
