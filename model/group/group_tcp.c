#include "model/group/group_tcp.h"

#include "common/base/clock.h"
#include "common/base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct tcp_group {
    struct gr_group g;
    int fd[GR_GROUP_RANK_MAX];
    float *own, *theirs; /* (n_part_max) */
    uint32_t number;
};

static struct tcp_group *of(struct gr_group *g)
{
    return GR_CONTAINER_OF(g, struct tcp_group, g);
}

/* ---- bytes ---- */

/* One direction of an exchange: a header, then data. */
struct flow {
    char *part[2];
    size_t bytes[2], done;
};

static size_t flow_left(const struct flow *f)
{
    return f->bytes[0] + f->bytes[1] - f->done;
}

static char *flow_at(const struct flow *f, size_t *n)
{
    const bool header = f->done < f->bytes[0];
    const size_t at = header ? f->done : f->done - f->bytes[0];
    *n = f->bytes[!header] - at;
    return f->part[!header] + at;
}

/* As much as can be sent or received at once. False: the peer is gone. */
static bool move(int fd, struct flow *f, bool sends)
{
    while (flow_left(f) > 0) {
        size_t n = 0;
        char *at = flow_at(f, &n);
        const ssize_t got = sends ? send(fd, at, n, MSG_NOSIGNAL | MSG_DONTWAIT) : recv(fd, at, n, MSG_DONTWAIT);
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
            return true;
        }
        if (got <= 0) {
            return false;
        }
        f->done += (size_t)got;
    }
    return true;
}

static int wait_ms(const struct gr_group *g, uint64_t begin)
{
    const uint64_t passed = gr_clock_ns() - begin;
    return g->limit_ns == 0 ? -1 : passed >= g->limit_ns ? 0 : (int)((g->limit_ns - passed) / GR_MS) + 1;
}

/* Both directions with one peer at a time; either may be empty. The limit counts from the last byte that moved. */
static enum gr_status exchange(struct tcp_group *t, int peer, struct flow *out, struct flow *in)
{
    const int fd = t->fd[peer];
    uint64_t begin = gr_clock_ns();
    for (size_t left = flow_left(out) + flow_left(in); left > 0;) {
        if (!move(fd, out, true) || !move(fd, in, false)) {
            return gr_group_lost(&t->g, peer);
        }
        const size_t still = flow_left(out) + flow_left(in);
        begin = still < left ? gr_clock_ns() : begin;
        left = still;
        struct pollfd p = {.fd = fd};
        p.events = (short)((flow_left(in) > 0 ? POLLIN : 0) | (flow_left(out) > 0 ? POLLOUT : 0));
        if (left > 0 && poll(&p, 1, wait_ms(&t->g, begin)) == 0) {
            return gr_group_late(&t->g, peer);
        }
    }
    return GR_OK;
}

/* ---- messages ---- */

static struct gr_group_call begin_call(struct tcp_group *t, enum gr_group_kind kind, uint64_t n)
{
    return (struct gr_group_call){.kind = kind, .number = ++t->number, .n = n, .step = t->g.step};
}

static struct flow flow_of(struct gr_group_call *call, void *data, size_t bytes)
{
    return (struct flow){.part = {(char *)call, data}, .bytes = {sizeof(*call), bytes}};
}

/* The others' calls end, too: their ends of the connections close. */
static void tcp_abort(struct gr_group *g)
{
    gr_group_abort_device(g);
    for (int r = 0; r < g->n_rank; r++) {
        if (r != g->rank) {
            (void)shutdown(of(g)->fd[r], SHUT_RDWR);
        }
    }
}

static enum gr_status end_badly(struct tcp_group *t, enum gr_status st)
{
    if (st != GR_OK) {
        tcp_abort(&t->g);
    }
    return st;
}

static enum gr_status send_to(struct tcp_group *t, int peer, struct gr_group_call *call, void *data, size_t bytes)
{
    struct flow out = flow_of(call, data, bytes), none = {.done = 0};
    return end_badly(t, exchange(t, peer, &out, &none));
}

/* The header first: a peer that is elsewhere may send more or fewer bytes. out: what is sent meanwhile, or empty. */
static enum gr_status receive_from(struct tcp_group *t, int peer, const struct gr_group_call *call, struct flow *out,
                                   void *data, size_t bytes)
{
    struct gr_group_call its;
    struct flow header = flow_of(&its, NULL, 0), none = {.done = 0};
    struct flow in = {.part = {data, NULL}, .bytes = {bytes, 0}};
    GR_TRY(end_badly(t, exchange(t, peer, &none, &header)));
    GR_TRY(end_badly(t, gr_group_check_call(&t->g, peer, call, &its)));
    return end_badly(t, exchange(t, peer, out, &in));
}

/* ---- operations ---- */

static void add(const float *lower, const float *higher, size_t n, float *out)
{
    for (size_t i = 0; i < n; i++) {
        out[i] = lower[i] + higher[i];
    }
}

static enum gr_status tcp_join(struct gr_group *g, float *out, size_t n)
{
    struct tcp_group *t = of(g);
    struct gr_group_call call = begin_call(t, GR_GROUP_JOIN, n);
    memcpy(out, t->own, n * sizeof(*out));
    for (int apart = 1; apart < g->n_rank; apart *= 2) {
        const int peer = g->rank ^ apart;
        struct flow header = flow_of(&call, NULL, 0), none = {.done = 0};
        struct flow data = {.part = {(char *)out, NULL}, .bytes = {n * sizeof(*out), 0}};
        GR_TRY(end_badly(t, exchange(t, peer, &header, &none)));
        GR_TRY(receive_from(t, peer, &call, &data, t->theirs, n * sizeof(*out)));
        if (peer > g->rank) {
            add(out, t->theirs, n, out);
        } else {
            add(t->theirs, out, n, out);
        }
    }
    return GR_OK;
}

