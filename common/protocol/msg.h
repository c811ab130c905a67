/* Control messages between the orchestrator and its workers and clients: msgpack maps with the key "t" (type name) and
 * the fields below, schema-checked by one table (msg.c; docs/protocol.md lists it). An unknown type or key, a missing
 * or mistyped field, or a value out of range refuses the message. Optional fields that are absent are zero.
 *
 * A message owns its arrays once decoded (gr_msg_finish). For sending, arrays are borrowed. */
#ifndef GR_COMMON_PROTOCOL_MSG_H
#define GR_COMMON_PROTOCOL_MSG_H

#include "common/protocol/specpv.h"
#include "common/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GR_MSG_BYTES_MAX (8u << 20) /* one control message */
#define GR_MSG_ID_MAX (1 << 20)     /* ids in one array */
#define GR_MSG_TEXT_MAX 256

/*   name, direction and meaning */
#define GR_MSG_LIST(X)                                                                                  \
    X(JOIN)          /* worker -> orchestrator: who I am, where my data endpoint is; first message */   \
    X(OPEN)          /* orchestrator -> target: start a session (segments, limits, sampling) */         \
    X(OPENED)        /* target -> orchestrator: reply to OPEN */                                        \
    X(CLOSE)         /* orchestrator -> target: end a session; takes effect at the end of its pass */   \
    X(CLOSED)        /* target -> orchestrator: the session's KV is free again */                       \
    X(COMMIT)        /* target -> orchestrator: tokens of a round */                                    \
    X(PROGRESS)      /* target -> orchestrator: prompt tokens prefilled so far */                       \
    X(APPEND)        /* orchestrator -> target: go on with an idle session: cut to keep_len, add ids */ \
    X(TRUNCATE)      /* orchestrator -> target: end the turn and cut to keep_len; no reply. Client ->   \
                      * orchestrator: the same for its turn, ended or not; answered by FINISHED */      \
    X(EVICTED)       /* target -> orchestrator: an idle session's KV was needed; it is forgotten */     \
    X(ATTACH)        /* orchestrator -> draft: draft for this session of that target */                 \
    X(ATTACHED)      /* draft -> orchestrator: reply to ATTACH, sent when the prefix is in place */     \
    X(DETACH)        /* orchestrator -> draft: stop; answered by DRAFT_STATS */                         \
    X(DRAFT_STATS)   /* draft -> orchestrator: what the session cost the drafter */                     \
    X(DRAFT_TROUBLE) /* draft -> orchestrator: what went wrong in a session since the last one */       \
    X(PING)          /* orchestrator -> worker */                                                       \
    X(PONG)          /* worker -> orchestrator */                                                       \
    X(ERROR)         /* a request failed; session 0: not about one. Orchestrator -> worker: refused */  \
    X(DRAIN)         /* orchestrator -> worker: finish and exit */                                      \
    X(FINISHED)      /* orchestrator -> client: the turn is over */                                     \
    X(REFRESH)       /* client -> orchestrator -> target: full SpecPV refresh of a session */           \
    X(REFRESHED)     /* orchestrator -> client: reply to REFRESH */                                     \
    X(PURGE)         /* client -> orchestrator: close every idle session */                             \
    X(PURGED)        /* orchestrator -> client: reply to PURGE */                                       \
    X(LIST)          /* client -> orchestrator: what sessions and workers are there */                  \
    X(SESSION)       /* orchestrator -> client: one session of a LIST */                                \
    X(WORKER)        /* orchestrator -> client: one worker of a LIST */                                 \
    X(LISTED)        /* orchestrator -> client: the end of a LIST */

enum gr_msg_type {
#define X(name) GR_MSG_##name,
    GR_MSG_LIST(X)
#undef X
        GR_N_MSG
};

struct gr_msg_ids {
    int32_t *p; /* decoded: owned by the message; encoding: borrowed */
    uint32_t n;
};

enum gr_tree_shape { GR_SHAPE_DYNAMIC = 0, GR_SHAPE_CHAIN = 1 };

