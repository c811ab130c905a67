#include "transport/connect/control.h"

#include "common/base/bytes.h"
#include "common/base/log.h"
#include "transport/net.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define PREFIX_BYTES 4 /* the length before each message */
#define QUEUE_BYTES                                                                                   \
    (GR_MSG_BYTES_MAX + PREFIX_BYTES + GR_SEAL_BYTES) /* the largest message, its length and its seal \
                                                       */
#define OUT_BYTES (2 * (size_t)QUEUE_BYTES)           /* room to move what waits only now and then */

struct gr_control {
    int fd;
    bool closed;
    bool took_all; /* the last read took all that the socket had */
    uint8_t *in;   /* owned, QUEUE_BYTES */
    /* Owned, OUT_BYTES. What waits is out[out_at .. out_len), at most out_max bytes in twice the room. It is moved to
     * the front when more than out_max bytes have been sent since the last time: no byte is moved more than once. */
    uint8_t *out;
    size_t in_at, in_len, out_at, out_len, out_max;
    struct gr_seal_keys keys; /* on: records are sealed */
    struct gr_seal seal;
    uint64_t n_opened; /* sealed records that have come */
    bool heard;        /* the header of what comes in has come */
};

static size_t seal_bytes(const struct gr_control *c)
{
    return c->keys.on ? GR_SEAL_BYTES : 0;
}

static size_t content_at(const struct gr_control *c)
{
    return c->keys.on ? GR_SEAL_CONTENT_AT : 0;
}

/* The header is the first that the peer gets. */
static void use_keys(struct gr_control *c, struct gr_seal_keys *keys)
{
    if (keys != NULL && !keys->on) {
        char where[64];
        gr_sock_peer_text(c->fd, where);
        log_warn("the control link to %s is not encrypted: --control-encryption is off at one of its ends", where);
    }
    if (keys == NULL || !keys->on) {
        return;
    }
    c->keys = *keys;
    sodium_memzero(keys, sizeof(*keys));
    gr_seal_begin_out(&c->seal, &c->keys, c->out);
    c->out_len = GR_SEAL_HEADER_BYTES;
}

enum gr_status gr_control_create(int fd, struct gr_seal_keys *keys, struct gr_control **out)
{
    struct gr_control *c = calloc(1, sizeof(*c));
    uint8_t *in = malloc(QUEUE_BYTES);
    uint8_t *queue = malloc(OUT_BYTES);
    if (c == NULL || in == NULL || queue == NULL) {
        log_error("out of memory for a control link");
        free(c);
        free(in);
        free(queue);
        return GR_ENOMEM;
    }
    *c = (struct gr_control){.fd = fd, .in = in, .out = queue, .out_max = QUEUE_BYTES};
    use_keys(c, keys);
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    *out = c;
    return GR_OK;
}

void gr_control_limit_out(struct gr_control *c, uint32_t bytes)
{
    const int kernel_bytes = (int)bytes;
    c->out_max = GR_MIN((size_t)bytes, (size_t)QUEUE_BYTES);
    (void)setsockopt(c->fd, SOL_SOCKET, SO_SNDBUF, &kernel_bytes, sizeof(kernel_bytes));
}

void gr_control_destroy(struct gr_control *c)
{
    if (c == NULL) {
        return;
    }
    close(c->fd);
    sodium_memzero(&c->keys, sizeof(c->keys));
    sodium_memzero(&c->seal, sizeof(c->seal));
    free(c->in);
    free(c->out);
    free(c);
}

enum gr_status gr_control_send(struct gr_control *c, const struct gr_msg *m)
{
    if (c->closed) {
        return GR_ECLOSED;
    }
    if (c->out_at > 0 && c->out_at == c->out_len) {
        c->out_at = c->out_len = 0;
    }
    if (c->out_at > c->out_max) {
        memmove(c->out, c->out + c->out_at, c->out_len - c->out_at);
        c->out_len -= c->out_at;
        c->out_at = 0;
    }
    const size_t room = gr_control_room(c);
    if (room < PREFIX_BYTES + seal_bytes(c)) {
        log_error("the control queue is full: the peer does not read");
        return GR_ELIMIT;
    }
    size_t len = 0;
    uint8_t *record = c->out + c->out_len + PREFIX_BYTES;
    const size_t cap = GR_MIN(room - PREFIX_BYTES - seal_bytes(c), (size_t)GR_MSG_BYTES_MAX);
    GR_TRY(gr_msg_encode(m, record + content_at(c), cap, &len));
    if (c->keys.on) {
        gr_seal_shut(&c->seal, record, len);
    }
    len += seal_bytes(c);
    struct gr_writer w = {.p = c->out + c->out_len, .cap = PREFIX_BYTES};
    gr_write_u32(&w, (uint32_t)len);
    c->out_len += PREFIX_BYTES + len;
    return GR_OK;
}

