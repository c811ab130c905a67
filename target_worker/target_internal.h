/* Shared by the files of the target's state machine; nobody else includes it. */
#ifndef GR_TARGET_WORKER_TARGET_INTERNAL_H
#define GR_TARGET_WORKER_TARGET_INTERNAL_H

#include "target_worker/target.h"

enum session_state { SESSION_FREE, SESSION_QUEUED, SESSION_PREFILL, SESSION_DECODE, SESSION_FINISHED };

/* The newest DRAFT of a session, as it came. */
struct pending_draft {
    bool valid;
    uint32_t round, base_len;
    uint64_t arrived_ns;
    struct gr_token_tree tree;
};

struct session {
    enum session_state state;
    uint64_t id;
    uint32_t epoch;
    uint32_t round;       /* the round that is verified next; 0: prefill */
    uint32_t fence_round; /* DRAFTs of earlier rounds are dropped silently */
    bool in_pass, closing, want_trace;
    int32_t *token;       /* owned, (n_ctx_max): [prompt | generated ...] */
    uint64_t *hash;       /* owned, (n_ctx_max + 1): hash[len] of the first len tokens */
    int32_t n_prompt, committed_len, kv_len;
    int32_t len_max;      /* committed_len may not pass it: prompt + max_tokens, or the context */
    struct gr_kv_table table;
    struct gr_sampling sampling;
    struct gr_stop stop;  /* ids; n_new_max is set per pass */
    /* drafter */
    bool want_draft, has_peer, ever_attached;
    uint32_t peer;
    struct pending_draft draft;
    uint64_t deadline_ns;     /* a root-only pass from here on */
    int32_t n_silent;         /* deadlines in a row that passed without a sign of the drafter */
    uint64_t verdict_ns;      /* when the last VERDICT left */
    bool delta_pending;       /* the drafter is owed tokens from delta_at on */
    uint32_t delta_at;
    /* the pass in flight */
    uint8_t node_of_row[GR_NODE_MAX]; /* pass tree node -> node of the DRAFT */
    uint32_t pass_draft_round;
    uint64_t wait_ns;
    uint32_t n_late, n_desync, n_fallback; /* since the last COMMIT */
};

struct gr_target {
    struct gr_target_config config;
    struct gr_target_io io;
    struct gr_kv_pool pool;
    struct session *session; /* owned, (n_session_max) */
    struct gr_pass pass;
    bool pass_in_flight;
    int next_slot; /* where the next pass starts looking, for fairness */
    struct gr_target_counters counters;
};

#define GR_SILENT_MAX 3 /* then the drafter is taken for gone, until it speaks again */

struct session *target_find(struct gr_target *t, uint64_t id);
void target_free_session(struct gr_target *t, struct session *s);
void target_send_error(struct gr_target *t, uint64_t session, enum gr_status code, const char *text);
/* The drafter of this session is gone or unusable: root-only from here on. */
void target_drop_drafter(struct gr_target *t, struct session *s, const char *reason);

/* target_frames.c */
void target_send_verdict(struct gr_target *t, struct session *s, const struct gr_frame_header *h,
                         const struct gr_verdict *v);
void target_send_deltas(struct gr_target *t, struct session *s, uint64_t now_ns);
/* Judges the pending draft against the session as it is now; drops it when it does not fit. */
void target_judge_draft(struct gr_target *t, struct session *s);

/* target_pass.c */
uint64_t target_start_pass(struct gr_target *t, uint64_t now_ns);

#endif
