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
 * one. Where they are wanted and no rows are to be run, a pass of its own fuses (GR_PASS_FUSE; never with others).
 *
 * SpecPV (fields below; all zero: off). kv_len: tokens with full KV. A partial pass verifies the tail and the tree
 * under the session's view (model/kv/kv_views.h); what it accepts is missing full KV. A refresh is a full pass that
 * begins with those tokens as n_chain chain rows, positions pos0 - n_chain = kv_len .. pos0 - 1, which write their KV
 * anew. Their picks tell what full verification would have said: the pick of the row at position p is for position
 * p + 1, the next chain token, of the last one the tail. */
#ifndef GR_TARGET_WORKER_MACHINE_PASS_H
#define GR_TARGET_WORKER_MACHINE_PASS_H

#include "common/rules/accept.h"
#include "common/rules/adjust.h"
#include "common/rules/logprob.h"
#include "common/rules/sampler.h"
#include "common/base/status.h"
#include "model/kv/kv_views.h"
#include "model/kv/kv_pool.h"

#include <stdbool.h>
#include <stdint.h>

#define GR_SCRATCH_BLOCKS (GR_TREE_MAX / GR_KV_BLOCK_TOKENS) /* of one session, target side */

#define GR_NO_CORRECTION (-1) /* in place of a token */

#define GR_CAPTURE_KEEP 32 /* rows of a session whose captured states wait to be fused */

enum gr_pass_kind { GR_PASS_PREFILL, GR_PASS_TREE, GR_PASS_ROOT, GR_PASS_FUSE };

struct gr_pass_seq {
    /* in */
    int32_t session; /* the machine's slot */
    enum gr_pass_kind kind;
    int32_t pos0; /* position of row 0 */
    int32_t n_row;
    const int32_t *token;            /* (n_row) prefill and root-only; borrowed */
    struct gr_token_tree tree;       /* tree: rows 1 .. n */
    int32_t tail;                    /* tree: token of row 0 */
    bool want_pick;                  /* prefill: the last row ends the prompt */
    bool replay;                     /* prefill: rows are generated tokens, for the kernels that decode */
    const struct gr_kv_table *table; /* borrowed, grown to hold every row that may be committed */
    /* The first rows of a fork. KV before them is not what passes of this slot have written: blocks that it shares with
     * another session, and, prefill alone, of the last n_copy tokens, fewer than a block, that session's cells from
     * copy_from on, which are copied before the rows run. */
    bool forked;
    int32_t n_copy, copy_from;
    int32_t scratch_block[GR_SCRATCH_BLOCKS];
    struct gr_sampling sampling;
    struct gr_stop stop;
    const struct gr_adjust *adjust; /* what is asked of logits first; borrowed. NULL: nothing */
    const int32_t *text;            /* the session's tokens from position 0 to that of row 0 at least; borrowed */
    int32_t generated_from;         /* with penalties: position of the first token that counts as generated */
    int32_t len_min;                /* no pick for an earlier position is one of stop.ids */
    int32_t n_logprob;              /* log-probabilities that are wanted of a token; 0: none */
    bool want_gap;                  /* root-only: how far ahead the pick was */
    bool want_features;             /* of the rows that are committed, and of n_kept before them */
    int32_t n_kept;                 /* positions before pos0 whose captured states have been kept */
    bool keep_capture;              /* root-only: keep those of its row as well, fuse nothing */
    /* in, SpecPV: tree and root-only */
    bool partial;      /* rows see the session's view, which a refresh must have chosen */
    bool refresh_view; /* full pass: choose the view anew, within view_budget */
    bool exact;        /* a chain row whose pick is not the next committed token ends it all there */
    /* n_chain >= 1 and no other rows (kind root-only, n_row 0): the last committed token is judged, and nothing is
     * picked after it. tail is that token. */
    bool judge_only;
    int32_t n_chain;            /* not partial; chain rows before row 0. Not with keep_capture */
    const int32_t *chain_token; /* (n_chain) from position pos0 - n_chain on; borrowed */
    struct gr_kv_budget view_budget;
    /* Test hook, in a partial pass: the pick of this row becomes another token; -1: none. Not read otherwise. */
    int32_t corrupt_at;
    /* out, where picks were wanted */
    int32_t pick[GR_TREE_MAX]; /* tree, root-only: by row; prefill: [0] */
    struct gr_walk walk;
    /* Features of positions from pos0 - n_chain - n_kept on, (n_feature) rows of bf16 (width): those kept (from before
     * the chain rows), then chain rows, then every row of a prompt chunk, or tail and path. Borrowed from the verifier,
     * valid until the next pass. */
    int32_t n_feature;
    const uint16_t *const *feature;
    /* With n_logprob: of the tokens at positions logprob_from .. logprob_from + n_logprob_token - 1, which the pass
     * made final: exact chain rows' that stand, or what stands in place of one, then the walk's. Of each its own, then
     * those of the n_logprob - 1 likeliest ids; and these ids. Borrowed from the verifier, valid until the next pass.
     */
    int32_t logprob_from, n_logprob_token;
    float *logprob;      /* (n_logprob_token, n_logprob) */
    int32_t *logprob_id; /* (n_logprob_token, n_logprob - 1) */
    /* The walk's finish is GR_FINISH_ERROR: position of the row on it whose logits are not finite. Nothing is committed
     * but the chain rows up to this one. */
    int32_t odd_pos;
    /* out, SpecPV */
    /* Chain rows whose pick is the next committed token: exact, those before the first mismatch; else all of them. */
    int32_t n_chain_ok;
    /* exact, n_chain_ok < n_chain: the pick at the first mismatch, that of position pos0 - n_chain + n_chain_ok + 1.
     * Tokens before that position stand, with full KV; the walk has no path, its bonus is this token and its finish
     * says whether it stops (the limit is the machine's to see). Features end with that row. GR_PICK_NOT_FINITE, lossy
     * passes too: that row's logits are not finite, nothing stands in its place, and the walk's finish is an error. */
    int32_t correction;
    int32_t dense_from; /* of the session's view after the pass; GR_VIEW_NONE: it cannot be used. A roll-back below
                           it ends the view */
    float gap;          /* with want_gap: value of the pick less the next best (noise included); 0 otherwise */
    /* out: what is asked of a row's logits was no list that the model takes, so the host has adjusted and picked it:
     * the most ids of such a list. 0: of no row. */
    int32_t list_limit;
};

struct gr_pass {
    int32_t n_seq, n_seq_max, n_row;
    struct gr_pass_seq *seq;                   /* (n_seq_max) */
    enum gr_status status;                     /* out */
    uint64_t forward_ns, sample_ns, commit_ns; /* out: of the whole pass */
};

#endif
