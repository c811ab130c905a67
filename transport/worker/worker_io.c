#include "transport/worker/worker_io.h"

#include "common/base/clock.h"
#include "common/process/joined.h"
#include "common/base/log.h"
#include "common/base/no_alloc.h"
#include "transport/connect/control.h"
#include "transport/connect/gate.h"
#include "transport/segment.h"
#include "transport/worker/call.h"
#include "transport/worker/join.h"
#include "transport/worker/rejoin.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define NEVER UINT64_MAX
#define NO_LIMIT (UINT64_MAX - 1)
#define LOOKS_PER_POLL 64u /* looks at the connections between two system calls, while it spins */
/* A connection that stood before is tried again: at once, then after 50 ms, 100 ms ... 2 s, each drawn from its upper
 * half, so that drafters that lost one target do not come back in step. */
#define RETRY_MS_MIN 50u
#define RETRY_MS_MAX 2000u
#define RETRY_PATIENCE (60 * GR_S) /* then the peer is given up */
/* An orchestrator that pings and then is silent for so long is lost: twice what it waits for a worker itself, so that
 * of a link that is down it is the first to say so. */
#define ORCHESTRATOR_SILENCE (10 * GR_S)

enum peer_state { PEER_FREE, PEER_HANDSHAKE, PEER_WAITING, PEER_READY }; /* the I/O loop's alone */
enum outcome { OUTCOME_NONE, OUTCOME_OPEN, OUTCOME_FAILED };

/* A data connection. */
struct peer {
    enum peer_state state;
    uint32_t id;
    struct gr_conn *conn;
    enum outcome outcome; /* written by the hand-shake thread, with new_conn and failure, under the lock */
    struct gr_conn *new_conn;
    enum gr_status failure;
    char why[GR_CALL_WHY_BYTES];   /* with failure: why nobody was reached; empty: that has been logged */
    char address[GR_MSG_TEXT_MAX]; /* a list; empty: it came to us */
    uint64_t incarnation;          /* of whom it leads to; 0: any */
    int forced;
    uint32_t n_retry;
    uint64_t retry_ns, give_up_ns; /* PEER_WAITING */
    bool announce;                 /* on_peer_ready is owed */
    struct gr_frame out;
    bool out_open;
};

struct gr_worker_io {
    struct gr_worker_config config;
    struct gr_worker_machine machine;
    struct gr_control *control; /* NULL: the orchestrator is away, and searched for */
    struct gr_rejoin *rejoin;
    const uint8_t *came_body; /* of the frame that on_frame is given */
    uint64_t orchestrator;    /* its incarnation */
    uint64_t heard_ns;        /* when it said something last */
    bool heard, pinged;       /* on this link */
    bool told_away;           /* since it said something last */
    uint64_t search_ns;       /* when to look again for one that is away */
    uint64_t leave_limit_ns;  /* a signal handler's; NEVER: none asked */
    uint64_t leave_end_ns;    /* from when the loop heard of it; NEVER: it may stay */
    bool leave_sent;
    struct gr_compute *compute;
    uint64_t progress_ns; /* when something happened last; with config.spin_ns */
    unsigned n_spin;
    struct gr_gate *gate; /* NULL: nobody comes to us */
    int wake_fd;
    struct peer peer[GR_PEER_MAX];
    uint32_t next_peer_id;
    char known[GR_PEER_MAX][GR_MSG_TEXT_MAX]; /* addresses that a connection has stood to, the latest ones */
    uint32_t n_known;
    char told[GR_PEER_MAX][GR_MSG_TEXT_MAX]; /* addresses whose failure has been told; empty: free */
    uint32_t n_told;
    bool drained, control_lost, refused, compute_busy, done;
    enum gr_status failure;
    pthread_mutex_t lock; /* of what the hand-shake threads hand over */
    int n_handshake;      /* threads alive, under the lock */
    pthread_cond_t handshake_done;
};

static void wake(struct gr_worker_io *w)
{
    const uint64_t one = 1;
    ssize_t n = write(w->wake_fd, &one, sizeof(one));
    (void)n;
}

