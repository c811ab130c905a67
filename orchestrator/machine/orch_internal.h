/* What the files of the orchestrator's machine share: the parts of a session (orch_turn.c, orch_home.c, orch_with.c),
 * orch_seats.c (which process works where, and who fails too often),
 * orch_books.c (which sessions wait, and when each is to be looked at), orch_load.c (how many sessions each worker
 * has), orch_count.c (totals of turns), orch_model.c (which models there are), orch_prefix.c (where beginnings of texts
 * have been computed), orch_place.c (which worker takes a session), orch_session.c (its ways from state to state),
 * orch_queue.c (who waits, and in which order), orch_workers.c (who is here, who fits, who is silent), orch_ask.c (what
 * clients ask for), orch_hear.c (what workers say), orch_step.c (what time brings), orch.c (its life, and looking in).
 */
#ifndef GR_ORCHESTRATOR_MACHINE_ORCH_INTERNAL_H
#define GR_ORCHESTRATOR_MACHINE_ORCH_INTERNAL_H

#include "common/base/fallback.h"
#include "orchestrator/machine/due_times.h"
#include "orchestrator/machine/orch.h"
#include "orchestrator/machine/place_set.h"
#include "orchestrator/machine/placement.h"
#include "orchestrator/machine/prefix_places.h"
#include "orchestrator/machine/queue_flows.h"
#include "orchestrator/machine/queue_order.h"
#include "orchestrator/machine/session_index.h"
#include "orchestrator/machine/totals.h"
#include "orchestrator/machine/transcript.h"

#define ORCH_CHUNK 16 /* sessions whose memory is taken together */
#define PING_MAX 16   /* pings to one worker on their way at a time */

/* Workers, a bit each. */
struct worker_set {
    uint64_t word[GR_ORCH_WORKER_CAP / 64];
};

static inline bool orch_set_has(const struct worker_set *s, int worker)
{
    return (s->word[worker / 64] >> worker % 64 & 1) != 0;
}

static inline void orch_set_add(struct worker_set *s, uint32_t worker)
{
    s->word[worker / 64] |= (uint64_t)1 << worker % 64;
}

static inline void orch_set_remove(struct worker_set *s, uint32_t worker)
{
    s->word[worker / 64] &= ~((uint64_t)1 << worker % 64);
}

static inline void orch_set_clear(struct worker_set *s)
{
    *s = (struct worker_set){.word = {0}};
}

/* The parts of a session. Each is written by one file, which is named here; all may read it. */

/* orch_home.c: which target may hold the session, and what it owes. */
struct session_home {
    int target;            /* the target that may hold it, -1: none */
    int home;              /* the target that was asked last: its answers count, even when it holds nothing; -1: none */
    uint32_t n_reply_owed; /* OPENs and APPENDs that `home` has not answered; only the last answer counts */
    bool append_sent;      /* OPENING by APPEND, not OPEN */
    bool has_draft;        /* what the OPEN said: without, the target asks for no trees even if a drafter comes */
    bool evicted;          /* OPENING by APPEND, and EVICTED has come meanwhile */
    bool opened_over;      /* OPENING by an OPEN over the idle session that the target holds */
    bool open_after_close; /* OPENING: CLOSE was sent first, the OPEN follows its CLOSED */
    bool wait_closed;      /* CLOSING: CLOSED has not come */
    bool sent_elsewhere;   /* the target that was asked last is to end, and did not take the turn */
    struct worker_set refused; /* targets that had no room for this turn */
};

/* orch_with.c: the drafter it works with. */
struct session_drafter {
    int drafter;               /* -1: none */
    uint32_t n_retry;          /* attachments that failed in a row */
    uint64_t retry_ns;         /* when the next one is due; 0: none is */
    uint64_t attached_ns;      /* when the last one stood; 0: it does not */
    char why[GR_MSG_TEXT_MAX]; /* why the last one failed; empty: it did not */
    bool shed;                 /* to none: it gets a drafter when trees pay again, or when it is opened anew */
    bool failed;               /* in this turn its first attachment failed, or one that is not tried again */
    uint32_t n_stats_owed;     /* DETACHs that `stats_from` has not answered */
    int stats_from;
    uint64_t stats_due_ns;         /* 0: nobody waits for them yet */
    struct worker_set avoided;     /* drafters that failed in this turn and are not tried again in it */
    struct worker_set passed_over; /* the same of those that are tried again when no other fits */
};

