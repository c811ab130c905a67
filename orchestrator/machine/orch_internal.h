/* What the files of the orchestrator's machine share: orch.c (the calls of clients and what workers say),
 * orch_session.c (a session's ways from state to state), orch_workers.c (who is here, who fits, who is silent). */
#ifndef GR_ORCHESTRATOR_MACHINE_ORCH_INTERNAL_H
#define GR_ORCHESTRATOR_MACHINE_ORCH_INTERNAL_H

#include "common/base/fallback.h"
#include "orchestrator/machine/orch.h"
#include "orchestrator/machine/transcript.h"

#define PING_MAX 16

struct entry {
    enum gr_session_state state;
    uint64_t id;
    uint32_t epoch;
    enum gr_specpv_mode specpv;        /* as asked for, until its target says that it is off */
    struct gr_session_request request; /* prompt is not valid; max_tokens, stops and user are the turn's */
    struct gr_transcript transcript;   /* its len is the expected_prefix_len */
    uint32_t final_len; /* tokens behind it are provisional (exact SpecPV): shown to nobody, opened nowhere */
    uint32_t turn;      /* counts turns */
    uint32_t turn_base; /* transcript before the turn's ids */
    uint32_t turn_len;  /* and with them: generated tokens follow */
    uint32_t n_fallback, n_reopen; /* of the turn */
    struct gr_fallbacks fallbacks; /* of the session, for the log */
    bool in_turn;
    int target, drafter;   /* workers that may hold it, -1: none */
    int home;              /* the target that was asked last: its answers count, even when it holds nothing; -1: none */
    uint32_t n_reply_owed; /* OPENs and APPENDs that `home` has not answered; only the last answer counts */
    bool append_sent;      /* OPENING by APPEND, not OPEN */
    char numerics_id[96];  /* of the target that it was opened at last */
    bool has_draft;        /* what the OPEN said: without, the target asks for no trees even if a drafter comes */
    bool evicted;          /* OPENING by APPEND, and EVICTED has come meanwhile */
    bool opened_over;      /* OPENING by an OPEN over the idle session that the target holds */
    bool open_after_close; /* OPENING: CLOSE was sent first, the OPEN follows its CLOSED */
    bool drafter_failed;   /* of the turn: an attachment failed that was not made before, or is not tried again */
    int n_attach_retry;    /* of this epoch, after its data connection broke */
    uint32_t n_stats_owed; /* DETACHs that `stats_from` has not answered */
    int stats_from;
    bool wait_closed;
    enum gr_finish finish;
    char text[GR_MSG_TEXT_MAX];
    uint64_t idle_since_ns;
    struct gr_session_metrics metrics;
};

struct ping {
    uint64_t sent_ns, cookie; /* cookie 0: the machine's own */
};

struct worker {
    bool joined;
    struct gr_worker_info info;
    struct ping ping[PING_MAX]; /* on their way, oldest first: PONGs come in order */
    uint32_t n_ping;
    uint64_t next_ping_ns, heard_ns, rtt_ns;
};

struct gr_orch {
    struct gr_orch_io io;
    struct gr_orch_config config;
    struct worker worker[GR_ORCH_WORKER_MAX];
    struct entry entry[GR_ORCH_SESSION_MAX];
    uint64_t next_id, now_ns, last_step_ns;
    uint32_t n_refused;
    char why[GR_MSG_TEXT_MAX];
};

struct entry *orch_find(const struct gr_orch *o, uint64_t id);

/* ---- orch_session.c ---- */
/* Forgets provisional tokens. */
void orch_drop_provisional(struct entry *e);
/* What an OPEN asks for: the request, but for the kill switch. */
enum gr_specpv_mode orch_specpv_asked(const struct gr_orch *o, const struct entry *e);
/* To a target, if there is one; else WAITING. */
void orch_open(struct gr_orch *o, struct entry *e);
/* The turn goes on with less than was asked for: told and counted. detail may be NULL. */
void orch_fall_back(struct entry *e, enum gr_fallback reason, const char *detail);
/* As epoch + 1: where it was, it is not any more. */
void orch_reopen(struct gr_orch *o, struct entry *e);
/* APPEND to the target that holds it. */
void orch_append_turn(struct gr_orch *o, struct entry *e);
/* Is a drafter there by now for a session that was opened without? */
bool orch_lacks_draft(const struct gr_orch *o, const struct entry *e);
/* OPEN over the idle session, as epoch + 1: nothing is computed again. */
void orch_open_over(struct gr_orch *o, struct entry *e);
void orch_attach(struct gr_orch *o, struct entry *e);
void orch_detach(struct gr_orch *o, struct entry *e);
/* The turn is over: IDLE, or CLOSING. May call the client: do not touch e afterwards. */
void orch_end_turn(struct gr_orch *o, struct entry *e, enum gr_finish finish, const char *text);
/* The turn cannot be served: a kept session goes back to what it was before. */
void orch_fail_turn(struct gr_orch *o, struct entry *e, const char *text);
void orch_close(struct gr_orch *o, struct entry *e, enum gr_finish finish, const char *text);
/* An idle session goes at once; nobody waits for its workers' replies. */
void orch_drop_idle(struct gr_orch *o, struct entry *e, const char *why);
void orch_finish_if_released(struct gr_orch *o, struct entry *e);

/* ---- orch_workers.c ---- */
int orch_find_worker(const struct gr_orch *o, enum gr_worker_role role);
void orch_on_pong(struct gr_orch *o, uint32_t worker, const struct gr_msg *m, uint64_t now_ns);
uint64_t orch_step_workers(struct gr_orch *o, uint64_t now_ns);

#endif
