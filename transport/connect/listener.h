/* Listening sockets in an I/O loop: who comes to any of them is accepted one by one. When the process or the host has
 * no descriptor or memory left for one more, the loop must not spin on a socket that stays readable: accepting pauses
 * for a second, which is said once. Who comes meanwhile waits in the kernel's queue. One thread. */
#ifndef GR_TRANSPORT_CONNECT_LISTENER_H
#define GR_TRANSPORT_CONNECT_LISTENER_H

#include "common/base/status.h"
#include "transport/net.h"

#include <stdbool.h>
#include <stdint.h>

struct gr_listener {
    struct gr_listening at;
    int poll_fd;       /* readable when somebody is at one of them: the only one, or an epoll instance of all */
    int next;          /* the one that is looked at first, so that none is starved by another */
    uint64_t until_ns; /* nobody is accepted before this time */
    bool told;         /* the pause has been told; false again once somebody is accepted */
};

/* Takes the sockets on success. GR_EIO (logged): the system has no descriptor to give. */
GR_NODISCARD enum gr_status gr_listener_open(struct gr_listener *l, const struct gr_listening *at);
void gr_listener_close(struct gr_listener *l);
/* GR_AGAIN: nobody is there, or it pauses. */
GR_NODISCARD enum gr_status gr_listener_accept(struct gr_listener *l, uint64_t now_ns, int *fd_out);
/* What to poll for input; -1, which poll ignores, while it pauses. */
int gr_listener_poll_fd(const struct gr_listener *l, uint64_t now_ns);
/* When a pause ends, to be looked at again; UINT64_MAX: it does not pause. */
uint64_t gr_listener_wake_ns(const struct gr_listener *l, uint64_t now_ns);

#endif