/* ---- hand-shakes that begin here ---- */

struct handshake {
    struct gr_worker_io *w;
    int slot;
    char address[GR_MSG_TEXT_MAX];
    uint64_t incarnation;
    int forced;
    uint32_t generation;
};

static void *run_handshake(void *arg)
{
    struct handshake *h = arg;
    struct gr_worker_io *w = h->w;
    struct gr_conn *conn = NULL;
    char why[GR_CALL_WHY_BYTES];
    const enum gr_status st = gr_call_target(&(struct gr_call){.hello = &w->config.hello,
                                                               .key = w->config.key,
                                                               .address = h->address,
                                                               .incarnation = h->incarnation,
                                                               .forced = h->forced,
                                                               .generation = h->generation,
                                                               .patience_ms = w->config.handshake_timeout_ms},
                                             &conn, why);
    pthread_mutex_lock(&w->lock);
    struct peer *p = &w->peer[h->slot];
    p->new_conn = conn;
    p->failure = st;
    memcpy(p->why, why, sizeof(why));
    p->outcome = st == GR_OK ? OUTCOME_OPEN : OUTCOME_FAILED;
    w->n_handshake--;
    wake(w);
    pthread_cond_broadcast(&w->handshake_done);
    pthread_mutex_unlock(&w->lock);
    free(h);
    return NULL;
}

static struct peer *take_slot(struct gr_worker_io *w)
{
    for (int i = 0; i < GR_PEER_MAX; i++) {
        if (w->peer[i].state == PEER_FREE) {
            w->peer[i] = (struct peer){.id = ++w->next_peer_id};
            return &w->peer[i];
        }
    }
    return NULL;
}

static enum gr_status start_handshake(struct gr_worker_io *w, struct peer *p, const char *address, int forced)
{
    struct handshake *h = calloc(1, sizeof(*h));
    pthread_t thread;
    if (h == NULL) {
        return GR_ENOMEM;
    }
    *h = (struct handshake){
        .w = w, .slot = (int)(p - w->peer), .forced = forced, .generation = p->id, .incarnation = p->incarnation};
    snprintf(h->address, sizeof(h->address), "%s", address);
    p->state = PEER_HANDSHAKE;
    p->outcome = OUTCOME_NONE; /* no thread is at work on it */
    p->forced = forced;
    pthread_mutex_lock(&w->lock);
    w->n_handshake++;
    pthread_mutex_unlock(&w->lock);
    if (pthread_create(&thread, NULL, run_handshake, h) != 0) {
        log_error("cannot start a hand-shake thread");
        p->state = PEER_FREE;
        pthread_mutex_lock(&w->lock);
        w->n_handshake--;
        pthread_mutex_unlock(&w->lock);
        free(h);
        return GR_ENOMEM;
    }
    pthread_detach(thread);
    return GR_OK;
}

/* Those who have passed the gate; strangers take no data connection. */
static bool take_arrivals(struct gr_worker_io *w)
{
    struct gr_arrival a;
    bool progress = false;
    while (w->gate != NULL && gr_gate_take(w->gate, &a)) {
        struct peer *p = take_slot(w);
        if (p == NULL) {
            log_error("a drafter was turned away: all %d data connections are in use", GR_PEER_MAX);
            gr_conn_close(a.conn);
        } else {
            p->state = PEER_READY;
            p->conn = a.conn;
            log_info("data connection %u over %s", p->id, p->conn->ops->name);
        }
        progress = true;
    }
    return progress;
}

