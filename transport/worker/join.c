#include "transport/worker/join.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/parse.h"
#include "common/process/joined.h"
#include "common/protocol/wire.h"
#include "transport/connect/cluster.h"
#include "transport/connect/greet.h"
#include "transport/connect/secrecy.h"
#include "transport/connect/reach.h"
#include "transport/own.h"
#include "transport/pause.h"
#include "common/process/supervise.h"

#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HANDSHAKE_TIMEOUT_MS 10000 /* from connecting to the proof, as the side that connects sees it */
#define PAUSE_MS_MIN 50u           /* after a hand-shake that was broken off */
#define PAUSE_MS_MAX 1000u
#define JOIN_PATIENCE_S 60 /* how long an orchestrator is looked for unless GRAFT_JOIN_TIMEOUT says otherwise */
#define JOIN_PATIENCE_MAX 86400
#define REJOIN_PATIENCE_MAX 31536000
#define FOR_EVER INT64_MAX

/* ---- what a worker says of itself, and how patient it is ---- */

static enum gr_status read_patience(const char *variable, int64_t max_s, int64_t *out)
{
    const char *text = getenv(variable);
    if (text != NULL && !gr_parse_int(text, 0, max_s, out)) {
        log_error("%s: `%s' is not a whole number of seconds from 0 to %lld", variable, text, (long long)max_s);
        return GR_EINVAL;
    }
    return GR_OK;
}

enum gr_status gr_worker_config_describe(struct gr_worker_config *c, const struct gr_worker_identity *d)
{
    char cluster[GR_CLUSTER_BYTES];
    int64_t join_s = JOIN_PATIENCE_S, rejoin_s = FOR_EVER, orphan_s = 0;
    GR_TRY(read_patience("GRAFT_JOIN_TIMEOUT", JOIN_PATIENCE_MAX, &join_s));
    rejoin_s = gr_supervise_is_child() ? FOR_EVER : join_s;
    GR_TRY(read_patience("GRAFT_REJOIN_TIMEOUT", REJOIN_PATIENCE_MAX, &rejoin_s));
    GR_TRY(read_patience("GRAFT_ORPHAN_TTL", REJOIN_PATIENCE_MAX, &orphan_s));
    c->orphan_ttl_ns = (uint64_t)orphan_s * GR_S;
    c->join_patience_ms = (int)join_s * 1000;
    c->rejoin_patience_ns = rejoin_s == FOR_EVER ? UINT64_MAX : (uint64_t)rejoin_s * GR_S;
    GR_TRY(gr_cluster_name(true, cluster));
    uint32_t secrecy;
    GR_TRY(gr_secrecy_wanted(&secrecy));
    const enum gr_status st = gr_key_from_env(c->key);
    if (st == GR_ENOTFOUND) {
        log_error("no shared key: set GRAFT_KEY_FILE (or GRAFT_KEY) to the orchestrator's; `graft serve --make-key F' "
                  "makes one");
    }
    GR_TRY(st);
    /* As large as a frame of features gets: slots are locked memory where the device takes them from. */
    const bool bulk = d->feature_width > 0;
    const size_t frame_bytes = bulk ? gr_features_frame_bytes(2 * (size_t)d->feature_width) : 0;
    c->hello = (struct gr_hello){.version = GR_PROTOCOL_VERSION,
                                 .role = d->role,
                                 .secrecy = secrecy,
                                 .tokenizer_fingerprint = d->tokenizer_fingerprint,
                                 .model_fingerprint = d->model_fingerprint,
                                 .n_vocab = (uint32_t)d->n_vocab,
                                 .transport_mask = gr_transport_built_mask(),
                                 .fc_fingerprint = d->fc_fingerprint,
                                 .feature_raw = d->feature_raw,
                                 .feature_width = d->feature_width,
                                 .feature_dtype = d->feature_width > 0 ? GR_DTYPE_BF16 : GR_DTYPE_F32,
                                 .limits = {.small_bytes_max = GR_WIRE_SMALL_BYTES_MAX,
                                            .bulk_bytes_max = (uint32_t)frame_bytes,
                                            .n_small_slot = 64,
                                            .n_bulk_slot = bulk ? 8 : 0}};
    c->join_msg = (struct gr_msg){.type = GR_MSG_JOIN,
                                  .join = {.role = d->role,
                                           .pid = (uint32_t)getpid(),
                                           .n_vocab = (uint32_t)d->n_vocab,
                                           .n_ctx_max = (uint32_t)d->n_ctx_max,
                                           .n_block = (uint32_t)d->n_block,
                                           .n_session = (uint32_t)d->n_session_max,
                                           .model_fingerprint = d->model_fingerprint,
                                           .tokenizer_fingerprint = d->tokenizer_fingerprint}};
    memcpy(c->hello.cluster, cluster, sizeof(cluster));
    (void)gethostname(c->join_msg.join.host, sizeof(c->join_msg.join.host) - 1);
    snprintf(c->hello.captures, sizeof(c->hello.captures), "%s", d->captures);
    snprintf(c->hello.numerics_id, sizeof(c->hello.numerics_id), "%s", d->numerics_id);
    snprintf(c->join_msg.join.model, sizeof(c->join_msg.join.model), "%s", d->model != NULL ? d->model : "");
    const char *seat = getenv("GRAFT_SEAT"); /* which options have checked */
    snprintf(c->join_msg.join.seat, sizeof(c->join_msg.join.seat), "%s", seat != NULL ? seat : "");
    snprintf(c->join_msg.join.numerics_id, sizeof(c->join_msg.join.numerics_id), "%s", d->numerics_id);
    c->handshake_timeout_ms = HANDSHAKE_TIMEOUT_MS;
    return GR_OK;
}

