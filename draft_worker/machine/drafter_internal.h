/* Shared by the files of the drafter's state machine; nobody else includes it. */
#ifndef GR_DRAFT_WORKER_MACHINE_DRAFTER_INTERNAL_H
#define GR_DRAFT_WORKER_MACHINE_DRAFTER_INTERNAL_H

#include "common/rules/prefix.h"
#include "common/base/fallback.h"
#include "draft_worker/tree/acceptance_check.h"
#include "draft_worker/tree/tree_times.h"
#include "draft_worker/machine/drafter.h"

enum draft_state { DRAFT_FREE, DRAFT_CONNECTING, DRAFT_SYNCING, DRAFT_FOLLOWING, DRAFT_FULL };

/* A job that could begin waits for what the target sends right after: until nothing has come for GATHER_NS, and
 * GATHER_MOST_NS at most. (Features of 64 sessions are some megabytes, which take that long.) */
#define GR_DRAFT_GATHER_NS 100000
#define GR_DRAFT_GATHER_MOST_NS 2000000
#define N_SENT 2 /* trees a verdict may name: a newer DRAFT can cross the pass of an older one */

/* A tree that was sent: a verdict names its nodes. It stands as long as the tokens of its base do. */
struct sent_tree {
    bool valid;
    uint32_t round, base_len;
    uint64_t hash; /* of the base */
    struct gr_drafted drafted;
};

/* The parts of a session. Each is written by one file, which is named here; all may read it. */

/* draft_kv.c: the KV of the draft model or head. */
struct draft_kv {
    struct gr_kv_table table;
    int32_t len;   /* tokens with draft KV */
    int32_t shift; /* A head, else 0: tokens before it have no row; that of token p stands in cell p - shift. */
};

/* drafter_flight.c: the job that the session is in. */
struct job_state {
    bool in_flight;
    enum gr_draft_task task;
    int32_t len;    /* tokens that the job works on */
    uint32_t round; /* the round that its tree is for */
    bool stale;     /* tokens below len were replaced meanwhile, or the session was attached anew */
};

/* drafter_flight.c: what the builder's candidates hang below. */
struct candidates {
    bool valid;
    int32_t len; /* they were drafted on the first len tokens */
};

/* drafter_trees.c: the tree that is owed to the target. */
struct owed_tree {
    bool due; /* a VERDICT or DELTA asked for a tree of `round`, of at most n_node nodes */
    uint32_t round;
    int32_t n_node;
    uint64_t asked_ns;
    uint64_t compute_ns; /* time that jobs have taken for it */
    bool ready;          /* `grown` waits for credit */
    uint16_t ahead;      /* GR_FRAME_DRAFT_AHEAD and _HIT, of what the VERDICT or DELTA met */
    struct sent_tree grown;
};

/* drafter_trees.c: what was sent. */
struct sent_trees {
    struct sent_tree sent[N_SENT]; /* newest first */
    struct sent_id {               /* the last DRAFT, with nodes or without, unless a RESYNC followed */
        bool valid;
        uint32_t round, base_len;
        uint64_t hash;
    } last;
};

/* drafter_features.c: positions whose features are held. */
struct held_features {
    int32_t first, end;
    int32_t told; /* `first` as the last TAKEN or RESYNC has told it */
};

/* drafter_session.c: troubles that the orchestrator has not been told yet. */
struct draft_tally {
    uint32_t n_desync, n_feature_gap;
};

/* drafter_session.c: frames both ways since len0 tokens were there, the first VERDICT's; 0: it has not come yet. */
struct wire_tally {
    uint64_t bytes;
    int32_t len0;
};

