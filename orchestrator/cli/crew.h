/* How many workers a command starts on this host, and where each of them runs: by --n-target and --n-draft, or by the
 * lists targets and drafts of the YAML file. Pure but for the log. */
#ifndef GR_ORCHESTRATOR_CLI_CREW_H
#define GR_ORCHESTRATOR_CLI_CREW_H

#include "common/options/options.h"
#include "orchestrator/machine/orch.h"

/* The workers of one role. */
struct gr_crew_role {
    int n;
    struct gr_devices devices[GR_ORCH_WORKER_MAX]; /* of a drafter one, of a target one a rank, or cpu */
    int tp[GR_ORCH_WORKER_MAX];                    /* ranks of a target; 0: its item does not say */
};

struct gr_crew {
    struct gr_crew_role target, draft;
};

/* A list's devices are dealt out to the workers of its item in turn; without one it is that of the role's option, which
 * is one for all, or one for each worker or each rank, in order. several: this command can start more than one of a
 * role. GR_EINVAL (logged): it cannot, a worker is on another host, list and option both say it, the option names too
 * many devices or too few, or together they are more than an orchestrator takes. */
GR_NODISCARD enum gr_status gr_crew_read(const struct gr_options *o, bool several, struct gr_crew *out);

/* GR_EINVAL (logged): they are more workers than an orchestrator takes. */
GR_NODISCARD enum gr_status gr_crew_check_size(int n_target, int n_draft);

/* One target, and at most one drafter. */
bool gr_crew_is_pair(const struct gr_crew *c);

/* A GPU on which two or more of them are to run; -1: there is none. */
int gr_crew_shared_gpu(const struct gr_crew *c);

#endif
