/* A worker's loop and its life. */
#include "transport/worker/worker_io_internal.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/no_alloc.h"
#include "common/process/children.h"
#include "transport/connect/control.h"
#include "transport/connect/gate.h"
#include "transport/segment.h"
#include "transport/worker/join.h"
#include "transport/worker/rejoin.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define LAST_PASS_NS (5 * GR_S) /* for the pass that runs when a leave's limit has passed */

/* ---- a computation that never ends ---- */

/* It cannot be interrupted, and nothing that it holds can be given back: the process ends at once. */
static void end_stuck(const struct gr_worker_io *w)
{
    log_error("a pass of %" PRIu64
              " rows has run for %.0f s, and %.0f s are allowed (--pass-timeout %.0f s, or 20 times "
              "the longest pass, of %.3f s): it is taken to have hung, and this process ends",
              w->pass.n_row, (double)w->pass.ran_ns / GR_S, (double)gr_pass_watch_allowed_ns(&w->pass) / GR_S,
              (double)w->pass.limit_ns / GR_S, (double)w->pass.longest_ns / GR_S);
    _exit(GR_CHILD_EXIT_AGAIN);
}

/* The worker ends, and a pass may still run. */
static void await_compute(struct gr_worker_io *w)
{
    const uint64_t last_ns = w->failure == GR_ETIMEDOUT ? gr_clock_ns() + LAST_PASS_NS : NEVER;
    while (w->compute_busy && !gr_compute_done(w->compute)) {
        const uint64_t now_ns = gr_clock_ns();
        struct pollfd p = {.fd = gr_compute_fd(w->compute), .events = POLLIN};
        if (now_ns >= last_ns) {
            log_error("the pass that runs has not ended either: this process ends without it");
            _exit(1);
        }
        if (gr_pass_watch_look(&w->pass, now_ns)) {
            end_stuck(w);
        }
        (void)poll(&p, 1, (int)(GR_PASS_LOOK_NS / GR_MS));
    }
    w->compute_busy = false;
}

/* ---- the loop ---- */

static bool pump(struct gr_worker_io *w)
{
    const uint64_t now_ns = gr_clock_ns();
    worker_leave(w, now_ns); /* what the orchestrator asks for next meets a worker that is to end */
    bool progress = worker_receive_msgs(w, now_ns);
    if (w->gate != NULL) {
        gr_gate_accept(w->gate, now_ns);
    }
    progress |= worker_take_arrivals(w, now_ns);
    progress |= worker_settle_handshakes(w, now_ns);
    if (w->compute_busy && gr_compute_done(w->compute)) {
        w->compute_busy = false;
        const uint64_t done_ns = gr_clock_ns();
        gr_pass_watch_end(&w->pass, done_ns);
        gr_no_alloc_begin();
        w->machine.on_compute_done(w->machine.ctx, done_ns);
        gr_no_alloc_end();
        progress = true;
    }
    progress |= worker_watch_orchestrator(w, gr_clock_ns());
    const uint64_t frames_ns = gr_clock_ns(); /* time never runs backwards for the machine */
    if (w->compute_busy && gr_pass_watch_look(&w->pass, frames_ns)) {
        end_stuck(w);
    }
    for (int i = 0; i < GR_PEER_MAX; i++) {
        if (w->peer[i].state == PEER_READY && !w->drained) {
            progress |= worker_receive_frames(w, &w->peer[i], frames_ns);
        }
    }
    return progress;
}

/* True: the queue to the orchestrator has become shorter. */
static bool flush_all(struct gr_worker_io *w)
{
    for (int i = 0; i < GR_PEER_MAX; i++) {
        if (w->peer[i].state == PEER_READY) {
            enum gr_status st = gr_conn_flush(w->peer[i].conn);
            (void)st; /* stuck output shows in poll_fd's events, a dead peer in the next receive */
        }
    }
    const size_t room = gr_worker_io_msg_room(w);
    if (worker_has_link(w) && gr_control_flush(w->control) == GR_ECLOSED) {
        w->control_lost = true;
    }
    return gr_worker_io_msg_room(w) > room;
}

