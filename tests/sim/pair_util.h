/* A pair of table models on the simulation, and the requests that its tests give it. Uses cmocka's assertions. */
#ifndef GR_TESTS_SIM_PAIR_UTIL_H
#define GR_TESTS_SIM_PAIR_UTIL_H

#include "tests/sim/sim.h"
#include "tests/sim/toy_lm.h"

#define PAIR_N_VOCAB 24
#define PAIR_LIMIT_NS (1000000ull * 1000000000ull)
#define PAIR_PLAIN 0    /* no drafter */
#define PAIR_PERFECT 1  /* the drafter has the target's table */
#define PAIR_BLURRED 2  /* wrong in one context of three */
#define PAIR_OPPOSITE 3 /* likes best what the target likes least */

struct pair_config {
    uint64_t seed;
    int n_ctx, n_session, n_pool_block; /* 0: defaults */
    int drafter, n_ctx_draft, n_pool_block_draft, memory;
    int n_vocab;
    float sharpness;
    bool delays;
    uint64_t stop_ns; /* as sim_config's */
};

struct pair {
    struct gr_lm *target_lm, *draft_lm;
    struct toy_config table; /* the target's */
    struct sim *sim;
};

/* A number below n; steps the state. */
uint64_t pair_draw(uint64_t *rng, uint64_t n);
struct pair pair_create(const struct pair_config *c);
/* Checks the KV accounting of both ends first. */
void pair_destroy(struct pair *p);
/* A request with a prompt that depends on `which` (below 16), a dynamic tree of 12 nodes, greedy. */
struct gr_session_request pair_request(int which, uint32_t n_prompt, uint32_t max_tokens);
/* Makes the request's tree a chain of n_node nodes. */
void pair_chain(struct gr_session_request *r, uint32_t n_node);
/* Request i is done in both, with the same finish and the same tokens. */
void pair_assert_same(const struct sim *a, const struct sim *b, int i);
/* Plain decoding of the same requests; the caller destroys it. */
struct pair pair_plain_run(const struct pair_config *c, const struct gr_session_request *r, int n);
void pair_submit(struct pair *p, const struct gr_session_request *r, int n);

#endif
