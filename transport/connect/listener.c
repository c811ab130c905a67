#include "transport/connect/listener.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "transport/connect/bootstrap.h"
#include "transport/net.h"

#include <errno.h>
#include <poll.h>
#include <string.h>

#define PAUSE_NS GR_S

enum gr_status gr_listener_accept(struct gr_listener *l, uint64_t now_ns, int *fd_out)
{
    struct pollfd p = {.fd = gr_listener_poll_fd(l, now_ns), .events = POLLIN};
    if (p.fd < 0 || poll(&p, 1, 0) != 1) {
        return GR_AGAIN;
    }
    const enum gr_status st = gr_tcp_accept(l->fd, fd_out);
    if (st == GR_OK) {
        l->told = false;
    } else if (st != GR_AGAIN) {
        const int err = errno;
        l->until_ns = now_ns + PAUSE_NS;
        if (!l->told) {
            log_error("cannot accept a connection: %s; trying again every second%s", strerror(err),
                      err == EMFILE ? " (`ulimit -n' is the limit of open files)" : "");
        }
        l->told = true;
        return GR_AGAIN;
    }
    return st;
}

int gr_listener_poll_fd(const struct gr_listener *l, uint64_t now_ns)
{
    return now_ns < l->until_ns ? -1 : l->fd;
}

uint64_t gr_listener_wake_ns(const struct gr_listener *l, uint64_t now_ns)
{
    return now_ns < l->until_ns ? l->until_ns : UINT64_MAX;
}
