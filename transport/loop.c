/* Both ends in one process. The rings lie in heap memory that the two ends share by reference
 * count; the bell is an eventfd per end. The peer is trusted, so payloads are used in place,
 * without a copy. */
#include "transport/ring.h"

#include "common/base/log.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct loop_pair {
    atomic_uint n_ref;
    int bell_fd[2]; /* [side that is woken] */
    struct gr_ring_shared *shared;
};

struct loop_conn {
    struct gr_conn base;
    struct loop_pair *pair;
    bool may_have_bell; /* armed since the bell was last emptied */
    struct gr_ring_end ring;
};

static struct loop_conn *downcast(struct gr_conn *c)
{
    GR_ASSERT(c->ops == &gr_transport_loop);
    return GR_CONTAINER_OF(c, struct loop_conn, base);
}

static void ring_bell(struct loop_conn *l)
{
    uint64_t one = 1;
    ssize_t n = write(l->pair->bell_fd[1 - l->ring.self], &one, sizeof(one));
    (void)n; /* only a full counter can refuse, and then the bell has rung */
}

static void empty_bell(struct loop_conn *l)
{
    if (l->may_have_bell) {
        uint64_t count;
        ssize_t n = read(l->pair->bell_fd[l->ring.self], &count, sizeof(count));
        (void)n;
        gr_ring_disarm(&l->ring);
        l->may_have_bell = false;
    }
}

static enum gr_status loop_acquire(struct gr_conn *c, enum gr_frame_class class, uint32_t bytes,
                                   struct gr_frame *frame_out)
{
    struct loop_conn *l = downcast(c);
    GR_TRY(gr_acquire_check(c, class, bytes));
    if (gr_ring_peer_closed(&l->ring)) {
        return GR_ECLOSED;
    }
    enum gr_status st = gr_ring_acquire(&l->ring, class, frame_out);
    c->stats.n_no_credit += st == GR_AGAIN;
    return st;
}

static enum gr_status loop_send(struct gr_conn *c, struct gr_frame *frame, uint32_t bytes)
{
    struct loop_conn *l = downcast(c);
    gr_count_sent(c, frame->class, bytes);
    if (gr_ring_send(&l->ring, frame, bytes)) {
        ring_bell(l);
    }
    return gr_ring_peer_closed(&l->ring) ? GR_ECLOSED : GR_OK;
}

static void loop_abandon(struct gr_conn *c, struct gr_frame *frame)
{
    gr_ring_abandon(&downcast(c)->ring, frame);
}

static enum gr_status loop_recv(struct gr_conn *c, struct gr_frame *frame_out)
{
    struct loop_conn *l = downcast(c);
    empty_bell(l);
    /* Read before the rings are: what was sent before the close is then seen. */
    bool closed = gr_ring_peer_closed(&l->ring);
    enum gr_status st = gr_ring_recv(&l->ring, frame_out);
    if (st == GR_OK) {
        gr_count_received(c, frame_out->class, frame_out->bytes);
    }
    return st == GR_AGAIN && closed ? GR_ECLOSED : st;
}

static void loop_release(struct gr_conn *c, struct gr_frame *frame)
{
    struct loop_conn *l = downcast(c);
    if (gr_ring_release(&l->ring, frame)) {
        ring_bell(l);
    }
}

static enum gr_status loop_flush(struct gr_conn *c)
{
    return gr_ring_peer_closed(&downcast(c)->ring) ? GR_ECLOSED : GR_OK;
}

static int loop_poll_fd(struct gr_conn *c, short *events_out)
{
    struct loop_conn *l = downcast(c);
    l->may_have_bell = true;
    *events_out = POLLIN;
    return gr_ring_arm(&l->ring) ? l->pair->bell_fd[l->ring.self] : -1;
}

static void pair_unref(struct loop_pair *pair)
{
    if (atomic_fetch_sub(&pair->n_ref, 1) != 1) {
        return;
    }
    for (int i = 0; i < 2; i++) {
        if (pair->bell_fd[i] >= 0) {
            close(pair->bell_fd[i]);
        }
    }
    free(pair->shared);
    free(pair);
}

static void loop_close(struct gr_conn *c)
{
    struct loop_conn *l = downcast(c);
    gr_ring_mark_closed(&l->ring);
    ring_bell(l);
    pair_unref(l->pair);
    free(l);
}

const struct gr_transport_ops gr_transport_loop = {
    .name = "loop",
    .acquire = loop_acquire,
    .send = loop_send,
    .abandon = loop_abandon,
    .recv = loop_recv,
    .release = loop_release,
    .flush = loop_flush,
    .poll_fd = loop_poll_fd,
    .close = loop_close,
};

static enum gr_status pair_create(const struct gr_conn_limits *limits, uint32_t generation, struct loop_pair **pair_out)
{
    struct loop_pair *pair = calloc(1, sizeof(*pair));
    if (pair == NULL) {
        log_error("loop: out of memory");
        return GR_ENOMEM;
    }
    atomic_init(&pair->n_ref, 1);
    pair->bell_fd[0] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    pair->bell_fd[1] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    size_t bytes = gr_ring_shared_bytes(limits);
    pair->shared = aligned_alloc(4096, bytes);
    if (pair->bell_fd[0] < 0 || pair->bell_fd[1] < 0 || pair->shared == NULL) {
        log_error("loop: no memory (%zu bytes) or no eventfd: %s", bytes, strerror(errno));
        pair_unref(pair);
        return GR_ENOMEM;
    }
    memset(pair->shared, 0, sizeof(*pair->shared));
    gr_ring_shared_init(pair->shared, limits, generation);
    *pair_out = pair;
    return GR_OK;
}

enum gr_status gr_transport_open_loop(const struct gr_conn_limits *limits, uint32_t generation,
                                      struct gr_conn *conn_out[2])
{
    GR_TRY(gr_limits_check(limits));
    struct loop_pair *pair;
    GR_TRY(pair_create(limits, generation, &pair));
    struct loop_conn *end[2] = {calloc(1, sizeof(*end[0])), calloc(1, sizeof(*end[1]))};
    if (end[0] == NULL || end[1] == NULL) {
        log_error("loop: out of memory");
        free(end[0]);
        free(end[1]);
        pair_unref(pair);
        return GR_ENOMEM;
    }
    atomic_store(&pair->n_ref, 2);
    for (unsigned i = 0; i < 2; i++) {
        end[i]->base = (struct gr_conn){.ops = &gr_transport_loop, .limits = *limits, .conn_generation = generation};
        end[i]->pair = pair;
        gr_ring_end_init(&end[i]->ring, pair->shared, limits, i, NULL);
        conn_out[i] = &end[i]->base;
    }
    return GR_OK;
}
