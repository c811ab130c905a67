/* A worker comes to its orchestrator: it finds it, proves who it is, and opens the place where drafters come. What
 * follows when the orchestrator is lost is rejoin.h's. At the start of a worker only. */
#ifndef GR_TRANSPORT_WORKER_JOIN_H
#define GR_TRANSPORT_WORKER_JOIN_H

#include "transport/connect/gate.h"
#include "transport/worker/worker_io.h"

/* Tries for as long as the patience of joining lasts, and passes HELLO: an orchestrator that is killed in the midst of
 * that is no reason to end, so a hand-shake that is broken off is begun anew within that patience. *fd_out is the
 * caller's. GR_ECLOSED: this worker had joined before, and its orchestrator stays away. Logged. */
GR_NODISCARD enum gr_status gr_join_reach(const struct gr_worker_config *c, int *fd_out, struct gr_hello *peer_out);

/* Listens at c->listen and puts into JOIN how others reach that. fd: the socket to the orchestrator, which tells by
 * which address others reach this host. wake_fd: an event counter that arrivals are told by. Errors are logged. */
GR_NODISCARD enum gr_status gr_join_open_gate(struct gr_worker_config *c, int fd, int wake_fd, struct gr_gate **out);

#endif
