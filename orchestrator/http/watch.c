#include "orchestrator/http/watch.h"

#include "common/base/log.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define FD_MAX 65536 /* descriptors that can be watched are below */
#define EVENTS 64

/* An event may come when its connection has been closed and its descriptor is another connection's: each watch has a
 * number, which its events bear. */
struct place {
    void *who; /* NULL: not watched */
    uint32_t number;
};

struct gr_watch {
    struct gr_watch_calls calls;
    struct gr_watch_other other;
    int epoll, end_fd;
    pthread_t thread;
    pthread_mutex_t lock;       /* of place */
    struct place place[FD_MAX]; /* by descriptor */
};

static uint64_t name_of(int fd, uint32_t number)
{
    return (uint64_t)number << 32 | (uint32_t)fd;
}

static void look(struct gr_watch *w, const struct epoll_event *event)
{
    const int fd = (int)(uint32_t)event->data.u64;
    pthread_mutex_lock(&w->lock);
    void *who = name_of(fd, w->place[fd].number) == event->data.u64 ? w->place[fd].who : NULL;
    if (who != NULL && (event->events & (EPOLLERR | EPOLLHUP)) != 0) {
        w->calls.gone(who);
    } else if (who != NULL) {
        struct epoll_event only_errors = {.data.u64 = event->data.u64};
        (void)epoll_ctl(w->epoll, EPOLL_CTL_MOD, fd, &only_errors);
        w->calls.probe(who);
    }
    pthread_mutex_unlock(&w->lock);
}

static void *run(void *arg)
{
    struct gr_watch *w = arg;
    struct epoll_event event[EVENTS];
    for (;;) {
        const int n = epoll_wait(w->epoll, event, EVENTS, -1);
        for (int i = 0; i < n; i++) {
            if (event[i].data.u64 == name_of(w->end_fd, 0)) {
                return NULL;
            }
            if (event[i].data.u64 == name_of(w->other.fd, 0)) {
                w->other.ready(w->other.ctx);
                continue;
            }
            look(w, &event[i]);
        }
    }
}

static enum gr_status start(struct gr_watch *w)
{
    struct epoll_event end = {.events = EPOLLIN}, other = {.events = EPOLLIN, .data.u64 = name_of(w->other.fd, 0)};
    w->epoll = epoll_create1(EPOLL_CLOEXEC);
    w->end_fd = eventfd(0, EFD_CLOEXEC);
    end.data.u64 = name_of(w->end_fd, 0);
    if (w->epoll < 0 || w->end_fd < 0 || epoll_ctl(w->epoll, EPOLL_CTL_ADD, w->end_fd, &end) != 0 ||
        epoll_ctl(w->epoll, EPOLL_CTL_ADD, w->other.fd, &other) != 0 || pthread_create(&w->thread, NULL, run, w) != 0) {
        log_error("no thread or descriptor could be had to watch the endpoint's connections");
        return GR_ELIMIT;
    }
    return GR_OK;
}

enum gr_status gr_watch_create(const struct gr_watch_calls *calls, const struct gr_watch_other *other,
                               struct gr_watch **out)
{
    struct gr_watch *w = calloc(1, sizeof(*w));
    if (w == NULL) {
        log_error("out of memory for the endpoint");
        return GR_ENOMEM;
    }
    w->calls = *calls;
    w->other = *other;
    pthread_mutex_init(&w->lock, NULL);
    const enum gr_status st = start(w);
    if (st != GR_OK) {
        close(w->epoll);
        close(w->end_fd);
        free(w);
        return st;
    }
    *out = w;
    return GR_OK;
}

void gr_watch_destroy(struct gr_watch *w)
{
    const uint64_t one = 1;
    if (w == NULL) {
        return;
    }
    const ssize_t n = write(w->end_fd, &one, sizeof(one));
    GR_ASSERT(n == (ssize_t)sizeof(one));
    pthread_join(w->thread, NULL);
    close(w->epoll);
    close(w->end_fd);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

enum gr_status gr_watch_add(struct gr_watch *w, int fd, void *who)
{
    struct epoll_event e = {.events = EPOLLRDHUP};
    if (fd < 0 || fd >= FD_MAX) {
        return GR_ELIMIT;
    }
    pthread_mutex_lock(&w->lock);
    struct place *place = &w->place[fd];
    place->who = who;
    e.data.u64 = name_of(fd, ++place->number);
    const bool added = epoll_ctl(w->epoll, EPOLL_CTL_ADD, fd, &e) == 0;
    if (!added) {
        place->who = NULL;
    }
    pthread_mutex_unlock(&w->lock);
    return added ? GR_OK : GR_ELIMIT;
}

void gr_watch_remove(struct gr_watch *w, int fd)
{
    pthread_mutex_lock(&w->lock);
    if (fd >= 0 && fd < FD_MAX && w->place[fd].who != NULL) {
        w->place[fd].who = NULL;
        (void)epoll_ctl(w->epoll, EPOLL_CTL_DEL, fd, NULL);
    }
    pthread_mutex_unlock(&w->lock);
}