/* orch_turn.c: the text, and the turn that goes on or was last. */
struct session_turn {
    struct gr_transcript transcript; /* its len is the expected_prefix_len */
    uint32_t final_len; /* tokens after it are provisional (exact SpecPV): shown to nobody, opened nowhere */
    uint32_t number;    /* counts turns */
    uint32_t base;      /* length of the transcript before the turn's ids */
    uint32_t len;       /* its length with them, where generated tokens begin */
    uint32_t n_fallback, n_reopen;
    struct gr_fallbacks fallbacks; /* of the session, for the log */
    bool is_open;                  /* the client waits for its end */
    bool has_failed;               /* at a target, and has gone elsewhere once */
    bool has_run;                  /* it was at a target: for want of a slot it waits, and is not refused */
    bool is_restored; /* of a journal, whose text may end before what clients saw: only a target of the same numerics
                         goes on with it */
    enum gr_finish finish;
    char text[GR_MSG_TEXT_MAX];
    uint64_t idle_since_ns;
    uint64_t begun_ns;
    uint64_t taken_ns;      /* when a target first had it; 0: none has, or an earlier process saw it */
    uint64_t first_ns;      /* when its first tokens became final; 0: none has */
    uint64_t shown_ns;      /* when its last tokens became final; 0: none has */
    uint64_t wait_since_ns; /* since when no target runs the turn; 0: one does */
    uint64_t deadline_ns;   /* when its client's time is over; 0: it has no limit */
    uint64_t arrival, tag;  /* its place among those that wait (queue_order.h) */
    uint32_t place;         /* in the queue, as its client was told last; 0: it was not */
};

/* orch_model.c: which model the session has, once there is one to choose. */
struct session_model {
    char wish[GR_MODEL_NAME_MAX]; /* the name that its client said; empty: the only one */
    uint64_t fingerprint;
    bool bound;
};

struct worker;

/* orch_books.c: what is known of all sessions without a look at each. */
struct orch_books {
    struct gr_place_set vacant;  /* places without a session */
    struct gr_place_set open;    /* sessions whose client waits for the end of a turn */
    struct gr_place_set waiting; /* sessions that are WAITING */
    struct gr_place_set queued;  /* of them those whose turn waits in the queue and has not run yet */
    struct gr_place_set stirred; /* sessions that have changed since they were looked at, or whose time has come */
    struct gr_due_times due;     /* when the others are to be looked at */
    struct gr_queue_flows flows; /* sessions that wait, are being opened or run, by owner and priority */
    uint64_t newest_tag;         /* of the turns that were started */
    uint64_t n_arrival;          /* turns that have come */
};

/* orch_load.c: how many sessions are in each state, by enum gr_session_state; those that are free do not count. */
struct orch_states {
    uint32_t n[GR_SESSION_CLOSING + 1];
};

/* orch_load.c: where the session is counted: a worker's number and 1, 0: nowhere. */
struct session_load {
    struct worker *table;       /* whose counts these are; borrowed */
    struct orch_states *states; /* the same of the states */
    enum gr_session_state as;   /* counted in them; GR_SESSION_FREE: it is not */
    uint16_t holds, verifies;   /* at its target: at all, and in a turn */
    uint16_t attached, drafts;  /* the same of its drafter */
};

struct session {
    enum gr_session_state state; /* orch_turn.c */
    struct orch_books *books;    /* orch_books.c: where it is noted; borrowed */
    uint32_t place;              /* orch_books.c: of the table */
    uint64_t id;
    uint32_t epoch;
    enum gr_specpv_mode specpv;        /* as asked for, until its target says that it is off */
    struct gr_session_request request; /* its prompt is not valid; wishes.turn and user are those of the turn */
    struct session_turn turn;
    struct session_home at;
    struct session_drafter with;
    struct session_load load;
    struct session_model model;
    char numerics_id[GR_NUMERICS_ID_MAX]; /* of the target that it was opened at last */
    char trace_id[GR_TRACE_ID_MAX];       /* of the request that opened it */
    struct gr_session_metrics metrics;
};

struct ping {
    uint64_t sent_ns, cookie; /* cookie 0: the machine's own ping */
};

/* orch_load.c: sessions of a worker. */
struct worker_load {
    uint32_t n_held;   /* that it holds, or is attached to */
    uint32_t n_active; /* of them in a turn: those that are being opened or closed, too */
};

