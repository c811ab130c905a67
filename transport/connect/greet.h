/* Connecting to an orchestrator and proving the key there, again where the other end broke the hand-shake off. These
 * functions wait; any thread. */
#ifndef GR_TRANSPORT_CONNECT_GREET_H
#define GR_TRANSPORT_CONNECT_GREET_H

#include "common/base/status.h"
#include "transport/connect/bootstrap.h"

#include <stddef.h>
#include <stdint.h>

#define GR_GREET_WHY_BYTES 400

/* Who calls, and whom. The pointers are the caller's. */
struct gr_greeting {
    const char *address; /* as gr_tcp_connect() takes it */
    const struct gr_hello *self;
    const uint8_t *key; /* GR_KEY_BYTES */
    int timeout_ms;     /* of one hand-shake, and of a connection where there is no patience */
    int within_ms;      /* a client's attempts all together; 0: its patience and one time-out */
};

/* HELLO on a connection. GR_AGAIN: the other end broke the hand-shake off, nothing is logged, and why says what there
 * was to say. Everything else that fails is logged. fd is closed unless it is GR_OK. */
GR_NODISCARD enum gr_status gr_greet(const struct gr_greeting *g, int fd, char why[GR_GREET_WHY_BYTES],
                                     struct gr_hello *peer_out);

/* A client of the control link: connects and greets. A gate hangs up on who has not proved the key within its limit,
 * and on a busy machine that may be anybody: it is tried again until within_ms are over, or patience_ms and one
 * time-out where that is 0. Who is turned away for another reason hears it much sooner. A hand-shake may take all of
 * within_ms. patience_ms: how long an orchestrator may take to listen; 0: it listens by now. The fd is the caller's. */
GR_NODISCARD enum gr_status gr_greet_as_client(const struct gr_greeting *g, int patience_ms, int *fd_out,
                                               struct gr_hello *peer_out);

#endif
