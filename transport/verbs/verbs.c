/* Two processes on RDMA devices: one reliable queue pair, small frames by SEND, bulk frames by WRITE_WITH_IMM into the
 * peer's inbox (or by SEND, in parts). This file: the table, the events that end a connection, its end.
 *
 * A caller sleeps on an epoll descriptor over the completion channel, the connection manager's channel, the device's
 * events and the bootstrap socket. Whatever of these says that the peer or the device is gone, the connection is: what
 * has arrived is handed out, then GR_ECLOSED. The first to tell is logged, what follows from it is not. */
#include "transport/verbs/verbs_conn.h"
#include "transport/verbs/verbs_park.h"

#include "common/base/clock.h"
#include "common/base/log.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

/* Looking at the descriptors costs a system call, so a busy-polling receiver does it only every so often: in a
 * millisecond or less. */
#define N_EMPTY_RECV_PER_LOOK 8192
#define N_EVENT_ACK 64    /* completion events that are acknowledged together: a call takes a lock */
#define CLOSE_WAIT_MS 100 /* for sends on their way before the queue pair goes */

enum { EVENT_COMP, EVENT_CM, EVENT_ANCHOR, EVENT_ASYNC, EVENT_SOCKET, N_EVENT };

/* ---- device events: one descriptor a device, shared by all connections over it ---- */

static pthread_mutex_t all_lock = PTHREAD_MUTEX_INITIALIZER;
static struct gr_verbs_conn *all;

static void list_add(struct gr_verbs_conn *v)
{
    pthread_mutex_lock(&all_lock);
    v->next = all;
    all = v;
    pthread_mutex_unlock(&all_lock);
}

static void list_remove(struct gr_verbs_conn *v)
{
    pthread_mutex_lock(&all_lock);
    for (struct gr_verbs_conn **p = &all; *p != NULL; p = &(*p)->next) {
        if (*p == v) {
            *p = v->next;
            break;
        }
    }
    pthread_mutex_unlock(&all_lock);
}

static bool is_fatal(enum ibv_event_type type)
{
    return type == IBV_EVENT_PORT_ERR || type == IBV_EVENT_DEVICE_FATAL;
}

static bool is_of_qp(enum ibv_event_type type)
{
    return type == IBV_EVENT_QP_FATAL || type == IBV_EVENT_QP_REQ_ERR || type == IBV_EVENT_QP_ACCESS_ERR;
}

/* Whoever reads an event tells all whom it concerns. */
static void tell_all(const struct ibv_context *context, const struct ibv_async_event *e)
{
    pthread_mutex_lock(&all_lock);
    for (struct gr_verbs_conn *v = all; v != NULL; v = v->next) {
        const bool mine = is_of_qp(e->event_type) ? v->link.id->qp == e->element.qp
                                                  : is_fatal(e->event_type) && v->memory->anchor->verbs == context &&
                                                        (e->event_type == IBV_EVENT_DEVICE_FATAL ||
                                                         e->element.port_num == v->memory->device.port);
        if (mine) {
            atomic_store(&v->fatal_event, (int)e->event_type + 1);
        }
    }
    pthread_mutex_unlock(&all_lock);
}

static void look_at_async(struct gr_verbs_conn *v)
{
    struct ibv_context *context = v->memory->anchor->verbs;
    struct pollfd fd = {.fd = context->async_fd, .events = POLLIN};
    struct ibv_async_event e;
    while (poll(&fd, 1, 0) > 0 && v->lib->get_async_event(context, &e) == 0) {
        tell_all(context, &e);
        v->lib->ack_async_event(&e);
    }
}

static void look_at_fatal(struct gr_verbs_conn *v)
{
    const int event = atomic_load(&v->fatal_event) - 1;
    if (event < 0 || v->gone) {
        return;
    }
    switch (event) {
    case IBV_EVENT_PORT_ERR:
        gr_verbs_lose(v, true, "the device's port went down");
        return;
    case IBV_EVENT_QP_ACCESS_ERR:
        gr_verbs_lose(v, true, "the peer wrote where it may not (a bug: wrong key, address or length)");
        return;
    default:
        gr_verbs_lose(v, true, "the device reported a fatal error");
        return;
    }
}

/* ---- the other events ---- */

static void look_at_cm(struct gr_verbs_conn *v, struct rdma_event_channel *channel)
{
    struct rdma_cm_event *e;
    while (v->lib->get_cm_event(channel, &e) == 0) {
        const enum rdma_cm_event_type type = e->event;
        v->lib->ack_cm_event(e);
        if (type == RDMA_CM_EVENT_DEVICE_REMOVAL) {
            v->memory->device_gone = true;
            gr_verbs_lose(v, true, "the device was removed");
        } else if (type == RDMA_CM_EVENT_DISCONNECTED) {
            gr_verbs_lose(v, false, "the peer disconnected");
        } else if (type != RDMA_CM_EVENT_TIMEWAIT_EXIT && type != RDMA_CM_EVENT_ADDR_CHANGE) {
            gr_verbs_lose(v, true, "an unexpected event of the connection manager");
        }
    }
}