/* orch_seats.c: where processes work that are started one after the other; without a name, one process. */
struct orch_seat {
    char name[GR_SEAT_MAX]; /* together with the role */
    enum gr_worker_role role;
    uint64_t process; /* incarnation of the one that has it */
    uint64_t number;  /* of that process */
    uint64_t taken_ns;
    uint32_t worker; /* its number, or that which it had last */
    struct gr_quarantine quarantine;
    bool told; /* in this pause: that it is used all the same */
};

struct orch_seats {
    struct orch_seat *seat; /* owned, (n_max); n of them were taken, and the longest unused is given to another */
    int n, n_max;
    uint64_t first_number, next_number; /* 0: none are given */
    uint64_t due_ns;                    /* when a pause is over */
};

struct worker {
    bool joined;
    bool leaving; /* it has asked to be let go: no session begins with it, or goes on with it in a turn to come */
    bool let_go;  /* it was told to end */
    bool drained; /* its operator wants it empty: no session begins with it, idle ones leave it, turns end with it */
    int seat;     /* orch_seats.c; -1: it has none */
    bool told_useless; /* a drafter: the log has told that none of the targets is for it */
    struct gr_worker_info info;
    struct worker_load load;
    struct gr_worker_rounds rounds;    /* orch_count.c */
    struct gr_round_forecast forecast; /* by its last PONG */
    uint32_t n_block, n_free_block;    /* by its last PONG; n_block 0: none has come */
    bool shares_prefixes;              /* by its last PONG: sessions take KV that others have computed */
    struct ping ping[PING_MAX];        /* on their way, oldest first: PONGs come in order */
    uint32_t n_ping;
    uint64_t next_ping_ns, heard_ns, rtt_ns;
};

/* orch_model.c: a name that targets have given a model. */
struct orch_name {
    char text[GR_MODEL_NAME_MAX];
    uint64_t fingerprint, tokenizer;
    bool has_left; /* its targets have left in order */
};

struct orch_models {
    struct orch_name name[GR_ORCH_WORKER_MAX];
    int n;
};

struct gr_orch {
    struct gr_orch_io io;
    struct gr_orch_config config;
    int n_worker_max, n_session_cap; /* as created; sessions are a multiple of ORCH_CHUNK */
    struct worker *worker;           /* owned, (n_worker_max) */
    struct session **chunk;          /* owned, (n_session_cap / ORCH_CHUNK): places, made when needed */
    struct gr_place *place;          /* owned, (n_worker_max): while a worker is chosen */
    uint32_t *excess;                /* owned, (n_worker_max): while idle sessions are spread */
    struct gr_queue_entry *queue;    /* owned, (n_session_cap): while those that wait are looked at */
    struct gr_session_index index;
    struct orch_books books;
    struct orch_models models;
    struct orch_seats seats;
    struct gr_prefix_places prefixes; /* orch_prefix.c */
    uint32_t *held_prompt;            /* owned, (n_worker_max): while a target is chosen */
    struct orch_states states;        /* orch_load.c */
    struct gr_totals totals;
    int n_place; /* places that there are */
    int n_session;
    int last_target, last_drafter; /* that were chosen; orch_place.c */
    bool queue_due;                /* a slot may be free, or a turn waits that was not tried; orch_queue.c looks */
    uint64_t places_due_ns;        /* when clients are told of their places at the earliest; orch_queue.c */
    bool some_leave;               /* a worker that has asked to be let go may be there; orch_workers.c */
    uint64_t workers_due_ns;       /* when workers are looked at; orch_workers.c */
    uint64_t last_id, now_ns, last_step_ns;
    char why[GR_MSG_TEXT_MAX];
};

/* The session of a place below n_place. */
static inline struct session *orch_at(const struct gr_orch *o, int place)
{
    return &o->chunk[place / ORCH_CHUNK][place % ORCH_CHUNK];
}
struct session *orch_find(const struct gr_orch *o, uint64_t id);
/* Lines of the log are about this session, and this worker (from 1; 0: none), from now on. s may be NULL. */
void orch_log_about(uint32_t worker, const struct session *s, uint32_t round);

/* A slot may be free, or a turn has come that was not tried. */
static inline void orch_look_at_queue(struct gr_orch *o)
{
    o->queue_due = true;
}

/* The files stand on each other in this order; none calls one that comes after it here. */

