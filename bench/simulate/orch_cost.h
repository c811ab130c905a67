/* CPU time of this computer that the orchestrator's machine takes for rounds. It runs alone, without sockets and
 * clients, and is fed with encoded COMMITs of a number of targets and sessions, each with one token. */
#ifndef GR_BENCH_SIMULATE_ORCH_COST_H
#define GR_BENCH_SIMULATE_ORCH_COST_H

#include "common/base/status.h"

struct gr_orch_cost {
    double commit_ns; /* of a session and round: its COMMIT is decoded and dealt with; the machine looks around once */
    double round_ns;  /* the same where it looks around after each target's batch, as a server does */
};

/* Medians of n_round rounds of all sessions; a target's COMMITs come together. GR_ELIMIT: more than an orchestrator may
 * be created for; GR_ENOMEM. Both are logged. */
GR_NODISCARD enum gr_status gr_orch_cost_measure(int n_target, int n_session, int n_round, struct gr_orch_cost *out);

#endif
