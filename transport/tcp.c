/* Frames over the bootstrap socket, between any two hosts.
 *
 * A record is a 20-byte header and a payload (docs/protocol.md). Slots for both directions are
 * taken at open. A sender has at most as many frames of a class outstanding as the peer has slots;
 * the header of any record returns credits, and a record of class `credit` does so alone when no
 * frame is there to carry them.
 *
 * Output: frames wait in one queue per class. What goes out next is chosen at each write: the rest
 * of a record already begun, then small frames, then one bulk frame. Headers are written when a
 * record is chosen, so a record that the kernel did not begin to take stays in its queue and can
 * still be overtaken by a small frame.
 *
 * Input: one read takes the rest of a payload straight into its slot and whatever follows into
 * `stage`, which is always parsed to the last whole header; so a read never waits for the caller.
 */
#include "transport/impl.h"
#include "transport/net.h"

#include "common/base/bytes.h"
#include "common/base/log.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#define RECORD_MAGIC 0x31465247u /* "GRF1" */
#define HEADER_BYTES 20u
#define CLASS_CREDIT 2u /* a record without a frame, after enum gr_frame_class */
#define STAGE_BYTES 16384u
#define N_IOV_MAX 16 /* records that one call writes at most */
#define N_READ_MAX 8 /* reads of one call; then the caller has its turn */
/* Unsent bytes in the kernel beyond this make a write wait, so that a small frame never waits for more of them. */
#define NOTSENT_BYTES_MAX (128 * 1024)

enum slot_state { SLOT_FREE, SLOT_HELD, SLOT_QUEUED };

/* Slots of one class and direction, and a queue of some of them. Payloads lie on GR_SLOT_ALIGN,
 * headers just before. */
struct slots {
    uint8_t *mem; /* owned */
    size_t stride;
    uint32_t n_slot, bytes_max;
    uint32_t n_free, n_queued, head;
    uint16_t free[GR_N_SLOT_MAX];
    uint16_t queue[GR_N_SLOT_MAX];
    uint32_t bytes[GR_N_SLOT_MAX];
    uint8_t state[GR_N_SLOT_MAX]; /* enum slot_state */
};

struct tcp_conn {
    struct gr_conn base;
    int fd;
    bool eof;      /* nothing more will be read */
    bool out_dead; /* nothing more can be written */
    bool failed;   /* the peer broke the protocol */
    bool stuck;    /* the kernel took less than offered: wait for POLLOUT */
    struct slots out[GR_N_FRAME_CLASS], in[GR_N_FRAME_CLASS];
    /* sending */
    uint32_t n_credit[GR_N_FRAME_CLASS];  /* frames that may still be acquired */
    uint32_t n_unacked[GR_N_FRAME_CLASS]; /* records begun whose credit is not back */
    bool starved[GR_N_FRAME_CLASS];
    uint32_t send_sequence;
    const uint8_t *cur; /* rest of the record that was begun */
    size_t cur_bytes;
    uint32_t cur_class, cur_slot;
    uint8_t credit_record[HEADER_BYTES];
    /* receiving */
    uint32_t n_owed[GR_N_FRAME_CLASS]; /* released, credit not yet returned */
    uint32_t recv_sequence;
    bool in_payload;
    enum gr_frame_class in_class;
    uint32_t in_slot, in_bytes, in_at; /* the payload that is arriving */
    uint32_t n_stage;
    uint8_t stage[STAGE_BYTES];
};

static struct tcp_conn *downcast(struct gr_conn *c)
{
    GR_ASSERT(c->ops == &gr_transport_tcp);
    return GR_CONTAINER_OF(c, struct tcp_conn, base);
}

/* ---- slots ---- */