enum gr_status gr_worker_io_connect(struct gr_worker_io *w, const char *address, uint64_t incarnation,
                                    const char *transport, uint32_t *peer_out)
{
    for (int i = 0; i < GR_PEER_MAX; i++) {
        struct peer *p = &w->peer[i];
        const bool same = strcmp(p->address, address) == 0 && p->incarnation == incarnation;
        const bool fits = w->config.loop_conn != NULL || same;
        if (fits && p->state != PEER_FREE) {
            p->announce = true;
            *peer_out = p->id;
            return GR_OK;
        }
    }
    int forced = w->config.forced_transport;
    enum gr_transport_kind kind = GR_TRANSPORT_TCP;
    if (transport[0] != '\0') {
        GR_TRY(gr_transport_by_name(transport, &kind));
        forced = (int)kind;
    }
    struct peer *p = take_slot(w);
    if (p == NULL) {
        log_error("all %d data connections are in use", GR_PEER_MAX);
        return GR_ELIMIT;
    }
    snprintf(p->address, sizeof(p->address), "%s", address);
    p->incarnation = incarnation;
    p->announce = true;
    *peer_out = p->id;
    return start_handshake(w, p, address, forced);
}

/* ---- peers ---- */

static struct peer *peer_of(struct gr_worker_io *w, uint32_t id)
{
    for (int i = 0; i < GR_PEER_MAX; i++) {
        if (w->peer[i].state == PEER_READY && w->peer[i].id == id) {
            return &w->peer[i];
        }
    }
    return NULL;
}

uint32_t gr_worker_io_take_fallbacks(struct gr_worker_io *w, uint32_t peer)
{
    struct peer *p = peer_of(w, peer);
    const uint32_t n = p != NULL ? p->conn->n_fallback : 0;
    if (p != NULL) {
        p->conn->n_fallback = 0;
    }
    return n;
}

static bool is_known(const struct gr_worker_io *w, const char *address)
{
    for (uint32_t i = 0; i < GR_MIN(w->n_known, GR_PEER_MAX); i++) {
        if (strcmp(w->known[i], address) == 0) {
            return true;
        }
    }
    return false;
}

/* For a connection that never stood: the next try may find the peer, or its answer, in time. */
static bool may_be_in_time(enum gr_status st)
{
    return gr_call_may_come_back(st) && st != GR_EUNSUPPORTED;
}

static void lose_peer(struct gr_worker_io *w, struct peer *p, uint64_t now_ns)
{
    const struct peer lost = *p;
    const bool stood = p->state == PEER_READY;
    const enum gr_status why = stood ? GR_ECLOSED : may_be_in_time(p->failure) ? GR_AGAIN : p->failure;
    gr_conn_close(p->conn);
    *p = (struct peer){.state = PEER_FREE};
    w->machine.on_peer_lost(w->machine.ctx, lost.id, why, stood ? NULL : lost.why, now_ns);
}

/* An address that fails again and again is told once, until it has been reached. */
static char *find_told(struct gr_worker_io *w, const char *address)
{
    for (int i = 0; i < GR_PEER_MAX; i++) {
        if (strcmp(w->told[i], address) == 0) {
            return w->told[i];
        }
    }
    return NULL;
}

static void remember(struct gr_worker_io *w, const struct peer *p)
{
    char *told = p->address[0] != '\0' ? find_told(w, p->address) : NULL;
    if (told != NULL) {
        told[0] = '\0';
    }
    if (p->address[0] != '\0' && !is_known(w, p->address)) {
        memcpy(w->known[w->n_known++ % GR_PEER_MAX], p->address, sizeof(p->address));
    }
}

/* Once an outage; what will not do later either is an error. */
static void tell_failure(struct gr_worker_io *w, const struct peer *p, bool again)
{
    if (p->why[0] == '\0' || find_told(w, p->address) != NULL) {
        return;
    }
    memcpy(w->told[w->n_told++ % GR_PEER_MAX], p->address, sizeof(p->address));
    if (again) {
        log_warn("%s; trying again, without further lines, for %d s", p->why, (int)(RETRY_PATIENCE / GR_S));
    } else if (may_be_in_time(p->failure)) {
        log_warn("%s; it is tried again, without further lines, while a session needs it", p->why);
    } else {
        log_error("%s", p->why);
    }
}

