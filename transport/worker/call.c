#include "transport/worker/call.h"

#include "common/base/address.h"
#include "common/base/log.h"
#include "transport/net.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* What has come of the addresses so far. */
struct attempts {
    enum gr_status st;
    char *why;
};

bool gr_call_may_come_back(enum gr_status st)
{
    return st != GR_EAUTH && st != GR_EMISMATCH && st != GR_EINVAL && st != GR_EPROTO;
}

/* One that may do later counts more than one that will not. */
static void note_failure(struct attempts *a, enum gr_status st, const char *where, const char *line)
{
    const size_t n = strlen(a->why);
    if (line[0] != '\0') {
        snprintf(a->why + n, GR_CALL_WHY_BYTES - n, "%s%s%s", n > 0 ? "; " : "", where, line);
    }
    a->st = a->st == GR_OK || gr_call_may_come_back(st) ? st : a->st;
}

/* The ends of a connection whose peer is not the one that was looked for. */
static void name_ends(int fd, char out[160])
{
    char own[64], peer[64];
    gr_sock_own_text(fd, own);
    gr_sock_peer_text(fd, peer);
    snprintf(out, 160, "%s (from %s): ", peer, own);
}

/* NULL: noted. Its lines are held: an outage is told once, by the caller. */
static struct gr_conn *try_address(const struct gr_call *c, const char *address, int patience_ms, struct attempts *a)
{
    struct gr_hello self = *c->hello, own, peer;
    char line[256] = "", where[160] = "";
    struct gr_conn *conn = NULL;
    int fd = -1;
    const struct gr_bootstrap_options o = {
        .initiator = true, .forced = c->forced, .generation = c->generation, .timeout_ms = patience_ms, .key = c->key};
    self.wanted = c->incarnation;
    gr_log_hold(line, sizeof(line));
    enum gr_status st = gr_tcp_connect(address, patience_ms, &fd);
    if (st == GR_OK) {
        name_ends(fd, where);
        st = gr_bootstrap_greet(fd, &self, &o, &own, &peer);
    }
    gr_log_hold(NULL, 0);
    st = st == GR_OK ? gr_bootstrap_open(fd, &own, &peer, &o, &conn) : st;
    if (st != GR_OK) {
        note_failure(a, st, where, line);
    }
    if (st != GR_OK && fd >= 0) {
        close(fd);
    }
    return conn;
}

static int count_addresses(const char *list)
{
    char item[300];
    size_t at = 0;
    int n = 0;
    while (gr_address_next(list, &at, item)) {
        n++;
    }
    return n;
}

enum gr_status gr_call_target(const struct gr_call *call, struct gr_conn **conn_out, char why_out[GR_CALL_WHY_BYTES])
{
    struct attempts a = {.why = why_out};
    struct gr_conn *conn = NULL;
    char item[300];
    size_t at = 0;
    why_out[0] = '\0';
    for (int left = count_addresses(call->address); conn == NULL && gr_address_next(call->address, &at, item); left--) {
        if (item[0] != '@') { /* a peer names no files of ours */
            conn = try_address(call, item, call->patience_ms / left, &a);
        }
    }
    if (conn == NULL) {
        return a.st != GR_OK ? a.st : GR_EINVAL;
    }
    if (why_out[0] != '\0') {
        log_info("passed over on the way to the target: %s", why_out);
    }
    *conn_out = conn;
    return GR_OK;
}
