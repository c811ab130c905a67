/* Shared by the files of the drafter's state machine; nobody else includes it. */
#ifndef GR_DRAFT_WORKER_DRAFTER_INTERNAL_H
#define GR_DRAFT_WORKER_DRAFTER_INTERNAL_H

#include "draft_worker/drafter.h"

enum draft_state { DRAFT_FREE, DRAFT_CONNECTING, DRAFT_SYNCING, DRAFT_FOLLOWING, DRAFT_FULL };

/* The tree that was sent last: a verdict names its nodes. */
struct sent_tree {
    bool valid;
    uint32_t round, base_len;
    uint64_t hash; /* of the base */
    struct gr_token_tree tree;
    int16_t slot[GR_NODE_MAX];
};

struct follow {
    enum draft_state state;
    uint64_t id;
    uint32_t epoch, peer;
    int32_t *token;  /* owned, (n_ctx_max) */
    uint64_t *hash;  /* owned, (n_ctx_max + 1) */
    bool resync_due; /* a RESYNC waits for credit */
    bool starved;    /* the KV pool had no block for it; said once */
    int32_t len;     /* committed tokens known */
    int32_t kv_len;  /* of them with draft KV */
    struct gr_kv_table table;
    struct gr_sampling sampling;
    struct gr_tree_config tree_config;
    struct gr_cost cost; /* n_point 0: not told yet */
    /* the tree that is owed */
    uint32_t round_next; /* VERDICTs and DELTAs of earlier rounds are stale */
    bool due;          /* a VERDICT or DELTA asked for a tree of due_round */
    uint32_t due_round;
    uint64_t due_ns;   /* when it asked */
    bool ready;        /* sent.tree is grown and waits for credit */
    struct sent_tree sent;
    /* accepted nodes whose KV the next job moves */
    int32_t n_copy, copy_pos0;
    int16_t copy_slot[GR_NODE_MAX];
    /* the job in flight */
    bool in_job, closing, job_grow;
    int32_t job_len;   /* len the job works on */
    bool job_stale;    /* tokens below job_len were replaced meanwhile */
    uint64_t n_round, draft_ns, host_ns, job_ns, n_desync;
};

struct gr_drafter {
    struct gr_drafter_config config;
    struct gr_drafter_io io;
    struct gr_kv_pool pool;
    struct follow *follow; /* owned, (n_session_max) */
    struct gr_draft_job job;
    int32_t *job_token; /* owned, (n_session_max, prefill_chunk): the rows of the job in flight */
    bool job_in_flight;
    struct gr_drafter_counters counters;
};

struct follow *drafter_find(struct gr_drafter *d, uint64_t id);
void drafter_send_resync(struct gr_drafter *d, struct follow *f);
/* Forgets everything past len: tokens, KV, trees. */
void drafter_truncate(struct gr_drafter *d, struct follow *f, int32_t len);
bool drafter_append(struct gr_drafter *d, struct follow *f, int32_t token); /* false: the context is full */
/* A tree without nodes for the round after `round`: the target need not wait. */
void drafter_answer_empty(struct gr_drafter *d, struct follow *f, uint32_t round, uint32_t base_len, uint64_t hash,
                          uint64_t now_ns);
/* Sends the grown tree when there is credit. */
void drafter_send_tree(struct gr_drafter *d, struct follow *f, uint64_t now_ns);

#endif
