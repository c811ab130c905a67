/* One job of the draft worker's compute thread: bring the draft KV of some sessions up to date and grow their trees,
 * all sessions together, level by level. The machine fills the inputs and leaves the job alone until it is done. */
#ifndef GR_DRAFT_WORKER_JOB_H
#define GR_DRAFT_WORKER_JOB_H

#include "common/sampler.h"
#include "common/status.h"
#include "draft_worker/tree_builder.h"
#include "model/kv_pool.h"

#define GR_DRAFT_SCRATCH_BLOCKS (GR_DRAFT_SLOT_MAX / GR_KV_BLOCK_TOKENS) /* of one session, drafter side */

struct gr_draft_seq {
    /* in */
    int32_t session; /* the machine's slot */
    /* first: KV of accepted nodes moves from scratch slot copy_slot[i] to position copy_pos0 + i */
    int32_t n_copy, copy_pos0;
    int16_t copy_slot[GR_NODE_MAX];
    /* then: committed tokens at positions pos0 .. pos0 + n_row - 1 get their KV */
    int32_t pos0, n_row;
    const int32_t *token;            /* (n_row), borrowed */
    const struct gr_kv_table *table; /* borrowed, grown to pos0 + n_row */
    int32_t scratch_block[GR_DRAFT_SCRATCH_BLOCKS];
    /* then, with grow: a tree below the last of them */
    bool grow;
    struct gr_tree_config tree_config;
    struct gr_sampling sampling;
    /* out */
    struct gr_token_tree tree;
    int16_t slot[GR_NODE_MAX];
};

struct gr_draft_job {
    int32_t n_seq, n_seq_max;
    struct gr_draft_seq *seq; /* (n_seq_max) */
    enum gr_status status;    /* out */
    uint64_t compute_ns;      /* out */
};

#endif