/* False: this one is given up. */
static bool try_later(struct gr_worker_io *w, struct peer *p, uint64_t now_ns)
{
    if (p->address[0] == '\0' || !is_known(w, p->address) || !gr_call_may_come_back(p->failure)) {
        return false;
    }
    p->give_up_ns = p->give_up_ns == 0 ? now_ns + RETRY_PATIENCE : p->give_up_ns;
    if (now_ns >= p->give_up_ns) {
        return false;
    }
    const uint32_t wait_ms = GR_MIN(RETRY_MS_MIN << GR_MIN(p->n_retry, 10u), RETRY_MS_MAX);
    p->n_retry++;
    p->state = PEER_WAITING;
    p->retry_ns = now_ns + (wait_ms / 2 + randombytes_uniform(wait_ms / 2 + 1)) * GR_MS;
    log_info("data connection %u to %s: attempt %u failed (%s), again in at most %u ms", p->id, p->address, p->n_retry,
             gr_status_text(p->failure), wait_ms);
    return true;
}

static bool retry_due(struct gr_worker_io *w, struct peer *p, uint64_t now_ns)
{
    if (p->state != PEER_WAITING || now_ns < p->retry_ns) {
        return false;
    }
    if (start_handshake(w, p, p->address, p->forced) != GR_OK) {
        lose_peer(w, p, now_ns);
    }
    return true;
}

static bool receive_msgs(struct gr_worker_io *w, uint64_t now_ns);

/* A peer that is told to end may be gone before this worker has read that it is to end, too: then nothing is lost. What
 * the orchestrator said first is heard first. A message may change the peers. */
static bool is_drained(struct gr_worker_io *w, uint64_t now_ns)
{
    (void)receive_msgs(w, now_ns);
    return w->drained;
}

static enum outcome outcome_of(struct gr_worker_io *w, const struct peer *p)
{
    pthread_mutex_lock(&w->lock);
    const enum outcome outcome = p->outcome;
    pthread_mutex_unlock(&w->lock);
    return p->state == PEER_HANDSHAKE ? outcome : OUTCOME_NONE;
}

/* Takes over what the hand-shake threads have finished. */
static bool settle_handshakes(struct gr_worker_io *w, uint64_t now_ns)
{
    bool progress = false;
    for (int i = 0; i < GR_PEER_MAX; i++) {
        struct peer *p = &w->peer[i];
        if (outcome_of(w, p) == OUTCOME_FAILED && is_drained(w, now_ns)) {
            return true;
        }
        const enum outcome outcome = outcome_of(w, p);
        if (outcome == OUTCOME_FAILED) {
            const bool again = try_later(w, p, now_ns);
            tell_failure(w, p, again);
            if (!again) {
                lose_peer(w, p, now_ns);
            }
            progress = true;
        } else if (outcome == OUTCOME_OPEN) {
            p->state = PEER_READY;
            p->conn = p->new_conn;
            remember(w, p);
            log_info("data connection %u over %s", p->id, p->conn->ops->name);
            if (p->n_retry > 0) {
                log_info("data connection %u to %s stands again after %u attempts", p->id, p->address, p->n_retry);
                p->n_retry = 0;
                p->give_up_ns = 0;
            }
            progress = true;
        }
        progress |= retry_due(w, p, now_ns);
        if (p->state == PEER_READY && p->announce) {
            p->announce = false;
            w->machine.on_peer_ready(w->machine.ctx, p->id, p->conn->ops->name, now_ns);
            progress = true;
        }
    }
    return progress;
}

static void lose_peer_unless_drained(struct gr_worker_io *w, struct peer *p, uint64_t now_ns)
{
    const uint32_t id = p->id;
    if (!is_drained(w, now_ns) && p->state == PEER_READY && p->id == id) {
        lose_peer(w, p, now_ns);
    }
}

static bool receive_frames(struct gr_worker_io *w, struct peer *p, uint64_t now_ns)
{
    bool progress = false;
    for (;;) {
        struct gr_frame f;
        enum gr_status st = gr_conn_recv(p->conn, &f);
        if (st == GR_AGAIN) {
            return progress;
        }
        if (st == GR_OK) {
            progress = true;
            gr_no_alloc_begin();
            w->came_body = f.body;
            st = w->machine.on_frame(w->machine.ctx, p->id, f.data, f.bytes, now_ns);
            w->came_body = NULL;
            gr_conn_release(p->conn, &f);
            gr_no_alloc_end();
        }
        if (st != GR_OK) {
            lose_peer_unless_drained(w, p, now_ns);
            return true;
        }
    }
}

