/* One job of the draft worker's compute thread: bring the draft KV of some sessions up to date and grow their trees,
 * all sessions together, level by level; or, when nobody waits for a tree, one level ahead of need. The machine fills
 * the inputs and leaves the job, and the builders in it, alone until it is done. */
#ifndef GR_DRAFT_WORKER_MACHINE_JOB_H
#define GR_DRAFT_WORKER_MACHINE_JOB_H

#include "common/rules/adjust.h"
#include "common/rules/sampler.h"
#include "common/base/status.h"
#include "common/protocol/wire.h"
#include "draft_worker/tree/acceptance.h"
#include "draft_worker/tree/tree_builder.h"
#include "model/kv/kv_pool.h"

#define GR_DRAFT_SCRATCH_BLOCKS (GR_DRAFT_SLOT_MAX / GR_KV_BLOCK_TOKENS) /* of one session, drafter side */

enum gr_draft_task {
    GR_DRAFT_CATCH_UP, /* only the KV */
    GR_DRAFT_GROW,     /* a tree that is to be sent */
    GR_DRAFT_AHEAD,    /* one level of candidates, for the rounds to come */
};

struct gr_draft_seq {
    /* in */
    int32_t session; /* the machine's slot */
    enum gr_draft_task task;
    /* first: KV of committed candidates moves from scratch slot copy_slot[i] to position copy_pos0 + i */
    int32_t n_copy, copy_pos0;
    int16_t copy_slot[GR_NODE_MAX];
    /* then: committed tokens at positions pos0 .. pos0 + n_row - 1 get their KV; the last one's children are wanted
     * when there is a tree to grow. n_row 0: the root's children are known */
    int32_t pos0, n_row;
    const int32_t *token; /* (n_row), borrowed */
    /* A head: their features, bf16 (n_row, gr_lm_ship_width()), borrowed, in the host's memory or, of a model that
     * takes far_features, in far memory; token p stands in cell p - kv_shift, at the rotary position p - 1. A
     * stand-alone model: NULL, 0 */
    const uint16_t *feature;
    int32_t kv_shift;
    bool known;        /* the root's children are: the rows go along with the first level that runs, if one does */
    int16_t root_slot; /* the root was the candidate in this slot; -1: it was not one, or was the root before */
    const struct gr_kv_table *table; /* borrowed, grown to base_len */
    int32_t scratch_block[GR_DRAFT_SCRATCH_BLOCKS];
    /* then: candidates below the committed token base_len - 1 */
    int32_t base_len;
    struct gr_tree_builder *builder; /* borrowed: the session's */
    struct gr_tree_config tree_config;
    int32_t n_child;   /* children of a row that are kept */
    int32_t n_ahead;   /* AHEAD: rows at most */
    int32_t depth_max; /* candidates at this depth have no room in the context */
    struct gr_sampling sampling;
    /* Bans and biases, so that nothing is proposed that cannot be picked; borrowed. NULL: none. Penalties and bad words
     * of several ids follow the text, and are the target's alone. */
    const struct gr_adjust *adjust;
    struct gr_cost cost;              /* with best_first: what the size follows */
    float rate;                       /* tokens a ns that the session's rounds bring; 0: not known */
    bool calibrate;                   /* the size follows the cost, now or when it is told */
    struct gr_acceptance_curve curve; /* with calibrate */
    /* out */
    struct gr_drafted drafted;
    int32_t n_level; /* passes run for it */
    bool ran_rows;   /* the committed tokens' rows have run */
    bool exhausted;  /* AHEAD: there was nothing to expand */
    bool not_finite; /* logits of a row were not: it has no children, and a tree that was to be sent has no nodes */
};

struct gr_draft_job {
    int32_t n_seq, n_seq_max;
    struct gr_draft_seq *seq; /* (n_seq_max) */
    enum gr_status status;    /* out */
    uint64_t compute_ns;      /* out */
};

#endif
