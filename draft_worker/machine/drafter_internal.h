/* Shared by the files of the drafter's state machine; nobody else includes it. */
#ifndef GR_DRAFT_WORKER_MACHINE_DRAFTER_INTERNAL_H
#define GR_DRAFT_WORKER_MACHINE_DRAFTER_INTERNAL_H

#include "common/rules/prefix.h"
#include "common/base/fallback.h"
#include "draft_worker/tree/acceptance_check.h"
#include "draft_worker/machine/drafter.h"

enum draft_state { DRAFT_FREE, DRAFT_CONNECTING, DRAFT_SYNCING, DRAFT_FOLLOWING, DRAFT_FULL };

/* A job waits for what is sent right behind what it could begin with: until nothing has come for so long, and no longer
 * than that. (64 sessions' features are some megabytes.) */
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

struct follow {
    enum draft_state state;
    uint64_t id;
    uint32_t epoch, peer;
    struct gr_prefix prefix;         /* the committed tokens that are known */
    struct gr_tree_builder *builder; /* owned; the job's while in_job */
    struct gr_kv_table table;
    bool resync_due; /* a RESYNC waits for credit */
    bool starved;    /* the KV pool had no block for it; said once */
    int32_t kv_len;  /* tokens with draft KV */
    /* A head, else 0: tokens before it have no row, and that of token p stands in cell p - kv_shift of the table. */
    int32_t kv_shift;
    int32_t feature_first, feature_end; /* positions whose features are held, see drafter_features.c */
    int32_t feature_told;               /* of the last TAKEN, or RESYNC */
    int32_t prefill_len; /* of them that get it though no tree is wanted yet: the prompt of an attached session */
    /* what the builder's candidates hang below */
    bool root_valid;
    int32_t root_len; /* they were drafted on the first root_len tokens */
    struct gr_sampling sampling;
    struct gr_tree_config tree_config;
    bool auto_tree, draft_ahead;
    struct gr_cost cost; /* n_point 0: not told yet */
    uint32_t cost_round;
    struct gr_acceptance acceptance;
    /* what rounds bring: moving averages */
    uint64_t verdict_ns; /* of the last VERDICT that was followed; 0: there was a break */
    uint32_t n_rate;
    float rate_tokens, rate_ns;
    /* the tree that is owed */
    uint32_t round_next; /* VERDICTs and DELTAs of earlier rounds are stale */
    bool due;            /* a VERDICT or DELTA asked for a tree of due_round, of at most due_node nodes */
    uint32_t due_round;
    int32_t due_node;
    uint64_t due_ns;                        /* when it asked */
    bool ready;                             /* `pending` is grown and waits for credit */
    struct sent_tree pending, sent[N_SENT]; /* sent: newest first */
    struct sent_id {                        /* the last DRAFT, with nodes or without, unless a RESYNC followed */
        bool valid;
        uint32_t round, base_len;
        uint64_t hash;
    } last;
    /* draft-ahead since the last tree */
    int32_t n_ahead_level;
    bool ahead_done; /* nothing is left to expand */
    bool flipped;    /* test_flip_round has been */
    /* the job in flight */
    bool in_job, closing;
    enum gr_draft_task job_task;
    int32_t job_len;    /* len the job works on */
    uint32_t job_round; /* and the round its tree is for */
    bool job_stale;     /* tokens below job_len were replaced meanwhile, or the session was attached anew */
    uint64_t n_round, draft_ns, host_ns, job_ns, n_ahead, n_hit;
    struct gr_fallbacks fallbacks;
    uint32_t n_desync_all;            /* the target's included, for the log */
    uint32_t n_desync, n_feature_gap; /* found here, and not told the orchestrator yet */
    /* the first child of a tree: how often it was tried and accepted, what the model expected; alarms in this session
     */
    uint64_t n_first, n_first_hit, n_alarm;
    double first_expected;
    uint64_t wire_bytes; /* frames both ways since wire_len0 tokens were there, the first VERDICT's; 0: not come yet */
    int32_t wire_len0;
};

