/* A listening socket in an I/O loop: who comes is accepted one by one. When the process or the host has no descriptor
 * or memory left for one more, the loop must not spin on a socket that stays readable: accepting pauses for a second,
 * which is said once. Who comes meanwhile waits in the kernel's queue. One thread. */
#ifndef GR_TRANSPORT_CONNECT_LISTENER_H
#define GR_TRANSPORT_CONNECT_LISTENER_H

#include "common/base/status.h"

#include <stdbool.h>
#include <stdint.h>

struct gr_listener {
    int fd;            /* the caller's; -1: there is none */
    uint64_t until_ns; /* nobody is accepted before this time */
    bool told;         /* the pause has been told; false again once somebody is accepted */
};

/* GR_AGAIN: nobody is there, or it pauses. */
GR_NODISCARD enum gr_status gr_listener_accept(struct gr_listener *l, uint64_t now_ns, int *fd_out);
/* What to poll for input; -1, which poll ignores, while it pauses. */
int gr_listener_poll_fd(const struct gr_listener *l, uint64_t now_ns);
/* When a pause ends, to be looked at again; UINT64_MAX: it does not pause. */
uint64_t gr_listener_wake_ns(const struct gr_listener *l, uint64_t now_ns);

#endif