struct session {
    enum draft_state state; /* drafter_session.c */
    uint64_t id;
    uint32_t epoch, peer;
    bool closing;
    bool orphaned;                   /* the orchestrator that attached it was lost since: drafter_session.c */
    uint64_t asked_ns;               /* when a tree was last asked for, 0: never; drafter_session.c */
    struct gr_prefix prefix;         /* the committed tokens that are known */
    struct gr_tree_builder *builder; /* owned; the job's while one is in flight */
    struct draft_kv kv;
    struct job_state job;
    struct candidates candidates;
    struct owed_tree owed;
    struct sent_trees trees;
    struct held_features features;
    struct draft_tally tally;
    struct wire_tally wire;
    bool resync_due;     /* a RESYNC waits for credit */
    bool starved;        /* the KV pool had no block for it; said once */
    int32_t prefill_len; /* tokens that get KV though no tree is wanted yet: the prompt of an attached session */
    struct gr_wishes wishes;
    struct gr_tree_config tree_config; /* of the wishes */
    struct gr_cost cost;               /* n_point 0: not told yet */
    uint32_t cost_round;
    struct gr_acceptance acceptance;
    /* What rounds bring, as moving averages. */
    uint64_t verdict_ns; /* when the last VERDICT came that was followed; 0: there was a break since */
    uint32_t n_rate;
    float rate_tokens, rate_ns;
    uint32_t round_next; /* VERDICTs and DELTAs of earlier rounds are stale */
    /* Draft-ahead since the last tree. */
    int32_t n_ahead_level;
    bool ahead_done; /* nothing is left to expand */
    bool flipped;    /* the round test_flip_round is over */
    uint64_t n_round, draft_ns, host_ns, n_ahead, n_hit;
    struct gr_fallbacks fallbacks;
    uint32_t n_desync_all; /* desyncs, those that the target found included; for the log */
    /* The first child of a tree: how often it was tried and accepted, what the model expected, alarms. */
    uint64_t n_first, n_first_hit, n_alarm;
    double first_expected;
};

struct gr_drafter {
    struct gr_drafter_config config;
    struct gr_drafter_io io;
    struct gr_kv_pool pool;
    uint32_t n_orphan;       /* sessions that were let go since the last PONG, which tells it */
    struct session *session; /* owned, (n_session_max) */
    /* ATTACHes that wait for a slot, as many as there are slots of sessions that are gone but for their job. Owned,
     * (n_session_max). */
    struct gr_msg *waiting;
    int n_waiting;
    struct gr_draft_job job;
    /* owned, in config.far, if that is not NULL: bf16 (n_session_max, feature_window, feature_width), of p at p %
     * window; and (n_session_max, prefill_chunk, feature_width), of the job in flight */
    uint16_t *feature, *job_feature;
    bool rows_on_their_way;        /* copies in far memory have not ended */
    int32_t *job_token;            /* owned, (n_session_max, prefill_chunk): the rows of the job in flight */
    struct gr_fallbacks fallbacks; /* those that are told once for all sessions */
    bool draining;                 /* it takes no ATTACH any more */
    bool job_in_flight;
    int n_in_rounds; /* sessions that had rounds at counted_ns; drafter_session.c */
    uint64_t counted_ns;
    bool more;         /* other sessions' VERDICTs of the same pass follow */
    uint64_t heard_ns; /* when the last VERDICT, DELTA or FEATURES came */
    uint64_t held_ns;  /* when a job began to wait for what follows; 0: none does */
    struct gr_tree_times tree_times;
    struct gr_acceptance acceptance; /* of all sessions */
    struct gr_acceptance_counts counts;
    struct gr_acceptance_check check;
    struct gr_drafter_counters counters;
};

/* The first token whose row has not run. */
static inline int32_t drafter_row_from(const struct session *s)
{
    return GR_MAX(s->kv.len, s->kv.shift);
}

/* Cells of the table that the first len tokens take. */
static inline int32_t drafter_n_cell(const struct session *s, int32_t len)
{
    return GR_MAX(len - s->kv.shift, 0);
}

/* The files stand on each other in this order; none calls one below it here. */