/* ---- orch_books.c ---- */
/* False: out of memory; destroy it all the same. */
bool orch_books_create(struct orch_books *b, int n_place_max);
void orch_books_destroy(struct orch_books *b);
/* There is one more place. */
void orch_books_add_place(struct orch_books *b, int place);
/* The first place without a session; -1: there is none. */
int orch_books_vacant(const struct orch_books *b);
void orch_books_begin(struct orch_books *b, struct session *s, int place);
/* Its turn is the last of this flow, until it neither waits nor runs. */
void orch_books_join_flow(struct session *s, uint64_t flow);
/* Its state has changed, or what it waits for. */
void orch_books_note(struct session *s);
/* The session is over. */
void orch_books_leave(struct session *s);
/* Does a turn that has not run yet wait in the queue? */
bool orch_is_queued(const struct session *s);
/* Those whose time has come are to be looked at. */
void orch_books_wake(struct orch_books *b, uint64_t now_ns);
/* The next place from this one on that is to be looked at, and is not any more; -1: there is none. */
int orch_books_stirred(struct orch_books *b, uint32_t from);
/* It was looked at as it is, and is to be looked at again then; UINT64_MAX: when it has changed. */
void orch_books_looked_at(struct session *s, uint64_t at_ns);
/* When some are to be looked at. */
uint64_t orch_books_next_ns(const struct orch_books *b, uint64_t now_ns);

/* ---- orch_load.c ---- */
void orch_load_begin(struct gr_orch *o, struct session *s);
/* The session's state, target or drafter has changed. */
void orch_load_note(struct session *s);
/* The session is over. */
void orch_load_leave(struct session *s);

/* ---- orch_turn.c ---- */
/* deadline_ns 0: its client gave it no limit. */
void orch_turn_begin(struct session *s, uint32_t base, uint64_t now_ns, uint64_t deadline_ns);
/* It is the number-th turn, of an earlier process, and was at a target there. */
void orch_turn_restore(struct session *s, uint32_t number, uint32_t base, uint32_t len);
void orch_turn_arrived(struct session *s, uint64_t arrival, uint64_t tag);
/* Its client was told this place in the queue. */
void orch_turn_place(struct session *s, uint32_t place);
void orch_turn_reopened(struct session *s);
/* It has failed at its target. */
void orch_turn_failed_once(struct session *s);
/* Its first pass has ended. */
void orch_turn_taken(struct session *s, uint64_t now_ns);
/* Tokens of it have become final. */
void orch_turn_shown(struct session *s, uint64_t now_ns);
void orch_turn_finish_as(struct session *s, enum gr_finish finish);
void orch_turn_say(struct session *s, const char *text);
/* States: */
void orch_wait(struct session *s, uint64_t now_ns);
void orch_opening(struct session *s);
void orch_running(struct session *s);
void orch_closing(struct session *s);
void orch_idle(struct session *s, uint64_t now_ns);
/* Nobody waits for the turn's end any more. */
void orch_turn_over(struct session *s);
/* Tokens past len are forgotten. */
void orch_text_cut(struct session *s, uint32_t len);
/* Ids of a kind after the first keep_len tokens; what is there is shown. GR_ELIMIT, GR_ENOMEM: nothing was done. */
enum gr_status orch_text_put(struct session *s, uint32_t keep_len, enum gr_segment_kind kind, const int32_t *ids,
                             uint32_t n);
/* The tokens of a COMMIT, and how many of the text are final with them. GR_ELIMIT, GR_ENOMEM: the text is cut to its
 * keep_len. */
enum gr_status orch_text_commit(struct session *s, const struct gr_msg_commit *c);
/* Forgets provisional tokens. */
void orch_drop_provisional(struct session *s);
/* The turn goes on with less than was asked for: told and counted. detail may be NULL. */
void orch_fall_back(struct gr_orch *o, struct session *s, enum gr_fallback reason, const char *detail);

/* ---- orch_seats.c ---- */
/* False: out of memory. */
bool orch_seats_create(struct gr_orch *o);
void orch_seats_destroy(struct gr_orch *o);
/* The seat of a process that joins: *seat_out, -1: it has none. GR_ECANCELED: a newer process has it (text). */
enum gr_status orch_seat_take(struct gr_orch *o, uint32_t worker, const struct gr_worker_info *info, int *seat_out,
                              char text[GR_MSG_TEXT_MAX]);
