/* The orchestrator's state machine: sessions, their transcripts and expected prefix lengths, and which workers serve
 * them. Pure: messages, joins, losses and time in; messages and client events out. Never on the path of a round: it
 * learns a round from COMMIT, after the fact.
 *
 * A session has one turn (a request: tokens in, tokens out) or, kept open, several. Its states:
 *   WAITING (no target yet) -> OPENING (OPEN or APPEND sent) -> RUNNING
 *     -> CLOSING (CLOSE and DETACH sent, their replies awaited) -> gone
 *     -> IDLE (kept open; between turns) -> OPENING by the next turn, or gone: CLOSE, PURGE, session_ttl, LRU pressure
 * A lost target, an eviction or a refused APPEND leads back to WAITING with epoch + 1: the transcript opens it again. A
 * lost drafter changes nothing but that a new one is attached when it joins. */
#ifndef GR_ORCHESTRATOR_MACHINE_ORCH_H
#define GR_ORCHESTRATOR_MACHINE_ORCH_H

#include "common/protocol/msg.h"
#include "common/protocol/wishes.h"
#include "orchestrator/machine/quarantine.h"
#include "orchestrator/machine/session_metrics.h"
#include "orchestrator/machine/totals.h"

#include <stdbool.h>
#include <stdint.h>

#define GR_ORCH_SESSION_MAX 4096      /* sessions at a time, idle ones included */
#define GR_ORCH_WORKER_MAX 64         /* workers at a time */
#define GR_ORCH_SESSION_CAP (1 << 17) /* the most that an instance may be created for: in simulations */
#define GR_ORCH_WORKER_CAP 4096

/* Of two fingerprints or sizes: 0 is one that is not known, and does not differ. */
static inline bool gr_orch_differ(uint64_t a, uint64_t b)
{
    return a != 0 && b != 0 && a != b;
}

enum gr_worker_role { GR_WORKER_TARGET, GR_WORKER_DRAFT };

static inline const char *gr_worker_role_name(enum gr_worker_role role)
{
    return role == GR_WORKER_TARGET ? "target" : "draft";
}

enum gr_session_state {
    GR_SESSION_FREE,
    GR_SESSION_WAITING,
    GR_SESSION_OPENING,
    GR_SESSION_RUNNING,
    GR_SESSION_IDLE,
    GR_SESSION_CLOSING
};

/* Zeroes: idle sessions are kept, no pings, as many sessions as there is room for, nothing is switched off. */
struct gr_orch_config {
    uint64_t session_ttl_ns;                    /* an idle session is closed after this */
    uint64_t ping_interval_ns, ping_timeout_ns; /* a worker silent for ping_timeout_ns is taken as lost */
    uint64_t queue_timeout_ns;            /* a turn that no target has taken for so long fails; 0: it waits for ever */
    uint32_t n_session_max;               /* at most what the instance has room for */
    struct gr_quarantine_rule quarantine; /* n_failure 0: none */
    uint64_t first_number;    /* that a worker's process is given; 0: they get none. Later orchestrators begin higher */
    uint32_t n_queue_max;     /* turns that queue at a time; 0: as many as there are sessions */
    bool force_single_token;  /* drafters stay attached, the target verifies no trees */
    bool disable_multi_token; /* no drafter at all */
    bool disable_specpv;      /* full verification for every session */
    bool require_same_numerics; /* a session with generated text is never opened at a target of another numerics_id */
};

struct gr_transcript;

struct gr_session_request {
    const int32_t *prompt; /* borrowed for the call */
    uint32_t n_prompt;
    uint64_t tokenizer_fingerprint; /* of the prompt's ids; 0: not known. Where the target has another one the session
                                       ends */
    const char *model;    /* borrowed for the call: a name that a target has given its model; NULL, "": the only one */
    const char *trace_id; /* the same: for lines of the log; NULL, "": it has none */
    struct gr_wishes wishes;
    void *user; /* the client's */
};

/* A session of an earlier process, as it stood there. All pointers are borrowed for the call; none but user is NULL. */
struct gr_restored_session {
    uint64_t id;
    uint32_t epoch;                   /* the last one that it had */
    bool in_turn;                     /* else it is idle */
    uint32_t turn;                    /* its number, from 1 */
    uint32_t turn_base, turn_len;     /* length of the text before the turn's ids, and with them */
    const struct gr_transcript *text; /* its tokens after turn_len are generated ones of the turn, all final */
    uint64_t tokenizer_fingerprint, model_fingerprint; /* 0: not known */
    const char *model, *numerics_id, *trace_id;        /* "": none, not known */
    const struct gr_wishes *wishes;
    void *user;
};