struct gr_msg {
    enum gr_msg_type type;
    /* addressing */
    uint64_t session, incarnation;
    uint32_t epoch, round;
    /* JOIN, PONG */
    uint32_t role, pid, n_vocab, n_ctx_max, n_block, n_free_block, n_session;
    uint64_t model_fingerprint, tokenizer_fingerprint;
    char address[GR_MSG_TEXT_MAX]; /* of the data path: HOST:PORT */
    char numerics_id[96];
    /* OPEN, ATTACH */
    struct gr_msg_ids ids;           /* OPEN: all segments' ids; COMMIT: tokens committed by the round */
    struct gr_msg_ids segments;      /* OPEN: pairs (kind, n); kind 0 prompt, 1 generated, 2 appended */
    struct gr_msg_ids stop_ids;      /* OPEN: EOS included unless ignored */
    uint32_t max_tokens;             /* generated tokens, 1 .. */
    uint32_t want_draft, want_trace; /* booleans */
    uint32_t single_token;           /* OPEN, boolean: verify no trees in this session (force_single_token) */
    double temperature, min_p, top_p;
    uint32_t top_k;
    uint64_t seed;
    char transport[16];                                    /* ATTACH: forced kind or empty */
    uint32_t tree_shape, draft_depth, draft_top_k, n_node; /* n_node: fixed size, or the most with auto_tree */
    uint32_t auto_tree, draft_ahead; /* booleans: size chosen by cost; keep growing while the target verifies */
    uint32_t auto_ahead;             /* client's OPEN, boolean: the orchestrator sets draft_ahead */
    uint32_t keep_open;              /* client's OPEN, SESSION, boolean: the session outlives its turns */
    /* COMMIT */
    uint32_t keep_len, final_len, finish, verdict_kind, n_draft, n_accepted, cache_hit, usable_len;
    uint64_t hash;
    double gap; /* with want_trace: logit gap of a root-only pick */
    uint64_t wait_ns, verify_ns, host_ns, draft_ns;
    uint32_t n_row, n_late, n_desync, n_fallback, n_reroot; /* n_desync, n_fallback: DRAFT_TROUBLE, too */
    uint32_t n_feature_gap;                                 /* DRAFT_TROUBLE: FEATURES that began past what was held */
    struct gr_msg_ids tree_ids, tree_parents, path;         /* with want_trace: the round's tree */
    uint32_t n_judged, n_mismatch; /* tokens that were judged with full KV; of them others than committed */
    /* OPEN: SpecPV (common/protocol/specpv.h) */
    uint32_t specpv; /* enum gr_specpv_mode; SESSION, too */
    uint32_t pv_sink, pv_retrieval, pv_window, pv_buffer, pv_threshold, pv_interval, pv_provisional;
    double pv_fraction;
    /* SESSION: partial rounds since the last refresh, refreshes, tokens judged in them, of those others */
    uint64_t n_partial, n_refresh, n_checked, n_drifted;
    /* DRAFT_STATS */
    uint64_t n_round, n_ahead, n_hit;       /* trees sent; verdicts met by draft-ahead work; of them useful hits */
    uint64_t n_first, n_first_hit, n_alarm; /* first children tried, accepted; acceptance alarms */
    uint64_t wire_bytes, wire_tokens; /* frames both ways since the first VERDICT, and the tokens that they brought */
    double first_expected;            /* sum of what the draft model expected of the first children */
    /* SESSION, WORKER, LISTED, FINISHED; PING and PONG between client and orchestrator */
    uint32_t state;                   /* enum gr_session_state of orch.h */
    uint32_t n_token;                 /* of the transcript */
    uint32_t worker, target, drafter; /* a worker's number, from 1; 0: none */
    uint32_t n_worker, n_reopen;
    uint64_t idle_ns, n_tree, n_drafted, n_hit_token; /* n_hit_token: drafted tokens that were accepted */
    uint64_t rtt_ns;                                  /* orchestrator to worker and back */
    uint32_t turn; /* OPENED and TRUNCATE of a client: the session's turns are counted from 1 */
    uint32_t cut;  /* FINISHED, boolean: it answers a TRUNCATE */
    /* ERROR */
    uint32_t ended; /* of a target, boolean: the session has failed and is gone; answers nothing */
    uint32_t code;
    char text[GR_MSG_TEXT_MAX];
};

static inline void gr_msg_set_specpv(struct gr_msg *m, enum gr_specpv_mode mode, const struct gr_specpv_params *p)
{
    m->specpv = (uint32_t)mode;
    m->pv_sink = p->n_sink;
    m->pv_retrieval = p->n_retrieval;
    m->pv_window = p->n_window;
    m->pv_buffer = p->n_buffer;
    m->pv_threshold = p->threshold;
    m->pv_interval = p->interval;
    m->pv_provisional = p->max_provisional;
    m->pv_fraction = p->refresh_fraction;
}

static inline struct gr_specpv_params gr_msg_specpv(const struct gr_msg *m)
{
    return (struct gr_specpv_params){.n_sink = m->pv_sink,
                                     .n_retrieval = m->pv_retrieval,
                                     .n_window = m->pv_window,
                                     .n_buffer = m->pv_buffer,
                                     .threshold = m->pv_threshold,
                                     .interval = m->pv_interval,
                                     .max_provisional = m->pv_provisional,
                                     .refresh_fraction = m->pv_fraction};
}

const char *gr_msg_name(enum gr_msg_type type);

/* Writes the map into out. GR_ELIMIT (logged): does not fit into cap. Allocates nothing. */
GR_NODISCARD enum gr_status gr_msg_encode(const struct gr_msg *m, uint8_t *out, size_t cap, size_t *len_out);
/* GR_EFORMAT (one line logged: type, field, what) on anything that breaks the schema. */
GR_NODISCARD enum gr_status gr_msg_decode(const uint8_t *bytes, size_t len, struct gr_msg *out);
/* What is wrong with the sampling parameters of an OPEN or an ATTACH; NULL: nothing. */
const char *gr_msg_wrong_sampling(const struct gr_msg *m);
/* Frees a decoded message's arrays. */
void gr_msg_finish(struct gr_msg *m);

#endif