/* ---- drafter_rows.c: where rows of features lie ---- */
enum gr_status drafter_rows_create(struct gr_drafter *d);
void drafter_rows_destroy(struct gr_drafter *d);
/* Into the ring of a session's slot: positions pos .. end - 1, which are at `from`. */
void drafter_rows_keep(struct gr_drafter *d, int32_t slot, int32_t pos, int32_t end, const uint8_t *from);
/* The same positions out of the ring, for sequence i_seq of the job that is being made. */
const uint16_t *drafter_rows_for_job(struct gr_drafter *d, int i_seq, int32_t slot, int32_t pos, int32_t end);
/* Their copies have ended. */
void drafter_rows_wait(struct gr_drafter *d);

/* ---- draft_kv.c ---- */
/* Tokens from len on are gone. A job in flight keeps its blocks; they are given back when it is done. */
void draft_kv_cut(struct gr_drafter *d, struct session *s, int32_t len);
/* The KV begins anew, with the row of token `shift`. */
void draft_kv_begin_at(struct gr_drafter *d, struct session *s, int32_t shift);
/* A head has come: token 0 has no row. */
void draft_kv_of_head(struct session *s);
void draft_kv_reach(struct session *s, int32_t len);
void draft_kv_drop_front(struct gr_drafter *d, struct session *s, int32_t n_block);
void draft_kv_trim(struct gr_drafter *d, struct session *s);

/* ---- drafter_flight.c ---- */
void drafter_flight_begin(struct session *s, enum gr_draft_task task);
void drafter_flight_works_on(struct session *s, int32_t len, uint32_t round);
/* Tokens from len on are others now. */
void drafter_flight_outdated_from(struct session *s, int32_t len);
void drafter_flight_land(struct session *s);
void drafter_candidates_drop(struct session *s);
void drafter_candidates_cut(struct session *s, int32_t len);
void drafter_candidates_stand(struct session *s);
void drafter_candidates_of_job(struct session *s);

/* ---- drafter_trees.c ---- */
void drafter_owe(struct session *s, uint32_t round, int32_t n_node, uint64_t now_ns);
void drafter_owe_none(struct session *s);
/* Nothing is owed, and what waited is outdated, but an answer is timed from here. */
void drafter_owe_answer(struct session *s, uint64_t now_ns);
void drafter_owed_time(struct session *s, uint64_t compute_ns);
/* The VERDICT or DELTA that asked for it met work that was done ahead; hit: which is of use to it. */
void drafter_owed_met_ahead(struct session *s, bool hit);
/* A tree for the round that is owed, on the tokens as they are. */
void drafter_owed_grown(struct session *s, const struct gr_drafted *drafted);
/* A tree for another round or length: a late one, or one without nodes (drafted NULL). */
void drafter_owed_other(struct session *s, uint32_t round, uint32_t base_len, uint64_t hash,
                        const struct gr_drafted *drafted);
void drafter_owed_ready(struct session *s);
void drafter_owed_sent(struct session *s);
void drafter_sent_note(struct session *s, const struct sent_tree *t);
void drafter_sent_cut(struct session *s, int32_t len);
void drafter_sent_forget(struct session *s);
/* A RESYNC follows: the last DRAFT counts no more. */
void drafter_sent_forget_last(struct session *s);

/* drafter_features.c: the ring of features, and where the KV of a head begins. */
/* Tokens from len on are gone; kv_len is set. */
void drafter_cut_features(struct gr_drafter *d, struct session *s, int32_t len);
/* Features up to `end` go into the ring; rows: of the first that is not there, and those after it. */
void drafter_keep_features(struct gr_drafter *d, struct session *s, int32_t end, const uint8_t *rows);
/* The target knows what is held. */
void drafter_features_told(struct session *s);
/* Forgets features that no row takes any more, which makes room. The target counts what it may send from what was used,
 * told or not. */
void drafter_let_go(struct session *s);
/* The target keeps nothing before `first`: the session's KV begins there. */
void drafter_begin_features(struct gr_drafter *d, struct session *s, int32_t first);
/* The features from `first` on are others by now: so are the rows that took them. Candidates may stay: they are guesses
 * anyway. */