/* The next turn of an idle session. */
struct gr_turn_request {
    uint32_t keep_len;  /* tokens of the transcript to keep; UINT32_MAX: all */
    uint64_t hash;      /* of the tokens that are kept; checked unless all are */
    const int32_t *ids; /* borrowed for the call; at least one */
    uint32_t n_ids;
    struct gr_turn_wishes wishes;
    void *user;
};

/* Who a worker is. Zeroes and empty texts: not known, not compared. */
struct gr_worker_info {
    enum gr_worker_role role;
    char address[GR_MSG_TEXT_MAX]; /* of the data path: a list (address.h) */
    char host[GR_HOST_NAME_MAX];   /* its own name for its host */
    char peer[GR_HOST_NAME_MAX];   /* numeric address that its link comes from */
    char model[GR_MODEL_NAME_MAX]; /* its name for its model */
    char seat[GR_SEAT_MAX];        /* the same for each process that is started in the place of one that has ended */
    uint64_t incarnation, model_fingerprint, tokenizer_fingerprint;
    uint64_t fc_fingerprint; /* as in HELLO: of a head, and of a target that serves one */
    uint32_t feature_width;  /* the same; 0: neither */
    uint32_t n_vocab, n_ctx_max, pid;
    uint64_t number;  /* that it was given when it joined before; 0: it has not */
    uint32_t n_slot;  /* sessions that it has room for at a time */
    uint32_t n_block; /* of its KV pool; 0: not told */
    char numerics_id[GR_NUMERICS_ID_MAX], host_id[48];
};

/* Client events; the session id and the user pointer of the turn come first. Called from within the calls below. What
 * may be NULL is marked. */
struct gr_orch_io {
    void *ctx;
    void (*send)(void *ctx, uint32_t worker, const struct gr_msg *m);
    /* A number that no session has had, at random; one that is 0 or in use is drawn again. NULL: they count from 1. */
    uint64_t (*new_id)(void *ctx);
    /* What a worker said of the turn, or the machine itself (QUEUED): PROGRESS, ATTACHED, COMMIT (checked: it extends
     * the transcript, or under exact SpecPV takes provisional tokens back), DRAFT_STATS. With it a client counts its
     * own metrics. May be NULL. */
    void (*on_report)(void *ctx, uint64_t session, void *user, const struct gr_msg *m);
    /* Final tokens, once each. May be NULL. */
    void (*on_tokens)(void *ctx, uint64_t session, void *user, const int32_t *id, uint32_t n);
    /* The turn is over. A session that is not kept open is, too, and its workers have let go of it.
     * text: what went wrong. */
    void (*on_done)(void *ctx, uint64_t session, void *user, enum gr_finish finish, const char *text);
    /* A kept session is gone; why: "closed by the client", ... May be NULL. */
    void (*on_closed)(void *ctx, uint64_t session, void *user, const char *why);
    /* The machine takes this worker as lost: drop its link, without telling the machine. May be NULL. */
    void (*drop)(void *ctx, uint32_t worker);
    /* A target is to open the session: its epoch, and perhaps its model and numerics, are others than before. Also
     * called from within the call that begins a turn. May be NULL. */
    void (*on_placed)(void *ctx, uint64_t session, void *user);
    /* Reply to gr_orch_ping(). May be NULL. */
    void (*on_pong)(void *ctx, uint32_t worker, uint64_t cookie, uint64_t rtt_ns, const struct gr_msg *pong);
};

struct gr_orch;

GR_NODISCARD enum gr_status gr_orch_create(const struct gr_orch_io *io, struct gr_orch **out);
/* The same for another number of workers and sessions, at most the _CAPs: for simulations. */
GR_NODISCARD enum gr_status gr_orch_create_sized(const struct gr_orch_io *io, int n_worker_max, int n_session_max,
                                                 struct gr_orch **out);
void gr_orch_destroy(struct gr_orch *o);
/* Before the first session. */
void gr_orch_configure(struct gr_orch *o, const struct gr_orch_config *config);

/* ---- sessions. A refusal is logged; gr_orch_why() is its line ---- */

/* GR_AGAIN: all sessions are in a turn, or as many wait as may. GR_ELIMIT: a limit of the request. GR_ENOTFOUND: no
 * target has given its model that name; GR_EINVAL: there are several models, and it names none. */