uint8_t *gr_worker_io_frame_begin(struct gr_worker_io *w, uint32_t peer, enum gr_frame_class class, uint32_t bytes)
{
    struct peer *p = peer_of(w, peer);
    if (p == NULL || gr_conn_acquire(p->conn, class, bytes, &p->out) != GR_OK) {
        return NULL;
    }
    p->out_open = true;
    return p->out.data;
}

uint8_t *gr_worker_io_frame_body(struct gr_worker_io *w, uint32_t peer)
{
    const struct peer *p = peer_of(w, peer);
    return p != NULL && p->out_open ? p->out.body : NULL;
}

const uint8_t *gr_worker_io_came_body(const struct gr_worker_io *w)
{
    return w->came_body;
}

void gr_worker_io_frame_end(struct gr_worker_io *w, uint32_t peer, uint32_t bytes)
{
    struct peer *p = peer_of(w, peer);
    if (p != NULL && p->out_open) {
        p->out_open = false;
        /* A connection that died meanwhile is found by the next receive. */
        enum gr_status st = gr_conn_send(p->conn, &p->out, bytes);
        (void)st;
    }
}

/* ---- control and compute ---- */

static bool has_link(const struct gr_worker_io *w)
{
    return w->control != NULL && !w->control_lost;
}

void gr_worker_io_send_msg(struct gr_worker_io *w, const struct gr_msg *m)
{
    if (has_link(w) && gr_control_send(w->control, m) != GR_OK) {
        w->control_lost = true;
    }
}

size_t gr_worker_io_msg_room(const struct gr_worker_io *w)
{
    return has_link(w) ? gr_control_room(w->control) : 0;
}

void gr_worker_io_compute(struct gr_worker_io *w, void (*fn)(void *arg), void *arg, bool more)
{
    w->compute_busy = true;
    gr_compute_post(w->compute, fn, arg, more);
}

static void note_word(struct gr_worker_io *w, const struct gr_msg *m, uint64_t now_ns)
{
    w->heard_ns = now_ns;
    w->pinged = w->pinged || m->type == GR_MSG_PING;
    if (m->type != GR_MSG_ERROR) {
        w->heard = true;
        w->told_away = false;
        gr_rejoin_stands(w->rejoin);
        gr_joined_tell();
    }
}

static bool receive_msgs(struct gr_worker_io *w, uint64_t now_ns)
{
    bool progress = false;
    while (has_link(w)) {
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

static enum gr_status begin_link(struct gr_worker_io *w, int fd, const struct gr_hello *peer, uint64_t now_ns)
{
    const enum gr_status st = gr_control_create(fd, &w->control);
    if (st != GR_OK) {
        close(fd);
        return st;
    }
    w->orchestrator = peer->incarnation;
    w->heard = w->pinged = w->leave_sent = false;
    w->heard_ns = now_ns;
    return GR_OK;
}

static void join_again(struct gr_worker_io *w, int fd, const struct gr_hello *peer, uint64_t now_ns)
{
    const bool changed = peer->incarnation != w->orchestrator;
    if (changed && w->machine.on_orchestrator_changed != NULL) {
        w->machine.on_orchestrator_changed(w->machine.ctx, now_ns);
    }
    log_warn("joining the orchestrator at %s again%s", w->config.join,
             changed ? ": it is another one, and its sessions begin anew" : "");
    if (begin_link(w, fd, peer, now_ns) != GR_OK || gr_control_send(w->control, &w->config.join_msg) != GR_OK) {
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
    const enum gr_status st = gr_rejoin_step(w->rejoin, now_ns, &fd, &peer, &w->search_ns);
    if (st == GR_OK) {
        join_again(w, fd, &peer, now_ns);
    } else if (st != GR_AGAIN) {
        w->failure = GR_ECLOSED;
        w->done = true;
    }
    return st != GR_AGAIN;
}

static bool watch_orchestrator(struct gr_worker_io *w, uint64_t now_ns)
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
        (void)receive_msgs(w, now_ns); /* its first word may have come */
    }
    if (!has_link(w) || !w->heard) {
        w->done = true;
    } else if (!w->leave_sent) {
        w->leave_sent = true;
        gr_worker_io_send_msg(w, &(struct gr_msg){.type = GR_MSG_DRAIN});
        if (w->machine.on_leave != NULL) {
            w->machine.on_leave(w->machine.ctx);
        }
    }
}

static void leave(struct gr_worker_io *w, uint64_t now_ns)
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
    wake(w);
}