/* Of the process that has the worker's seat; 0: none. */
uint64_t orch_seat_number(const struct gr_orch *o, uint32_t worker);
enum gr_quarantine_state orch_seat_standing(const struct gr_orch *o, uint32_t worker);
/* Is it to get no session where another worker fits? */
bool orch_seat_is_shunned(const struct gr_orch *o, uint32_t worker);
/* It gets one now, which a line tells where it is shunned: no other worker fits. Before the session counts as its own.
 */
void orch_seat_used(struct gr_orch *o, uint32_t worker);
void orch_seat_failed(struct gr_orch *o, uint32_t worker, enum gr_failure kind);
void orch_seat_succeeded(struct gr_orch *o, uint32_t worker);
/* Pauses that are over. Returns when the next one is. */
uint64_t orch_step_seats(struct gr_orch *o);

/* ---- orch_count.c ---- */
void orch_count_begun(struct gr_orch *o, const struct session *s);
/* A target has it, for the first time. */
void orch_count_taken(struct gr_orch *o, struct session *s);
/* n tokens before its answer were not computed for it. */
void orch_count_cached(struct gr_orch *o, const struct session *s, uint32_t n);
/* A round that its target has told, for the workers that it has. */
void orch_count_round(struct gr_orch *o, const struct session *s, const struct gr_msg_commit *m);
/* n more of its tokens have become final. */
void orch_count_shown(struct gr_orch *o, struct session *s, uint32_t n);
void orch_count_ended(struct gr_orch *o, const struct session *s, enum gr_finish finish);

/* ---- orch_home.c ---- */
void orch_home_choose(struct session *s, int target);
/* An OPEN is on its way to the target. over: it holds the idle session. */
void orch_home_open_sent(struct session *s, bool has_draft);
void orch_home_over(struct session *s, bool over);
void orch_home_append_sent(struct session *s);
void orch_home_close_sent(struct session *s);
/* The target holds nothing of the session any more. */
void orch_home_forgot(struct session *s);
void orch_home_closed(struct session *s);
void orch_home_wait_closed(struct session *s, bool wait);
void orch_home_evicted(struct session *s);
/* One of the answers that it owes has come. False: it owes none. */
bool orch_home_answered(struct session *s);
/* The worker is gone, and with it what it owes. */
void orch_home_gone(struct session *s);
/* Its target has no room for the turn. */
void orch_home_refused(struct session *s);
/* Its target is to end, and has not taken the turn. */
void orch_home_sent_elsewhere(struct session *s);
/* Those that had no room may be asked again: all of them, or one. */
void orch_home_ask_all(struct session *s);
void orch_home_ask_again(struct session *s, uint32_t worker);

/* ---- orch_with.c ---- */
void orch_with_attached(struct session *s, int drafter);
void orch_with_detached(struct session *s);
/* It was shed to none, and why. */
void orch_with_shed(struct session *s, const char *why);
/* Until when they are waited for. */
void orch_with_stats_due(struct session *s, uint64_t at_ns);
void orch_with_lost(struct session *s);
void orch_with_stats(struct session *s);
void orch_with_no_stats(struct session *s);
void orch_with_failed(struct session *s, bool failed);
/* Its connection stands. */
void orch_with_stands(struct session *s, uint64_t now_ns);
/* An attachment has failed, for this reason. */
void orch_with_broke(struct session *s, const char *why);
/* The next attachment is due after a pause, which grows with failures in a row. at_once: the first one of a row is not
 * waited for. */
void orch_with_retry(struct session *s, bool at_once, uint64_t now_ns);
/* No attachment is due: one is made, or a drafter or another state brings the next. */
void orch_with_not_due(struct session *s);
void orch_with_new_epoch(struct session *s);
/* This drafter is not tried again in the turn. */
void orch_with_avoid(struct session *s, uint32_t worker);
/* Nor this one, before all others have been tried. */
void orch_with_pass_over(struct session *s, uint32_t worker);
void orch_with_pass_over_none(struct session *s);
/* All of them may be tried; or one, of whom nothing is known. */
void orch_with_avoid_none(struct session *s);
void orch_with_try_again(struct session *s, uint32_t worker);

