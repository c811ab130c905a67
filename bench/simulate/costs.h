/* What things take in a simulation, as workers have measured it of themselves. Times in ns.
 *
 * A pass keeps a device busy. What the host does before and after it keeps the worker from its next pass and leaves the
 * device free for the other worker that may run there. */
#ifndef GR_BENCH_SIMULATE_COSTS_H
#define GR_BENCH_SIMULATE_COSTS_H

#include "bench/simulate/curve.h"
#include "bench/simulate/surmise.h"

#include <stdint.h>

/* A target's pass takes what the curve says of all its rows, and more for each session in it and for each token of
 * their contexts. */
struct gr_target_costs {
    struct gr_curve rows;
    double session_ns, context_ns;
    double host_ns;      /* on the host, from the end of a pass to the start of the next */
    double host_tree_ns; /* on the host, for each session of the pass that has a tree */
};

/* A pass of the draft model is a level of trees, or rows of committed tokens. */
struct gr_draft_costs {
    struct gr_curve rows;
    double kv_row_ns;              /* a row that is run for its KV alone */
    double session_ns, context_ns; /* for each session in the pass, for each token of their contexts */
    double host_level_ns;   /* on the host, for each session in a pass: its children are ranked, its tree grows */
    double host_feature_ns; /* on the host, for each row that takes a feature of the target's */
    double host_ns;         /* on the host, of a job: a number of passes that follow one another */
    double host_session_ns; /* the same for each session of the job: frames, features, what it is to do next */
};

struct gr_link_costs {
    double latency_ns;
    double byte_ns; /* the sender's end is busy for so long with a byte; 0: the link has no limit */
};

/* The orchestrator has one thread. It takes message_ns for each message that it hears, and after each batch of messages
 * it looks at all sessions, which takes step_ns and step_session_ns for each of them. */
struct gr_orch_costs {
    double message_ns, step_ns, step_session_ns;
};

struct gr_sim_costs {
    struct gr_target_costs target;
    struct gr_draft_costs draft;
    struct gr_link_costs data, control; /* between drafter and target; to and from the orchestrator */
    struct gr_orch_costs orch;
    struct gr_surmise surmise;     /* what the draft model knows of the target */
    struct gr_surmise_texts texts; /* the same of recorded texts, which count where there are any */
    int feature_bytes;             /* of a committed token, where the draft model is a head; 0: it is none */
};

#endif
