/* The orchestrator's state machine: sessions, their transcripts and expected prefix lengths, and which workers serve
 * them. Pure: messages, joins and losses in; messages and client events out. Never on the path of a round: it learns
 * a round from COMMIT, after the fact.
 *
 * States of a session:
 *   WAITING (no target yet) -> OPENING (OPEN sent) -> RUNNING -> CLOSING (CLOSE and DETACH sent) -> DONE
 * A lost target leads back to WAITING with epoch + 1; the transcript re-opens it. A lost drafter changes nothing but that
 * a new one is attached when it joins. */
#ifndef GR_ORCHESTRATOR_ORCH_H
#define GR_ORCHESTRATOR_ORCH_H

#include "common/accept.h"
#include "common/msg.h"
#include "common/sampler.h"

#include <stdbool.h>

#define GR_ORCH_SESSION_MAX 256
#define GR_ORCH_WORKER_MAX 16

enum gr_worker_role { GR_WORKER_TARGET, GR_WORKER_DRAFT };

struct gr_session_request {
    const int32_t *prompt; /* borrowed for the call */
    uint32_t n_prompt;
    uint32_t max_tokens;
    int32_t stop_id[GR_STOP_ID_MAX]; /* EOS included unless ignored */
    uint32_t n_stop_id;
    struct gr_sampling sampling; /* the seed is always set: the caller draws one */
    bool want_draft, want_trace;
    uint32_t tree_shape, draft_depth, draft_top_k, n_node;
    char transport[16];
    void *user; /* the client's */
};

/* The metrics of DESIGN section 12, as far as the orchestrator sees them. Durations are sums over rounds. */
struct gr_session_metrics {
    uint64_t prompt_tokens, completion_tokens;
    uint64_t num_drafts, num_draft_tokens, num_accepted_tokens, num_rewound_tokens, rewind_steps;
    uint64_t accepted_per_position[GR_NODE_MAX];
    uint64_t rounds, root_only_rounds, late_trees, desyncs, fallbacks, reopens;
    uint64_t wait_ns, verify_ns, host_ns;         /* as the target measured them */
    uint64_t n_drafter_round, draft_ns, draft_host_ns; /* as the drafter measured them */
    uint64_t open_ns, first_token_ns, last_token_ns; /* on the orchestrator's clock */
    char transport[16];
};

struct gr_trace_round {
    uint32_t round, n_node, n_path;
    const int32_t *token, *parent, *path; /* borrowed for the call */
    int32_t bonus;
    double gap; /* a round without a tree: logit of the pick less the next best */
};

/* Client events; the session id and the request's user pointer come first. Called from within gr_orch_on_msg(). */
struct gr_orch_io {
    void *ctx;
    void (*send)(void *ctx, uint32_t worker, const struct gr_msg *m);
    void (*on_progress)(void *ctx, uint64_t session, void *user, uint32_t n_prefilled); /* may be NULL */
    void (*on_tokens)(void *ctx, uint64_t session, void *user, const int32_t *id, uint32_t n);
    void (*on_trace)(void *ctx, uint64_t session, void *user, const struct gr_trace_round *r); /* may be NULL */
    /* The session is over and its workers have let go of it. text: what went wrong, for GR_FINISH_ERROR. */
    void (*on_done)(void *ctx, uint64_t session, void *user, enum gr_finish finish, const char *text);
};

struct gr_orch;

GR_NODISCARD enum gr_status gr_orch_create(const struct gr_orch_io *io, struct gr_orch **out);
void gr_orch_destroy(struct gr_orch *o);

GR_NODISCARD enum gr_status gr_orch_submit(struct gr_orch *o, const struct gr_session_request *request,
                                           uint64_t now_ns, uint64_t *session_out);
/* The client has enough (a stop string, ctrl-C): ends the session with `finish`; tokens past n_keep are not counted. */
void gr_orch_stop(struct gr_orch *o, uint64_t session, uint32_t n_keep, enum gr_finish finish);
/* Valid until the session's on_done returned. */
const struct gr_session_metrics *gr_orch_metrics(const struct gr_orch *o, uint64_t session);
/* Generated tokens so far. */
const int32_t *gr_orch_tokens(const struct gr_orch *o, uint64_t session, uint32_t *n_out);

/* Worker edges. worker: the caller's number, < GR_ORCH_WORKER_MAX. */
GR_NODISCARD enum gr_status gr_orch_on_join(struct gr_orch *o, uint32_t worker, enum gr_worker_role role,
                                            const char *data_address, uint64_t now_ns);
void gr_orch_on_lost(struct gr_orch *o, uint32_t worker, uint64_t now_ns);
/* A message from a joined worker. GR_EPROTO: not one a worker sends (logged); the caller drops the worker. */
GR_NODISCARD enum gr_status gr_orch_on_msg(struct gr_orch *o, uint32_t worker, const struct gr_msg *m,
                                           uint64_t now_ns);
int gr_orch_n_session(const struct gr_orch *o);

#endif
