/* Command lines of the workers that `graft run` and `graft serve --spawn` start on this host. */
#ifndef GR_ORCHESTRATOR_CLI_SPAWN_H
#define GR_ORCHESTRATOR_CLI_SPAWN_H

#include "common/process/children.h"
#include "orchestrator/cli/plan.h"

/* Starts the target and, unless both live in one process or none is wanted, the draft worker. join: where they report.
 * *draft_out: -1 if there is no such child. Failures are logged. */
GR_NODISCARD enum gr_status gr_spawn_workers(struct gr_children *children, const struct gr_options *o,
                                             const struct gr_plan *plan, const char *join, int64_t n_session,
                                             int *target_out, int *draft_out);

#endif
