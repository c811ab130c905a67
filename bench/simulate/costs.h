/* What things take in a simulation: what workers have measured of themselves, as numbers. Times in ns. */
#ifndef GR_BENCH_SIMULATE_COSTS_H
#define GR_BENCH_SIMULATE_COSTS_H

#include "bench/simulate/curve.h"
#include "bench/simulate/surmise.h"

#include <stdint.h>

/* A target's pass: rows(all rows) + a session's share of it, for each that decodes + its context, for each. */
struct gr_target_costs {
    struct gr_curve rows;
    double session_ns, context_ns; /* of a session; of a token of its context */
    double host_ns;                /* between the end of a pass and the start of the next, beside everything else */
};

/* A pass of the draft model: a level, or rows of committed tokens. */
struct gr_draft_costs {
    struct gr_curve rows;
    double kv_row_ns;              /* a row that is run for its KV alone */
    double session_ns, context_ns; /* of a session in the pass; of a token of its context */
    double host_ns;                /* of a job, beside its passes */
};

struct gr_link_costs {
    double latency_ns;
    double byte_ns; /* of a byte, in which the sender's end is busy; 0: none */
};

/* The orchestrator has one thread, which takes so long for each message that it hears, and for a look around after each
 * batch of them. */
struct gr_orch_costs {
    double message_ns, step_ns, step_session_ns;
};

struct gr_sim_costs {
    struct gr_target_costs target;
    struct gr_draft_costs draft;
    struct gr_link_costs data, control; /* between drafter and target; to and from the orchestrator */
    struct gr_orch_costs orch;
    struct gr_surmise surmise; /* what the draft model knows of the target */
    int feature_bytes;         /* of a committed token, where the draft model is a head; 0: it is none */
};

#endif
