#include "transport/connect/greet.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "transport/connect/gate.h"
#include "transport/net.h"

#include <unistd.h>

#define TELL_MS 2000 /* of patience, after which a warning says who is waited for */

enum gr_status gr_greet(const struct gr_greeting *g, int fd, char why[GR_GREET_WHY_BYTES], struct gr_hello *peer_out)
{
    why[0] = '\0';
    gr_log_hold(why, GR_GREET_WHY_BYTES);
    const enum gr_status st = gr_hello_call(fd, g->self, g->key, g->timeout_ms, peer_out);
    gr_log_hold(NULL, 0);
    if (st == GR_OK) {
        return GR_OK;
    }
    close(fd);
    if (st == GR_ECLOSED) {
        return GR_AGAIN;
    }
    log_error("%s", why);
    return st;
}

static enum gr_status connect_as_client(const struct gr_greeting *g, int patience_ms, int left_ms, int *fd_out)
{
    if (patience_ms == 0) {
        return gr_tcp_connect(g->address, GR_MIN(g->timeout_ms, left_ms), fd_out);
    }
    return gr_tcp_connect_patiently(g->address, GR_MIN(patience_ms, left_ms), TELL_MS, fd_out);
}

enum gr_status gr_greet_as_client(const struct gr_greeting *g, int patience_ms, int *fd_out, struct gr_hello *peer_out)
{
    const int patient_ms = GR_MAX(patience_ms, 0);
    const uint64_t within_ms =
        g->within_ms > 0 ? (uint64_t)g->within_ms : (uint64_t)patient_ms + (uint64_t)g->timeout_ms;
    const uint64_t until_ns = gr_clock_ns() + within_ms * GR_MS;
    for (;;) {
        char why[GR_GREET_WHY_BYTES];
        struct gr_greeting one = *g;
        GR_TRY(connect_as_client(g, patient_ms, GR_MAX(gr_ms_left(until_ns, gr_clock_ns()), 1), fd_out));
        const uint64_t begin_ns = gr_clock_ns();
        const int left_ms = GR_MAX(gr_ms_left(until_ns, begin_ns), 1);
        one.timeout_ms = g->within_ms > 0 ? left_ms : GR_MIN(g->timeout_ms, left_ms);
        const enum gr_status st = gr_greet(&one, *fd_out, why, peer_out);
        if (st != GR_AGAIN) {
            return st;
        }
        const uint64_t now_ns = gr_clock_ns();
        const bool ran_out = now_ns - begin_ns >= GR_ACCEPT_TIMEOUT_MS * GR_MS / 2;
        if (!ran_out || now_ns >= until_ns) {
            log_error("%s", why);
            return GR_ECLOSED;
        }
    }
}
