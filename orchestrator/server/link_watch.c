#include "orchestrator/server/link_watch.h"

#include "common/base/log.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#define N_EVENT 64 /* that are taken at a time; the others stay */

enum gr_status gr_link_watch_create(struct gr_link_watch *w, uint32_t n)
{
    w->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (w->epoll_fd < 0) {
        log_error("epoll_create1: %s", strerror(errno));
        return GR_EIO;
    }
    w->waits = calloc(n, sizeof(*w->waits));
    if (!gr_place_set_create(&w->to_read, n) || !gr_place_set_create(&w->to_send, n) || w->waits == NULL) {
        log_error("out of memory for %u links", n);
        return GR_ENOMEM;
    }
    return GR_OK;
}

void gr_link_watch_destroy(struct gr_link_watch *w)
{
    gr_place_set_destroy(&w->to_read);
    gr_place_set_destroy(&w->to_send);
    free(w->waits);
    w->waits = NULL;
    if (w->epoll_fd >= 0) {
        close(w->epoll_fd);
    }
}

static int tell_kernel(const struct gr_link_watch *w, int what, uint32_t number, const struct gr_control *c)
{
    struct epoll_event e = {.events = EPOLLIN | (w->waits[number] ? EPOLLOUT : 0u), .data.u32 = number};
    return epoll_ctl(w->epoll_fd, what, gr_control_fd(c), &e);
}

enum gr_status gr_link_watch_add(struct gr_link_watch *w, uint32_t number, const struct gr_control *c)
{
    w->waits[number] = false;
    if (tell_kernel(w, EPOLL_CTL_ADD, number, c) != 0) {
        log_error("epoll_ctl: %s", strerror(errno));
        return GR_EIO;
    }
    gr_place_set_put(&w->to_read, number, true);
    return GR_OK;
}

/* A child that is being started may have the socket as well for a moment: closing alone would not end the watch. */
void gr_link_watch_remove(struct gr_link_watch *w, uint32_t number, const struct gr_control *c)
{
    (void)tell_kernel(w, EPOLL_CTL_DEL, number, c);
    gr_place_set_put(&w->to_read, number, false);
    gr_place_set_put(&w->to_send, number, false);
}

void gr_link_watch_read(struct gr_link_watch *w, uint32_t number, bool again)
{
    gr_place_set_put(&w->to_read, number, again);
}

void gr_link_watch_queued(struct gr_link_watch *w, uint32_t number)
{
    gr_place_set_put(&w->to_send, number, true);
}

void gr_link_watch_flushed(struct gr_link_watch *w, uint32_t number, const struct gr_control *c)
{
    const bool waits = (gr_control_events(c) & POLLOUT) != 0;
    gr_place_set_put(&w->to_send, number, false);
    if (waits != w->waits[number]) {
        w->waits[number] = waits;
        (void)tell_kernel(w, EPOLL_CTL_MOD, number, c); /* it is there, and stays */
    }
}

void gr_link_watch_look(struct gr_link_watch *w)
{
    struct epoll_event e[N_EVENT];
    const int n = epoll_wait(w->epoll_fd, e, N_EVENT, 0);
    for (int i = 0; i < n; i++) {
        if ((e[i].events & EPOLLOUT) != 0) {
            gr_place_set_put(&w->to_send, e[i].data.u32, true);
        }
        if ((e[i].events & ~(uint32_t)EPOLLOUT) != 0) {
            gr_place_set_put(&w->to_read, e[i].data.u32, true);
        }
    }
}
