#include "transport/connect/control.h"

#include "common/base/bytes.h"
#include "common/base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define PREFIX_BYTES 4                                /* the length before each message */
#define QUEUE_BYTES (GR_MSG_BYTES_MAX + PREFIX_BYTES) /* the largest message and its length */
#define OUT_BYTES (2 * (size_t)QUEUE_BYTES)           /* room to move what waits only now and then */

struct gr_control {
    int fd;
    bool closed;
    uint8_t *in; /* owned, QUEUE_BYTES */
    /* Owned, OUT_BYTES. What waits is out[out_at .. out_len), at most out_max bytes in twice the room. It is moved to
     * the front when more than out_max bytes have been sent since the last time: no byte is moved more than once. */
    uint8_t *out;
    size_t in_at, in_len, out_at, out_len, out_max;
};

enum gr_status gr_control_create(int fd, struct gr_control **out)
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
    if (room < PREFIX_BYTES) {
        log_error("the control queue is full: the peer does not read");
        return GR_ELIMIT;
    }
    size_t len = 0;
    GR_TRY(gr_msg_encode(m, c->out + c->out_len + PREFIX_BYTES, room - PREFIX_BYTES, &len));
    struct gr_writer w = {.p = c->out + c->out_len, .cap = PREFIX_BYTES};
    gr_write_u32(&w, len);
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

/* One whole message at the front of the input? */
static enum gr_status take_front(struct gr_control *c, struct gr_msg *out)
{
    struct gr_reader r = {.p = c->in + c->in_at, .len = c->in_len - c->in_at};
    const uint32_t len = gr_read_u32(&r);
    if (r.failed) {
        return GR_AGAIN;
    }
    if (len < 1 || len > GR_MSG_BYTES_MAX) {
        log_error("peer announced a control message of %u bytes, the limit is %u", len, GR_MSG_BYTES_MAX);
        c->closed = true;
        return GR_EPROTO;
    }
    const uint8_t *body = gr_read_bytes(&r, len);
    if (body == NULL) {
        return GR_AGAIN;
    }
    const enum gr_status st = gr_msg_decode(body, len, out);
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
        const ssize_t n = recv(c->fd, c->in + c->in_len, QUEUE_BYTES - c->in_len, 0);
        if (n > 0) {
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

int gr_control_fd(const struct gr_control *c)
{
    return c->fd;
}

short gr_control_events(const struct gr_control *c)
{
    return (short)(POLLIN | (c->out_at < c->out_len ? POLLOUT : 0));
}