GR_NODISCARD enum gr_status gr_orch_submit(struct gr_orch *o, const struct gr_session_request *request, uint64_t now_ns,
                                           uint64_t *session_out);
/* A session goes on that an earlier process had. One in a turn waits for a target, as if that had been lost: it is
 * opened as the next epoch, on_tokens and on_report tell what follows its text, and a limit of time begins anew. Where
 * the text shows that the turn is over, on_done is called from within. GR_EINVAL: its number is there already, or
 * the turn does not lie within the text; GR_AGAIN: there is no room for it; GR_ELIMIT, GR_ENOMEM. */
GR_NODISCARD enum gr_status gr_orch_restore(struct gr_orch *o, const struct gr_restored_session *r, uint64_t now_ns);
/* GR_ENOTFOUND: no such session; GR_EINVAL: it is in a turn, or the hash differs; GR_AGAIN; GR_ELIMIT. */
GR_NODISCARD enum gr_status gr_orch_append(struct gr_orch *o, uint64_t session, const struct gr_turn_request *turn,
                                           uint64_t now_ns);
/* The client has enough (a stop string, ctrl-C) of turn number `turn`, 0: of the last one. Ends it with `finish`;
 * n_keep of its generated tokens stay, also where it has ended by itself meanwhile: then the transcript is cut, here
 * and at the target, and on_done is not called again. GR_ENOTFOUND: the session is gone; GR_EINVAL: its next turn has
 * begun. Neither is logged. */
GR_NODISCARD enum gr_status gr_orch_stop(struct gr_orch *o, uint64_t session, uint32_t turn, uint32_t n_keep,
                                         enum gr_finish finish);
/* Ends the session, in a turn (whose finish is then GR_FINISH_CLOSED) or not; on_closed follows when its workers have
 * let go. GR_ENOTFOUND. */
GR_NODISCARD enum gr_status gr_orch_close(struct gr_orch *o, uint64_t session);
/* Asks the target for a full SpecPV refresh of a session, or of all (0). n_out: sessions that it was asked for.
 * GR_ENOTFOUND; GR_EUNSUPPORTED: that session is verified in full. */
GR_NODISCARD enum gr_status gr_orch_refresh(struct gr_orch *o, uint64_t session, uint32_t *n_out);
/* Closes every idle session; returns how many. */
uint32_t gr_orch_purge(struct gr_orch *o);
const char *gr_orch_why(const struct gr_orch *o);

/* Over all turns; valid until the session is gone. */
const struct gr_session_metrics *gr_orch_metrics(const struct gr_orch *o, uint64_t session);
/* Generated tokens of the turn so far, those that are final. */
const int32_t *gr_orch_tokens(const struct gr_orch *o, uint64_t session, uint32_t *n_out);

/* Its text, of which the first gr_session_info.n_token are final; valid until the next call that may change it. NULL:
 * there is no such session. */
const struct gr_transcript *gr_orch_text(const struct gr_orch *o, uint64_t session);
/* What a journal is to know of a session beside its text and wishes; owner and key are as they were. False: there is no
 * such session. */
bool gr_orch_fill_kept(const struct gr_orch *o, uint64_t session, struct gr_msg_kept *out);

/* Over all sessions and workers, since the machine was created. */
const struct gr_totals *gr_orch_totals(const struct gr_orch *o);
/* The machine has no clock: who feeds it tells how long it took from reading a
 * COMMIT until its n tokens were handed over. */
void gr_orch_handed_over(struct gr_orch *o, uint64_t ns, uint32_t n);

struct gr_session_info {
    uint64_t id, idle_ns;
    enum gr_session_state state;
    uint32_t epoch, n_token; /* final tokens */
    enum gr_specpv_mode specpv;
    uint32_t turn;                 /* its number, from 1 */
    uint32_t turn_len;             /* transcript length where the turn's generated tokens begin */
    uint32_t n_fallback, n_reopen; /* of the turn, counted by the orchestrator itself */
    uint32_t place;                /* in the queue for a slot, as it was told last, from 1; 0: it is not there */
    bool keep_open;
    bool drafter_failed;             /* in this turn a drafter could not connect to the target, or no longer */
    int target, drafter;             /* workers; -1: none */
    char undrafted[GR_MSG_TEXT_MAX]; /* why a drafter that is there does not work for it; empty: it does, or none is */
};
bool gr_orch_session_info(const struct gr_orch *o, uint64_t session, uint64_t now_ns, struct gr_session_info *out);
/* i-th place of the table; false: empty. */
bool gr_orch_session_at(const struct gr_orch *o, int i, uint64_t now_ns, struct gr_session_info *out);
int gr_orch_n_session(const struct gr_orch *o);
/* How many are in a state. */
uint32_t gr_orch_n_in_state(const struct gr_orch *o, enum gr_session_state state);
int gr_orch_n_turn(const struct gr_orch *o); /* sessions that are neither idle nor gone */

