/* What the orchestrator's machine takes of this computer's CPU for rounds: it alone, fed with the COMMITs of so many
 * targets and sessions, one token each, as they come on a link. No socket, no client. */
#ifndef GR_BENCH_SIMULATE_ORCH_COST_H
#define GR_BENCH_SIMULATE_ORCH_COST_H

#include "common/base/status.h"

struct gr_orch_cost {
    double commit_ns; /* decoding a COMMIT and dealing with it */
    double look_ns;   /* a look around, as follows each batch that a target sends */
};

/* Medians of n_round rounds of all sessions; a target's COMMITs come together. GR_ELIMIT: more than an orchestrator may
 * be created for; GR_ENOMEM. Both are logged. */
GR_NODISCARD enum gr_status gr_orch_cost_measure(int n_target, int n_session, int n_round, struct gr_orch_cost *out);

#endif
