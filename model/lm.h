/* A language model as the workers see it: rows in, logits out, KV in numbered cells. The Llama runtime (llama.h)
 * is one; the table models of the simulation are another. Storage has n_pool_block pool blocks, accounted by
 * kv_pool.h, followed by n_scratch_block scratch blocks for tree rows.
 *
 * One thread calls (the worker's compute thread). Nothing is allocated after create. Decisions D-017, D-024, D-027. */
#ifndef GR_MODEL_LM_H
#define GR_MODEL_LM_H

#include "common/rules/adjust_list.h"
#include "common/rules/sampler.h"
#include "common/base/far_memory.h"
#include "common/base/status.h"
#include "kernels/kernels.h"
#include "model/files/capture.h"
#include "model/kv/kv_views.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* One ragged pass. Row i has a token, a position and a cell that takes its KV; seq says what each session's rows see
 * (kernels.h). Rows of a session are contiguous. */
struct gr_batch {
    int n_row, n_seq, n_out;
    const int32_t *token, *pos, *cell; /* (n_row) */
    const struct gr_attn_seq *seq;     /* (n_seq) */
    const int32_t *out_row;            /* (n_out): rows whose logits are wanted, increasing */
    /* (n_out) how they are picked, for models that pick (lm->picked); NULL: nothing is to be picked. A row's is NULL
     * where the host needs its logits: it is left to the host. */
    const struct gr_sampling *const *sampling;
    /* (n_out) what is asked of rows' logits before they are picked, for models that adjust (lm->n_list_max), whose
     * entries are as many together at most; only of rows that the model picks (sampling, and no processors of the whole
     * row). NULL: nothing is asked. */
    const struct gr_adjust_list *list;
    const int32_t *n_top; /* (n_out) how many children are wanted, with sampling, for models that rank (lm->top) */
    bool want_capture;    /* captured states of the rows are wanted */
    const float *const *feature; /* (n_row) pointers to feature_width floats; only for models that take features */
    /* (n_row) or NULL: in feature's place pointers to feature_width bf16 in far memory, of which all that was written
     * is there to be seen; only for models that take far_features. */
    const uint16_t *const *far_feature;
    /* (n_row) or NULL: a row's feature is kept state from_state[i], and feature[i] is not looked at; its `hidden` is
     * kept as state to_state[i] for later passes (not that of n_kv_only's rows). -1: neither. All are read before one
     * is written, and none is written twice. */
    const int32_t *from_state, *to_state;
    /* (n_seq) or NULL: so many first rows of each sequence are run for their KV alone. Their `hidden` is undefined
     * after the pass, and none of them is in out_row. A model of one layer (a head) saves most of their work. */
    const int32_t *n_kv_only;
    /* Sequences whose view is chosen anew by this pass, from its own queries; 0: none. */
    int n_refresh;
    const struct gr_kv_refresh *refresh; /* (n_refresh) */
};

struct gr_lm;

struct gr_lm_ops {
    /* Runs the pass. Writes logits of out_row[i] to lm->logits + i * lm->n_vocab_stride, and the captured
     * residual streams of every row when the model was created with captures. A model that picks does so first, and
     * only logits of rows that it could not pick are there. */
    enum gr_status (*forward)(struct gr_lm *lm, const struct gr_batch *batch);
    /* Copies KV of cells src[i] to dst[i]; no dst is a later src. An error is that of the next forward(). */
    void (*copy_cells)(struct gr_lm *lm, int n, const int32_t *src, const int32_t *dst);
    /* Fused features: the draft head's fc over captured states. capture[i]: n_capture * capture_width floats, of the
     * last pass or kept from earlier ones; out: (n, fused_width), n at most n_row_max. NULL where fused_width is 0, on
     * a target that ships raw_features, and where features are made within the pass (shipped). */
    void (*fuse)(struct gr_lm *lm, int n, const float *const *capture, float *out);
    /* Takes the memory of n_view views (SpecPV), one a session slot, and sets view and n_view. GR_ENOMEM and
     * GR_EUNSUPPORTED (logged) leave the model as it was. NULL: the model has none. */
    enum gr_status (*view_create)(struct gr_lm *lm, const struct gr_kv_budget *most, int n_view);
    /* Gives it back; nothing of it may be in a batch any more. */
    void (*view_destroy)(struct gr_lm *lm);
    /* The last pass n times more, one launched after the other, and a wait for the last: what a pass takes without the
     * host, for benchmarks. It writes what it has written, unless it reads a kept state that it writes. NULL: the
     * host computes. */
    enum gr_status (*again)(struct gr_lm *lm, int n);
    /* In a tensor-parallel group, a rank other than 0: does what rank 0 says until that ends the group (GR_OK). NULL:
     * the model has no such ranks. */
    enum gr_status (*follow)(struct gr_lm *lm);
    void (*destroy)(struct gr_lm *lm);
};