/* ---- workers. worker: the caller's number, less than the instance has room for ---- */

/* GR_EMISMATCH: a target gives its model the name of another one that is here (logged, and sent to it as ERROR): the
 * caller closes its link. GR_ECANCELED: the same of a process whose seat a newer one has. One that takes the seat of
 * another process ends that one at once. A drafter that fits no target that is here waits for one (logged). */
GR_NODISCARD enum gr_status gr_orch_join(struct gr_orch *o, uint32_t worker, const struct gr_worker_info *info,
                                         uint64_t now_ns);
/* The same for a worker of which only this much is known. */
GR_NODISCARD enum gr_status gr_orch_on_join(struct gr_orch *o, uint32_t worker, enum gr_worker_role role,
                                            const char *data_address, uint64_t now_ns);
void gr_orch_on_lost(struct gr_orch *o, uint32_t worker, uint64_t now_ns);
/* A message from a joined worker. GR_EPROTO: not one a worker sends (logged); the caller drops the worker. */
GR_NODISCARD enum gr_status gr_orch_on_msg(struct gr_orch *o, uint32_t worker, const struct gr_msg *m, uint64_t now_ns);
/* Sends a PING at once; on_pong follows with the cookie, which is not 0. GR_ENOTFOUND: no such worker; GR_AGAIN: too
 * many are on their way. */
GR_NODISCARD enum gr_status gr_orch_ping(struct gr_orch *o, uint32_t worker, uint64_t cookie, uint64_t now_ns);
/* Drains it for its operator: it takes no session and no attachment any more, idle sessions leave it at once, to be
 * placed anew by their next turn, and running turns end with it; those of a drafter go on with another one, as soon as
 * one fits. It stays, until it is drained no longer (drain false). A worker that comes back after its link broke is
 * still drained, one that was started anew is not. GR_ENOTFOUND: no such worker. */
GR_NODISCARD enum gr_status gr_orch_drain(struct gr_orch *o, uint32_t worker, bool drain, uint64_t now_ns);

/* What came of a worker's rounds since it joined: of a target all that it computed, of a drafter those of sessions that
 * it drafted for. */
struct gr_worker_rounds {
    uint64_t n_round, n_draft_tokens, n_accepted_tokens;
};

/* What a worker has to do. */
struct gr_worker_status {
    struct gr_worker_rounds rounds;
    uint64_t round_ns; /* of a pass, or of a tree, at present; 0: not known */
    uint64_t rtt_ns;
    uint32_t n_block, n_free_block; /* of its KV pool, by its last PONG; n_block 0: none has come */
    uint32_t n_session;             /* that it holds, or is attached to */
    uint32_t n_active;              /* of them in a turn: those that are being opened or closed, too */
    bool draining;                  /* gr_orch_drain() */
    bool leaving;                   /* it is to end, and has said so */
    enum gr_quarantine_state standing;
    uint64_t number; /* of its process, among all that have joined; 0: it has none */
};
/* NULL: nobody has joined under this number. out may be NULL. */
const struct gr_worker_info *gr_orch_worker(const struct gr_orch *o, uint32_t worker, struct gr_worker_status *out);
uint32_t gr_orch_n_refused(const struct gr_orch *o);
/* Workers of a role that have joined and are not leaving; those that are drained count. */
uint32_t gr_orch_n_worker(const struct gr_orch *o, enum gr_worker_role role);
/* The model that targets call so, also while they are away. False: none has, or all have left in order. */
bool gr_orch_model(const struct gr_orch *o, const char *name, uint64_t *fingerprint_out);

/* Does what time brings: pings, silent workers, session_ttl, queue_timeout; lets go of workers that leave. Returns when
 * to call again at the latest (UINT64_MAX: not before something happens). Messages that have arrived are handed in
 * before it is called. */
uint64_t gr_orch_step(struct gr_orch *o, uint64_t now_ns);

#endif
