/* A worker's link to its orchestrator, which may be away, and its leave. */
#include "transport/worker/worker_io_internal.h"

#include "common/base/clock.h"
#include "common/process/joined.h"
#include "common/base/log.h"
#include "transport/connect/control.h"
#include "transport/worker/rejoin.h"

#include <errno.h>
#include <unistd.h>

void worker_wake(struct gr_worker_io *w)
{
    const uint64_t one = 1;
    ssize_t n = write(w->wake_fd, &one, sizeof(one));
    (void)n;
}

/* ---- control and compute ---- */

bool worker_has_link(const struct gr_worker_io *w)
{
    return w->control != NULL && !w->control_lost;
}

void gr_worker_io_send_msg(struct gr_worker_io *w, const struct gr_msg *m)
{
    if (worker_has_link(w) && gr_control_send(w->control, m) != GR_OK) {
        w->control_lost = true;
    }
}

size_t gr_worker_io_msg_room(const struct gr_worker_io *w)
{
    return worker_has_link(w) ? gr_control_room(w->control) : 0;
}

void gr_worker_io_compute(struct gr_worker_io *w, void (*fn)(void *arg), void *arg, int n_row, bool more)
{
    w->compute_busy = true;
    gr_pass_watch_begin(&w->pass, (uint64_t)GR_MAX(n_row, 1), gr_clock_ns());
    gr_compute_post(w->compute, fn, arg, more);
}

static void note_word(struct gr_worker_io *w, const struct gr_msg *m, uint64_t now_ns)
{
    w->heard_ns = now_ns;
    w->pinged = w->pinged || m->type == GR_MSG_PING;
    if (m->type != GR_MSG_ERROR) {
        w->heard = true;
        w->told_away = w->orphaned = false;
        w->orphan_ns = NEVER;
        gr_rejoin_stands(w->rejoin);
        gr_joined_tell();
    }
}

/* The drafters' data connections that begin from now on tell it, and the next JOIN. A target's gate has its own HELLO,
 * in use on other threads, and needs no number: who calls a target looks for its process. */
static void take_number(struct gr_worker_io *w, uint64_t number)
{
    w->config.join_msg.join.number = number;
    if (w->gate == NULL) {
        w->config.hello.number = number;
    }
}

/* Another process works in its place: nothing is left to do. */
static bool is_replaced(const struct gr_msg *m)
{
    return m->type == GR_MSG_ERROR && m->error.code == (uint32_t)-GR_ECANCELED;
}

bool worker_receive_msgs(struct gr_worker_io *w, uint64_t now_ns)
{
    bool progress = false;
    while (worker_has_link(w)) {
        struct gr_msg m;
        const enum gr_status st = gr_control_recv(w->control, &m);
        if (st == GR_AGAIN) {
            return progress;
        }
        progress = true;
        if (st != GR_OK) {
            w->control_lost = true;
            return true;
        }
        note_word(w, &m, now_ns);
        if (m.type == GR_MSG_DRAIN) {
            w->drained = true;
        } else if (m.type == GR_MSG_JOINED) {
            take_number(w, m.joined.number);
        } else if (is_replaced(&m)) {
            log_warn("this worker ends: %s", m.error.text);
            w->drained = true;
        } else if (m.type == GR_MSG_ERROR) { /* the only one that an orchestrator sends: it does not take this worker */
            log_error("the orchestrator at %s refused this worker: %s", w->config.join, m.error.text);
            w->refused = true;
        } else {
            w->machine.on_msg(w->machine.ctx, &m, now_ns);
        }
        gr_msg_finish(&m);
    }
    return progress;
}

/* ---- an orchestrator that is away ---- */

/* Counted from when it was first missed: a link that breaks before a word has come over it is none. */
static void expect_orphans(struct gr_worker_io *w, uint64_t now_ns)
{
    if (w->config.orphan_ttl_ns > 0 && w->orphan_ns == NEVER && !w->orphaned) {
        w->orphan_ns = now_ns + w->config.orphan_ttl_ns;
    }
}

/* No job is in flight. */
static void let_orphans_go(struct gr_worker_io *w, uint64_t now_ns)
{
    if (now_ns < w->orphan_ns) {
        return;
    }
    const uint32_t n = w->machine.on_orphaned != NULL ? w->machine.on_orphaned(w->machine.ctx) : 0;
    w->orphaned = true;
    w->orphan_ns = NEVER;
    if (n > 0) {
        log_warn("the orchestrator at %s has been away for %llu s (--orphan-ttl): %u sessions are forgotten, their KV "
                 "is free",
                 w->config.join, (unsigned long long)(w->config.orphan_ttl_ns / GR_S), n);
    }
}

