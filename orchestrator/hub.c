#include "orchestrator/hub.h"

#include "common/clock.h"
#include "common/log.h"
#include "transport/control.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define HELLO_TIMEOUT_MS 10000

struct worker_link {
    struct gr_control *control; /* NULL: slot is free */
    bool joined;
    enum gr_worker_role role;
};

/* A socket whose HELLO a thread has finished. */
struct arrival {
    int fd;
    uint32_t role;
};

struct gr_hub {
    struct gr_hub_config config;
    struct gr_hello hello;
    struct gr_orch *orch;
    int listen_fd, wake_fd;
    char address[64];
    struct worker_link link[GR_ORCH_WORKER_MAX];
    pthread_mutex_t lock; /* of the three below */
    pthread_cond_t hello_done;
    struct arrival arrival[GR_ORCH_WORKER_MAX];
    int n_arrival, n_hello;
};

struct hello_job {
    struct gr_hub *hub;
    int fd;
};

static void *run_hello(void *arg)
{
    struct hello_job *j = arg;
    struct gr_hub *h = j->hub;
    struct gr_hello peer;
    const enum gr_status st = gr_hello_exchange(j->fd, &h->hello, h->config.key, HELLO_TIMEOUT_MS, &peer);
    const uint64_t one = 1;
    pthread_mutex_lock(&h->lock);
    if (st == GR_OK && h->n_arrival < GR_ORCH_WORKER_MAX) {
        h->arrival[h->n_arrival++] = (struct arrival){.fd = j->fd, .role = peer.role};
    } else {
        close(j->fd);
    }
    h->n_hello--;
    ssize_t n = write(h->wake_fd, &one, sizeof(one));
    (void)n;
    pthread_cond_broadcast(&h->hello_done);
    pthread_mutex_unlock(&h->lock);
    free(j);
    return NULL;
}

static void accept_workers(struct gr_hub *h)
{
    for (;;) {
        int fd = -1;
        struct pollfd p = {.fd = h->listen_fd, .events = POLLIN};
        if (poll(&p, 1, 0) != 1 || gr_tcp_accept(h->listen_fd, &fd) != GR_OK) {
            return;
        }
        struct hello_job *j = malloc(sizeof(*j));
        pthread_t thread;
        pthread_mutex_lock(&h->lock);
        const bool full = h->n_hello >= GR_ORCH_WORKER_MAX || j == NULL;
        h->n_hello += !full;
        pthread_mutex_unlock(&h->lock);
        if (full) {
            log_error("a worker was turned away: %d hand-shakes are under way", GR_ORCH_WORKER_MAX);
            free(j);
            close(fd);
            return;
        }
        *j = (struct hello_job){.hub = h, .fd = fd};
        if (pthread_create(&thread, NULL, run_hello, j) != 0) {
            log_error("cannot start a hand-shake thread");
            pthread_mutex_lock(&h->lock);
            h->n_hello--;
            pthread_mutex_unlock(&h->lock);
            free(j);
            close(fd);
            return;
        }
        pthread_detach(thread);
    }
}

/* Sockets with a finished HELLO become links; the worker's JOIN follows on them. */
static void take_arrivals(struct gr_hub *h)
{
    pthread_mutex_lock(&h->lock);
    for (int i = 0; i < h->n_arrival; i++) {
        struct worker_link *free_link = NULL;
        for (int k = 0; free_link == NULL && k < GR_ORCH_WORKER_MAX; k++) {
            free_link = h->link[k].control == NULL ? &h->link[k] : NULL;
        }
        if (free_link == NULL || gr_control_create(h->arrival[i].fd, &free_link->control) != GR_OK) {
            log_error("a worker was turned away: %d workers are connected", GR_ORCH_WORKER_MAX);
            close(h->arrival[i].fd);
            continue;
        }
        free_link->joined = false;
        free_link->role = h->arrival[i].role == GR_ROLE_TARGET ? GR_WORKER_TARGET : GR_WORKER_DRAFT;
    }
    h->n_arrival = 0;
    pthread_mutex_unlock(&h->lock);
}

