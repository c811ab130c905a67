#include "bench/server/bus.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "transport/connect/greet.h"
#include "transport/connect/secrecy.h"
#include "transport/net.h"

#include <poll.h>
#include <time.h>
#include <unistd.h>

#define HELLO_TIMEOUT_MS 60000

enum gr_status gr_bus_join(struct gr_bus *b, enum gr_role role, uint64_t incarnation, gr_bus_on_msg *on_msg, void *ctx,
                           int *end_out)
{
    struct gr_hello self, peer;
    struct gr_control *control = NULL;
    int fd = -1;
    if (b->n == GR_BUS_END_MAX) {
        log_error("more than %d connections to the server", GR_BUS_END_MAX);
        return GR_ELIMIT;
    }
    gr_hello_for_messages(role, &self);
    self.incarnation = incarnation;
    self.secrecy = GR_SECRECY_ON; /* as where sessions are real */
    const struct gr_greeting g = {.address = b->address, .self = &self, .key = b->key, .timeout_ms = HELLO_TIMEOUT_MS};
    GR_TRY(gr_greet_as_client(&g, 0, &fd, &peer));
    const enum gr_status st = gr_control_create(fd, &peer.keys, &control);
    if (st != GR_OK) {
        close(fd);
        return st;
    }
    *end_out = b->n;
    b->end[b->n++] = (struct gr_bus_end){.control = control, .on_msg = on_msg, .ctx = ctx};
    return GR_OK;
}

enum gr_status gr_bus_send(struct gr_bus *b, int end, const struct gr_msg *m)
{
    const enum gr_status st = gr_control_send(b->end[end].control, m);
    if (st != GR_OK) {
        log_error("connection %d: %s cannot be sent: %s", end, gr_msg_name(m->type), gr_status_text(st));
    }
    return st;
}

/* All messages that are there. */
static enum gr_status hear(struct gr_bus *b, int end)
{
    struct gr_bus_end *e = &b->end[end];
    for (;;) {
        struct gr_msg m;
        enum gr_status st = gr_control_recv(e->control, &m);
        if (st == GR_AGAIN) {
            return GR_OK;
        }
        if (st == GR_ECLOSED && e->may_close) {
            gr_bus_leave(b, end);
            return GR_OK;
        }
        if (st != GR_OK) {
            log_error("connection %d: the server has closed it", end);
            return st;
        }
        st = e->on_msg(e->ctx, &m);
        gr_msg_finish(&m);
        GR_TRY(st);
    }
}

/* A link that is gone shows when it is read. */
static int watch(const struct gr_bus *b, struct pollfd *fds, int *end_of)
{
    int n = 0;
    for (int i = 0; i < b->n; i++) {
        struct gr_control *c = b->end[i].control;
        if (c != NULL) {
            enum gr_status st = gr_control_flush(c);
            (void)st;
            end_of[n] = i;
            fds[n++] = (struct pollfd){.fd = gr_control_fd(c), .events = gr_control_events(c)};
        }
    }
    return n;
}

enum gr_status gr_bus_pump(struct gr_bus *b, uint64_t timeout_ns)
{
    struct pollfd fds[GR_BUS_END_MAX];
    int end_of[GR_BUS_END_MAX];
    const int n = watch(b, fds, end_of);
    const struct timespec t = gr_clock_timespec(timeout_ns);
    (void)ppoll(fds, (nfds_t)n, &t, NULL); /* a signal is as good as a time-out */
    for (int i = 0; i < n; i++) {
        if ((fds[i].revents & ~POLLOUT) != 0) {
            GR_TRY(hear(b, end_of[i]));
        }
    }
    return GR_OK;
}

void gr_bus_leave(struct gr_bus *b, int end)
{
    gr_control_destroy(b->end[end].control);
    b->end[end].control = NULL;
}

void gr_bus_close(struct gr_bus *b)
{
    for (int i = 0; i < b->n; i++) {
        gr_bus_leave(b, i);
    }
    b->n = 0;
}