/* ---- the loop ---- */

static bool pump(struct gr_worker_io *w)
{
    const uint64_t now_ns = gr_clock_ns();
    leave(w, now_ns); /* what the orchestrator asks for next meets a worker that is to end */
    bool progress = receive_msgs(w, now_ns);
    if (w->gate != NULL) {
        gr_gate_accept(w->gate, now_ns);
    }
    progress |= take_arrivals(w);
    progress |= settle_handshakes(w, now_ns);
    if (w->compute_busy && gr_compute_done(w->compute)) {
        w->compute_busy = false;
        gr_no_alloc_begin();
        w->machine.on_compute_done(w->machine.ctx, gr_clock_ns());
        gr_no_alloc_end();
        progress = true;
    }
    progress |= watch_orchestrator(w, gr_clock_ns());
    const uint64_t frames_ns = gr_clock_ns(); /* time never runs backwards for the machine */
    for (int i = 0; i < GR_PEER_MAX; i++) {
        if (w->peer[i].state == PEER_READY && !w->drained) {
            progress |= receive_frames(w, &w->peer[i], frames_ns);
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
    if (has_link(w) && gr_control_flush(w->control) == GR_ECLOSED) {
        w->control_lost = true;
    }
    return gr_worker_io_msg_room(w) > room;
}

/* Everything is looked at again at once; what only poll() sees, now and then. */
static bool spins_on(struct gr_worker_io *w, uint64_t now_ns)
{
    return now_ns - w->progress_ns < w->config.spin_ns && ++w->n_spin % LOOKS_PER_POLL != 0;
}

/* When its silence is too long, or it is to be looked for again. */
static uint64_t orchestrator_due_ns(const struct gr_worker_io *w)
{
    if (w->control == NULL) {
        return w->compute_busy ? UINT64_MAX : w->search_ns;
    }
    return w->pinged ? w->heard_ns + ORCHESTRATOR_SILENCE : UINT64_MAX;
}

static void sleep_until(struct gr_worker_io *w, uint64_t wake_ns)
{
    struct pollfd fds[GR_PEER_MAX + 4];
    nfds_t n = 0;
    fds[n++] = (struct pollfd){.fd = has_link(w) ? gr_control_fd(w->control) : -1,
                               .events = has_link(w) ? gr_control_events(w->control) : 0};
    fds[n++] = (struct pollfd){.fd = w->wake_fd, .events = POLLIN};
    fds[n++] = (struct pollfd){.fd = gr_compute_fd(w->compute), .events = POLLIN};
    const uint64_t now_ns = gr_clock_ns();
    if (spins_on(w, now_ns) || w->control_lost || w->done) {
        return;
    }
    wake_ns = GR_MIN(GR_MIN(wake_ns, w->leave_end_ns), orchestrator_due_ns(w));
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
    struct timespec timeout = {0};
    const uint64_t wait_ns = wake_ns > now_ns ? wake_ns - now_ns : 0;
    timeout.tv_sec = (time_t)(wait_ns / GR_S);
    timeout.tv_nsec = (long)(wait_ns % GR_S);
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
    GR_TRY(begin_link(w, fd, &peer, gr_clock_ns()));
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
    gr_host_id(c->hello.host_id);
    (void)gr_segment_sweep();
    randombytes_buf(&c->hello.incarnation, sizeof(c->hello.incarnation));
    c->join_msg.join.incarnation = c->hello.incarnation;
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
    w->leave_limit_ns = w->leave_end_ns = NEVER;
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