static int columns(const struct gr_group_rows *rows, int rank)
{
    return rows->begin[rank + 1] - rows->begin[rank];
}

static void place(const struct gr_group_rows *rows, int rank, const float *from)
{
    const size_t width = (size_t)columns(rows, rank);
    for (int i = 0; i < rows->n_row; i++) {
        memcpy(rows->all + (size_t)i * (size_t)rows->stride + rows->begin[rank], from + (size_t)i * width,
               width * sizeof(float));
    }
}

/* Of a rank, in pieces of whole rows that there is room for. */
static enum gr_status take_columns(struct tcp_group *t, int peer, const struct gr_group_call *call,
                                   const struct gr_group_rows *rows, int most)
{
    const size_t width = (size_t)columns(rows, peer);
    struct gr_group_call header;
    struct flow in = flow_of(&header, NULL, 0), none = {.done = 0};
    GR_TRY(end_badly(t, exchange(t, peer, &none, &in)));
    GR_TRY(end_badly(t, gr_group_check_call(&t->g, peer, call, &header)));
    for (int row0 = 0; row0 < rows->n_row; row0 += most) {
        struct gr_group_rows piece = *rows;
        piece.n_row = GR_MIN(most, rows->n_row - row0);
        piece.all = rows->all + (size_t)row0 * (size_t)rows->stride;
        in =
            (struct flow){.part = {(char *)t->theirs, NULL}, .bytes = {(size_t)piece.n_row * width * sizeof(float), 0}};
        GR_TRY(end_badly(t, exchange(t, peer, &none, &in)));
        place(&piece, peer, t->theirs);
    }
    return GR_OK;
}

static enum gr_status tcp_gather(struct gr_group *g, const struct gr_group_rows *rows)
{
    struct tcp_group *t = of(g);
    struct gr_group_call call = begin_call(t, GR_GROUP_GATHER, (uint64_t)rows->n_row);
    if (g->rank > 0) {
        const size_t bytes = (size_t)rows->n_row * (size_t)columns(rows, g->rank) * sizeof(float);
        return send_to(t, 0, &call, (void *)(uintptr_t)rows->mine, bytes);
    }
    place(rows, 0, rows->mine);
    for (int r = 1; r < g->n_rank; r++) {
        const int width = columns(rows, r);
        GR_ASSERT((size_t)width <= g->n_part_max);
        GR_TRY(take_columns(t, r, &call, rows, width > 0 ? (int)(g->n_part_max / (size_t)width) : rows->n_row));
    }
    return GR_OK;
}

static enum gr_status tcp_broadcast(struct gr_group *g, void *data, size_t bytes)
{
    struct tcp_group *t = of(g);
    struct gr_group_call call = begin_call(t, GR_GROUP_BROADCAST, bytes);
    if (g->rank > 0) {
        struct flow none = {.done = 0};
        return receive_from(t, 0, &call, &none, data, bytes);
    }
    for (int r = 1; r < g->n_rank; r++) {
        GR_TRY(send_to(t, r, &call, data, bytes));
    }
    return GR_OK;
}

static void tcp_destroy(struct gr_group *g)
{
    struct tcp_group *t = of(g);
    for (int r = 0; r < g->n_rank; r++) {
        if (r != g->rank) {
            close(t->fd[r]);
        }
    }
    free(t->own);
    free(t->theirs);
    free(t);
}

static const struct gr_group_ops tcp_ops = {
    .name = "tcp",
    .join = tcp_join,
    .gather = tcp_gather,
    .broadcast = tcp_broadcast,
    .abort = tcp_abort,
    .destroy = tcp_destroy,
};

static void close_taken(const struct gr_group_tcp_config *c)
{
    for (int r = 0; r < c->n_rank; r++) {
        if (r != c->rank) {
            close(c->fd[r]);
        }
    }
}

enum gr_status gr_group_tcp_create(const struct gr_group_tcp_config *c, struct gr_group **out)
{
    const int on = 1;
    GR_ASSERT(c->n_rank >= 1 && c->n_rank <= GR_GROUP_RANK_MAX && c->rank >= 0 && c->rank < c->n_rank);
    struct tcp_group *t = calloc(1, sizeof(*t));
    float *own = calloc(c->n_part_max, sizeof(*own)), *theirs = calloc(c->n_part_max, sizeof(*theirs));
    if (t == NULL || own == NULL || theirs == NULL) {
        log_error("out of memory for a tensor-parallel group");
        free(t);
        free(own);
        free(theirs);
        close_taken(c);
        return GR_ENOMEM;
    }
    t->g = (struct gr_group){.ops = &tcp_ops,
                             .rank = c->rank,
                             .n_rank = c->n_rank,
                             .n_here = 1,
                             .part = own,
                             .n_part_max = c->n_part_max,
                             .limit_ns = c->limit_ns};
    t->own = own;
    t->theirs = theirs;
    memcpy(t->fd, c->fd, sizeof(t->fd));
    for (int r = 0; r < c->n_rank; r++) {
        if (r != c->rank) { /* a stream that is no TCP (of a test) has no such delay */
            (void)setsockopt(t->fd[r], IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
        }
    }
    *out = &t->g;
    return GR_OK;
}
