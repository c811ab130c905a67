/* One ragged target pass: what the state machine asks of the compute thread, and what comes back. The machine fills
 * the input fields and does not touch the pass again until it is done; the verifier fills the outputs.
 *
 * Three kinds of sequence:
 *   prefill: rows are committed tokens, causal, KV straight into the pool; a pick only after the last one;
 *   tree:    row 0 is the tail, row i + 1 node i; KV into scratch, the accepted rows are copied to the pool;
 *   root-only: the tail alone, KV straight into the pool (no scratch, no copy: what plain decoding does).
 *
 * Features. A root-only row in K = 0 is not fused at once: its captured states are kept (keep_capture) until they are
 * wanted, or GR_CAPTURE_KEEP of them are there, and then fused together: fc over many rows costs little more than over
 * one. Where they are wanted and no rows are to be run, a pass of its own fuses (GR_PASS_FUSE; never with others). */
#ifndef GR_TARGET_WORKER_PASS_H
#define GR_TARGET_WORKER_PASS_H

#include "common/accept.h"
#include "common/sampler.h"
#include "common/status.h"
#include "model/kv_pool.h"

#include <stdbool.h>
#include <stdint.h>

#define GR_SCRATCH_BLOCKS (GR_TREE_MAX / GR_KV_BLOCK_TOKENS) /* of one session, target side */

#define GR_CAPTURE_KEEP 32 /* rows of a session whose captured states wait to be fused */

enum gr_pass_kind { GR_PASS_PREFILL, GR_PASS_TREE, GR_PASS_ROOT, GR_PASS_FUSE };

struct gr_pass_seq {
    /* in */
    int32_t session;                /* the machine's slot */
    enum gr_pass_kind kind;
    int32_t pos0;                   /* position of row 0 */
    int32_t n_row;
    const int32_t *token;           /* (n_row) prefill and root-only; borrowed */
    struct gr_token_tree tree;      /* tree: rows 1 .. n */
    int32_t tail;                   /* tree: token of row 0 */
    bool want_pick;                 /* prefill: the last row ends the prompt */
    bool replay;                    /* prefill: rows are generated tokens, for the kernels that decode */
    const struct gr_kv_table *table; /* borrowed, grown to hold every row that may be committed */
    int32_t scratch_block[GR_SCRATCH_BLOCKS];
    struct gr_sampling sampling;
    struct gr_stop stop;
    bool want_gap;                  /* root-only: how far ahead the pick was */
    bool want_features;             /* of the rows that are committed, and of n_kept before them */
    int32_t n_kept;                 /* positions before pos0 whose captured states have been kept */
    bool keep_capture;              /* root-only: keep those of its row as well, fuse nothing */
    /* out, where picks were wanted */
    int32_t pick[GR_TREE_MAX]; /* tree, root-only: by row; prefill: [0] */
    struct gr_walk walk;
    /* Features of positions from pos0 - n_kept on, bf16 (n_feature, width): those kept, then every row of a prompt
     * chunk, or tail and path. Borrowed from the verifier, valid until the next pass. */
    int32_t n_feature;
    const uint16_t *feature;
    float gap; /* with want_gap: value of the pick less the next best (noise included); 0 otherwise */
};

struct gr_pass {
    int32_t n_seq, n_seq_max, n_row;
    struct gr_pass_seq *seq; /* (n_seq_max) */
    enum gr_status status;   /* out */
    uint64_t forward_ns, sample_ns, commit_ns; /* out: of the whole pass */
};

#endif
