/* SpecPV's views: what rows of a session see when they are verified without its whole KV. A view is block
 * lists into the pool; nothing is copied.
 *
 *   sink       the first n_sink blocks                    \  one list per layer and KV head, increasing;
 *   retrieval  n_retrieval blocks, by layer and KV head   /  all below dense_from
 *   window     the last n_window whole blocks below kv_len, when the view was chosen: from dense_from on
 *   buffer     everything after: tokens accepted since, at their own positions in the pool, with partial KV
 *
 * A block i is positions 16 i .. 16 i + 15, the sink's included. dense_from is a multiple of 16, so no position is in
 * no segment but those of blocks that were candidates and not chosen.
 *
 * A view is chosen by a full pass (a refresh), layer by layer, from that pass's own queries: blocks are scored by
 * their keys' largest and smallest values (summaries, kernels.h: block_scores). Summaries are made of whole blocks with
 * full KV, when a refresh needs them, and only of those that became whole since (n_summed).
 * Decisions D-058, D-059, D-060. */
#ifndef GR_MODEL_KV_KV_VIEWS_H
#define GR_MODEL_KV_KV_VIEWS_H

#include "common/base/status.h"
#include "kernels/kernels.h"
#include "common/base/memory.h"

#include <stdbool.h>
#include <stdint.h>

#define GR_VIEW_NONE (-1) /* in place of dense_from */

/* Of a view, in blocks. */
struct gr_kv_budget {
    int32_t n_sink, n_retrieval, n_window;
    bool score_max; /* blocks are scored by their best query; false: by the mean over queries */
};

/* One session's view. The verifier's and the model's; the compute thread only. */
struct gr_kv_view {
    int32_t dense_from; /* first position that all rows see; GR_VIEW_NONE: not chosen yet */
    int32_t n_list;     /* blocks of every list */
    int32_t n_summed;   /* blocks [0, n_summed) have summaries */
    int32_t n_list_max;
    int32_t *list;        /* (n_layer, n_kv_head, n_list_max), of the model's memory: on a GPU, the device's */
    float *k_max, *k_min; /* (n_layer, n_kv_head, n_block_max / 16, head_dim, 16); not on a GPU, which has its own */
};

/* A sequence of a full pass chooses a view: the keys below kv_len stand in the pool, or are written by this pass. */
struct gr_kv_refresh {
    int32_t view;        /* index in lm->view */
    int32_t i_seq;       /* in the batch */
    int32_t row0, n_row; /* rows of the batch whose queries choose */
    int32_t kv_len;
    struct gr_kv_budget budget; /* at most what views were made for */
};

/* Sets dense_from and n_list of a view of kv_len tokens: what is clipped when the context is short. */
void gr_kv_view_plan(struct gr_kv_view *v, const struct gr_kv_budget *budget, int32_t kv_len);
/* KV from position `len` on has changed or will: no summary of it is kept, and a view that starts after is none. */
void gr_kv_view_truncate(struct gr_kv_view *v, int32_t len);
/* seq's rows are to see the view. dense_from must be set. */
void gr_kv_view_attend(const struct gr_kv_view *v, struct gr_attn_seq *seq);

/* ---- the model's side ---- */

struct gr_kv_views_config {
    int n_view, n_layer, n_kv_head, head_dim, n_ctx_max;
    struct gr_kv_budget most; /* no refresh asks for more */
};

/* All views of a model. */
struct gr_kv_views {
    struct gr_kv_views_config c;
    int n_block_max;
    struct gr_kv_view *view; /* owned, (n_view) */
    float *score, *top_work; /* (n_kv_head, n_block_max): of the layer that chooses */
    struct gr_memory memory;
};

/* The context's blocks, a multiple of 16: room for their summaries. */
int32_t gr_kv_views_block_max(const struct gr_kv_views_config *c);
/* Of one view: n_layer * n_kv_head * ((n_sink + n_retrieval) * 4 + n_block_max * 2 * head_dim * 4), n_block_max: the
 * context's blocks, a multiple of 16. A sixteenth of the KV, and the lists. */
size_t gr_kv_views_bytes(const struct gr_kv_views_config *c);
/* The views alone, without lists, summaries and scores: for a GPU's model, which keeps those. */
GR_NODISCARD enum gr_status gr_kv_views_init_bare(struct gr_kv_views *p, const struct gr_kv_views_config *c);
/* Takes all memory, and logs the formula with its numbers. */
GR_NODISCARD enum gr_status gr_kv_views_init(struct gr_kv_views *p, const struct gr_kv_views_config *c);
void gr_kv_views_finish(struct gr_kv_views *p);

/* Before and after the forward pass that refreshes n views, by one thread. */
void gr_kv_refresh_begin(struct gr_kv_views *p, int n, const struct gr_kv_refresh *refresh);
void gr_kv_refresh_end(struct gr_kv_views *p, int n, const struct gr_kv_refresh *refresh);

/* Part of a pass: what one layer gives to the views. q and the pool's keys are complete (a barrier lies before); a
 * barrier must follow before the next layer's call. Attention's work is free meanwhile. */
struct gr_kv_refresh_layer {
    const struct gr_kernels *kernels;
    int layer, n_refresh;
    const struct gr_kv_refresh *refresh;
    const struct gr_attn_seq *seq; /* of the batch */
    struct gr_kv_layer kv;
    const float *q; /* (n_row, q_stride) after RoPE */
    int n_head, q_stride;
    void *work;
};
void gr_kv_refresh_layer(const struct gr_exec *x, const struct gr_kv_views *p, const struct gr_kv_refresh_layer *a);

#endif