/* ---- orch_model.c ---- */
/* Is the name of this target's model that of another model that is here, or that open sessions have? text: the line. */
bool orch_model_is_taken(struct gr_orch *o, const struct gr_worker_info *info, char text[GR_MSG_TEXT_MAX]);
/* A target has joined; a worker that has left in order is gone. */
void orch_model_join(struct gr_orch *o, const struct gr_worker_info *info);
void orch_model_leave(struct gr_orch *o, const struct gr_worker_info *info);
/* The model that a request means. GR_AGAIN: none is known yet; GR_ENOTFOUND, GR_EINVAL: text tells which there are. */
enum gr_status orch_model_choose(struct gr_orch *o, const char *name, uint64_t tokenizer, uint64_t *out,
                                 char text[GR_MSG_TEXT_MAX]);
void orch_model_wish(struct session *s, const char *name);
/* The same, and which model it was in an earlier process; 0: not known. */
void orch_model_restore(struct session *s, const char *name, uint64_t fingerprint);
/* Its model from now on. Returns as the choice does. */
enum gr_status orch_model_bind(struct gr_orch *o, struct session *s, char text[GR_MSG_TEXT_MAX]);
bool orch_model_is(const struct session *s, const struct gr_worker_info *target);
/* A name of its model; empty: it has none. */
void orch_model_name(const struct gr_orch *o, const struct session *s, char text[GR_MODEL_NAME_MAX]);

/* ---- orch_prefix.c ---- */
/* False: out of memory; destroy it all the same. */
bool orch_prefix_create(struct gr_orch *o);
void orch_prefix_destroy(struct gr_orch *o);
/* Its target has KV of the first n_token tokens of its text. */
void orch_prefix_computed(struct gr_orch *o, const struct session *s, uint32_t n_token);
/* Fills held_prompt for this session: what each target is likely to hold of its text. */
void orch_prefix_look(struct gr_orch *o, const struct session *s);
/* The worker is gone, or another one has its number. */
void orch_prefix_forget(struct gr_orch *o, uint32_t worker);

/* ---- orch_place.c ---- */
/* Nobody was chosen yet. */
void orch_place_begin(struct gr_orch *o);
/* The target to open the session at, -1: there is none. Where none fits, one that does not: orch_open() tells why. */
int orch_place_target(struct gr_orch *o, const struct session *s);
/* Does a target fit it that has not refused it? Nothing is chosen. */
bool orch_another_fits(const struct gr_orch *o, const struct session *s);
/* Is the target that holds the session to get none, while another one fits that may? */
bool orch_shuns_home(const struct gr_orch *o, const struct session *s);
/* Has a target that was chosen a slot that is not in a turn? */
bool orch_has_room(const struct gr_orch *o, int worker);
/* The drafter to attach it to while `target` has it, -1: none fits. */
int orch_place_drafter(struct gr_orch *o, const struct session *s, int target);
/* Does the worker take sessions at all? */
bool orch_is_taking(const struct worker *w);
/* Another drafter where its trees would take half as long or less, by what both have said; -1: there is none. */
int orch_freer_drafter(const struct gr_orch *o, const struct session *s);
/* Would it do better without its drafter, by what both workers have said and its own trees have brought? */
bool orch_is_better_alone(const struct gr_orch *o, const struct session *s);
/* May a session that was shed to none get this drafter, whose trees would pay and which has room for it? */
bool orch_may_take_back(const struct gr_orch *o, const struct session *s, int drafter);
/* Tokens that its trees have brought, on average. */
double orch_tree_gain(const struct session *s);
/* Does a drafter but this one fit it? Nothing is chosen. */
bool orch_another_drafter_fits(const struct gr_orch *o, const struct session *s, uint32_t worker);
/* Does a drafter fit it? Nothing is chosen. */
bool orch_has_drafter(const struct gr_orch *o, const struct session *s, int target);
/* The longest context of the targets of this model (0: of any) that take ids of this tokenizer; 0: not known. */
uint32_t orch_longest_context(const struct gr_orch *o, uint64_t model, uint64_t tokenizer);
/* May this drafter draft for this target, by what both say of themselves? The data path knows the rest. */
bool orch_drafts_for(const struct gr_worker_info *drafter, const struct gr_worker_info *target);
#define GR_MISFIT_BYTES 120
/* Why it may not, as the end of a line that has just named the target. */
void orch_misfit(const struct gr_worker_info *drafter, const struct gr_worker_info *target, char why[GR_MISFIT_BYTES]);
/* One of the drafters that are there, if none of them fits its target, whatever was tried; -1. */
int orch_useless_drafter(const struct gr_orch *o, const struct session *s);
/* Does its text go on there bit for bit? */
bool orch_same_numerics(const struct session *s, const struct gr_worker_info *target);

