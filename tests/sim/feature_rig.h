/* For tests of the target's side of features: the target on the table model, and a drafter that checks each frame: true
 * rows, in order, after the tokens that need them. Include it in one .c file of a program. */
#ifndef GR_TESTS_FEATURE_RIG_H
#define GR_TESTS_FEATURE_RIG_H

#include "common/rules/bf16.h"
#include "common/rules/hash.h"
#include "common/base/log.h"
#include "target_worker/machine/target.h"
#include "target_worker/compute/verifier.h"
#include "tests/sim/toy_lm.h"
#include "tests/transport/test_far.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#define N_VOCAB 24
#define N_CTX 512
#define CHUNK 16
#define KEEP 96
#define WINDOW 64
#define PEER 7
#define EPOCH 3
#define N_SESSION 2

#define PARTIAL_MARK 0xa5 /* toy_lm.h: what the bytes of a partial row are changed by */

extern bool all_raw;     /* benches ship captured states */
extern bool all_shipped; /* their features are made within the pass */
/* With all_shipped: rows lie in memory that nobody can follow a pointer to, are written over by the next pass, and are
 * moved when somebody waits. Frames are whole, or have their bodies there, too. */
extern enum bench_far { BENCH_HOST, BENCH_FAR, BENCH_FAR_BODIES } all_far;
extern int32_t bench_context; /* of the drafters' heads; 0: they look back at everything */
/* For tests of SpecPV: set before bench_create(). n_buffer 0: without. */
extern struct gr_specpv_params bench_specpv;
extern enum gr_specpv_mode bench_mode;
extern uint32_t bench_corrupt;
extern bool bench_prefix_cache, bench_prefix_features; /* of the target; the second: its blocks keep theirs */

/* What the drafter of a session has been sent. */
struct told {
    int32_t token[N_CTX];
    uint64_t hash[N_CTX + 1];
    int32_t len;                   /* committed, as the orchestrator knows it */
    int32_t known;                 /* tokens told by DELTA or VERDICT */
    int32_t end;                   /* features before it are sent */
    int n_frame, n_start, n_again; /* the last: frames that went back */
    int32_t first;                 /* of the first frame since the last RESYNC */
    uint32_t asked_round;          /* a tree is wanted for it; 0: none */
    bool partial[N_CTX];           /* the newest feature sent of a position is that of a row under a view */
    int n_partial, n_back;         /* such rows; COMMITs that took tokens back */
};

struct bench {
    struct gr_lm *lm;
    struct gr_target *target;
    struct gr_verifier *verifier;
    struct gr_pass *pass;            /* started, not done */
    struct told told[N_SESSION + 1]; /* by session, from 1 */
    uint8_t frame[GR_WIRE_SMALL_BYTES_MAX];
    enum gr_frame_class class;
    struct test_far far;
    uint8_t *far_shipped, *far_body;
    const uint16_t *far_row[400];
    int n_bulk_credit;
    bool no_small;
    bool raw;
    int n_fuse;      /* passes that fused what was kept */
    int n_made;      /* features that passes brought */
    char order[512]; /* what was sent: v, d, f and the session's digit */
    size_t n_order;
    uint64_t now_ns;
};

uint8_t *begin(void *ctx, uint32_t peer, enum gr_frame_class class, uint32_t n);

void check_features(struct bench *b, const struct gr_frame_header *h, size_t n);

void end(void *ctx, uint32_t peer, uint32_t n);

void bench_create(struct bench *b, bool features);

void bench_destroy(struct bench *b);

void open_session(struct bench *b, uint64_t id, int n_prompt, bool single_token, bool want_draft);

/* Session id begins as session `of` does, with the first n_prompt tokens of its text, and may share its KV. */
void open_fork(struct bench *b, uint64_t id, uint64_t of, int n_prompt);

void resync(struct bench *b, uint64_t id, int32_t my_len, uint32_t feature_len);

void say_taken(struct bench *b, uint64_t id, int32_t at, uint64_t wrong);

/* The drafter is alive, and has no tree to give. */
void answer(struct bench *b, uint64_t id);

/* A step, and the pass it started, if any. Time passes the deadline. */
bool round_once(struct bench *b);

/* Sends what can be sent, without a pass that ends, but those that fuse what was kept. */
void settle(struct bench *b);

#endif