/* ---- finding the orchestrator ---- */

static bool is_limited(const struct gr_worker_config *c)
{
    return c->rejoin_patience_ns != UINT64_MAX;
}

static int first_patience_ms(const struct gr_worker_config *c)
{
    const uint64_t rejoin_ms = c->rejoin_patience_ns / GR_MS;
    return gr_joined_before() && is_limited(c) ? (int)GR_MIN(rejoin_ms, (uint64_t)INT_MAX) : c->join_patience_ms;
}

/* GR_AGAIN: the other end broke the hand-shake off, as an orchestrator does that is killed in its midst; why says so.
 */
static enum gr_status try_to_reach(const struct gr_worker_config *c, int patience_ms, char why[GR_GREET_WHY_BYTES],
                                   int *fd_out, struct gr_hello *peer_out)
{
    const struct gr_greeting g = {
        .address = c->join, .self = &c->hello, .key = c->key, .timeout_ms = c->handshake_timeout_ms};
    const enum gr_status st = gr_tcp_connect_patiently(c->join, patience_ms, 0, fd_out);
    if (st != GR_OK) { /* a worker that was killed while its orchestrator was away */
        return st == GR_ETIMEDOUT && gr_joined_before() && is_limited(c) ? GR_ECLOSED : st;
    }
    return gr_greet(&g, *fd_out, why, peer_out);
}

enum gr_status gr_join_reach(const struct gr_worker_config *c, int *fd_out, struct gr_hello *peer_out)
{
    const int patience_ms = first_patience_ms(c);
    const uint64_t deadline_ns = gr_deadline_ns(patience_ms);
    char why[GR_GREET_WHY_BYTES];
    gr_own_tell();
    enum gr_status st = try_to_reach(c, patience_ms, why, fd_out, peer_out);
    if (st == GR_AGAIN) {
        log_warn("%s; trying again for %d s", why, patience_ms / 1000);
    }
    for (uint32_t n = 0; st == GR_AGAIN; n++) {
        const int pause_ms = (int)gr_pause_ms(n, PAUSE_MS_MIN, PAUSE_MS_MAX);
        const int left_ms = gr_ms_left(deadline_ns, gr_clock_ns());
        if (left_ms == 0) {
            log_error("%s", why);
            return GR_EIO; /* GR_ECLOSED is kept for an orchestrator that this worker had joined */
        }
        (void)poll(NULL, 0, GR_MIN(pause_ms, left_ms));
        st = try_to_reach(c, GR_MAX(left_ms - pause_ms, 0), why, fd_out, peer_out);
    }
    return st;
}

/* ---- where drafters come ---- */

static void announce(struct gr_worker_config *c, int fd, const struct gr_listening *at, const char *own)
{
    char *list = c->join_msg.join.address;
    gr_reach_list(at, fd, list);
    if (gr_reach_is_local(list) && !gr_reach_is_loopback(own)) {
        log_warn(
            "drafters are told %s, which leads other hosts to themselves, and the orchestrator is on another host: "
            "unless the drafters run here, give --listen an address of %s, or leave it out",
            list, c->join_msg.join.host);
    }
}

enum gr_status gr_join_open_gate(struct gr_worker_config *c, int fd, int wake_fd, struct gr_gate **out)
{
    char own[64], address[300];
    struct gr_gate_config gate = {.wake_fd = wake_fd,
                                  .self = &c->hello,
                                  .key = c->key,
                                  .opens = true,
                                  .timeout_ms = GR_MIN(c->handshake_timeout_ms, GR_ACCEPT_TIMEOUT_MS),
                                  .forced = c->forced_transport};
    gr_sock_own_text(fd, own);
    gr_reach_listen(c->listen, own, address);
    GR_TRY(gr_tcp_listen_own(address, &gate.at));
    GR_TRY(gr_gate_create(&gate, out));
    announce(c, fd, &gate.at, own);
    return GR_OK;
}