struct gr_lm {
    const struct gr_lm_ops *ops;
    int32_t n_vocab; /* ids 0 .. n_vocab - 1 may be sampled; padded rows are beyond */
    int32_t n_vocab_stride;
    int32_t n_ctx_max;            /* positions */
    int32_t n_row_max, n_out_max; /* of a pass */
    int32_t n_pool_block, n_scratch_block;
    float *logits; /* owned, (n_out_max, n_vocab_stride) */
    /* owned, (n_out_max): what the pass picked where the logits are; GR_PICK_NOT_FINITE is such a pick.
     * GR_PICK_TO_HOST: that row's logits are here, to be picked from. NULL: all picking is left to the caller. */
    const struct gr_picked *picked;
    int32_t n_list_max; /* entries of a batch's lists; 0: all adjusting is left to the caller, as picking then is */
    /* owned, (n_out_max): the same of a drafter's children, n in place of the id. NULL: all is left to the caller. */
    const struct gr_top_row *top;
    int n_capture, capture_width; /* 0: none */
    float *capture;               /* owned, (n_row_max, n_capture * capture_width): layers side by side */
    uint16_t *shipped;            /* owned, (n_row_max, fused_width) bf16, in the host's memory or far memory that the
                                     model was given, in place of capture where features are
                                   * made within the pass; n_capture is 1 then, capture_width fused_width */
    /* A target that serves an EAGLE-3 head: width of fuse()'s rows; 0: none. */
    int fused_width;
    uint64_t fc_fingerprint; /* of the head's fc, on the target and on the head: equal, or the two do not fit */
    char captures[32];       /* the layers captured, as 2,4,7, on both as well; empty: none */
    /* FEATURES are captured states, and the head fuses them itself (then it has n_capture, capture_width, fused_width
     * and fuse, but no captures of its own). False: the target fuses. The same on both. */
    bool raw_features;
    /* An EAGLE-3 head: its rows take features, and leave the states that stand for the next ones (facts of the head:
     * eagle3.h). 0: none. */
    int feature_width;
    bool far_features; /* they may lie in far memory of the model's device (gr_batch.far_feature) */
    /* owned, (n_row_max, feature_width): after a pass, of every row but n_kv_only's; NULL: the model (a GPU's) has no
     * states but those that are kept */
    float *hidden;
    /* States that are kept from pass to pass, by number, where the model computes, so that a level's rows take those of
     * the level before without the host. */
    int32_t n_state;
    float *state; /* owned, (n_state, feature_width); NULL: in the device's memory */
    /* A reduced draft vocabulary: logit i is that of the target's id to_target[i], of n_vocab_target. NULL: n_vocab ids
     * are the target's. */
    const int32_t *to_target; /* owned, (n_vocab), increasing */
    int32_t n_vocab_target;
    struct gr_kv_view *view; /* owned, (n_view); NULL: SpecPV is off */
    int32_t n_view;
    const struct gr_kernels *kernels; /* borrowed; for sampling on the same device; may be NULL */
    struct gr_team *team;             /* owned by the model; may be NULL */
    char numerics_id[96];
};