size_t gr_control_room(const struct gr_control *c)
{
    return c->out_max - (c->out_len - c->out_at);
}

enum gr_status gr_control_flush(struct gr_control *c)
{
    while (c->out_at < c->out_len) {
        const ssize_t n = send(c->fd, c->out + c->out_at, c->out_len - c->out_at, MSG_NOSIGNAL);
        if (n > 0) {
            c->out_at += (size_t)n;
        } else if (n < 0 && errno == EINTR) {
            continue;
        } else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            return GR_AGAIN;
        } else {
            c->closed = true;
            return GR_ECLOSED;
        }
    }
    c->out_at = c->out_len = 0;
    return GR_OK;
}

static enum gr_status take_header(struct gr_control *c)
{
    if (!c->keys.on || c->heard) {
        return GR_OK;
    }
    if (c->in_len - c->in_at < GR_SEAL_HEADER_BYTES) {
        return GR_AGAIN;
    }
    gr_seal_begin_in(&c->seal, &c->keys, c->in + c->in_at);
    c->in_at += GR_SEAL_HEADER_BYTES;
    c->heard = true;
    return GR_OK;
}

/* Opens a record in its place. */
static enum gr_status open_record(struct gr_control *c, uint8_t *record, size_t bytes)
{
    if (!c->keys.on) {
        return GR_OK;
    }
    const enum gr_status st = gr_seal_open(&c->seal, record, bytes);
    if (st == GR_OK) {
        c->n_opened++;
    } else {
        log_error("encrypted record %llu of a control link is not what the other end sent next: it was altered, "
                  "repeated, left out or made by somebody else; the link is closed",
                  (unsigned long long)c->n_opened + 1);
    }
    return st;
}

/* One whole message at the front of the input? */
static enum gr_status take_front(struct gr_control *c, struct gr_msg *out)
{
    GR_TRY(take_header(c));
    struct gr_reader r = {.p = c->in + c->in_at, .len = c->in_len - c->in_at};
    const uint32_t len = gr_read_u32(&r);
    if (r.failed) {
        return GR_AGAIN;
    }
    if (len < 1 + seal_bytes(c) || len > GR_MSG_BYTES_MAX + seal_bytes(c)) {
        log_error("peer announced a control message of %u bytes, allowed are %zu to %zu", len, 1 + seal_bytes(c),
                  GR_MSG_BYTES_MAX + seal_bytes(c));
        c->closed = true;
        return GR_EPROTO;
    }
    uint8_t *record = c->in + c->in_at + PREFIX_BYTES;
    if (gr_read_bytes(&r, len) == NULL) {
        return GR_AGAIN;
    }
    enum gr_status st = open_record(c, record, len);
    st = st == GR_OK ? gr_msg_decode(record + content_at(c), len - seal_bytes(c), out) : st;
    c->in_at += r.at;
    c->closed = c->closed || st != GR_OK;
    return st;
}

enum gr_status gr_control_recv(struct gr_control *c, struct gr_msg *out)
{
    for (;;) {
        const enum gr_status st = take_front(c, out);
        if (st != GR_AGAIN) {
            return st;
        }
        if (c->closed) {
            return GR_ECLOSED;
        }
        /* What is left is less than a message. It is moved once a read: a peer's many small ones must not cost a move
         * each. */
        memmove(c->in, c->in + c->in_at, c->in_len - c->in_at);
        c->in_len -= c->in_at;
        c->in_at = 0;
        const size_t room = QUEUE_BYTES - c->in_len;
        const ssize_t n = recv(c->fd, c->in + c->in_len, room, 0);
        if (n > 0) {
            c->took_all = (size_t)n < room;
            c->in_len += (size_t)n;
        } else if (n < 0 && errno == EINTR) {
            continue;
        } else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            return GR_AGAIN;
        } else {
            c->closed = true;
        }
    }
}

bool gr_control_has_nothing(const struct gr_control *c)
{
    struct gr_reader r = {.p = c->in + c->in_at, .len = c->in_len - c->in_at};
    const uint32_t len = gr_read_u32(&r);
    const bool part = r.failed || (len <= GR_MSG_BYTES_MAX && len > r.len - r.at);
    return c->took_all && part;
}

int gr_control_fd(const struct gr_control *c)
{
    return c->fd;
}

short gr_control_events(const struct gr_control *c)
{
    return (short)(POLLIN | (c->out_at < c->out_len ? POLLOUT : 0));
}
