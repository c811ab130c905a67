/* A fleet on a virtual clock: the orchestrator's machine, those of many targets and drafters, and clients, all in one
 * thread. How long passes, drafts, links and the orchestrator take comes from measured costs (costs.h). How many of the
 * drafted tokens are accepted comes from what a draft model was measured to know of its target (surmise.h). Everything
 * else is decided by the machines. The same seed gives the same run, but for the times in gr_fleet_real, which are
 * those of the computer that simulates. */
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
    /* With run_ns 0 each client has one session and all begin at once, as in a benchmark. When all are over they begin
     * again: n_warm times in which the workers learn, then n_group times that count.
     * With run_ns above 0 each client has one session after another until that time. A session has half to one and a
     * half times n_new tokens, and only what comes after warm_ns counts. */
    int n_warm, n_group;
    uint64_t run_ns, warm_ns;
    /* A worker lives for mean_life_s on the mean, 0 for ever. The others notice its death after notice_ns, and it is
     * back after restart_ns. */
    double mean_life_s;
    uint64_t restart_ns, notice_ns;
};

/* CPU time of this computer that the orchestrator's machine took. All are sums. */
struct gr_fleet_real {
    uint64_t n_message, n_commit; /* messages of workers; COMMITs among them */
    double message_ns;            /* decoded and dealt with, the clients' events included */
    uint64_t n_step;
    double step_ns;   /* looks around, one after each batch of messages */
    uint64_t n_place; /* new sessions: submitted, placed, opened */
    double place_ns;
};

struct gr_fleet_result {
    double seconds;            /* from the first token of any session to the last one, or run_ns - warm_ns */
    uint64_t n_token;          /* tokens that came in these seconds */
    double all_seconds;        /* in which every session decoded; 0: there were none, or run_ns was given */
    uint64_t all_token;        /* tokens that came in these seconds */
    uint64_t n_done, n_failed; /* turns that ended */
    /* Over the whole run. */
    uint64_t n_round, n_draft, n_accepted;   /* COMMITs with tokens; those that had a tree; accepted nodes */
    uint64_t position[64];                   /* [i]: drafts that had i + 1 accepted nodes or more */
    uint64_t n_pass, n_pass_seq, n_pass_row; /* passes of targets; sessions and rows in them, prompts included */
    uint64_t n_job;
    uint64_t n_loss;
    double mean_wait_ns; /* from a message's arrival until the orchestrator takes it up */
    /* The share of the time in which they were busy: the mean of all of a kind; link_busy_most is the busiest
     * one's. A worker is busy with its device and on its host; where two share a device it is the device alone. */
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