static enum gr_status slots_init(struct slots *s, const struct gr_conn_limits *limits, enum gr_frame_class class)
{
    s->bytes_max = gr_class_bytes_max(limits, class);
    s->n_slot = gr_class_n_slot(limits, class);
    s->stride = GR_SLOT_ALIGN + gr_round_up(s->bytes_max, GR_SLOT_ALIGN);
    for (uint32_t i = 0; i < s->n_slot; i++) {
        s->free[s->n_free++] = (uint16_t)(s->n_slot - 1 - i);
    }
    s->mem = s->n_slot == 0 ? NULL : aligned_alloc(GR_SLOT_ALIGN, s->stride * s->n_slot);
    return s->n_slot == 0 || s->mem != NULL ? GR_OK : GR_ENOMEM;
}

static uint8_t *slot_payload(const struct slots *s, uint32_t slot)
{
    return s->mem + slot * s->stride + GR_SLOT_ALIGN;
}

static uint32_t slot_take(struct slots *s)
{
    uint32_t slot = s->free[--s->n_free];
    s->state[slot] = SLOT_HELD;
    return slot;
}

static void slot_free(struct slots *s, uint32_t slot)
{
    s->state[slot] = SLOT_FREE;
    s->free[s->n_free++] = (uint16_t)slot;
}

static void slot_push(struct slots *s, uint32_t slot, uint32_t bytes)
{
    s->state[slot] = SLOT_QUEUED;
    s->bytes[slot] = bytes;
    s->queue[(s->head + s->n_queued++) % GR_N_SLOT_MAX] = (uint16_t)slot;
}

static uint32_t slot_peek(const struct slots *s, uint32_t i)
{
    return s->queue[(s->head + i) % GR_N_SLOT_MAX];
}

static uint32_t slot_pop(struct slots *s)
{
    uint32_t slot = slot_peek(s, 0);
    s->head = (s->head + 1) % GR_N_SLOT_MAX;
    s->n_queued--;
    s->state[slot] = SLOT_HELD;
    return slot;
}

/* ---- output ---- */

/* Return credits in a record of their own once the peer may have used up half of its own. Below
 * that they ride on the next frame, so that a ping-pong needs no extra records. */
static bool credits_due(const struct tcp_conn *t)
{
    for (int k = 0; k < GR_N_FRAME_CLASS; k++) {
        const struct slots *in = &t->in[k];
        /* slots that are neither free nor owed as a credit are filled or held */
        uint32_t n_used = in->n_slot - in->n_free + t->n_owed[k];
        if (t->n_owed[k] > 0 && 2 * n_used >= in->n_slot) {
            return true;
        }
    }
    return false;
}

struct record {
    uint32_t class; /* enum gr_frame_class or CLASS_CREDIT */
    uint32_t slot;
};

static void header_encode(const struct tcp_conn *t, uint8_t *p, uint32_t class, uint32_t bytes, uint32_t sequence,
                          bool with_credits)
{
    struct gr_writer w = {.p = p, .cap = HEADER_BYTES};
    gr_write_u32(&w, RECORD_MAGIC);
    gr_write_u8(&w, class);
    gr_write_u8(&w, 0);
    gr_write_u16(&w, with_credits ? t->n_owed[GR_FRAME_SMALL] : 0);
    gr_write_u16(&w, with_credits ? t->n_owed[GR_FRAME_BULK] : 0);
    gr_write_u16(&w, 0);
    gr_write_u32(&w, sequence);
    gr_write_u32(&w, bytes);
}

static void add_frames(struct tcp_conn *t, enum gr_frame_class class, int n_max, struct iovec iov[N_IOV_MAX],
                       struct record rec[N_IOV_MAX], int *n, uint32_t *n_new)
{
    const struct slots *s = &t->out[class];
    for (uint32_t i = 0; i < s->n_queued && *n < n_max; i++) {
        uint32_t slot = slot_peek(s, i);
        uint8_t *p = slot_payload(s, slot) - HEADER_BYTES;
        header_encode(t, p, class, s->bytes[slot], t->send_sequence + *n_new, *n_new == 0);
        iov[*n] = (struct iovec){.iov_base = p, .iov_len = HEADER_BYTES + s->bytes[slot]};
        rec[(*n)++] = (struct record){.class = class, .slot = slot};
        (*n_new)++;
    }
}