/* Everything is looked at again at once; what only poll() sees, now and then. */
static bool spins_on(struct gr_worker_io *w, uint64_t now_ns)
{
    return now_ns - w->progress_ns < w->config.spin_ns && ++w->n_spin % LOOKS_PER_POLL != 0;
}

/* When its silence is too long, it is to be looked for again, or its sessions are to go. */
static uint64_t orchestrator_due_ns(const struct gr_worker_io *w)
{
    if (w->control == NULL) {
        return w->compute_busy ? UINT64_MAX : GR_MIN(w->search_ns, w->orphan_ns);
    }
    return w->pinged ? w->heard_ns + ORCHESTRATOR_SILENCE : UINT64_MAX;
}

static void sleep_until(struct gr_worker_io *w, uint64_t wake_ns)
{
    struct pollfd fds[GR_PEER_MAX + 4];
    nfds_t n = 0;
    fds[n++] = (struct pollfd){.fd = worker_has_link(w) ? gr_control_fd(w->control) : -1,
                               .events = worker_has_link(w) ? gr_control_events(w->control) : 0};
    fds[n++] = (struct pollfd){.fd = w->wake_fd, .events = POLLIN};
    fds[n++] = (struct pollfd){.fd = gr_compute_fd(w->compute), .events = POLLIN};
    const uint64_t now_ns = gr_clock_ns();
    if (spins_on(w, now_ns) || w->control_lost || w->done) {
        return;
    }
    wake_ns = GR_MIN(GR_MIN(wake_ns, w->leave_end_ns), orchestrator_due_ns(w));
    wake_ns = w->compute_busy ? GR_MIN(wake_ns, gr_pass_watch_due_ns(&w->pass)) : wake_ns;
    wake_ns = now_ns - w->progress_ns < w->config.spin_ns ? now_ns : wake_ns;
    if (w->gate != NULL) {
        fds[n++] = (struct pollfd){.fd = gr_gate_poll_fd(w->gate, now_ns), .events = POLLIN};
        wake_ns = GR_MIN(wake_ns, gr_gate_wake_ns(w->gate, now_ns));
    }
    /* poll_fd() arms the wake-up: from here to ppoll() nothing is received. */
    for (int i = 0; i < GR_PEER_MAX; i++) {
        if (w->peer[i].state == PEER_WAITING) {
            wake_ns = GR_MIN(wake_ns, w->peer[i].retry_ns);
        }
        if (w->peer[i].state == PEER_READY) {
            short events = 0;
            const int fd = gr_conn_poll_fd(w->peer[i].conn, &events);
            if (fd < 0) {
                return; /* frames are waiting */
            }
            fds[n++] = (struct pollfd){.fd = fd, .events = events};
        }
    }
    const struct timespec timeout = gr_clock_timespec(wake_ns > now_ns ? wake_ns - now_ns : 0);
    if (ppoll(fds, n, wake_ns == UINT64_MAX ? NULL : &timeout, NULL) > 0 && (fds[1].revents & POLLIN) != 0) {
        uint64_t count = 0;
        ssize_t got = read(w->wake_fd, &count, sizeof(count));
        (void)got;
    }
}

enum gr_status gr_worker_io_run(struct gr_worker_io *w)
{
    while (!w->drained && !w->refused && !w->done) {
        const bool progress = pump(w);
        gr_no_alloc_begin();
        const uint64_t wake_ns = w->machine.step(w->machine.ctx, gr_clock_ns());
        /* The machine may have found that queue full a moment ago: it looks again, nobody else would tell it. */
        const bool flushed = flush_all(w);
        gr_no_alloc_end();
        if (progress || flushed) {
            w->progress_ns = w->config.spin_ns > 0 ? gr_clock_ns() : 0;
        } else {
            sleep_until(w, wake_ns);
        }
    }
    if (w->failure != GR_OK) {
        return w->failure;
    }
    return w->refused ? GR_EMISMATCH : GR_OK;
}

void gr_worker_io_fail(struct gr_worker_io *w, enum gr_status status)
{
    w->failure = status;
    w->done = true;
}

/* ---- life ---- */