static void look_at_socket(struct gr_verbs_conn *v)
{
    uint8_t byte;
    const ssize_t n = recv(v->fd, &byte, 1, MSG_DONTWAIT);
    if (n > 0) {
        const struct gr_verbs_header none = {0};
        gr_verbs_throw_out(v, "unexpected byte on the bootstrap socket", &none, 0);
    } else if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
        gr_verbs_lose(v, false, "the peer is gone (end of its bootstrap socket)");
    }
}

static void look_at_completions(struct gr_verbs_conn *v)
{
    struct ibv_cq *cq;
    void *user;
    while (v->lib->get_cq_event(v->link.comp, &cq, &user) == 0) {
        if (++v->n_unacked_event == N_EVENT_ACK) {
            v->lib->ack_cq_events(v->link.cq, v->n_unacked_event);
            v->n_unacked_event = 0;
        }
    }
}

static void look_at_events(struct gr_verbs_conn *v)
{
    struct epoll_event events[N_EVENT];
    v->armed = false;
    v->n_empty_recv = 0;
    const int n = epoll_wait(v->epoll_fd, events, N_EVENT, 0);
    for (int i = 0; i < n; i++) {
        switch (events[i].data.u32) {
        case EVENT_COMP:
            look_at_completions(v);
            break;
        case EVENT_CM:
            look_at_cm(v, v->link.channel);
            break;
        case EVENT_ANCHOR:
            look_at_cm(v, v->memory->channel);
            break;
        case EVENT_ASYNC:
            look_at_async(v);
            break;
        default:
            look_at_socket(v);
            break;
        }
    }
    look_at_fatal(v);
}

/* ---- the table ---- */

static bool can_acquire(const struct gr_verbs_conn *v, enum gr_frame_class class)
{
    return v->n_credit[class] > 0 && v->out[class].n_free > 0;
}

static enum gr_status verbs_acquire(struct gr_conn *c, enum gr_frame_class class, uint32_t bytes,
                                    struct gr_frame *frame_out)
{
    struct gr_verbs_conn *v = gr_verbs_downcast(c);
    GR_TRY(gr_acquire_check(c, class, bytes));
    if (!v->gone && !can_acquire(v, class)) {
        gr_verbs_pump(v); /* a credit or a completion may be there */
    }
    if (v->gone) {
        return GR_ECLOSED;
    }
    v->starved[class] = !can_acquire(v, class);
    if (v->starved[class]) {
        c->stats.n_no_credit++;
        return GR_AGAIN;
    }
    v->n_credit[class]--;
    const uint32_t slot = gr_verbs_slot_take(&v->out[class]);
    *frame_out = (struct gr_frame){.data = gr_verbs_out_slot(v->memory, (enum gr_verbs_out) class, slot),
                                   .body = class == GR_FRAME_BULK ? gr_verbs_out_body(v, slot) : NULL,
                                   .bytes = gr_class_bytes_max(&c->limits, class),
                                   .class = class,
                                   .slot = slot};
    return GR_OK;
}

static void check_held(const struct gr_verbs_slots *s, const struct gr_frame *frame)
{
    GR_ASSERT(frame->slot < s->n_slot && s->state[frame->slot] == GR_VERBS_HELD);
}

/* Its copies, in or out, have ended: the device may read the body now, or the peer write it again. */
static void wait_for_body(struct gr_verbs_conn *v, const struct gr_frame *frame)
{
    const struct gr_far_memory *far = v->base.far;
    if (frame->body != NULL && far->wait(far->ctx) != GR_OK) {
        gr_verbs_lose(v, true, "the memory that holds its frames failed");
    }
}

static enum gr_status verbs_send(struct gr_conn *c, struct gr_frame *frame, uint32_t bytes)
{
    struct gr_verbs_conn *v = gr_verbs_downcast(c);
    struct gr_verbs_slots *s = &v->out[frame->class];
    check_held(s, frame);
    GR_ASSERT(bytes <= gr_class_bytes_max(&c->limits, frame->class));
    wait_for_body(v, frame);
    gr_verbs_slot_push(s, frame->slot, bytes);
    gr_count_sent(c, frame->class, bytes);
    frame->data = NULL;
    return v->gone ? GR_ECLOSED : GR_OK;
}

static void verbs_abandon(struct gr_conn *c, struct gr_frame *frame)
{
    struct gr_verbs_conn *v = gr_verbs_downcast(c);
    check_held(&v->out[frame->class], frame);
    gr_verbs_slot_free(&v->out[frame->class], frame->slot);
    v->n_credit[frame->class]++;
    frame->data = NULL;
}

