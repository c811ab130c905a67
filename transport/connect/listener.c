#include "transport/connect/listener.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "transport/connect/bootstrap.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#define PAUSE_NS GR_S

/* One descriptor that is readable when any of them is. */
static enum gr_status watch_all(struct gr_listener *l)
{
    l->poll_fd = epoll_create1(EPOLL_CLOEXEC);
    bool good = l->poll_fd >= 0;
    for (int i = 0; good && i < l->at.n; i++) {
        struct epoll_event e = {.events = EPOLLIN};
        good = epoll_ctl(l->poll_fd, EPOLL_CTL_ADD, l->at.fd[i], &e) == 0;
    }
    if (good) {
        return GR_OK;
    }
    log_error("cannot watch %d listening sockets: %s", l->at.n, strerror(errno));
    if (l->poll_fd >= 0) {
        close(l->poll_fd);
    }
    return GR_EIO;
}

enum gr_status gr_listener_open(struct gr_listener *l, const struct gr_listening *at)
{
    *l = (struct gr_listener){.at = *at, .poll_fd = at->fd[0]};
    return at->n > 1 ? watch_all(l) : GR_OK;
}

void gr_listener_close(struct gr_listener *l)
{
    if (l->at.n > 1) {
        close(l->poll_fd);
    }
    gr_listening_close(&l->at);
}

/* A socket that somebody is at, or -1. */
static int find_ready(struct gr_listener *l)
{
    for (int i = 0; i < l->at.n; i++) {
        const int k = (l->next + i) % l->at.n;
        struct pollfd p = {.fd = l->at.fd[k], .events = POLLIN};
        if (poll(&p, 1, 0) == 1) {
            l->next = (k + 1) % l->at.n;
            return l->at.fd[k];
        }
    }
    return -1;
}

enum gr_status gr_listener_accept(struct gr_listener *l, uint64_t now_ns, int *fd_out)
{
    const int ready_fd = gr_listener_poll_fd(l, now_ns) >= 0 ? find_ready(l) : -1;
    if (ready_fd < 0) {
        return GR_AGAIN;
    }
    const enum gr_status st = gr_tcp_accept(ready_fd, fd_out);
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
    return now_ns < l->until_ns ? -1 : l->poll_fd;
}

uint64_t gr_listener_wake_ns(const struct gr_listener *l, uint64_t now_ns)
{
    return now_ns < l->until_ns ? l->until_ns : UINT64_MAX;
}
