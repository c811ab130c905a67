/* Where Slurm has put the ranks of a step, by the variables that each of them has: for a rank that has said nothing
 * itself. Pure. */
#ifndef GR_ORCHESTRATOR_LAUNCH_LAYOUT_H
#define GR_ORCHESTRATOR_LAUNCH_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>

#define GR_LAYOUT_NODE_MAX 1024 /* nodes of a step, at most; of more, nothing is said */

struct gr_layout {
    const char *nodes; /* SLURM_STEP_NODELIST, borrowed of the environment */
    int tasks[GR_LAYOUT_NODE_MAX];
    int n_node;
    bool blocks, cycle; /* the ways in which ranks may be laid out; neither: nothing is certain */
};

/* env: NULL-terminated "NAME=value", as environ. SLURM_STEP_TASKS_PER_NODE says how many ranks each node has, and
 * SLURM_DISTRIBUTION which ones, if srun was told so: in blocks or in a cycle (srun(1), --distribution). Without it
 * both may be, but for what contradicts SLURM_GTIDS, the ranks of this process's own node. Of other distributions, of
 * heterogeneous jobs, and where a variable is missing, nothing is certain. */
void gr_layout_read(char *const *env, struct gr_layout *out);
/* The node of a rank of the step, where all ways that may be agree; false: it is not certain. */
bool gr_layout_node(const struct gr_layout *l, int rank, char *node_out, size_t node_bytes);

#endif
