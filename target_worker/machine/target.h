/* The target's state machine: sessions, rounds, fences, KV accounting. Pure: messages, frames, finished passes and
 * time in; messages, frames and passes out through gr_target_io. No thread, no clock, no socket. It runs on the
 * worker's I/O loop, and in the simulation on a virtual clock. All memory is taken by create.
 *
 * States of a session (one slot each):
 *   FREE -> QUEUED (waits for KV blocks) -> PREFILL -> DECODE -> IDLE (the turn is over, KV stays) -> QUEUED (APPEND)
 * ... A pre-empted session goes back to QUEUED and computes its KV again; an IDLE one whose blocks or slot are needed
 * is evicted (least recently used first). CLOSE leads to FREE from anywhere, TRUNCATE to IDLE; during a pass both take
 *   effect when the pass is done, and an APPEND after the TRUNCATE is held until then. */
#ifndef GR_TARGET_WORKER_MACHINE_TARGET_H
#define GR_TARGET_WORKER_MACHINE_TARGET_H

#include "common/base/far_memory.h"
#include "common/protocol/frame_class.h"
#include "common/protocol/msg.h"
#include "common/protocol/specpv.h"
#include "common/protocol/wire.h"
#include "model/kv/kv_cache.h"
#include "target_worker/policy/cost_table.h"
#include "target_worker/machine/pass.h"

#define GR_COMMIT_BYTES 4096 /* of an encoded COMMIT, trace included; log-probabilities are counted apart */

struct gr_target_config {
    int32_t n_session_max; /* slots */
    int32_t n_ctx_max;     /* tokens of a session */
    int32_t n_vocab;
    const char *model;          /* borrowed: how errors name it; NULL: no name */
    int32_t n_row_max;          /* rows of a pass; at least prefill_chunk + 64 */
    int32_t n_out_max;          /* picks of a pass; at least 65: the largest tree, and a prompt's end */
    int32_t prefill_chunk;      /* rows; prompt chunks are aligned to absolute positions */
    int32_t n_pool_block;       /* KV blocks; scratch blocks follow: GR_SCRATCH_BLOCKS a slot */
    uint64_t round_deadline_ns; /* how long a pass waits for a tree at most; what automatic trees wait is chosen */
    int32_t admit_tokens; /* room reserved at admission beyond the tokens there are; 0: up to the session's limit */
    double prefill_share; /* of the time that prompt chunks may take while others decode, 0 < x < 1; 0: no limit */
    /* For drafters that run a head; memory taken at start: n_session_max * feature_keep * feature_width * 2 bytes. */
    int32_t feature_width;  /* of a row of FEATURES, gr_lm_ship_width(); 0: the target has none */
    bool feature_raw;       /* they are captured states */
    bool feature_later;     /* gr_lm_fuses(): what a pass captures may be fused later */
    int32_t feature_keep;   /* positions of a session whose features are kept, at least a prompt chunk and a tree */
    int32_t feature_window; /* rows sent and not yet TAKEN; at most GR_FEATURES_WINDOW, but in tests */
    /* Where they are kept, and where passes bring them, borrowed; NULL: in the host's memory. */
    const struct gr_far_memory *far;
    bool shares_device;               /* with its drafter: passes beside a draft teach nothing about prices */
    const struct gr_cost_table *cost; /* calibrated start values, copied; NULL: none */
    /* SpecPV: what the model's views were made for, and the defaults of sessions that do not say. n_buffer 0: there are
     * no views, sessions that ask for them go without, and nothing of it runs. */
    struct gr_specpv_params specpv;
    bool lacks_views; /* n_buffer is 0 because the views that were asked for could not be made */
    bool specpv_score_max;
    /* Sessions take KV that others have computed (target_prefix.c). */
    bool prefix_cache;
    bool prefix_features;              /* features stay with its blocks: n_pool_block * 16 * feature_width * 2 bytes */
    struct gr_kv_identity kv_identity; /* of the model; its text is borrowed during creation */
    uint32_t test_corrupt;             /* for tests: one partial pass in so many has a pick replaced; 0: none */
};

struct gr_target_io {
    void *ctx;
    /* Memory for a frame to a peer; NULL: no credit or peer gone. frame_end sends it. */
    uint8_t *(*frame_begin)(void *ctx, uint32_t peer, enum gr_frame_class class, uint32_t bytes);
    void (*frame_end)(void *ctx, uint32_t peer, uint32_t bytes);
    /* Where the rows of the FEATURES frame lie that has been begun, in the config's far memory; NULL: behind its head.
     * May be NULL. */
    uint8_t *(*frame_body)(void *ctx, uint32_t peer);
    /* To the orchestrator. Copied before it returns. */
    void (*send_msg)(void *ctx, const struct gr_msg *m);
    /* Is there room for n more COMMITs of GR_COMMIT_BYTES in the queue to the orchestrator? A session that finds none
     * is not verified until there is. NULL: always. */
    bool (*commit_room)(void *ctx, int n);
    /* Starts the only pass in flight; gr_target_pass_done() when it is done. */
    void (*start_pass)(void *ctx, struct gr_pass *pass);
};