static inline enum gr_status gr_lm_forward(struct gr_lm *lm, const struct gr_batch *batch)
{
    return lm->ops->forward(lm, batch);
}
static inline void gr_lm_copy_cells(struct gr_lm *lm, int n, const int32_t *src, const int32_t *dst)
{
    lm->ops->copy_cells(lm, n, src, dst);
}
static inline void gr_lm_fuse(struct gr_lm *lm, int n, const float *const *capture, float *out)
{
    lm->ops->fuse(lm, n, capture, out);
}
GR_NODISCARD static inline enum gr_status gr_lm_view_create(struct gr_lm *lm, const struct gr_kv_budget *most,
                                                            int n_view)
{
    return lm->ops->view_create != NULL ? lm->ops->view_create(lm, most, n_view) : GR_EUNSUPPORTED;
}
static inline void gr_lm_view_destroy(struct gr_lm *lm)
{
    if (lm->view != NULL) {
        lm->ops->view_destroy(lm);
    }
}
/* Width of a row of FEATURES, which a target ships and a head is given; 0: none. */
static inline int gr_lm_ship_width(const struct gr_lm *lm)
{
    const int fused = lm->feature_width > 0 ? lm->feature_width : lm->fused_width;
    return lm->raw_features && fused > 0 ? lm->n_capture * lm->capture_width : fused;
}
/* A target whose captured states become FEATURES by fuse(): that may be put off. */
static inline bool gr_lm_fuses(const struct gr_lm *lm)
{
    return lm->fused_width > 0 && !lm->raw_features && lm->shipped == NULL;
}
/* The captured states of a row of the last pass, for fuse() and to be kept; or, bf16, what is shipped of it. */
static inline const float *gr_lm_capture(const struct gr_lm *lm, int row)
{
    const size_t at = (size_t)row * (size_t)(lm->n_capture * lm->capture_width);
    return lm->shipped != NULL ? (const float *)(const void *)(lm->shipped + at) : lm->capture + at;
}
static inline size_t gr_lm_capture_bytes(const struct gr_lm *lm)
{
    return (size_t)(lm->n_capture * lm->capture_width) * (lm->shipped != NULL ? sizeof(uint16_t) : sizeof(float));
}
static inline void gr_lm_destroy(struct gr_lm *lm)
{
    if (lm != NULL) {
        lm->ops->destroy(lm);
    }
}
/* For models on the host: a row's feature, and what is kept after a pass. */
static inline const float *gr_lm_feature(const struct gr_lm *lm, const struct gr_batch *b, int row)
{
    const int32_t from = b->from_state != NULL ? b->from_state[row] : -1;
    GR_ASSERT(from < lm->n_state);
    return from >= 0 ? lm->state + (size_t)from * (size_t)lm->feature_width : b->feature[row];
}
static inline void gr_lm_keep_states(const struct gr_lm *lm, const struct gr_batch *b)
{
    const size_t width = (size_t)lm->feature_width;
    for (int i = 0; b->to_state != NULL && i < b->n_row; i++) {
        GR_ASSERT(b->to_state[i] < lm->n_state);
        if (b->to_state[i] >= 0) {
            memcpy(lm->state + (size_t)b->to_state[i] * width, lm->hidden + (size_t)i * width, width * sizeof(float));
        }
    }
}
/* Whether row i_out was picked, or ranked, by the model; else that is to be done from its logits. */
static inline bool gr_lm_has_picked(const struct gr_lm *lm, int i_out)
{
    return lm->picked != NULL ? lm->picked[i_out].id != GR_PICK_TO_HOST
                              : lm->top != NULL && lm->top[i_out].n != GR_PICK_TO_HOST;
}
/* The team for what is left of n_out rows: none where a thread alone is faster than to wake the others. */
static inline struct gr_team *gr_lm_pick_team(const struct gr_lm *lm, int n_out)
{
    int n_left = 0;
    for (int i = 0; i < n_out; i++) {
        n_left += !gr_lm_has_picked(lm, i);
    }
    return n_left > 1 ? lm->team : NULL;
}
/* Rows of the vocabulary from n_token on are padding: they are never sampled. Returns how many of the target's ids
 * there are. */
static inline int32_t gr_lm_without_padding(struct gr_lm *lm, int32_t n_token)
{
    if (lm->to_target == NULL) {
        lm->n_vocab = GR_MIN(lm->n_vocab, n_token);
        return lm->n_vocab;
    }
    lm->n_vocab_target = GR_MIN(lm->n_vocab_target, n_token);
    while (lm->n_vocab > 1 && lm->to_target[lm->n_vocab - 1] >= n_token) {
        lm->n_vocab--;
    }
    return lm->n_vocab_target;
}
static inline const float *gr_lm_logits(const struct gr_lm *lm, int i_out)
{
    return lm->logits + (size_t)i_out * (size_t)lm->n_vocab_stride;
}
/* Are the raw logits of an out row all finite? Of a row that is left to the host. */
static inline bool gr_lm_row_is_finite(const struct gr_lm *lm, int i_out)
{
    const float *l = gr_lm_logits(lm, i_out);
    return lm->kernels != NULL ? lm->kernels->argmax(l, lm->n_vocab, false) != GR_PICK_NOT_FINITE
                               : gr_sampler_is_finite(l, lm->n_vocab);
}

#endif
