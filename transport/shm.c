/* Two processes of one host: the rings of ring.h in a POSIX shared memory segment.
 *
 * The bootstrap socket names the segment, then stays as doorbell (one byte wakes a sleeper) and
 * liveness signal (its end of file is the peer's death). Segments are owned by one user, mode 0600,
 * and unlinked as soon as both sides have mapped them. A process of the same user could truncate
 * the segment (SIGBUS here); it could as well kill us, so that is not defended against. What it
 * writes into the segment is: see ring.h. Received payloads are copied out. */
#include "transport/ring.h"
#include "transport/segment.h"
#include "transport/net.h"

#include "common/base/bytes.h"
#include "common/base/log.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#define OFFER_MAGIC 0x4d534752u /* "GRSM" */
#define OFFER_BYTES 64
#define REPLY_BYTES 8 /* of the acceptor's word whether it has mapped the segment */
#define NAME_BYTES GR_SEGMENT_NAME_BYTES

/* Reading the socket costs a system call, so a busy-polling receiver looks at it only every so
 * often. */
#define N_EMPTY_RECV_PER_LOOK 64
/* Bounds the work that a peer can cause by flooding the bell. */
#define N_BELL_READ_MAX 4

struct shm_conn {
    struct gr_conn base;
    int fd;
    void *map;
    size_t map_bytes;
    uint8_t *copies;
    bool may_have_bell; /* armed since the socket was last read */
    bool gone;          /* the peer closed, died or was thrown out */
    bool failed;        /* it was thrown out: GR_EPROTO */
    uint32_t n_empty_recv;
    struct gr_ring_end ring;
};

static struct shm_conn *downcast(struct gr_conn *c)
{
    GR_ASSERT(c->ops == &gr_transport_shm);
    return GR_CONTAINER_OF(c, struct shm_conn, base);
}

