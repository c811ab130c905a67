/* The shapes that a model's kernels on a GPU are asked for: its matrices, each size once, and its attention. One list
 * for who creates the model, who measures shapes (graft-bench tune) and who reports them. */
#ifndef GR_MODEL_LOAD_SHAPES_H
#define GR_MODEL_LOAD_SHAPES_H

#include "kernels/cuda/linear/linear.h"
#include "model/files/hf_config.h"

#include <stdbool.h>
#include <stdint.h>

#define GR_SHAPE_LINEAR_MAX 8 /* linear layers of different shape that a model has, at most */

struct gr_model_shapes {
    struct gr_linear_shape {
        int n_out, n_in;
        enum gr_cuda_linear_out out; /* of the first matrix of this size, as it is measured: BF16 for HEADS */
        struct gr_cuda_cut cut;      /* width 0: not chosen yet */
    } linear[GR_SHAPE_LINEAR_MAX];
    int n_linear;
    int n_head, n_kv_head, head_dim;
    int n_split_max; /* 0: not chosen yet */
    bool tuned;      /* some of them come from a file of measured shapes */
};

/* Rows of lm_head as it is kept: n_vocab rounded up to what kernels take. */
static inline int gr_vocab_stride(int n_vocab)
{
    return (n_vocab + 15) / 16 * 16;
}

/* hf: as the model runs, so expanded where it is. head_hidden: of the EAGLE-3 head whose fc the target runs, over
 * n_capture streams; 0: none. */
void gr_llama_shapes(const struct gr_hf_config *hf, int head_hidden, int n_capture, struct gr_model_shapes *out);
/* Of the head itself. */
void gr_eagle3_shapes(const struct gr_hf_config *hf, struct gr_model_shapes *out);

/* NULL: the model has no such matrix. */
const struct gr_linear_shape *gr_shapes_find(const struct gr_model_shapes *s, int n_out, int n_in);
/* Of all that was chosen: what the order of sums in this model's kernels depends on. */
uint32_t gr_shapes_hash(const struct gr_model_shapes *s);

#endif