/* What to write now, in order: the record begun, small frames, one bulk frame, or else credits
 * alone. */
static int gather(struct tcp_conn *t, struct iovec iov[N_IOV_MAX], struct record rec[N_IOV_MAX])
{
    int n = 0;
    uint32_t n_new = 0;
    if (t->cur_bytes > 0) {
        iov[n] = (struct iovec){.iov_base = (void *)(uintptr_t)t->cur, .iov_len = t->cur_bytes};
        rec[n++] = (struct record){.class = t->cur_class, .slot = t->cur_slot};
    }
    add_frames(t, GR_FRAME_SMALL, N_IOV_MAX - 1, iov, rec, &n, &n_new);
    if (n_new == t->out[GR_FRAME_SMALL].n_queued) {
        add_frames(t, GR_FRAME_BULK, n + 1, iov, rec, &n, &n_new);
    }
    if (n == 0 && credits_due(t)) {
        header_encode(t, t->credit_record, CLASS_CREDIT, 0, t->send_sequence, true);
        iov[n] = (struct iovec){.iov_base = t->credit_record, .iov_len = HEADER_BYTES};
        rec[n++] = (struct record){.class = CLASS_CREDIT};
    }
    return n;
}

/* The kernel took a first byte of a new record: it leaves its queue, and its credits are given. */
static void begin_record(struct tcp_conn *t, const struct record *rec)
{
    t->send_sequence++;
    memset(t->n_owed, 0, sizeof(t->n_owed)); /* on the first of a batch, and then nothing is owed */
    if (rec->class != CLASS_CREDIT) {
        uint32_t slot = slot_pop(&t->out[rec->class]);
        GR_ASSERT(slot == rec->slot);
        t->n_unacked[rec->class]++;
    }
}

static void finish_record(struct tcp_conn *t, const struct record *rec)
{
    if (rec->class != CLASS_CREDIT) {
        slot_free(&t->out[rec->class], rec->slot);
    }
}

/* Books what one write took: `left` bytes of the n records. */
static void consume(struct tcp_conn *t, const struct iovec *iov, const struct record *rec, int n, size_t left)
{
    bool cur = t->cur_bytes > 0;
    for (int i = 0; i < n && left > 0; i++) {
        if (!(cur && i == 0)) {
            begin_record(t, &rec[i]);
        }
        size_t took = GR_MIN(left, iov[i].iov_len);
        left -= took;
        t->cur = (const uint8_t *)iov[i].iov_base + took;
        t->cur_bytes = iov[i].iov_len - took;
        t->cur_class = rec[i].class;
        t->cur_slot = rec[i].slot;
        if (t->cur_bytes == 0) {
            finish_record(t, &rec[i]);
        }
    }
}