static void lose(struct gr_hub *h, uint32_t worker)
{
    struct worker_link *l = &h->link[worker];
    const bool joined = l->joined;
    gr_control_destroy(l->control);
    l->control = NULL;
    l->joined = false;
    if (joined) {
        log_info("a %s worker is gone", l->role == GR_WORKER_TARGET ? "target" : "draft");
        gr_orch_on_lost(h->orch, worker, gr_clock_ns());
        if (h->config.on_lost != NULL) {
            h->config.on_lost(h->config.io.ctx, l->role);
        }
    }
}

static enum gr_status on_msg(struct gr_hub *h, uint32_t worker, const struct gr_msg *m)
{
    struct worker_link *l = &h->link[worker];
    if (m->type != GR_MSG_JOIN) {
        return l->joined ? gr_orch_on_msg(h->orch, worker, m, gr_clock_ns()) : GR_EPROTO;
    }
    if (l->joined) {
        log_error("worker %u sent JOIN twice", worker);
        return GR_EPROTO;
    }
    l->joined = true;
    if (h->config.on_join != NULL) {
        h->config.on_join(h->config.io.ctx, m);
    }
    return gr_orch_on_join(h->orch, worker, l->role, m->address, gr_clock_ns());
}

static bool receive(struct gr_hub *h, uint32_t worker)
{
    bool progress = false;
    for (;;) {
        struct gr_msg m;
        enum gr_status st = gr_control_recv(h->link[worker].control, &m);
        if (st == GR_AGAIN) {
            return progress;
        }
        progress = true;
        if (st == GR_OK) {
            st = on_msg(h, worker, &m);
            gr_msg_finish(&m);
        }
        if (st != GR_OK) {
            lose(h, worker);
            return true;
        }
    }
}

static void send_to(void *ctx, uint32_t worker, const struct gr_msg *m)
{
    struct gr_hub *h = ctx;
    struct worker_link *l = &h->link[worker];
    if (l->control != NULL) {
        /* A full or dead link shows at the next receive; the machine hears of it as a lost worker. */
        enum gr_status st = gr_control_send(l->control, m);
        (void)st;
    }
}

/* The machine's callbacks carry the client's ctx, but send needs the hub: a trampoline for each. */
static void fwd_progress(void *ctx, uint64_t session, void *user, uint32_t n)
{
    const struct gr_hub *h = ctx;
    if (h->config.io.on_progress != NULL) {
        h->config.io.on_progress(h->config.io.ctx, session, user, n);
    }
}
static void fwd_tokens(void *ctx, uint64_t session, void *user, const int32_t *id, uint32_t n)
{
    const struct gr_hub *h = ctx;
    h->config.io.on_tokens(h->config.io.ctx, session, user, id, n);
}
static void fwd_trace(void *ctx, uint64_t session, void *user, const struct gr_trace_round *r)
{
    const struct gr_hub *h = ctx;
    if (h->config.io.on_trace != NULL) {
        h->config.io.on_trace(h->config.io.ctx, session, user, r);
    }
}
static void fwd_done(void *ctx, uint64_t session, void *user, enum gr_finish finish, const char *text)
{
    const struct gr_hub *h = ctx;
    h->config.io.on_done(h->config.io.ctx, session, user, finish, text);
}

