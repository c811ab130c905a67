/* The search for an orchestrator that a worker has lost: one attempt at a time, each on a short-lived thread, with
 * pauses in between, so that the worker's loop never waits. */
#ifndef GR_TRANSPORT_WORKER_REJOIN_H
#define GR_TRANSPORT_WORKER_REJOIN_H

#include "transport/connect/bootstrap.h"

struct gr_rejoin_config {
    const char *address;   /* the orchestrator's; lives as long as the process */
    struct gr_hello hello; /* of this worker */
    uint8_t key[GR_KEY_BYTES];
    int timeout_ms;       /* of one attempt's connection, and of its hand-shake */
    int wake_fd;          /* an event counter that an attempt's end is told by */
    uint64_t patience_ns; /* how long the search goes on; UINT64_MAX: for ever */
};

struct gr_rejoin;

GR_NODISCARD enum gr_status gr_rejoin_create(const struct gr_rejoin_config *config, struct gr_rejoin **out);
/* Waits for nothing: an attempt that is under way ends by itself and is dropped. NULL: nothing. */
void gr_rejoin_destroy(struct gr_rejoin *r);
/* The orchestrator has just been lost. The pauses go on where they were until gr_rejoin_stands(). */
void gr_rejoin_begin(struct gr_rejoin *r, uint64_t now_ns);
/* The link is a good one: the next search begins with short pauses. */
void gr_rejoin_stands(struct gr_rejoin *r);
/* After gr_rejoin_begin(). GR_OK: fd, which is the caller's, and who is there; the search is over. GR_AGAIN: not yet;
 * *wake_ns: when to ask again unless wake_fd tells. GR_ETIMEDOUT: the patience is over (logged). */
GR_NODISCARD enum gr_status gr_rejoin_step(struct gr_rejoin *r, uint64_t now_ns, int *fd_out, struct gr_hello *peer_out,
                                           uint64_t *wake_ns);

#endif