static void ring_bell(struct shm_conn *s)
{
    uint8_t byte = 0;
    if (send(s->fd, &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 && errno != EAGAIN && errno != EINTR) {
        s->gone = true; /* EAGAIN: bells enough are on their way */
    }
}

/* Empties the bell and sees the end of file. */
static void look_at_socket(struct shm_conn *s)
{
    uint8_t bells[256];
    for (int i = 0; i < N_BELL_READ_MAX; i++) {
        ssize_t n = recv(s->fd, bells, sizeof(bells), MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
            s->gone = true;
        }
        if (n < (ssize_t)sizeof(bells)) {
            break;
        }
    }
    s->may_have_bell = false;
    s->n_empty_recv = 0;
}

/* Has the peer gone? Cheap unless the socket may have something to say. */
static bool peer_gone(struct shm_conn *s)
{
    if (!s->gone && (s->may_have_bell || ++s->n_empty_recv >= N_EMPTY_RECV_PER_LOOK)) {
        look_at_socket(s);
    }
    s->gone = s->gone || gr_ring_peer_closed(&s->ring);
    return s->gone;
}

static void throw_out(struct shm_conn *s)
{
    s->failed = true;
    s->gone = true;
    gr_ring_mark_closed(&s->ring);
    shutdown(s->fd, SHUT_RDWR);
}

static enum gr_status shm_acquire(struct gr_conn *c, enum gr_frame_class class, uint32_t bytes,
                                  struct gr_frame *frame_out)
{
    struct shm_conn *s = downcast(c);
    GR_TRY(gr_acquire_check(c, class, bytes));
    if (s->gone || gr_ring_peer_closed(&s->ring)) {
        return GR_ECLOSED;
    }
    enum gr_status st = gr_ring_acquire(&s->ring, class, frame_out);
    if (st == GR_EPROTO) {
        throw_out(s);
        return GR_ECLOSED;
    }
    if (st == GR_AGAIN) {
        c->stats.n_no_credit++;
        return peer_gone(s) ? GR_ECLOSED : GR_AGAIN;
    }
    return st;
}

static enum gr_status shm_send(struct gr_conn *c, struct gr_frame *frame, uint32_t bytes)
{
    struct shm_conn *s = downcast(c);
    gr_count_sent(c, frame->class, bytes);
    if (gr_ring_send(&s->ring, frame, bytes)) {
        ring_bell(s);
    }
    return s->gone ? GR_ECLOSED : GR_OK;
}

static void shm_abandon(struct gr_conn *c, struct gr_frame *frame)
{
    gr_ring_abandon(&downcast(c)->ring, frame);
}

static enum gr_status shm_recv(struct gr_conn *c, struct gr_frame *frame_out)
{
    struct shm_conn *s = downcast(c);
    if (s->failed) {
        return GR_EPROTO;
    }
    if (s->may_have_bell) {
        look_at_socket(s);
        gr_ring_disarm(&s->ring);
    }
    enum gr_status st = gr_ring_recv(&s->ring, frame_out);
    if (st == GR_AGAIN && peer_gone(s)) {
        /* Look again: it may have sent between the look at the ring and its end. */
        st = gr_ring_recv(&s->ring, frame_out);
        st = st == GR_AGAIN ? GR_ECLOSED : st;
    }
    if (st == GR_OK) {
        gr_count_received(c, frame_out->class, frame_out->bytes);
    } else if (st == GR_EPROTO) {
        throw_out(s);
    }
    return st;
}

static void shm_release(struct gr_conn *c, struct gr_frame *frame)
{
    struct shm_conn *s = downcast(c);
    if (gr_ring_release(&s->ring, frame)) {
        ring_bell(s);
    }
}

static enum gr_status shm_flush(struct gr_conn *c)
{
    return downcast(c)->gone ? GR_ECLOSED : GR_OK;
}

static int shm_poll_fd(struct gr_conn *c, short *events_out)
{
    struct shm_conn *s = downcast(c);
    *events_out = POLLIN;
    s->may_have_bell = true;
    return !s->gone && gr_ring_arm(&s->ring) ? s->fd : -1;
}

static void shm_close(struct gr_conn *c)
{
    struct shm_conn *s = downcast(c);
    gr_ring_mark_closed(&s->ring);
    close(s->fd);
    munmap(s->map, s->map_bytes);
    free(s->copies);
    free(s);
}

const struct gr_transport_ops gr_transport_shm = {
    .name = "shm",
    .acquire = shm_acquire,
    .send = shm_send,
    .abandon = shm_abandon,
    .recv = shm_recv,
    .release = shm_release,
    .flush = shm_flush,
    .poll_fd = shm_poll_fd,
    .close = shm_close,
};

void *gr_shm_segment(struct gr_conn *c, size_t *bytes_out)
{
    struct shm_conn *s = downcast(c);
    *bytes_out = s->map_bytes;
    return s->map;
}

/* ---- opening ---- */

/* The generation is the creator's own count: after a restart the two sides' differ. */
static bool header_fits(const struct gr_ring_shared *h, const struct gr_conn_limits *l)
{
    return h->magic == GR_RING_MAGIC && h->layout == GR_RING_LAYOUT && h->small_bytes_max == l->small_bytes_max &&
           h->bulk_bytes_max == l->bulk_bytes_max && h->n_small_slot == l->n_small_slot &&
           h->n_bulk_slot == l->n_bulk_slot;
}

static enum gr_status write_reply(int fd, bool ok, uint64_t deadline)
{
    uint8_t reply[REPLY_BYTES];
    struct gr_writer w = {.p = reply, .cap = sizeof(reply)};
    gr_write_u32(&w, OFFER_MAGIC);
    gr_write_u32(&w, ok ? 1 : 0);
    return gr_sock_write_peer(fd, reply, sizeof(reply), deadline, "shm reply");
}

static enum gr_status read_reply(int fd, uint64_t deadline, struct gr_why *why)
{
    uint8_t reply[REPLY_BYTES];
    GR_TRY(gr_sock_read_peer(fd, reply, sizeof(reply), deadline, "shm reply"));
    struct gr_reader r = {.p = reply, .len = sizeof(reply)};
    uint32_t magic = gr_read_u32(&r), ok = gr_read_u32(&r);
    if (magic != OFFER_MAGIC || ok > 1) {
        log_error("shm: malformed reply to the offer of a segment");
        return GR_EPROTO;
    }
    if (ok == 0) {
        snprintf(why->text, sizeof(why->text), "the peer could not map the segment (GRAFT_LOG=info there tells why)");
        why->theirs = true;
    }
    return ok == 1 ? GR_OK : GR_EUNSUPPORTED;
}

/* Offers the segment, or says that there is none; either way the peer knows. */
static enum gr_status write_offer(int fd, const char *name, size_t bytes, uint64_t deadline)
{
    uint8_t offer[OFFER_BYTES] = {0};
    struct gr_writer w = {.p = offer, .cap = sizeof(offer)};
    gr_write_u32(&w, OFFER_MAGIC);
    gr_write_u32(&w, name != NULL ? 1 : 0);
    gr_write_u64(&w, bytes);
    if (name != NULL) {
        memcpy(gr_write_bytes(&w, NAME_BYTES), name, NAME_BYTES);
    }
    GR_ASSERT(!w.failed);
    return gr_sock_write_peer(fd, offer, sizeof(offer), deadline, "shm offer");
}

static enum gr_status create_segment(int fd, const struct gr_conn_limits *limits, uint32_t generation,
                                     uint64_t deadline, void **map_out, struct gr_why *why)
{
    struct gr_segment segment;
    if (gr_segment_create(gr_ring_shared_bytes(limits), &segment, why) != GR_OK) {
        GR_TRY(write_offer(fd, NULL, 0, deadline));
        return GR_EUNSUPPORTED;
    }
    gr_ring_shared_init(segment.map, limits, generation);
    enum gr_status st = write_offer(fd, segment.name, segment.bytes, deadline);
    if (st == GR_OK) {
        st = read_reply(fd, deadline, why);
    }
    gr_segment_unlink(&segment);
    if (st != GR_OK) {
        munmap(segment.map, segment.bytes);
        return st;
    }
    *map_out = segment.map;
    return GR_OK;
}

/* GR_EUNSUPPORTED: why tells; the peer hears of it by the reply. */
static enum gr_status map_offered(const char *name, uint64_t bytes, const struct gr_conn_limits *limits, void **map_out,
                                  struct gr_why *why)
{
    void *map = NULL;
    if (bytes != gr_ring_shared_bytes(limits)) {
        snprintf(why->text, sizeof(why->text), "the peer's segment has %llu bytes, the agreed limits need %zu",
                 (unsigned long long)bytes, gr_ring_shared_bytes(limits));
        return GR_EUNSUPPORTED;
    }
    GR_TRY(gr_segment_take(name, (size_t)bytes, &map, why));
    if (!header_fits(map, limits)) {
        snprintf(why->text, sizeof(why->text), "the peer's segment was made for other limits or another layout");
        munmap(map, (size_t)bytes);
        return GR_EUNSUPPORTED;
    }
    *map_out = map;
    return GR_OK;
}

static enum gr_status open_segment(int fd, const struct gr_conn_limits *limits, uint64_t deadline, void **map_out,
                                   struct gr_why *why)
{
    uint8_t offer[OFFER_BYTES];
    GR_TRY(gr_sock_read_peer(fd, offer, sizeof(offer), deadline, "shm offer"));
    struct gr_reader r = {.p = offer, .len = sizeof(offer)};
    uint32_t magic = gr_read_u32(&r), present = gr_read_u32(&r);
    uint64_t bytes = gr_read_u64(&r);
    char name[NAME_BYTES + 1] = {0};
    memcpy(name, gr_read_bytes(&r, NAME_BYTES), NAME_BYTES);
    if (magic != OFFER_MAGIC || present > 1) {
        log_error("shm: malformed offer of a segment");
        return GR_EPROTO;
    }
    if (present == 0) {
        snprintf(why->text, sizeof(why->text), "the peer could not make a segment (it tells why)");
        why->theirs = true;
        return GR_EUNSUPPORTED;
    }
    void *map = NULL;
    const enum gr_status mapped = map_offered(name, bytes, limits, &map, why);
    const enum gr_status st = write_reply(fd, mapped == GR_OK, deadline);
    if (st == GR_OK && mapped == GR_OK) {
        *map_out = map;
        return GR_OK;
    }
    if (mapped == GR_OK) {
        munmap(map, (size_t)bytes);
    }
    return st != GR_OK ? st : mapped;
}

enum gr_status gr_transport_open_shm(int fd, bool creator, const struct gr_conn_limits *limits, uint32_t generation,
                                     int timeout_ms, struct gr_conn **conn_out, struct gr_why *why)
{
    GR_TRY(gr_limits_check(limits));
    struct shm_conn *s = calloc(1, sizeof(*s));
    uint8_t *copies = aligned_alloc(GR_SLOT_ALIGN, gr_ring_slots_bytes(limits));
    enum gr_status st = GR_ENOMEM;
    if (s == NULL || copies == NULL) {
        log_error("shm: out of memory");
        goto free_memory;
    }
    uint64_t deadline = gr_deadline_ns(timeout_ms);
    void *map = NULL;
    st = creator ? create_segment(fd, limits, generation, deadline, &map, why)
                 : open_segment(fd, limits, deadline, &map, why);
    if (st != GR_OK) {
        goto free_memory;
    }
    gr_sock_tune(fd);
    s->base = (struct gr_conn){.ops = &gr_transport_shm, .limits = *limits, .conn_generation = generation};
    s->fd = fd;
    s->map = map;
    s->map_bytes = gr_ring_shared_bytes(limits);
    s->copies = copies;
    gr_ring_end_init(&s->ring, map, limits, creator ? 0 : 1, copies);
    *conn_out = &s->base;
    return GR_OK;

free_memory:
    free(copies);
    free(s);
    return st;
}
