/* Which rank of a job this process is: what launchers say by environment. Pure: the environment is given as a table, so
 * every mix of launchers can be tested.
 *
 * Rank, size and local rank come from one launcher's variables and are never mixed. Where several launchers have left
 * theirs, the innermost one that set all of its own counts: torchrun, Open MPI, PMIx, PMI, and then the variables of
 * the Slurm step; those of the Slurm job say nothing of a process. mpirun and torchrun start processes inside the steps
 * and ranks of others, so they may differ from what stands further out. PMIx and PMI come from the very launcher whose
 * other variables stand beside them: what they do not say, those do, and where both differ it is an error. */
#ifndef GR_ORCHESTRATOR_LAUNCH_WHO_H
#define GR_ORCHESTRATOR_LAUNCH_WHO_H

#include "common/base/status.h"

#include <stdbool.h>

/* In the order of --ranks' choices. */
enum gr_ranks {
    GR_RANKS_AUTO,
    GR_RANKS_SLURM,
    GR_RANKS_OMPI,
    GR_RANKS_PMIX,
    GR_RANKS_PMI,
    GR_RANKS_TORCHRUN,
    GR_RANKS_NONE,
};

struct gr_who {
    enum gr_ranks source;
    int rank;
    int size;        /* 0: the launcher does not say (PMIx; heterogeneous Slurm jobs); the roles do */
    int local_rank;  /* among the ranks of its host; -1: not said */
    int local_size;  /* ranks of its host; 0: not said */
    bool one_host;   /* all ranks are on one host, by the launcher's own word */
    char job[96];    /* what tells this job, step and restart from others; letters, digits, `.', `-' and `_' */
    char host[80];   /* for people and for the plan: Slurm's name of the node, else the host's */
    char first[80];  /* the Slurm step's first node; empty: not said */
    char said[160];  /* the variables that say so, for the log: "OMPI_COMM_WORLD_RANK=1, OMPI_COMM_WORLD_SIZE=4" */
    char beside[80]; /* another launcher's that was passed over, or empty */
};

/* env: NULL-terminated "NAME=value", as environ. host: of this machine. GR_EINVAL: one line names the variables that
 * contradict each other, or that are missing of the source which was asked for. */
GR_NODISCARD enum gr_status gr_who_am_i(enum gr_ranks wanted, char *const *env, const char *host, struct gr_who *out);
/* Is it a step of a heterogeneous Slurm job? Each of its components has variables of its own. */
bool gr_who_is_het(char *const *env);
const char *gr_ranks_name(enum gr_ranks source);
/* The value of a variable, or NULL. */
const char *gr_env_get(char *const *env, const char *name);

#endif
