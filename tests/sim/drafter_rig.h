/* A drafter's machine and a target made by hand: frames, verdicts of a table model, jobs that run when the test says
 * so. Uses cmocka's assertions. */
#ifndef GR_TESTS_SIM_DRAFTER_RIG_H
#define GR_TESTS_SIM_DRAFTER_RIG_H

#include "draft_worker/machine/drafter.h"
#include "draft_worker/compute/grower.h"
#include "tests/sim/toy_lm.h"
#include "tests/transport/test_far.h"

#define RIG_N_VOCAB 24
#define RIG_N_CTX 512
#define RIG_EPOCH 2
#define RIG_PEER 7
#define RIG_N_LOG 64

struct rig_frame {
    uint8_t bytes[GR_WIRE_SMALL_BYTES_MAX];
    size_t len;
};

struct rig {
    struct toy_config table; /* the target's */
    struct gr_lm *lm;
    struct gr_drafter *drafter;
    struct gr_grower *grower;
    struct gr_draft_job *job; /* in flight; it runs when it is finished */
    struct gr_msg attach;
    uint64_t now_ns;
    double draft_ns; /* jobs that somebody waited for, as gr_grower_fix_level_ns() tells */
    /* the target */
    int32_t token[RIG_N_CTX];
    uint64_t hash[RIG_N_CTX + 1];
    int32_t len;
    uint32_t round; /* the one verified next */
    /* what the drafter sent last */
    struct rig_frame out;
    int n_frame[9]; /* by type; late DRAFTs apart */
    int n_late;     /* DRAFTs on a base that was over */
    struct gr_frame_header late_header;
    struct gr_token_tree late_tree;
    struct gr_frame_header draft_header;
    struct gr_token_tree tree;
    struct gr_resync resync;
    struct gr_msg stats;
    struct gr_msg pong;
    struct gr_msg trouble; /* DRAFT_TROUBLE: the sums of all */
    uint64_t attached;     /* the session of the last ATTACHED */
    int n_error, n_error_expected;
    uint32_t error_code; /* of the last one */
    /* a second session that is told the same */
    bool twin;
    uint32_t twin_peer; /* whose it is */
    bool more;          /* VERDICTs say that another session's follows */
    int n_twin_draft;
    struct gr_token_tree twin_tree;
    struct rig_frame log[RIG_N_LOG]; /* what it was sent */
    int n_log;
    /* a head's features, which follow the tokens by themselves, unless they are held */
    bool head, raw, hold_features;
    int32_t feature_keep; /* the target keeps so many; 0: all */
    int32_t feature_window, feature_sent, feature_taken;
    int n_resync_seen;
    /* its far memory, and of FEATURES that are delivered: where the rows lie, in place of the frame */
    struct test_far far;
    uint8_t *far_body;
    const uint8_t *body;
};

struct rig_config {
    uint64_t seed;
    int blur; /* the drafter is wrong in one context of so many; 0: never */
    bool ahead, auto_tree;
    int n_node, depth, top_k;
    uint32_t flip_round;
    float sharpness;
    float temperature;
    bool twin;
    bool two_peers; /* the twin is another target's */
    bool head;      /* set by rig_heads */
    bool raw;       /* with a head: it is sent captured states */
    int n_vocab_head;
    int32_t window;  /* 0: RIG_N_CTX */
    int32_t context; /* of a head; 0: all */
    bool one_fits;   /* the KV pool holds one session's */
    int odd;         /* one context in so many has logits that are not finite; 0: none */
    int32_t n_ctx;   /* of the drafter; 0: RIG_N_CTX */
};

extern bool rig_heads; /* rigs have a head, whatever their config says */
/* Where features of rigs lie: in the host's memory, or, but raw ones, in far memory, to which they come in whole frames
 * or with their rows apart. */
extern enum rig_far { RIG_HOST, RIG_FAR, RIG_FAR_BODIES } rig_far;

struct rig *rig_create(const struct rig_config *c);
void rig_destroy(struct rig *r);

/* ATTACH, and the connection is there: a RESYNC goes out. */
void rig_attach(struct rig *r);
/* Commits a prompt, attaches, sends it; with n_want > 0 awaits the first DRAFT. */
void rig_start(struct rig *r, int n_prompt, int n_want);

/* Steps; then finishes the job in flight, if there is one. */
bool rig_job_once(struct rig *r);
void rig_run(struct rig *r, int n_job_max);
/* Until a DRAFT has been sent, for the target's round and prefix. */
void rig_await_draft(struct rig *r);

/* The target's side. */
#define RIG_WANT(n) ((uint16_t)(GR_DELTA_LAST | GR_DELTA_DRAFT | GR_DELTA_WANT(n)))
void rig_commit(struct rig *r, int32_t token);
int32_t rig_pick(const struct rig *r, const int32_t *token, int n);
/* Verifies a tree below `root` (-1: the tail it was drafted on), commits, sends the VERDICT; the length of the path. */
int rig_verify(struct rig *r, const struct gr_token_tree *t, uint32_t draft_round, int root, int n_want);
void rig_root_only(struct rig *r, int n_want);
void rig_send_verdict(struct rig *r, const struct gr_verdict *v, uint32_t base_len);
void rig_send_delta(struct rig *r, int32_t common, uint16_t flags);
/* FEATURES of positions first .. end - 1, whatever the window is. */
void rig_send_features_from(struct rig *r, int32_t first, int32_t end, uint16_t flags);
/* As a target does: those that the drafter has not had and its tokens need, as far as the window goes. Each job calls
 * it. */
void rig_send_features(struct rig *r);
void rig_send_cost(struct rig *r, uint32_t overhead_us, uint32_t base_us, uint32_t row_us);
/* Delivers the frame of n bytes that was written into the next entry of the log. */
void rig_deliver(struct rig *r, size_t n);

/* The tree that was sent last is what a drafter sends that never knew anything but this prefix. */
void rig_assert_fresh(const struct rig *r, const struct rig_config *c, int n_want);
/* A number below n; steps the state. */
uint64_t rig_draw(uint64_t *rng, uint64_t n);

#endif