/* ---- orch_session.c ---- */
/* The target has told which mode the session has. */
void orch_specpv_opened(struct session *s, enum gr_specpv_mode mode);
/* Notes the mode that an OPEN asks for: the request's, unless a kill switch is on. */
void orch_specpv_ask(const struct gr_orch *o, struct session *s);
/* What the target that it is opened at computes as. */
void orch_note_numerics(struct session *s, const char *numerics_id);
/* Opens it at a target, if there is one; else it is WAITING. */
void orch_open(struct gr_orch *o, struct session *s);
/* Opens it again as epoch + 1: the target that held it does so no longer. */
void orch_reopen(struct gr_orch *o, struct session *s);
/* APPEND to the target that holds it. */
void orch_append_turn(struct gr_orch *o, struct session *s);
/* Is a drafter there by now for a session that was opened without? */
bool orch_lacks_draft(const struct gr_orch *o, const struct session *s);
/* OPEN over the idle session, as epoch + 1: nothing is computed again. */
void orch_open_over(struct gr_orch *o, struct session *s);
void orch_attach(struct gr_orch *o, struct session *s);
/* The same where its next attachment is due. */
void orch_attach_if_due(struct gr_orch *o, struct session *s);
void orch_detach(struct gr_orch *o, struct session *s);
/* The drafter has told how long its trees take: it sheds one running session to a freer drafter, or to none, or takes
 * one back that was shed to none. */
void orch_balance(struct gr_orch *o, uint32_t drafter);
/* The turn is over: IDLE, or CLOSING. May call the client: do not touch s afterwards. */
void orch_end_turn(struct gr_orch *o, struct session *s, enum gr_finish finish, const char *text);
/* The turn cannot be served (finish: ERROR or UNSERVED): a kept session goes back to what it was before. */
void orch_fail_turn(struct gr_orch *o, struct session *s, enum gr_finish finish, const char *text);
void orch_close(struct gr_orch *o, struct session *s, enum gr_finish finish, const char *text);
/* An idle session goes at once; nobody waits for its workers' replies. */
void orch_drop_idle(struct gr_orch *o, struct session *s, const char *why);
void orch_finish_if_released(struct gr_orch *o, struct session *s);
/* A worker has come: idle sessions of those like it that have more than their share leave them, and are placed anew by
 * their next turn. */
void orch_spread_idle(struct gr_orch *o, uint32_t worker);
/* It leaves the workers that are drained as far as its state permits: an idle one at once, one in a turn its drafter
 * where another fits. */
void orch_vacate(struct gr_orch *o, struct session *s);

/* ---- orch_queue.c ---- */
/* False: out of memory. */
bool orch_queue_create(struct gr_orch *o);
void orch_queue_destroy(struct gr_orch *o);
/* A turn begins, which may have to wait: after those of its owner, in turn with those of others. */
void orch_queue_join(struct gr_orch *o, struct session *s);
/* OPENs every session that waits for a target, or for a slot of one. */
void orch_open_waiting(struct gr_orch *o);
/* The same where it is due: a slot may be free. */
void orch_open_due(struct gr_orch *o);
/* How many turns that have not run yet wait in the queue? */
uint32_t orch_n_queued(const struct gr_orch *o);
/* While some wait: QUEUED to those whose place has changed. Returns when to call again at the latest. */
uint64_t orch_tell_places(struct gr_orch *o);

/* ---- orch_workers.c ---- */
/* The worker has said something. */
void orch_heard(struct gr_orch *o, uint32_t worker, uint64_t now_ns);
void orch_on_pong(struct gr_orch *o, uint32_t worker, const struct gr_msg *m, uint64_t now_ns);
uint64_t orch_step_workers(struct gr_orch *o, uint64_t now_ns);
/* The worker wants to end. */
void orch_leave(struct gr_orch *o, uint32_t worker);
/* Tells those that want to end, and that no turn needs any more, to do so. */
void orch_let_go(struct gr_orch *o);

/* ---- orch_ask.c ---- */
/* Ends the turn: n_keep of its generated tokens stay. May call the client: do not touch s afterwards. */
void orch_cut_turn(struct gr_orch *o, struct session *s, uint32_t n_keep, enum gr_finish finish, const char *text);

#endif
