/* SpecPV's views of a model on a GPU. The host has what kv_views.h says of each view (where it begins, how
 * many blocks its lists have, how many are summarized); lists and summaries are the device's
 * (kernels/cuda/attention/view.h).
 */
#ifndef GR_MODEL_CUDA_VIEWS_H
#define GR_MODEL_CUDA_VIEWS_H

#include "kernels/cuda/attention/view.h"
#include "model/cuda/pass.h"

struct gr_cuda_view_memory {
    struct gr_kv_views host;    /* its view is lm->view */
    struct gr_cuda_views views; /* what the kernels are given; list, summary and score are owned */
};

/* Of one view, and of the scores of a pass that chooses it: n_layer * n_kv_head * ((n_sink + n_retrieval) * 4 +
 * n_block_max * (2 * head_dim * 2 + 4)): a sixteenth of the KV, and little more. */
uint64_t gr_cuda_view_memory_bytes(const struct gr_kv_views_config *c);
/* Takes the memory of c->n_view views, n_refresh_max of which a pass may choose, and logs the formula with its
 * numbers. n_head: query heads. A failure (logged) leaves nothing taken. */
GR_NODISCARD enum gr_status gr_cuda_view_memory_init(struct gr_cuda_view_memory *p, struct gr_cuda_device *d,
                                                     const struct gr_kv_views_config *c, int n_head, int n_refresh_max,
                                                     const struct gr_cuda_pass_inputs *inputs);
void gr_cuda_view_memory_finish(struct gr_cuda_view_memory *p, struct gr_cuda_device *d);

#endif