struct gr_target_counters {
    uint64_t n_pass, n_row;              /* all passes */
    uint64_t n_tree_round, n_root_round; /* verdicts with and without a tree */
    uint64_t n_draft_frame, n_draft_stale, n_draft_late, n_reroot, n_desync, n_resync, n_fallback;
    uint64_t n_fuse_pass;                     /* not among n_pass */
    uint64_t n_not_finite, n_view_not_finite; /* rows that ended a session; rows under a view that had it refreshed */
    uint64_t n_feature_frame, n_feature_row, feature_bytes, n_feature_start;
    uint64_t n_probe, n_evicted, n_preempted, n_paused, n_fault, n_cache_hit;
    uint64_t n_sent_elsewhere;             /* OPENs and APPENDs that were refused because it drains */
    uint64_t n_prefix_query, n_prefix_hit; /* tokens of prompts that were looked up, and those that were there */
    uint64_t n_prefix_feature;             /* of these, positions whose features were there, too */
    uint64_t n_fork, n_fork_token;         /* sessions that began with another's KV; its tokens, copied ones included */
    /* SpecPV. Tokens judged in refreshes, of them others than committed; roll-backs; provisional tokens dropped without
     * judgement; passes that judged a provisional end */
    uint64_t n_view_seed, n_partial_round, n_refresh, n_judge, n_drift_checked, n_drift_mismatch, n_roll_back,
        n_dropped;
};

struct gr_target;

GR_NODISCARD enum gr_status gr_target_create(const struct gr_target_config *config, const struct gr_target_io *io,
                                             struct gr_target **out);
void gr_target_destroy(struct gr_target *t);

/* A message from the orchestrator (OPEN, APPEND, TRUNCATE, REFRESH, DETACH, CLOSE, PING). The message stays the
 * caller's. */
void gr_target_on_msg(struct gr_target *t, const struct gr_msg *m, uint64_t now_ns);
/* A frame from a drafter. GR_EFORMAT or GR_EPROTO: the peer broke the protocol (logged); the caller closes the
 * connection and calls gr_target_on_peer_lost(). */
GR_NODISCARD enum gr_status gr_target_on_frame(struct gr_target *t, uint32_t peer, const uint8_t *frame, size_t len,
                                               uint64_t now_ns);
void gr_target_on_peer_lost(struct gr_target *t, uint32_t peer);
/* The orchestrator is gone: its turns end; the sessions stay idle for one that opens them again. */
void gr_target_on_orchestrator_lost(struct gr_target *t, uint64_t now_ns);
/* Another orchestrator, which knows none of them: all sessions go, those of a pass when it is done. */
void gr_target_forget_all(struct gr_target *t);
/* The orchestrator stays away, and no pass is in flight: all sessions go, and with them what the prefix cache has. How
 * many there were, which the next PONG tells. */
uint32_t gr_target_let_orphans_go(struct gr_target *t);
/* This worker is to end: from now on every OPEN and APPEND is refused with GR_EDRAINING, and turns that have begun go
 * on.
 */
void gr_target_drain(struct gr_target *t);
void gr_target_on_pass_done(struct gr_target *t, struct gr_pass *pass, uint64_t now_ns);
/* Starts a pass when one is due and sends what waited for credit. Returns when to call again at the latest
 * (UINT64_MAX: when something happens). Call it after every batch of events. */
uint64_t gr_target_step(struct gr_target *t, uint64_t now_ns);

const struct gr_target_counters *gr_target_counters(const struct gr_target *t);
int gr_target_n_session(const struct gr_target *t);
/* KV accounting holds: free + owned = total, block tables match kv_len. For tests and debug builds. */
bool gr_target_check(const struct gr_target *t);
/* Entries of the prefix cache, and those given up so far; zeroes where it is off. */
struct gr_target_prefix {
    int32_t n_block;
    uint64_t n_evicted;
};
struct gr_target_prefix gr_target_prefix(const struct gr_target *t);
/* Read access for tests: committed tokens and KV length of a session; false when unknown. */
bool gr_target_peek(const struct gr_target *t, uint64_t session, const int32_t **token_out, int32_t *len_out,
                    int32_t *kv_len_out, const struct gr_kv_table **table_out);

#endif