static bool take_frame(struct gr_verbs_conn *v, struct gr_frame *out)
{
    if (v->in.n_queued > 0) {
        const uint32_t slot = gr_verbs_slot_pop(&v->in);
        *out = (struct gr_frame){.data = gr_verbs_recv_slot(v->memory, slot),
                                 .bytes = v->in.bytes[slot],
                                 .class = GR_FRAME_SMALL,
                                 .slot = slot};
        return true;
    }
    if (v->bulk.n_queued > 0) {
        const uint32_t slot = gr_verbs_slot_pop(&v->bulk);
        *out = (struct gr_frame){.data = gr_verbs_copy_of(v, slot),
                                 .body = gr_verbs_copy_body(v, slot),
                                 .bytes = v->bulk.bytes[slot],
                                 .class = GR_FRAME_BULK,
                                 .slot = slot};
        return true;
    }
    return false;
}

static enum gr_status verbs_recv(struct gr_conn *c, struct gr_frame *frame_out)
{
    struct gr_verbs_conn *v = gr_verbs_downcast(c);
    if (v->armed || v->n_empty_recv >= N_EMPTY_RECV_PER_LOOK) {
        look_at_events(v);
    }
    if (v->in.n_queued == 0) {
        gr_verbs_pump(v);
        if (v->stuck) {
            (void)gr_verbs_push(v); /* completions may have made room */
        }
    }
    if (v->in.n_queued + v->bulk.n_queued > 0 && take_frame(v, frame_out)) {
        gr_count_received(c, frame_out->class, frame_out->bytes);
        return GR_OK;
    }
    v->n_empty_recv++;
    return v->failed ? GR_EPROTO : v->gone ? GR_ECLOSED : GR_AGAIN;
}

static void verbs_release(struct gr_conn *c, struct gr_frame *frame)
{
    struct gr_verbs_conn *v = gr_verbs_downcast(c);
    if (frame->class == GR_FRAME_SMALL) {
        check_held(&v->in, frame);
        gr_verbs_recv_done(v, frame->slot);
        v->n_small_held--;
    } else {
        check_held(&v->bulk, frame);
        wait_for_body(v, frame);
        gr_verbs_slot_free(&v->bulk, frame->slot);
    }
    v->n_owed[frame->class]++;
    frame->data = NULL;
    if (gr_verbs_credits_due(v)) {
        (void)gr_verbs_push(v);
    }
}

static enum gr_status verbs_flush(struct gr_conn *c)
{
    struct gr_verbs_conn *v = gr_verbs_downcast(c);
    if (v->stuck) {
        gr_verbs_pump(v);
    }
    return gr_verbs_push(v);
}

static bool something_waits(const struct gr_verbs_conn *v)
{
    bool waits = v->gone || v->in.n_queued > 0 || v->bulk.n_queued > 0;
    for (int k = 0; k < GR_N_FRAME_CLASS; k++) {
        waits = waits || (v->starved[k] && can_acquire(v, k));
    }
    return waits;
}

/* Pumps, and keeps at it for a moment after the last record: an event costs more than it takes the peer to answer. */
static bool spin(struct gr_verbs_conn *v)
{
    uint64_t end_ns = 0;
    do {
        gr_verbs_pump(v);
        (void)gr_verbs_push(v);
        if (something_waits(v)) {
            return true;
        }
        const uint64_t now_ns = v->spin_us > 0 ? gr_clock_ns() : 0;
        if (v->n_record != v->n_record_seen) {
            v->n_record_seen = v->n_record;
            v->last_record_ns = now_ns;
        }
        end_ns = v->last_record_ns + (uint64_t)v->spin_us * 1000;
        if (now_ns >= end_ns) {
            return false;
        }
    } while (true);
}

static int verbs_poll_fd(struct gr_conn *c, short *events_out)
{
    struct gr_verbs_conn *v = gr_verbs_downcast(c);
    *events_out = POLLIN;
    if (v->armed) {
        look_at_events(v); /* the last event would end this sleep at once */
    }
    if (spin(v)) {
        return -1;
    }
    v->armed = true;
    if (v->lib->req_notify_cq(v->link.cq, 0) != 0) {
        gr_verbs_lose(v, true, "the completion queue cannot be armed");
        return -1;
    }
    gr_verbs_pump(v); /* what came before it was armed raises no event */
    (void)gr_verbs_push(v);
    return something_waits(v) ? -1 : v->epoll_fd;
}