/* The link has broken, or nothing comes over it any more. */
static void lose_orchestrator(struct gr_worker_io *w, uint64_t now_ns)
{
    gr_control_destroy(w->control);
    w->control = NULL;
    w->control_lost = false;
    if (w->leave_end_ns != NEVER) { /* its turns were that one's */
        w->done = true;
        return;
    }
    if (!w->told_away) { /* once an outage */
        w->told_away = true;
        log_warn("the orchestrator at %s is away; sessions are kept, and it is tried again%s", w->config.join,
                 w->config.rejoin_patience_ns == UINT64_MAX ? "" : " for as long as --rejoin-timeout says");
    }
    expect_orphans(w, now_ns);
    gr_rejoin_begin(w->rejoin, now_ns);
    w->search_ns = now_ns;
    if (w->machine.on_orchestrator_lost != NULL) {
        w->machine.on_orchestrator_lost(w->machine.ctx, now_ns);
    }
}

static bool is_silent(const struct gr_worker_io *w, uint64_t now_ns)
{
    return w->pinged && now_ns - w->heard_ns >= ORCHESTRATOR_SILENCE;
}

enum gr_status worker_begin_link(struct gr_worker_io *w, int fd, struct gr_hello *peer, uint64_t now_ns)
{
    const enum gr_status st = gr_control_create(fd, &peer->keys, &w->control);
    if (st != GR_OK) {
        close(fd);
        return st;
    }
    w->orchestrator = peer->incarnation;
    w->heard = w->pinged = w->leave_sent = false;
    w->heard_ns = now_ns;
    return GR_OK;
}

static void join_again(struct gr_worker_io *w, int fd, struct gr_hello *peer, uint64_t now_ns)
{
    const bool changed = peer->incarnation != w->orchestrator;
    if (changed && w->machine.on_orchestrator_changed != NULL) {
        w->machine.on_orchestrator_changed(w->machine.ctx, now_ns);
    }
    log_warn("joining the orchestrator at %s again%s", w->config.join,
             changed ? ": it has been started anew, and says which sessions go on" : "");
    if (worker_begin_link(w, fd, peer, now_ns) != GR_OK || gr_control_send(w->control, &w->config.join_msg) != GR_OK) {
        w->control_lost = true;
    }
}

/* No job is in flight: a session that a loss has ended in its pass is idle by now, and may be opened again. */
static bool search(struct gr_worker_io *w, uint64_t now_ns)
{
    struct gr_hello peer;
    int fd = -1;
    if (w->control != NULL || w->compute_busy || w->done) {
        return false;
    }
    let_orphans_go(w, now_ns);
    const enum gr_status st = gr_rejoin_step(w->rejoin, now_ns, &fd, &peer, &w->search_ns);
    if (st == GR_OK) {
        join_again(w, fd, &peer, now_ns);
    } else if (st != GR_AGAIN) {
        w->failure = GR_ECLOSED;
        w->done = true;
    }
    return st != GR_AGAIN;
}

bool worker_watch_orchestrator(struct gr_worker_io *w, uint64_t now_ns)
{
    if (w->control != NULL && is_silent(w, now_ns)) {
        w->control_lost = true;
    }
    if (w->control_lost && !w->drained && !w->refused) {
        lose_orchestrator(w, now_ns);
    }
    return search(w, now_ns);
}

/* ---- leaving ---- */

/* Asks to be let go; who was never heard of, or has nobody to ask, owes nothing. */
static void ask_to_leave(struct gr_worker_io *w, uint64_t now_ns)
{
    if (!w->heard) {
        (void)worker_receive_msgs(w, now_ns); /* its first word may have come */
    }
    if (!worker_has_link(w) || !w->heard) {
        w->done = true;
    } else if (!w->leave_sent) {
        w->leave_sent = true;
        gr_worker_io_send_msg(w, &(struct gr_msg){.type = GR_MSG_DRAIN});
        if (w->machine.on_leave != NULL) {
            w->machine.on_leave(w->machine.ctx);
        }
    }
}

void worker_leave(struct gr_worker_io *w, uint64_t now_ns)
{
    if (__atomic_load_n(&w->leave_limit_ns, __ATOMIC_ACQUIRE) != NEVER) {
        const uint64_t limit_ns = __atomic_exchange_n(&w->leave_limit_ns, NEVER, __ATOMIC_ACQ_REL);
        const uint64_t end_ns = limit_ns == NO_LIMIT ? NO_LIMIT : now_ns + limit_ns;
        w->leave_end_ns = GR_MIN(w->leave_end_ns, end_ns);
        ask_to_leave(w, now_ns);
    }
    if (now_ns >= w->leave_end_ns && !w->done) {
        log_error("the turns of this worker have not ended in time (--drain-timeout): it ends without them");
        w->failure = GR_ETIMEDOUT;
        w->done = true;
    }
}

void gr_worker_io_leave(struct gr_worker_io *w, uint64_t limit_ns)
{
    limit_ns = GR_MIN(limit_ns, NO_LIMIT);
    uint64_t before = __atomic_load_n(&w->leave_limit_ns, __ATOMIC_ACQUIRE);
    while (limit_ns < before && !__atomic_compare_exchange_n(&w->leave_limit_ns, &before, limit_ns, false,
                                                             __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
    }
    worker_wake(w);
}