void drafter_take_features_again(struct gr_drafter *d, struct session *s, int32_t first);
/* A copy of the features that the rows of tokens pos0 .. pos0 + n_row - 1 take, for sequence i_seq of the job. */
const uint16_t *drafter_features_for_job(struct gr_drafter *d, const struct session *s, int i_seq, int32_t pos0,
                                         int32_t n_row);
/* Lets go of what a head does not look back at any more. */
void drafter_slide(struct gr_drafter *d, struct session *s);

/* ---- drafter_session.c ---- */
void drafter_orphan(struct session *s);
void drafter_connect(struct session *s);
/* The target is asked where to go on, or is answering. */
void drafter_sync(struct session *s);
/* All that the target has committed is here. */
void drafter_follow_on(struct session *s);
/* The session has outgrown the drafter. */
void drafter_fill_up(struct session *s);
/* The prompt of an attached session gets KV. */
void drafter_prefill_all(struct session *s);
void drafter_note_desync(struct session *s);
void drafter_note_feature_gap(struct session *s);
void drafter_tally_told(struct session *s);
/* Bytes of a frame, once the first VERDICT has come. */
void drafter_count_wire(struct session *s, size_t bytes);
void drafter_begin_wire(struct session *s);
struct session *drafter_find(struct gr_drafter *d, uint64_t id);
void drafter_free(struct gr_drafter *d, struct session *s);
void drafter_note_asked(struct session *s, uint64_t now_ns);
/* Sessions that have rounds which ask for trees, as counted max_age_ns ago at most. */
int drafter_n_in_rounds(struct gr_drafter *d, uint64_t now_ns, uint64_t max_age_ns);
void drafter_send_error(struct gr_drafter *d, uint64_t session, enum gr_status code, const char *text);
/* This thread's lines are about it from now on (gr_log_about). */
void drafter_log_about(const struct session *s);
/* Less is done than was asked for: told and counted. detail may be NULL. */
void drafter_fall_back(struct gr_drafter *d, struct session *s, enum gr_fallback reason, const char *detail);
/* The same of what meets every session alike: counted for each, told the first time, the 10th, the 100th of all. */
void drafter_fall_back_all(struct gr_drafter *d, struct session *s, enum gr_fallback reason, const char *detail);
/* Forgets everything past len: tokens, KV, trees, candidates. */
void drafter_truncate(struct gr_drafter *d, struct session *s, int32_t len);
void drafter_append(struct gr_drafter *d, struct session *s, int32_t token); /* there is room */
/* Replaces a token in the middle, as a fault would: an equal length with other tokens. */
void drafter_test_flip(struct gr_drafter *d, struct session *s);

/* drafter_say.c: frames out. */
void drafter_send_resync(struct gr_drafter *d, struct session *s);
/* Sends the grown tree when there is credit. */
void drafter_send_tree(struct gr_drafter *d, struct session *s, uint64_t now_ns);
/* Sends a tree whose base has been overtaken by root-only verdicts, for the round it was grown for: the target may
 * re-root it, and learns how long a draft takes. Without credit it is dropped. */
void drafter_send_late(struct gr_drafter *d, struct session *s, const struct gr_drafted *drafted);
/* A tree without nodes: the target need not wait. */
void drafter_answer_empty(struct gr_drafter *d, struct session *s, uint32_t round, uint32_t base_len, uint64_t hash,
                          uint64_t now_ns);
/* After rows have run: tells the target which features were used, when it is worth it. */
void drafter_send_taken(struct gr_drafter *d, struct session *s);

/* drafter_hear.c: frames in (gr_drafter_on_frame). */

/* drafter_jobs.c: what is computed. */
/* Starts a job when one is due. Returns when to look again (UINT64_MAX: when something has come). */
uint64_t drafter_start_job(struct gr_drafter *d, uint64_t now_ns);

/* drafter.c: the door; attach, detach, step. */

#endif