static enum gr_status push_out(struct tcp_conn *t)
{
    while (!t->out_dead) {
        struct iovec iov[N_IOV_MAX];
        struct record rec[N_IOV_MAX];
        int n = gather(t, iov, rec);
        t->stuck = false;
        if (n == 0) {
            return GR_OK;
        }
        size_t total = 0;
        for (int i = 0; i < n; i++) {
            total += iov[i].iov_len;
        }
        struct msghdr msg = {.msg_iov = iov, .msg_iovlen = (size_t)n};
        ssize_t took = sendmsg(t->fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (took < 0 && errno == EINTR) {
            continue;
        }
        if (took < 0 && errno != EAGAIN) {
            t->out_dead = true; /* what the peer sent before may still be read */
            break;
        }
        consume(t, iov, rec, n, took < 0 ? 0 : (size_t)took);
        if (took < 0 || (size_t)took < total) {
            t->stuck = true;
            return GR_AGAIN;
        }
    }
    return GR_ECLOSED;
}

/* ---- input ---- */

static void throw_out(struct tcp_conn *t)
{
    t->failed = true;
    t->eof = true;
    t->out_dead = true;
    shutdown(t->fd, SHUT_RDWR);
}

struct header {
    uint32_t magic, class, reserved, sequence, bytes;
    uint32_t n_credit[GR_N_FRAME_CLASS];
};

static struct header header_decode(const uint8_t *p)
{
    struct gr_reader r = {.p = p, .len = HEADER_BYTES};
    struct header h = {0};
    h.magic = gr_read_u32(&r);
    h.class = gr_read_u8(&r);
    h.reserved = gr_read_u8(&r);
    h.n_credit[GR_FRAME_SMALL] = gr_read_u16(&r);
    h.n_credit[GR_FRAME_BULK] = gr_read_u16(&r);
    h.reserved |= gr_read_u16(&r);
    h.sequence = gr_read_u32(&r);
    h.bytes = gr_read_u32(&r);
    return h;
}

/* NULL, or what is wrong with the header. */
static const char *header_fault(const struct tcp_conn *t, const struct header *h)
{
    if (h->magic != RECORD_MAGIC || h->reserved != 0 || h->class > CLASS_CREDIT) {
        return "malformed header";
    }
    if (h->sequence != t->recv_sequence) {
        return "wrong sequence number";
    }
    if (h->n_credit[GR_FRAME_SMALL] > t->n_unacked[GR_FRAME_SMALL] ||
        h->n_credit[GR_FRAME_BULK] > t->n_unacked[GR_FRAME_BULK]) {
        return "more credits returned than were taken";
    }
    if (h->class == CLASS_CREDIT) {
        return h->bytes != 0 ? "credit record with a payload" : NULL;
    }
    if (h->bytes > t->in[h->class].bytes_max) {
        return "oversize frame";
    }
    /* A slot that was released is the peer's again only once its credit was returned. */
    return t->in[h->class].n_free <= t->n_owed[h->class] ? "frame without a credit" : NULL;
}

static void take_header(struct tcp_conn *t, const uint8_t *p)
{
    struct header h = header_decode(p);
    const char *fault = header_fault(t, &h);
    if (fault != NULL) {
        log_error("tcp: %s from the peer (generation %u, class %u, sequence %u, %u bytes, limits "
                  "%u small, %u bulk); closing",
                  fault, t->base.conn_generation, h.class, h.sequence, h.bytes, t->base.limits.small_bytes_max,
                  t->base.limits.bulk_bytes_max);
        throw_out(t);
        return;
    }
    t->recv_sequence++;
    for (int k = 0; k < GR_N_FRAME_CLASS; k++) {
        t->n_unacked[k] -= h.n_credit[k];
        t->n_credit[k] += h.n_credit[k];
    }
    if (h.class != CLASS_CREDIT) {
        t->in_payload = true;
        t->in_class = (enum gr_frame_class)h.class;
        t->in_slot = slot_take(&t->in[h.class]);
        t->in_bytes = h.bytes;
        t->in_at = 0;
    }
}

static void end_payload_if_whole(struct tcp_conn *t)
{
    if (t->in_payload && t->in_at == t->in_bytes) {
        slot_push(&t->in[t->in_class], t->in_slot, t->in_bytes);
        t->in_payload = false;
    }
}

/* Parses the stage; only part of a header can be left in it. */
static void parse_stage(struct tcp_conn *t)
{
    uint32_t at = 0;
    while (!t->failed) {
        if (t->in_payload) {
            uint32_t n = GR_MIN(t->in_bytes - t->in_at, t->n_stage - at);
            memcpy(slot_payload(&t->in[t->in_class], t->in_slot) + t->in_at, t->stage + at, n);
            t->in_at += n;
            at += n;
            end_payload_if_whole(t);
        }
        if (t->in_payload || t->n_stage - at < HEADER_BYTES) {
            break;
        }
        take_header(t, t->stage + at);
        at += HEADER_BYTES;
    }
    t->n_stage -= at;
    memmove(t->stage, t->stage + at, t->n_stage);
}

/* One read. false: nothing more to be had now. */
static bool read_once(struct tcp_conn *t)
{
    struct iovec iov[2];
    size_t n_iov = 0, n_direct = 0;
    if (t->in_payload) {
        n_direct = t->in_bytes - t->in_at;
        iov[n_iov++] =
            (struct iovec){.iov_base = slot_payload(&t->in[t->in_class], t->in_slot) + t->in_at, .iov_len = n_direct};
    }
    size_t n_room = STAGE_BYTES - t->n_stage;
    iov[n_iov++] = (struct iovec){.iov_base = t->stage + t->n_stage, .iov_len = n_room};
    struct msghdr msg = {.msg_iov = iov, .msg_iovlen = n_iov};
    ssize_t got = recvmsg(t->fd, &msg, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
        return errno == EINTR;
    }
    if (got <= 0) {
        t->eof = true;
        t->out_dead = true;
        return false;
    }
    size_t direct = GR_MIN((size_t)got, n_direct);
    t->in_at += (uint32_t)direct;
    end_payload_if_whole(t);
    t->n_stage += (uint32_t)((size_t)got - direct);
    parse_stage(t);
    return (size_t)got == n_direct + n_room;
}

static void pump(struct tcp_conn *t)
{
    for (int i = 0; i < N_READ_MAX && !t->eof && read_once(t); i++) {
        continue;
    }
}

/* ---- the table ---- */

static bool can_acquire(const struct tcp_conn *t, enum gr_frame_class class)
{
    return t->n_credit[class] > 0 && t->out[class].n_free > 0;
}

static enum gr_status tcp_acquire(struct gr_conn *c, enum gr_frame_class class, uint32_t bytes,
                                  struct gr_frame *frame_out)
{
    struct tcp_conn *t = downcast(c);
    GR_TRY(gr_acquire_check(c, class, bytes));
    if (!t->out_dead && !can_acquire(t, class)) {
        (void)push_out(t); /* a slot may become free */
        pump(t);           /* a credit may be there */
    }
    if (t->out_dead) {
        return GR_ECLOSED;
    }
    t->starved[class] = !can_acquire(t, class);
    if (t->starved[class]) {
        c->stats.n_no_credit++;
        return GR_AGAIN;
    }
    t->n_credit[class]--;
    uint32_t slot = slot_take(&t->out[class]);
    *frame_out = (struct gr_frame){
        .data = slot_payload(&t->out[class], slot), .bytes = t->out[class].bytes_max, .class = class, .slot = slot};
    return GR_OK;
}

static struct slots *held(struct slots slots[GR_N_FRAME_CLASS], const struct gr_frame *frame)
{
    GR_ASSERT((unsigned)frame->class < GR_N_FRAME_CLASS);
    struct slots *s = &slots[frame->class];
    GR_ASSERT(frame->slot < s->n_slot && s->state[frame->slot] == SLOT_HELD);
    return s;
}

static enum gr_status tcp_send(struct gr_conn *c, struct gr_frame *frame, uint32_t bytes)
{
    struct tcp_conn *t = downcast(c);
    struct slots *s = held(t->out, frame);
    GR_ASSERT(bytes <= s->bytes_max);
    slot_push(s, frame->slot, bytes);
    gr_count_sent(c, frame->class, bytes);
    frame->data = NULL;
    return t->out_dead ? GR_ECLOSED : GR_OK;
}

static void tcp_abandon(struct gr_conn *c, struct gr_frame *frame)
{
    struct tcp_conn *t = downcast(c);
    slot_free(held(t->out, frame), frame->slot);
    t->n_credit[frame->class]++;
    frame->data = NULL;
}

static enum gr_status tcp_recv(struct gr_conn *c, struct gr_frame *frame_out)
{
    struct tcp_conn *t = downcast(c);
    if (t->stuck) {
        (void)push_out(t); /* a busy-polling caller may have nothing to flush but credits */
    }
    if (t->in[GR_FRAME_SMALL].n_queued == 0) {
        pump(t);
    }
    for (int k = 0; k < GR_N_FRAME_CLASS; k++) {
        struct slots *s = &t->in[k];
        if (s->n_queued > 0) {
            uint32_t slot = slot_pop(s);
            *frame_out =
                (struct gr_frame){.data = slot_payload(s, slot), .bytes = s->bytes[slot], .class = k, .slot = slot};
            gr_count_received(c, frame_out->class, frame_out->bytes);
            return GR_OK;
        }
    }
    return t->failed ? GR_EPROTO : t->eof ? GR_ECLOSED : GR_AGAIN;
}

static void tcp_release(struct gr_conn *c, struct gr_frame *frame)
{
    struct tcp_conn *t = downcast(c);
    slot_free(held(t->in, frame), frame->slot);
    t->n_owed[frame->class]++;
    frame->data = NULL;
    if (credits_due(t)) {
        (void)push_out(t);
    }
}

static enum gr_status tcp_flush(struct gr_conn *c)
{
    return push_out(downcast(c));
}

static int tcp_poll_fd(struct gr_conn *c, short *events_out)
{
    struct tcp_conn *t = downcast(c);
    (void)push_out(t);
    *events_out = (short)(POLLIN | (t->stuck ? POLLOUT : 0));
    bool waiting = t->eof;
    for (int k = 0; k < GR_N_FRAME_CLASS; k++) {
        waiting = waiting || t->in[k].n_queued > 0 || (t->starved[k] && can_acquire(t, k));
    }
    return waiting ? -1 : t->fd;
}

static void tcp_conn_free(struct tcp_conn *t)
{
    for (int k = 0; k < GR_N_FRAME_CLASS; k++) {
        free(t->out[k].mem);
        free(t->in[k].mem);
    }
    free(t);
}

static void tcp_close(struct gr_conn *c)
{
    struct tcp_conn *t = downcast(c);
    /* Closing with unread input would send a reset, and the kernel would drop what was already
     * flushed. */
    shutdown(t->fd, SHUT_WR);
    for (int i = 0; i < N_READ_MAX; i++) {
        if (recv(t->fd, t->stage, sizeof(t->stage), MSG_DONTWAIT) <= 0) {
            break;
        }
    }
    close(t->fd);
    tcp_conn_free(t);
}

const struct gr_transport_ops gr_transport_tcp = {
    .name = "tcp",
    .acquire = tcp_acquire,
    .send = tcp_send,
    .abandon = tcp_abandon,
    .recv = tcp_recv,
    .release = tcp_release,
    .flush = tcp_flush,
    .poll_fd = tcp_poll_fd,
    .close = tcp_close,
};

enum gr_status gr_transport_open_tcp(int fd, const struct gr_conn_limits *limits, uint32_t generation,
                                     struct gr_conn **conn_out)
{
    GR_TRY(gr_limits_check(limits));
    struct tcp_conn *t = calloc(1, sizeof(*t));
    bool ok = t != NULL;
    for (int k = 0; k < GR_N_FRAME_CLASS && ok; k++) {
        ok = slots_init(&t->out[k], limits, k) == GR_OK && slots_init(&t->in[k], limits, k) == GR_OK;
        t->n_credit[k] = gr_class_n_slot(limits, k);
    }
    if (!ok) {
        log_error("tcp: no memory for the connection's slots");
        if (t != NULL) {
            tcp_conn_free(t);
        }
        return GR_ENOMEM;
    }
    gr_sock_tune(fd);
    int not_sent = NOTSENT_BYTES_MAX;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &not_sent, sizeof(not_sent));
    t->base = (struct gr_conn){.ops = &gr_transport_tcp, .limits = *limits, .conn_generation = generation};
    t->fd = fd;
    *conn_out = &t->base;
    return GR_OK;
}
