/* Workers of a command's own: the target and the draft worker as child processes (or both in one, for --transport
 * loop), the orchestrator in this one. For one turn or several at a time (`graft run`), or for a conversation (`graft
 * chat`). One thread. */
#ifndef GR_ORCHESTRATOR_CLI_LOCAL_H
#define GR_ORCHESTRATOR_CLI_LOCAL_H

#include "common/process/children.h"
#include "orchestrator/cli/generate.h"
#include "orchestrator/server/hub.h"

struct gr_local;

/* What stands between a generation and its session. */
struct gr_local_turn {
    struct gr_local *l;
    struct gr_generation *g; /* NULL: none is at hand */
    uint64_t session;        /* stays from turn to turn; 0: none, or not known yet */
    const struct gr_local_turn *fork_of;
};

struct gr_local {
    const struct gr_options *o; /* borrowed, as the plan */
    const struct gr_plan *plan;
    struct gr_generation *g; /* the turn at hand, of several the first, or, between turns, one that is over; borrowed */
    struct gr_hub *hub;
    struct gr_children children;
    int target_child, draft_child; /* -1: none */
    bool target_joined, draft_joined, draft_failed;
    bool gone; /* a worker was given up: there are no more turns */
    struct gr_local_turn turn[GR_ANSWERS_MAX];
    int n_turn; /* at hand */
    uint64_t start_ns;
};

/* Starts the workers. g, o and plan outlive it. gr_local_stop() follows in any case. */
GR_NODISCARD enum gr_status gr_local_start(struct gr_local *l, const struct gr_options *o, const struct gr_plan *plan,
                                           struct gr_generation *g);
/* Carries a turn through: until it is over, has failed or was interrupted. */
void gr_local_turn(struct gr_local *l, struct gr_generation *g);
/* The same of n at a time, whose sessions after the first are forks of its: until all are over, or one is not. */
void gr_local_turns(struct gr_local *l, struct gr_generation *const *g, int n);
/* Between turns: until fd has something to read. l->g tells whether a signal came, or whether it cannot go on. */
void gr_local_wait(struct gr_local *l, int fd);
/* Lets go of the session; the next turn opens one. */
void gr_local_forget(struct gr_local *l);
void gr_local_stop(struct gr_local *l);

#endif
