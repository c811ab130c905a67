/* Command lines of workers: those that `graft run` and `graft serve --spawn` start on this host, and those of the ranks
 * of `graft launch`. */
#ifndef GR_ORCHESTRATOR_CLI_SPAWN_H
#define GR_ORCHESTRATOR_CLI_SPAWN_H

#include "common/options/options.h"
#include "common/process/child_args.h"
#include "common/process/children.h"
#include "orchestrator/cli/plan.h"

/* A command line with the texts that it points to; not to be copied. */
struct gr_worker_line {
    struct gr_child_args args;
    char name[GR_N_OPTION][40];
    char value[GR_N_OPTION][GR_OPTION_TEXT_MAX];
    int n;
};

/* What was asked for, under the names that the worker has for it. join: where it reports. All that is pointed to lives
 * until the child is started. */
void gr_worker_line_target(struct gr_worker_line *l, const struct gr_options *o, const struct gr_plan *plan,
                           const char *join, int64_t n_session);
void gr_worker_line_draft(struct gr_worker_line *l, const struct gr_options *o, const struct gr_plan *plan,
                          const char *join, int64_t n_session);

/* Starts the plan's targets and, unless both live in one process or none is wanted, its draft workers, as the first
 * children: those below plan->crew.target.n are the targets, those after them the drafters. join: where they report.
 * Failures are logged. */
GR_NODISCARD enum gr_status gr_spawn_workers(struct gr_children *children, const struct gr_options *o,
                                             const struct gr_plan *plan, const char *join, int64_t n_session);

#endif
