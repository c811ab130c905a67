/* What a seed of the simulation stands for: models, delays, faults and what clients ask. test_sim runs many seeds and
 * checks what they bring; test_digests compares what a few hundred of them send. */
#ifndef GR_TESTS_SIM_SIM_PLAN_H
#define GR_TESTS_SIM_SIM_PLAN_H

#include "tests/sim/sim.h"
#include "tests/sim/toy_lm.h"

#define SIM_PLAN_VOCAB 24
#define SIM_PLAN_CTX 512
#define SIM_PLAN_SESSION 8
#define SIM_PLAN_TURN_MAX 3
#define SIM_PLAN_LIMIT_NS (100ull * 1000000000ull) /* virtual time after which a run is stuck */

struct sim_plan {
    uint64_t seed;
    struct toy_config target_toy, draft_toy;
    struct sim_config sim;
    int n_request;
    struct gr_session_request request[SIM_PLAN_SESSION];
    int32_t prompt[SIM_PLAN_SESSION][64];
    uint32_t stop_after[SIM_PLAN_SESSION];
    uint64_t cut_ns[SIM_PLAN_SESSION], close_ns[SIM_PLAN_SESSION], refresh_ns[SIM_PLAN_SESSION];
    int n_turn[SIM_PLAN_SESSION];
    struct sim_turn turn[SIM_PLAN_SESSION][SIM_PLAN_TURN_MAX];
};

/* The same plan_out for the same seed, for ever: a new choice is drawn from a generator of its own. */
void sim_draw_plan(uint64_t seed, struct sim_plan *plan_out);
/* A share of its requests also wishes for bans, biases, penalties and log-probabilities. Digests are without. */
void sim_draw_adjust(struct sim_plan *p);
/* Workers are told to end again and again, and no other fault happens. Digests are without. */
void sim_draw_drains(struct sim_plan *p);
/* A simulation with the plan's requests submitted; the plan is borrowed until sim_destroy. */
struct sim *sim_from_plan(struct sim_plan *p);
/* Where tests find what lies at an address of far memory; NULL: there is none. */
extern uint8_t *(*sim_plan_far_at)(const void *p);
/* Feature rows of drafters' jobs that were compared to the true ones so far, raw or fused. */
uint64_t sim_plan_rows_checked(bool raw);

#endif
