/* A drafter calls a target: each address that the target has announced, in turn, until one leads to it. Any thread;
 * blocks for as long as patience_ms, which the addresses share. */
#ifndef GR_TRANSPORT_WORKER_CALL_H
#define GR_TRANSPORT_WORKER_CALL_H

#include "transport/connect/bootstrap.h"

#include <stdbool.h>

#define GR_CALL_WHY_BYTES 256

struct gr_call {
    const struct gr_hello *hello; /* of the caller */
    const uint8_t *key;
    const char *address;  /* a list (address.h) */
    uint64_t incarnation; /* of the target; 0: anybody's */
    int forced;           /* enum gr_transport_kind, -1: any */
    uint32_t generation;
    int patience_ms;
};

/* why_out: of the addresses that did not do, one after the other; empty: there was none, or it has been logged. Where
 * several failed, the status is that of one that may do later, if there is one. */
GR_NODISCARD enum gr_status gr_call_target(const struct gr_call *call, struct gr_conn **conn_out,
                                           char why_out[GR_CALL_WHY_BYTES]);

/* What the two say of each other does not change by itself; a link or a device comes back. */
bool gr_call_may_come_back(enum gr_status st);

#endif
