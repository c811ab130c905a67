/* Slurm's short forms: "a,b[1,3],c[08-11]x" of nodes and "2(x3),1" of tasks by node. Pure. */
#ifndef GR_ORCHESTRATOR_LAUNCH_NODE_LIST_H
#define GR_ORCHESTRATOR_LAUNCH_NODE_LIST_H

#include "common/base/status.h"

#include <stddef.h>

#define GR_NODE_LIST_MAX 65536 /* nodes that a list may stand for */

/* The name of node `index` of a list, in its order (which is Slurm's). GR_ENOTFOUND: there are fewer; GR_EFORMAT: it is
 * no such list, or one of more than GR_NODE_LIST_MAX nodes; GR_ELIMIT: the name does not fit. Nothing is logged. */
GR_NODISCARD enum gr_status gr_node_list_at(const char *list, int index, char *name_out, size_t name_bytes);
/* Tasks on node `index`; -1: it is no such list, or ends before. */
int gr_tasks_per_node_at(const char *list, int index);

#endif
