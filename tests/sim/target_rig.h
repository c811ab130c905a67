/* For tests of the target alone: the machine and its verifier on the table model, what was told by COMMIT, and messages
 * and frames as an orchestrator and a drafter would send them. Include it in one .c file of a program. */
#ifndef GR_TESTS_TARGET_RIG_H
#define GR_TESTS_TARGET_RIG_H

#include "common/rules/hash.h"
#include "common/base/log.h"
#include "target_worker/machine/target.h"
#include "target_worker/compute/verifier.h"
#include "tests/sim/toy_lm.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#define N_VOCAB 24
#define N_CTX 256
#define N_SLOT 4
#define DEADLINE 1000000

static const struct toy_config toy = {.n_vocab = N_VOCAB,
                                      .n_ctx_max = N_CTX,
                                      .n_row_max = 700,
                                      .n_out_max = 640,
                                      .n_pool_block = 24,
                                      .n_scratch_block = 4 * N_SLOT,
                                      .seed = 5,
                                      .sharpness = 6.0f};

struct text {
    int32_t token[N_CTX];
    uint64_t hash[N_CTX + 1];
    int32_t len, final_len;
    int n_back; /* COMMITs that took tokens back */
};

/* For tests of SpecPV: set before create(). n_buffer 0: without. */
extern struct gr_specpv_params rig_specpv;
extern enum gr_specpv_mode rig_specpv_mode;
extern uint32_t rig_corrupt;
extern int rig_partial_blur;
extern int rig_odd, rig_odd_partial; /* toy_lm.h */
extern bool rig_odd_hidden;
extern struct gr_stop_ids rig_stop_ids;
extern uint64_t rig_fork_of; /* of the OPENs that follow */
extern bool rig_prefix_cache;
extern const char *rig_salt; /* of the OPENs that follow */

struct world {
    struct gr_lm *lm;
    struct gr_target *target;
    struct gr_verifier *verifier;
    struct gr_pass *pass;
    struct text text[8]; /* by session: what was told by COMMIT */
    int n_msg[GR_N_MSG];
    struct gr_msg last[GR_N_MSG];
    uint32_t finish[8];
    int n_all, opened_at[8], error_at[16]; /* what was said when */
    int room;                              /* COMMITs that the queue takes; -1: any number */
    void (*spoil)(struct gr_pass *pass);
    uint64_t n_row;
    uint16_t tree_flags; /* of the DRAFTs that send_tree() sends */
};

void add(struct text *t, int32_t token);

extern uint8_t frame[GR_WIRE_SMALL_BYTES_MAX];
extern size_t frame_len;

void create_with(struct world *w, int32_t n_block, int32_t n_row_max, int32_t n_out_max);

void create(struct world *w, int32_t n_block);

void destroy(struct world *w);

/* Finishes the pass that is under way, and starts the next. False: none is. */
bool one_pass(struct world *w, uint64_t now_ns);

void run(struct world *w);

void open_with(struct world *w, uint64_t id, uint32_t epoch, const int32_t *segments, uint32_t n_segment,
               uint32_t max_tokens);

void open_prompt(struct world *w, uint64_t id, int32_t n, uint32_t max_tokens);

void append_to(struct world *w, uint64_t id, uint32_t epoch, int32_t keep_len, int32_t n, uint32_t max_tokens);

/* The first position from `from` on after which the model's logits are not finite; len when there is none before it. */
int32_t first_odd(const struct text *t, int32_t from);

/* Tokens from `from` on are what the model says after those before them. */
void assert_plain(const struct text *t, int32_t from);

void truncate_to(struct world *w, uint64_t id, int32_t keep_len);

void send_tree(struct world *w, uint32_t round, uint64_t now_ns);

/* A session whose drafter is attached: 20 tokens of prompt and the first of the answer. */
void open_with_drafter(struct world *w);

/* Four sessions where there are blocks for one to three: the younger yield, and make the same text later. How often one
 * was pre-empted or evicted. */
uint64_t run_too_many(int32_t n_block);

void expect_error(struct world *w, int *n, const char *what);

#endif
