/* The drafter's state machine: follows sessions of targets, drafts one tree for every VERDICT that wants one. Pure:
 * messages, frames, finished jobs and time in; messages, frames and jobs out through gr_drafter_io. Runs on the
 * worker's I/O loop, and in the simulation on a virtual clock. All memory is taken by create.
 *
 * States of a session (one slot each):
 *   FREE -> CONNECTING (waits for the connection to its target) -> SYNCING (RESYNC sent, DELTAs to come)
 *        -> FOLLOWING -> SYNCING (after a desync) ... ; DETACH or a lost connection leads to FREE.
 *   FULL: the session is longer than this drafter's context; each VERDICT is answered with a tree without nodes. When
 * it is cut back to what fits, the way leads over SYNCING.
 *
 * Where the draft model is a head, rows of committed tokens take features (drafter_features.c), and a tree grows when
 * tokens and features are there. Its KV is built on true features alone: that of candidates, which take the states of
 * their parents' rows, is not copied when they are accepted. Where a tree begins on candidates, the rows of the tokens
 * since go along with the next pass that runs.
 *
 * Candidates outlive their round: a tree begins on what is known below the newest tokens (tree_builder.h), whatever
 * brought them: an accepted path, a bonus token, a DELTA. With draft_ahead the drafter goes on while the target
 * verifies, one level a job, so that a VERDICT waits for one level at most. A session that wants no tree costs nothing:
 * its KV is brought up to date when one is wanted again. */
#ifndef GR_DRAFT_WORKER_MACHINE_DRAFTER_H
#define GR_DRAFT_WORKER_MACHINE_DRAFTER_H

#include "common/base/far_memory.h"
#include "common/protocol/frame_class.h"
#include "common/protocol/msg.h"
#include "common/protocol/wire.h"
#include "draft_worker/tree/acceptance.h"
#include "draft_worker/machine/job.h"

struct gr_drafter_config {
    int32_t n_session_max;
    int32_t n_ctx_max;
    int32_t n_vocab;
    int32_t n_row_max;     /* rows of a pass of the draft model; at least n_session_max * draft_top_k */
    int32_t prefill_chunk; /* committed tokens of a session brought up to date in one job */
    int32_t n_pool_block;  /* KV blocks; scratch blocks follow: GR_DRAFT_SCRATCH_BLOCKS a slot */
    /* A head; memory is taken at start: n_session_max * (feature_window + prefill_chunk) * feature_width * 2 bytes. */
    int32_t feature_width;   /* of a row of FEATURES; 0: a stand-alone draft model */
    bool feature_raw;        /* they are captured states, which the model fuses itself */
    int32_t feature_window;  /* rows of a session that are kept until they have been used; GR_FEATURES_WINDOW, but in
                              * tests */
    int32_t feature_context; /* positions that the head looks back, a few more until KV blocks are let go; 0: all */
    /* Where they are kept, and where jobs find them, borrowed; NULL: in the host's memory. */
    const struct gr_far_memory *far;
    uint32_t test_flip_round; /* for tests, 0: off: before this round's tree a session has one of its tokens replaced */
};

struct gr_drafter_io {
    void *ctx;
    uint8_t *(*frame_begin)(void *ctx, uint32_t peer, enum gr_frame_class class, uint32_t bytes);
    void (*frame_end)(void *ctx, uint32_t peer, uint32_t bytes);
    /* Where the rows of the FEATURES frame lie that gr_drafter_on_frame() is given, in the config's far memory; NULL:
     * behind its head. May be NULL. */
    const uint8_t *(*frame_body)(void *ctx);
    void (*send_msg)(void *ctx, const struct gr_msg *m);
    void (*start_job)(void *ctx, struct gr_draft_job *job); /* the only one in flight */
    /* Connects to a target's data endpoint, or finds the connection. The answer comes as
     * gr_drafter_on_peer_ready() or _lost() with this peer number. */
    enum gr_status (*connect)(void *ctx, const char *address, uint64_t incarnation, const char *transport,
                              uint32_t *peer_out);
    /* Transports that did not open before the peer's, since the last call. NULL: none. */
    uint32_t (*take_fallbacks)(void *ctx, uint32_t peer);
};

