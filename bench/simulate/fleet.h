/* A fleet on a virtual clock: the orchestrator's machine, those of many targets and drafters, and clients, all in one
 * thread. What passes, drafts, links and the orchestrator take comes from measured costs (costs.h), what drafts are
 * worth from how well they were measured to surmise (surmise.h). Everything else is what the machines decide. The same
 * seed gives the same run; only the times that the orchestrator's machine really takes (gr_fleet_real) are those of
 * the computer that simulates. */
#ifndef GR_BENCH_SIMULATE_FLEET_H
#define GR_BENCH_SIMULATE_FLEET_H

#include "common/base/status.h"
#include "bench/simulate/costs.h"

#include <stdbool.h>

struct gr_fleet_config {
    const struct gr_sim_costs *costs; /* borrowed */
    uint64_t seed;
    int n_target, n_draft;
    int n_slot;          /* sessions that a worker has room for */
    bool shared;         /* drafter i runs on the device of target i, by turns */
    bool ahead;          /* drafters grow on while targets verify */
    int n_node;          /* of a tree; 0: chosen by cost; -1: there are no trees */
    int n_session;       /* clients, each with one session at a time */
    int n_prompt, n_new; /* tokens of a session */
    /* run_ns 0: each client has one session and all begin at once, which is what a benchmark does; when all are over
     * they begin once more, n_warm times for the workers to learn, then n_group times that count. Else clients go on
     * for so long, one session after another of half to one and a half times n_new, and what comes after warm_ns
     * counts. */
    int n_warm, n_group;
    uint64_t run_ns, warm_ns;
    /* How often a worker dies, in its life's seconds; 0: never. It is back after restart_ns, and others notice after
     * notice_ns. */
    double mean_life_s;
    uint64_t restart_ns, notice_ns;
};

/* What the orchestrator's machine really took of this computer's CPU. Sums. */
struct gr_fleet_real {
    uint64_t n_message, n_commit; /* messages of workers; COMMITs among them */
    double message_ns;            /* decoded and dealt with, the clients' events included */
    uint64_t n_step;
    double step_ns;   /* looks around, one after each batch of messages */
    uint64_t n_place; /* new sessions: submitted, placed, opened */
    double place_ns;
};

struct gr_fleet_result {
    double seconds;            /* that counted: of all sessions from the first token to the last; or run_ns - warm_ns */
    uint64_t n_token;          /* in them */
    double all_seconds;        /* while every session decoded; 0: they never did, or run_ns was given */
    uint64_t all_token;        /* in them */
    uint64_t n_done, n_failed; /* turns that ended */
    /* Over the whole run. */
    uint64_t n_round, n_draft, n_accepted;   /* COMMITs with tokens; those with a tree; nodes */
    uint64_t position[64];                   /* drafts that were accepted to this position at least, from 1 */
    uint64_t n_pass, n_pass_seq, n_pass_row; /* of targets; their sessions and rows, prompts included */
    uint64_t n_job;
    uint64_t n_loss;
    double mean_wait_ns; /* of a message, until the orchestrator takes it up */
    /* Shares of the time in which they were busy: of all, and of the busiest. */
    double target_busy, draft_busy, orch_busy, link_busy, link_busy_most;
    double virtual_seconds;
    uint64_t n_event;
    struct gr_fleet_real real;
};

struct gr_fleet;

/* GR_ELIMIT: more than the orchestrator takes (logged); GR_ENOMEM. */
GR_NODISCARD enum gr_status gr_fleet_create(const struct gr_fleet_config *config, struct gr_fleet **out);
void gr_fleet_destroy(struct gr_fleet *f);
/* GR_ETIMEDOUT: sessions stopped making progress (logged). */
GR_NODISCARD enum gr_status gr_fleet_run(struct gr_fleet *f, struct gr_fleet_result *out);

#endif