enum gr_status gr_hub_create(const struct gr_hub_config *config, struct gr_hub **out)
{
    struct gr_hub *h = calloc(1, sizeof(*h));
    if (h == NULL) {
        log_error("out of memory");
        return GR_ENOMEM;
    }
    h->config = *config;
    h->listen_fd = -1;
    h->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    pthread_mutex_init(&h->lock, NULL);
    pthread_cond_init(&h->hello_done, NULL);
    h->hello = (struct gr_hello){.version = GR_PROTOCOL_VERSION, .role = GR_ROLE_ORCHESTRATOR,
                                 .incarnation = gr_clock_ns(),
                                 .limits = {.small_bytes_max = 65536, .n_small_slot = 2}};
    gr_host_id(h->hello.host_id);
    const struct gr_orch_io io = {.ctx = h, .send = send_to, .on_progress = fwd_progress, .on_tokens = fwd_tokens,
                                  .on_trace = fwd_trace, .on_done = fwd_done};
    enum gr_status st = gr_orch_create(&io, &h->orch);
    if (st == GR_OK) {
        st = gr_tcp_listen(config->listen, &h->listen_fd, h->address);
    }
    if (st != GR_OK) {
        gr_hub_destroy(h);
        return st;
    }
    *out = h;
    return GR_OK;
}

void gr_hub_destroy(struct gr_hub *h)
{
    if (h == NULL) {
        return;
    }
    pthread_mutex_lock(&h->lock);
    while (h->n_hello > 0) { /* bounded by the hand-shake's deadline */
        pthread_cond_wait(&h->hello_done, &h->lock);
    }
    for (int i = 0; i < h->n_arrival; i++) {
        close(h->arrival[i].fd);
    }
    pthread_mutex_unlock(&h->lock);
    for (int i = 0; i < GR_ORCH_WORKER_MAX; i++) {
        gr_control_destroy(h->link[i].control);
    }
    if (h->listen_fd >= 0) {
        close(h->listen_fd);
    }
    if (h->wake_fd >= 0) {
        close(h->wake_fd);
    }
    gr_orch_destroy(h->orch);
    pthread_cond_destroy(&h->hello_done);
    pthread_mutex_destroy(&h->lock);
    free(h);
}

const char *gr_hub_address(const struct gr_hub *h)
{
    return h->address;
}

struct gr_orch *gr_hub_orch(struct gr_hub *h)
{
    return h->orch;
}

static bool handle_all(struct gr_hub *h)
{
    bool progress = false;
    accept_workers(h);
    take_arrivals(h);
    for (uint32_t i = 0; i < GR_ORCH_WORKER_MAX; i++) {
        if (h->link[i].control != NULL) {
            progress |= receive(h, i);
        }
    }
    for (uint32_t i = 0; i < GR_ORCH_WORKER_MAX; i++) {
        if (h->link[i].control != NULL && gr_control_flush(h->link[i].control) == GR_ECLOSED) {
            lose(h, i);
            progress = true;
        }
    }
    return progress;
}

void gr_hub_pump(struct gr_hub *h, int timeout_ms, int extra_fd)
{
    if (handle_all(h)) {
        return;
    }
    struct pollfd fds[GR_ORCH_WORKER_MAX + 3];
    nfds_t n = 0;
    fds[n++] = (struct pollfd){.fd = h->wake_fd, .events = POLLIN};
    fds[n++] = (struct pollfd){.fd = h->listen_fd, .events = POLLIN};
    if (extra_fd >= 0) {
        fds[n++] = (struct pollfd){.fd = extra_fd, .events = POLLIN};
    }
    for (int i = 0; i < GR_ORCH_WORKER_MAX; i++) {
        struct gr_control *c = h->link[i].control;
        if (c != NULL) {
            fds[n++] = (struct pollfd){.fd = gr_control_fd(c), .events = gr_control_events(c)};
        }
    }
    if (poll(fds, n, timeout_ms) > 0 && (fds[0].revents & POLLIN) != 0) {
        uint64_t count = 0;
        ssize_t got = read(h->wake_fd, &count, sizeof(count));
        (void)got;
    }
}

void gr_hub_drain(struct gr_hub *h)
{
    const struct gr_msg m = {.type = GR_MSG_DRAIN};
    for (uint32_t i = 0; i < GR_ORCH_WORKER_MAX; i++) {
        if (h->link[i].control != NULL && h->link[i].joined) {
            send_to(h, i, &m);
            enum gr_status st = gr_control_flush(h->link[i].control);
            (void)st;
        }
    }
}