struct gr_drafter_counters {
    uint64_t n_job, n_level, n_row;         /* jobs; passes of a level and committed rows run, each session's counted */
    uint64_t n_ahead_level, n_ahead, n_hit; /* levels ahead of need; verdicts that met them; of them useful hits */
    uint64_t n_reused;                      /* trees that began on candidates of an older one */
    uint64_t n_draft_frame, n_draft_node;
    uint64_t n_slide;        /* times that KV beyond a head's context was let go */
    uint64_t n_empty_choice; /* trees without nodes because none pays */
    uint64_t n_not_finite;   /* jobs of a session that met a row whose logits are not finite */
    uint64_t n_late_draft;   /* trees sent on a base that verdicts had overtaken */
    uint64_t n_verdict, n_root_only_verdict, n_late_verdict; /* the last: named nodes below a path in the tree */
    /* rows taken; FEATURES that came twice or too late, that did not fit what was there, that began in the middle */
    uint64_t n_feature_row, n_stale_features, n_feature_gap, n_feature_start;
    uint64_t n_feature_again; /* FEATURES that replaced others */
    uint64_t n_resync, n_desync, n_stale_tree, n_stale_frame, n_no_credit, n_fallback;
    uint64_t n_sent_elsewhere; /* ATTACHes that were refused because it drains */
    uint64_t n_detached; /* DESYNCs of a target that had given this drafter up: it was silent, and is taken up again */
};

struct gr_drafter;

/* Positions of a session whose KV a head that looks back `context` keeps at most, of n_ctx. */
int32_t gr_drafter_kv_len_max(int32_t context, int32_t prefill_chunk, int32_t n_ctx);

GR_NODISCARD enum gr_status gr_drafter_create(const struct gr_drafter_config *config, const struct gr_drafter_io *io,
                                              struct gr_drafter **out);
void gr_drafter_destroy(struct gr_drafter *d);

void gr_drafter_on_msg(struct gr_drafter *d, const struct gr_msg *m, uint64_t now_ns);
void gr_drafter_on_peer_ready(struct gr_drafter *d, uint32_t peer, const char *transport, uint64_t now_ns);
/* why: GR_ECLOSED for a connection that stood, which may be made again; GR_AGAIN for one that never stood and may do so
 * when it is tried later; else why none will come about. text: what the orchestrator is told of that, NULL: that it is
 * lost. */
void gr_drafter_on_peer_lost(struct gr_drafter *d, uint32_t peer, enum gr_status why, const char *text);
/* The orchestrator is gone. Sessions are followed on, for the target may have not lost it; those that no ATTACH asks
 * for again give up their slots when others need them. */
void gr_drafter_on_orchestrator_lost(struct gr_drafter *d);
/* This worker is to end: from now on every ATTACH is refused with GR_EDRAINING, those that wait for a slot as well, and
 * sessions that are attached go on. */
void gr_drafter_drain(struct gr_drafter *d);
/* Another orchestrator, which knows none of them: all sessions go. */
void gr_drafter_forget_all(struct gr_drafter *d);
/* The orchestrator stays away, and no job is in flight: the same. How many there were, which the next PONG tells. */
uint32_t gr_drafter_let_orphans_go(struct gr_drafter *d);
GR_NODISCARD enum gr_status gr_drafter_on_frame(struct gr_drafter *d, uint32_t peer, const uint8_t *frame, size_t len,
                                                uint64_t now_ns);
void gr_drafter_on_job_done(struct gr_drafter *d, struct gr_draft_job *job, uint64_t now_ns);
/* Starts a job when one is due and sends what waited for credit. Returns when to call again at the latest. */
uint64_t gr_drafter_step(struct gr_drafter *d, uint64_t now_ns);

const struct gr_drafter_counters *gr_drafter_counters(const struct gr_drafter *d);
/* Acceptance by depth and rank, all sessions. */
const struct gr_acceptance_counts *gr_drafter_acceptance(const struct gr_drafter *d);
int gr_drafter_n_session(const struct gr_drafter *d);
bool gr_drafter_check(const struct gr_drafter *d);
/* Read access for tests: the tokens a session's slot holds. */
const int32_t *gr_drafter_peek(const struct gr_drafter *d, int slot, int32_t *len_out);

#endif
