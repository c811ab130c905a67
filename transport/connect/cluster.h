/* Which job this process is part of: the name that HELLO carries so that workers do not join an orchestrator of another
 * job that holds the same key and has the same port. */
#ifndef GR_TRANSPORT_CONNECT_CLUSTER_H
#define GR_TRANSPORT_CONNECT_CLUSTER_H

#include "transport/connect/bootstrap.h"

#include <stdbool.h>

/* What --cluster says, for this process and its children; NULL: nothing. */
void gr_cluster_use(const char *name);
/* Fills hello's cluster: GRAFT_CLUSTER where it is set (empty: none), else, with by_job, the Slurm job (of a
 * heterogeneous one its first component, so that all of them are one); else empty. GR_EINVAL (logged): GRAFT_CLUSTER
 * is too long or not printable. Steps of a job are one cluster: an orchestrator, workers and clients may be steps of
 * their own. Reads the environment. */
GR_NODISCARD enum gr_status gr_cluster_name(bool by_job, char out[GR_CLUSTER_BYTES]);

#endif