static enum gr_status prepare_search(struct gr_worker_io *w)
{
    struct gr_rejoin_config c = {.address = w->config.join,
                                 .hello = w->config.hello,
                                 .timeout_ms = w->config.handshake_timeout_ms,
                                 .wake_fd = w->wake_fd,
                                 .patience_ns = w->config.rejoin_patience_ns};
    memcpy(c.key, w->config.key, sizeof(c.key));
    return gr_rejoin_create(&c, &w->rejoin);
}

static enum gr_status join_orchestrator(struct gr_worker_io *w)
{
    struct gr_hello peer;
    int fd = -1;
    GR_TRY(gr_join_reach(&w->config, &fd, &peer));
    const enum gr_status st =
        w->config.listen != NULL ? gr_join_open_gate(&w->config, fd, w->wake_fd, &w->gate) : GR_OK;
    if (st != GR_OK) {
        close(fd);
        return st;
    }
    GR_TRY(worker_begin_link(w, fd, &peer, gr_clock_ns()));
    return gr_control_send(w->control, &w->config.join_msg);
}

static enum gr_status init(struct gr_worker_io *w)
{
    struct gr_worker_config *c = &w->config;
    w->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (w->wake_fd < 0) {
        log_error("eventfd: %s", strerror(errno));
        return GR_EIO;
    }
    if (!gr_host_id(c->hello.host_id)) {
        log_warn("no /dev/shm, or no boot id of the kernel: this worker shares no memory with another one, and their "
                 "frames go over another transport");
    }
    (void)gr_segment_sweep();
    randombytes_buf(&c->hello.incarnation, sizeof(c->hello.incarnation));
    c->join_msg.join.incarnation = c->hello.incarnation;
    static_assert(sizeof(c->hello.seat) == GR_SEAT_MAX, "HELLO and JOIN name one seat");
    memcpy(c->hello.seat, c->join_msg.join.seat, sizeof(c->hello.seat));
    GR_TRY(prepare_search(w));
    GR_TRY(gr_compute_create("graft-compute", c->spin_ns, &w->compute));
    if (c->loop_conn != NULL) {
        w->peer[0] = (struct peer){.state = PEER_READY, .id = ++w->next_peer_id, .conn = c->loop_conn};
    }
    return join_orchestrator(w);
}

enum gr_status gr_worker_io_create(const struct gr_worker_config *config, const struct gr_worker_machine *machine,
                                   struct gr_worker_io **out)
{
    struct gr_worker_io *w = calloc(1, sizeof(*w));
    if (w == NULL || sodium_init() < 0) {
        log_error("out of memory, or libsodium cannot start");
        free(w);
        return GR_ENOMEM;
    }
    w->config = *config;
    w->machine = *machine;
    w->wake_fd = -1;
    w->pass.limit_ns = config->pass_limit_ns;
    gr_pass_watch_know(&w->pass, config->pass_rows, config->pass_ns);
    w->leave_limit_ns = w->leave_end_ns = w->orphan_ns = NEVER;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->handshake_done, NULL);
    enum gr_status st = init(w);
    if (st != GR_OK) {
        gr_worker_io_destroy(w);
        return st;
    }
    *out = w;
    return GR_OK;
}

void gr_worker_io_destroy(struct gr_worker_io *w)
{
    if (w == NULL) {
        return;
    }
    await_compute(w);
    gr_compute_destroy(w->compute);
    gr_gate_destroy(w->gate);
    pthread_mutex_lock(&w->lock);
    while (w->n_handshake > 0) { /* bounded by the hand-shake's deadline */
        pthread_cond_wait(&w->handshake_done, &w->lock);
    }
    pthread_mutex_unlock(&w->lock);
    for (int i = 0; i < GR_PEER_MAX; i++) {
        struct peer *p = &w->peer[i];
        gr_conn_close(p->state == PEER_HANDSHAKE ? p->new_conn : p->conn);
    }
    gr_control_destroy(w->control);
    gr_rejoin_destroy(w->rejoin);
    if (w->wake_fd >= 0) {
        close(w->wake_fd);
    }
    pthread_cond_destroy(&w->handshake_done);
    pthread_mutex_destroy(&w->lock);
    free(w);
}
