/* A worker's data connections: hand-shakes, frames, losses and further attempts. */
#include "transport/worker/worker_io_internal.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/no_alloc.h"
#include "transport/connect/gate.h"
#include "transport/pause.h"
#include "transport/worker/call.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- hand-shakes that begin here ---- */

struct handshake {
    struct gr_worker_io *w;
    struct gr_hello hello; /* of this worker, as it is when the hand-shake begins */
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
    const enum gr_status st = gr_call_target(&(struct gr_call){.hello = &h->hello,
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
    worker_wake(w);
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
    h->hello = w->config.hello;
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

/* Connections of older processes of the seat that this caller has. */
static void close_older(struct gr_worker_io *w, const struct gr_hello *caller, uint64_t now_ns)
{
    for (int i = 0; i < GR_PEER_MAX; i++) {
        struct peer *p = &w->peer[i];
        if (p->state == PEER_READY && strcmp(p->seat, caller->seat) == 0 && p->number < caller->number) {
            log_warn("data connection %u is closed: its drafter's seat `%s' belongs to a newer process", p->id,
                     p->seat);
            lose_peer(w, p, now_ns);
        }
    }
}

/* Is the caller one whose seat a newer process has? Of one that replaces another, that one's connections end. */
static bool is_outdated(struct gr_worker_io *w, const struct gr_hello *caller, uint64_t now_ns)
{
    const enum gr_caller is = gr_callers_take(&w->callers, caller->seat, caller->number);
    if (is == GR_CALLER_REPLACES) {
        close_older(w, caller, now_ns);
    } else if (is == GR_CALLER_OUTDATED) {
        log_warn("a drafter was turned away: its seat `%s' belongs to a newer process", caller->seat);
    }
    return is == GR_CALLER_OUTDATED;
}

bool worker_take_arrivals(struct gr_worker_io *w, uint64_t now_ns)
{
    struct gr_arrival a;
    bool progress = false;
    while (w->gate != NULL && gr_gate_take(w->gate, &a)) {
        if (is_outdated(w, &a.peer, now_ns)) {
            gr_conn_close(a.conn);
            continue;
        }
        struct peer *p = take_slot(w);
        if (p == NULL) {
            log_error("a drafter was turned away: all %d data connections are in use", GR_PEER_MAX);
            gr_conn_close(a.conn);
        } else {
            p->state = PEER_READY;
            p->conn = a.conn;
            p->number = a.peer.number;
            memcpy(p->seat, a.peer.seat, sizeof(p->seat));
            log_info("data connection %u over %s", p->id, p->conn->ops->name);
        }
        progress = true;
    }
    return progress;
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
    const uint32_t wait_ms = gr_pause_ms(p->n_retry++, RETRY_MS_MIN, RETRY_MS_MAX);
    p->state = PEER_WAITING;
    p->retry_ns = now_ns + wait_ms * GR_MS;
    log_info("data connection %u to %s: attempt %u failed (%s), again in %u ms", p->id, p->address, p->n_retry,
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

/* A peer that is told to end may be gone before this worker has read that it is to end, too: then nothing is lost. What
 * the orchestrator said first is heard first. A message may change the peers. */
static bool is_drained(struct gr_worker_io *w, uint64_t now_ns)
{
    (void)worker_receive_msgs(w, now_ns);
    return w->drained;
}

static enum outcome outcome_of(struct gr_worker_io *w, const struct peer *p)
{
    pthread_mutex_lock(&w->lock);
    const enum outcome outcome = p->outcome;
    pthread_mutex_unlock(&w->lock);
    return p->state == PEER_HANDSHAKE ? outcome : OUTCOME_NONE;
}

bool worker_settle_handshakes(struct gr_worker_io *w, uint64_t now_ns)
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

bool worker_receive_frames(struct gr_worker_io *w, struct peer *p, uint64_t now_ns)
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