/* Waits until the peer's device has all that was flushed: to disconnect at once would take it back. */
static void drain(struct gr_verbs_conn *v)
{
    const uint64_t deadline_ns = gr_clock_ns() + CLOSE_WAIT_MS * GR_MS;
    gr_verbs_pump(v);
    if (v->n_done < v->n_posted && v->n_since_signal > 0 && v->n_credit_record < GR_VERBS_N_CREDIT &&
        v->out[GR_VERBS_OUT_CREDIT].n_free > 0 && v->n_posted - v->n_done < v->link.n_send) {
        (void)gr_verbs_push_credit(v, 0); /* the last ones are not signalled, this one is */
    }
    while (!v->gone && v->n_done < v->n_posted && gr_clock_ns() < deadline_ns) {
        struct pollfd fd = {.fd = v->epoll_fd, .events = POLLIN};
        look_at_events(v);
        if (v->lib->req_notify_cq(v->link.cq, 0) != 0) {
            return;
        }
        gr_verbs_pump(v);
        if (!v->gone && v->n_done < v->n_posted) {
            (void)poll(&fd, 1, 10);
        }
    }
}

/* The port is down: nobody would hear that the queue pair is given up. Asked, not remembered: what ended the connection
 * may be the peer, whose port went down with ours. */
static bool must_linger(const struct gr_verbs_conn *v)
{
    return v->link.id != NULL && !v->memory->device_gone && !gr_verbs_memory_port_is_up(v->memory);
}

static void verbs_close(struct gr_conn *c)
{
    struct gr_verbs_conn *v = gr_verbs_downcast(c);
    if (!v->gone) {
        drain(v);
    } else {
        v->keep_memory = v->broke && !v->memory->device_gone && !v->failed;
    }
    v->gone = true; /* what is flushed from here on is nobody's business */
    if (v->link.connected && !must_linger(v)) {
        (void)v->lib->disconnect(v->link.id);
    }
    close(v->fd);
    v->fd = -1;
    gr_verbs_conn_destroy(v);
}

const struct gr_transport_ops gr_transport_verbs = {
    .name = "verbs",
    .acquire = verbs_acquire,
    .send = verbs_send,
    .abandon = verbs_abandon,
    .recv = verbs_recv,
    .release = verbs_release,
    .flush = verbs_flush,
    .poll_fd = verbs_poll_fd,
    .close = verbs_close,
};

bool gr_verbs_stats(const struct gr_conn *c, struct gr_verbs_stats *out)
{
    if (c->ops != &gr_transport_verbs) {
        return false;
    }
    *out = ((const struct gr_verbs_conn *)(const void *)c)->stats;
    return true;
}

uint32_t gr_verbs_n_waiting(struct gr_conn *c, bool *out_idle_out)
{
    struct gr_verbs_conn *v = gr_verbs_downcast(c);
    gr_verbs_pump(v);
    (void)gr_verbs_push(v);
    *out_idle_out = v->n_done == v->n_posted && !v->stuck;
    return v->in.n_queued + v->bulk.n_queued;
}

/* ---- life ---- */

static enum gr_status watch(struct gr_verbs_conn *v, int fd, uint32_t which)
{
    struct epoll_event e = {.events = EPOLLIN, .data.u32 = which};
    if (epoll_ctl(v->epoll_fd, EPOLL_CTL_ADD, fd, &e) != 0) {
        log_error("verbs: epoll: %s", strerror(errno));
        return GR_EIO;
    }
    return GR_OK;
}

enum gr_status gr_verbs_conn_watch(struct gr_verbs_conn *v)
{
    v->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (v->epoll_fd < 0) {
        log_error("verbs: epoll: %s", strerror(errno));
        return GR_EIO;
    }
    GR_TRY(watch(v, v->link.comp->fd, EVENT_COMP));
    GR_TRY(watch(v, v->link.channel->fd, EVENT_CM));
    GR_TRY(watch(v, v->memory->channel->fd, EVENT_ANCHOR));
    GR_TRY(watch(v, v->memory->anchor->verbs->async_fd, EVENT_ASYNC));
    list_add(v);
    v->armed = true;
    return GR_OK;
}

enum gr_status gr_verbs_conn_watch_socket(struct gr_verbs_conn *v)
{
    return watch(v, v->fd, EVENT_SOCKET);
}

void gr_verbs_conn_destroy(struct gr_verbs_conn *v)
{
    list_remove(v);
    if (v->epoll_fd >= 0) {
        close(v->epoll_fd);
    }
    if (v->n_unacked_event > 0) {
        v->lib->ack_cq_events(v->link.cq, v->n_unacked_event);
    }
    const bool linger = must_linger(v);
    if (!linger) {
        gr_verbs_link_finish(&v->link);
    }
    if (v->memory != NULL) {
        gr_verbs_park(v->memory, v->keep_memory, linger ? &v->link : NULL);
    }
    free(v->copies);
    free(v->arena);
    free(v);
}
