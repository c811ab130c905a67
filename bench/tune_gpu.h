/* Times of single kernels on a GPU, for graft-bench tune: a linear layer in a cut, attention with so many splits. Each
 * time is of a graph of several launches over different weights or KV, so that they come from memory as in a pass, and
 * is the median of `n_rep`. One thread; errors are one line each. */
#ifndef GR_BENCH_TUNE_GPU_H
#define GR_BENCH_TUNE_GPU_H

#include "bench/options/options.h"
#include "model/load/shapes.h"

#define GR_TUNE_ROW_MAX 64 /* rows of a timed pass, at most */

struct gr_tune_gpu;

/* In builds without CUDA: GR_EUNSUPPORTED. */
GR_NODISCARD enum gr_status gr_tune_gpu_open(int device, struct gr_tune_gpu **out);
void gr_tune_gpu_close(struct gr_tune_gpu *g); /* NULL: nothing happens */
const char *gr_tune_gpu_name(const struct gr_tune_gpu *g);

/* The cut that is taken where none was measured; width 0: the shape is not built. */
struct gr_cuda_cut gr_tune_gpu_formula(int n_out, int n_in);

struct gr_tune_linear {
    const struct gr_linear_shape *shape;
    struct gr_cuda_cut cut;
    int n_row; /* at most GR_TUNE_ROW_MAX */
};
/* us_out: of one layer. */
GR_NODISCARD enum gr_status gr_tune_gpu_linear(struct gr_tune_gpu *g, const struct gr_tune_linear *l, int n_rep,
                                               double *us_out);

struct gr_tune_attention {
    int n_head, n_kv_head, head_dim, n_split_max;
    int n_context, n_row; /* a tree of n_row rows after so many tokens; n_row at most GR_TUNE_ROW_MAX */
};
/* us_out: of one layer, with its share of the plan. */
GR_NODISCARD enum gr_status gr_tune_gpu_attention(struct gr_tune_gpu *g, const struct gr_tune_attention *a, int n_rep,
                                                  double *us_out);

#endif