struct gr_drafter {
    struct gr_drafter_config config;
    struct gr_drafter_io io;
    struct gr_kv_pool pool;
    struct follow *follow; /* owned, (n_session_max) */
    /* ATTACHes for which there will be a slot: as many as there are slots of sessions that are gone, but for their job.
     * Owned, (n_session_max); arrays of a message are not looked at. */
    struct gr_msg *waiting;
    int n_waiting;
    struct gr_draft_job job;
    uint16_t *feature;     /* owned, (n_session_max, feature_window, feature_width) bf16; of p at p % window */
    uint16_t *job_feature; /* owned, (n_session_max, prefill_chunk, feature_width) bf16: of the job in flight */
    int32_t *job_token;    /* owned, (n_session_max, prefill_chunk): the rows of the job in flight */
    bool job_in_flight;
    bool more;                       /* other sessions' VERDICTs of the same pass follow */
    uint64_t heard_ns;               /* when the last VERDICT, DELTA or FEATURES came */
    uint64_t held_ns;                /* since when a job is held up for what follows; 0: none is */
    struct gr_acceptance acceptance; /* of all sessions */
    struct gr_acceptance_counts counts;
    struct gr_acceptance_check check;
    struct gr_drafter_counters counters;
};

/* The first token whose row is not built. */
static inline int32_t drafter_row_from(const struct follow *f)
{
    return GR_MAX(f->kv_len, f->kv_shift);
}

/* Cells of the table that the first len tokens take. */
static inline int32_t drafter_n_cell(const struct follow *f, int32_t len)
{
    return GR_MAX(len - f->kv_shift, 0);
}

/* The files stand on each other in this order; none calls one below it here. */

/* drafter_features.c: the ring of features, and where the KV of a head begins. */
uint16_t *drafter_feature_row(const struct gr_drafter *d, const struct follow *f, int32_t pos);
/* Tokens from len on are gone; kv_len is set. */
void drafter_cut_features(struct follow *f, int32_t len);
/* Room for what comes: features that no row takes any more are forgotten. The target counts what it may send from what
 * was used, told or not. */
void drafter_let_go(struct follow *f);
/* The target keeps nothing before `first`: the session's KV begins there. */
void drafter_begin_features(struct gr_drafter *d, struct follow *f, int32_t first);
/* The features from `first` on are others by now: so are the rows that took them. Candidates may stay: they are guesses
 * anyway. */
void drafter_take_features_again(struct gr_drafter *d, struct follow *f, int32_t first);
/* What the rows of tokens pos0 .. pos0 + n_row - 1 take. */
void drafter_copy_features(const struct gr_drafter *d, const struct follow *f, int32_t pos0, int32_t n_row,
                           uint16_t *out);
/* Lets go of what a head does not look back at any more. */
void drafter_slide(struct gr_drafter *d, struct follow *f);

/* follow.c */
struct follow *drafter_find(struct gr_drafter *d, uint64_t id);
void drafter_free(struct gr_drafter *d, struct follow *f);
void drafter_send_error(struct gr_drafter *d, uint64_t session, enum gr_status code, const char *text);
/* Less is done than was asked for: told and counted. detail may be NULL. */
void drafter_fall_back(struct gr_drafter *d, struct follow *f, enum gr_fallback reason, const char *detail);
/* Forgets everything past len: tokens, KV, trees, candidates. */
void drafter_truncate(struct gr_drafter *d, struct follow *f, int32_t len);
void drafter_append(struct gr_drafter *d, struct follow *f, int32_t token); /* there is room */
/* Replaces a token in the middle, as a fault would: an equal length with other tokens. */
void drafter_test_flip(struct gr_drafter *d, struct follow *f);

/* drafter_say.c: frames out. */
void drafter_send_resync(struct gr_drafter *d, struct follow *f);
/* Sends the grown tree when there is credit. */
void drafter_send_tree(struct gr_drafter *d, struct follow *f, uint64_t now_ns);
/* Sends a tree whose base has been overtaken by root-only verdicts, for the round it was grown for: the target may
 * re-root it, and learns how long a draft takes. Without credit it is dropped. */
void drafter_send_late(struct gr_drafter *d, struct follow *f, const struct gr_drafted *drafted);
/* A tree without nodes: the target need not wait. */
void drafter_answer_empty(struct gr_drafter *d, struct follow *f, uint32_t round, uint32_t base_len, uint64_t hash,
                          uint64_t now_ns);
/* After rows have run: tells the target which features were used, when it is worth it. */
void drafter_send_taken(struct gr_drafter *d, struct follow *f);

/* drafter_hear.c: frames in (gr_drafter_on_frame). */

/* drafter_jobs.c: what is computed. */
/* Starts a job when one is due. Returns when to look again (UINT64_MAX: when something has come). */
uint64_t drafter_start_job(struct gr_drafter *d, uint64_t now_ns);

/* drafter.c: the door; attach, detach, step. */

#endif
