#include "transport/net.h"
#include "transport/verbs/verbs_cm.h"

#include "common/base/bytes.h"
#include "common/base/clock.h"
#include "common/base/log.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sodium.h>
#include <string.h>

#define PRIVATE_MAGIC 0x43565247u /* "GRVC" */
#define PRIVATE_VERSION 3u
#define PRIVATE_BYTES (12u + GR_VERBS_NONCE_BYTES) /* librdmacm passes 56 at most */
#define INLINE_ASK 512u
/* 4.096 us * 2^14 = 67 ms for an answer, seven tries: a link that swallows packets is noticed in about 0.5 s. Not 7
 * retries: soft RoCE takes that number for endless. */
#define ACK_TIMEOUT 14
#define RETRY_COUNT 6
/* For ever: credits see to it that no receive is missing. The first wait would be 655 ms as librdmacm sets it; this is
 * 1.28 ms. */
#define RNR_RETRY 7
#define MIN_RNR_TIMER 14
/* Of one attempt: the first packet to a machine may wait for ARP. */
#define RESOLVE_MS 2000
#define N_RESOLVE_TRY 2 /* attempts at an address */

static enum gr_status cm_failed(const struct gr_verbs_link *k, const char *what)
{
    log_error("verbs: %s (%s): %s failed: %s", k->memory->device.name, k->memory->device.addr_text, what,
              strerror(errno));
    return GR_EIO;
}

/* ---- events ---- */

struct cm_event {
    enum rdma_cm_event_type type;
    int status;
    struct rdma_cm_id *id;
    uint8_t data[256];
    uint8_t n_data;
};

/* GR_AGAIN: none. Acknowledged at once, what is needed of it is copied. */
static enum gr_status take_event(struct gr_verbs_link *k, struct cm_event *out)
{
    struct rdma_cm_event *e;
    if (k->lib->get_cm_event(k->channel, &e) != 0) {
        return errno == EAGAIN || errno == EINTR ? GR_AGAIN : cm_failed(k, "reading connection events");
    }
    *out = (struct cm_event){.type = e->event, .status = e->status, .id = e->id};
    if (e->event == RDMA_CM_EVENT_CONNECT_REQUEST && e->param.conn.private_data != NULL) {
        out->n_data = e->param.conn.private_data_len;
        memcpy(out->data, e->param.conn.private_data, out->n_data);
    }
    k->lib->ack_cm_event(e);
    return GR_OK;
}

static enum gr_status wait_event(struct gr_verbs_link *k, uint64_t deadline_ns, const char *what, struct cm_event *out)
{
    for (;;) {
        const enum gr_status st = take_event(k, out);
        if (st != GR_AGAIN) {
            return st;
        }
        const int ms = gr_ms_left(deadline_ns, gr_clock_ns());
        struct pollfd fds[2] = {{.fd = k->channel->fd, .events = POLLIN}, {.fd = k->fd, .events = POLLIN}};
        const int n = poll(fds, 2, ms);
        if (n > 0 && fds[0].revents == 0 && fds[1].revents != 0) {
            if (k->peer_gave_up(k->fd)) {
                log_warn("verbs: %s: the peer gave up while we were %s", k->memory->device.name, what);
                return GR_ECLOSED;
            }
            /* Its next word is there already and is read later: only events are waited for now. */
            fds[1].fd = -1;
            (void)poll(fds, 1, GR_MIN(ms, 10));
        }
        if (n == 0 && ms == 0) {
            log_error("verbs: %s (%s): nothing came while %s; is the peer's address reachable from this device?",
                      k->memory->device.name, k->memory->device.addr_text, what);
            return GR_ETIMEDOUT;
        }
    }
}

static enum gr_status expect_event(struct gr_verbs_link *k, enum rdma_cm_event_type type, uint64_t deadline_ns,
                                   const char *what)
{
    struct cm_event e;
    GR_TRY(wait_event(k, deadline_ns, what, &e));
    if (e.type == type) {
        return GR_OK;
    }
    log_error("verbs: %s (%s): %s: %s, status %d%s", k->memory->device.name, k->memory->device.addr_text, what,
              rdma_event_str(e.type), e.status,
              e.type == RDMA_CM_EVENT_REJECTED && e.status == 28  ? " (the peer refused our private data)"
              : e.type == RDMA_CM_EVENT_REJECTED && e.status == 8 ? " (nobody listens there)"
                                                                  : "");
    return GR_EIO;
}

/* ---- resources ---- */

enum gr_status gr_verbs_link_init(struct gr_verbs_link *k)
{
    k->channel = k->lib->create_event_channel();
    if (k->channel == NULL) {
        return cm_failed(k, "making an event channel");
    }
    (void)fcntl(k->channel->fd, F_SETFL, fcntl(k->channel->fd, F_GETFL) | O_NONBLOCK);
    k->comp = k->lib->create_comp_channel(k->memory->anchor->verbs);
    if (k->comp == NULL) {
        return cm_failed(k, "making a completion channel");
    }
    (void)fcntl(k->comp->fd, F_SETFL, fcntl(k->comp->fd, F_GETFL) | O_NONBLOCK);
    k->cq = k->lib->create_cq(k->memory->anchor->verbs, (int)(k->n_send + k->n_recv), NULL, k->comp, 0);
    return k->cq != NULL ? GR_OK : cm_failed(k, "making a completion queue");
}

void gr_verbs_link_finish(struct gr_verbs_link *k)
{
    if (k->id != NULL) {
        if (k->id->qp != NULL) {
            k->lib->destroy_qp(k->id);
        }
        k->lib->destroy_id(k->id);
        k->id = NULL;
    }
    if (k->listener != NULL) {
        k->lib->destroy_id(k->listener);
        k->listener = NULL;
    }
    if (k->cq != NULL) {
        k->lib->destroy_cq(k->cq);
        k->cq = NULL;
    }
    if (k->comp != NULL) {
        k->lib->destroy_comp_channel(k->comp);
        k->comp = NULL;
    }
    if (k->channel != NULL) {
        k->lib->destroy_event_channel(k->channel);
        k->channel = NULL;
    }
}

/* Asks for as much inline data as is of use and takes what the device grants: some refuse instead of granting less. */
static enum gr_status make_qp(struct gr_verbs_link *k)
{
    for (uint32_t ask = INLINE_ASK;; ask /= 2) {
        struct ibv_qp_init_attr attr = {
            .send_cq = k->cq,
            .recv_cq = k->cq,
            .qp_type = IBV_QPT_RC,
            .cap = {.max_send_wr = k->n_send,
                    .max_recv_wr = k->n_recv,
                    .max_send_sge = GR_VERBS_N_SEND_SGE,
                    .max_recv_sge = 1,
                    .max_inline_data = ask},
        };
        if (k->lib->create_qp(k->id, k->memory->pd, &attr) == 0) {
            k->inline_bytes = attr.cap.max_inline_data;
            break;
        }
        if (errno != EINVAL || ask == 0) {
            return cm_failed(k, "making a queue pair");
        }
    }
    uint8_t timeout = k->ack_timeout > 0 ? k->ack_timeout : ACK_TIMEOUT;
    if (k->lib->set_option(k->id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, sizeof(timeout)) != 0) {
        log_warn("verbs: %s: the time for an answer cannot be set (%s): a dead link may be noticed after 10 s only",
                 k->memory->device.name, strerror(errno));
    }
    return k->post_receives(k->ctx);
}

static void private_encode(const struct gr_verbs_link *k, uint8_t out[PRIVATE_BYTES])
{
    struct gr_writer w = {.p = out, .cap = PRIVATE_BYTES};
    gr_write_u32(&w, PRIVATE_MAGIC);
    gr_write_u32(&w, PRIVATE_VERSION);
    gr_write_u32(&w, k->generation);
    memcpy(gr_write_bytes(&w, GR_VERBS_NONCE_BYTES), k->nonce, GR_VERBS_NONCE_BYTES);
}

/* NULL, or what is wrong. What follows the data is the fabric's padding. */
static const char *private_fault(const struct gr_verbs_link *k, const struct cm_event *e)
{
    struct gr_reader r = {.p = e->data, .len = e->n_data};
    const uint32_t magic = gr_read_u32(&r), version = gr_read_u32(&r);
    (void)gr_read_u32(&r); /* generation: each side counts its own */
    const uint8_t *nonce = gr_read_bytes(&r, GR_VERBS_NONCE_BYTES);
    return r.failed                                                    ? "is too short"
           : magic != PRIVATE_MAGIC                                    ? "is not ours"
           : version != PRIVATE_VERSION                                ? "has another version"
           : sodium_memcmp(nonce, k->nonce, GR_VERBS_NONCE_BYTES) != 0 ? "has a wrong nonce"
                                                                       : NULL;
}

static struct rdma_conn_param conn_param(void)
{
    return (struct rdma_conn_param){.retry_count = RETRY_COUNT, .rnr_retry_count = RNR_RETRY};
}

static enum gr_status finish_connection(struct gr_verbs_link *k)
{
    struct ibv_qp_attr attr = {.min_rnr_timer = MIN_RNR_TIMER};
    k->connected = true;
    if (k->lib->modify_qp(k->id->qp, &attr, IBV_QP_MIN_RNR_TIMER) != 0) {
        log_warn("verbs: %s: min_rnr_timer cannot be set: %s", k->memory->device.name, strerror(errno));
    }
    return GR_OK;
}

/* ---- the side that listens ---- */

enum gr_status gr_verbs_link_listen(struct gr_verbs_link *k, uint16_t *port_out)
{
    struct sockaddr_storage addr = k->memory->device.addr;
    if (k->lib->create_id(k->channel, &k->listener, NULL, RDMA_PS_TCP) != 0) {
        k->listener = NULL;
        return cm_failed(k, "making an identifier");
    }
    if (k->lib->bind_addr(k->listener, (struct sockaddr *)&addr) != 0 || k->lib->listen(k->listener, 1) != 0) {
        return cm_failed(k, "listening");
    }
    *port_out = ntohs(k->lib->get_src_port(k->listener));
    return GR_OK;
}

/* A stranger's request is refused; GR_AGAIN: go on waiting. */
static enum gr_status take_request(struct gr_verbs_link *k, const struct cm_event *e)
{
    const char *fault = private_fault(k, e);
    if (fault == NULL) {
        k->id = e->id;
        return GR_OK;
    }
    log_error("verbs: %s: a connection was rejected: its private data %s (%u bytes)", k->memory->device.name, fault,
              e->n_data);
    (void)k->lib->reject(e->id, NULL, 0);
    k->lib->destroy_id(e->id);
    return GR_AGAIN;
}

enum gr_status gr_verbs_link_accept(struct gr_verbs_link *k, uint64_t deadline_ns)
{
    enum gr_status st = GR_AGAIN;
    while (st == GR_AGAIN) {
        struct cm_event e;
        GR_TRY(wait_event(k, deadline_ns, "waiting for the peer's queue pair", &e));
        if (e.type != RDMA_CM_EVENT_CONNECT_REQUEST) {
            log_error("verbs: %s: while listening: %s, status %d", k->memory->device.name, rdma_event_str(e.type),
                      e.status);
            return GR_EIO;
        }
        st = take_request(k, &e);
    }
    GR_TRY(st);
    GR_TRY(make_qp(k));
    struct rdma_conn_param param = conn_param();
    if (k->lib->accept(k->id, &param) != 0) {
        return cm_failed(k, "accepting");
    }
    GR_TRY(expect_event(k, RDMA_CM_EVENT_ESTABLISHED, deadline_ns, "accepting the peer's queue pair"));
    k->lib->destroy_id(k->listener);
    k->listener = NULL;
    return finish_connection(k);
}

/* ---- the side that connects ---- */

static enum gr_status resolve(struct gr_verbs_link *k, const struct sockaddr *peer, uint64_t deadline_ns)
{
    struct sockaddr_storage src = k->memory->device.addr, dst;
    if (src.ss_family != peer->sa_family) {
        log_error("verbs: %s (%s): the peer's device is at an address of IPv%d; choose addresses of one kind at both "
                  "ends (--gid-index)",
                  k->memory->device.name, k->memory->device.addr_text, peer->sa_family == AF_INET ? 4 : 6);
        return GR_EUNSUPPORTED;
    }
    memset(&dst, 0, sizeof(dst));
    memcpy(&dst, peer, peer->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6));
    if (k->lib->resolve_addr(k->id, (struct sockaddr *)&src, (struct sockaddr *)&dst, RESOLVE_MS) != 0) {
        return cm_failed(k, "resolving the peer's address");
    }
    GR_TRY(expect_event(k, RDMA_CM_EVENT_ADDR_RESOLVED, deadline_ns, "resolving the peer's address"));
    if (k->lib->resolve_route(k->id, RESOLVE_MS) != 0) {
        return cm_failed(k, "resolving the route");
    }
    return expect_event(k, RDMA_CM_EVENT_ROUTE_RESOLVED, deadline_ns, "resolving the route");
}

enum gr_status gr_verbs_link_connect(struct gr_verbs_link *k, const struct sockaddr *peer, uint64_t deadline_ns)
{
    enum gr_status st = GR_EIO;
    for (int i = 0; i < N_RESOLVE_TRY && st == GR_EIO && gr_clock_ns() < deadline_ns; i++) {
        if (k->id != NULL) {
            k->lib->destroy_id(k->id);
            k->id = NULL;
        }
        if (k->lib->create_id(k->channel, &k->id, NULL, RDMA_PS_TCP) != 0) {
            k->id = NULL;
            return cm_failed(k, "making an identifier");
        }
        st = resolve(k, peer, deadline_ns);
    }
    GR_TRY(st);
    if (k->id->verbs != k->memory->anchor->verbs) {
        log_error("verbs: %s: the way to the peer leads over another device", k->memory->device.name);
        return GR_EIO;
    }
    GR_TRY(make_qp(k));
    uint8_t data[PRIVATE_BYTES];
    private_encode(k, data);
    struct rdma_conn_param param = conn_param();
    param.private_data = data;
    param.private_data_len = PRIVATE_BYTES;
    if (k->lib->connect(k->id, &param) != 0) {
        return cm_failed(k, "connecting");
    }
    GR_TRY(expect_event(k, RDMA_CM_EVENT_ESTABLISHED, deadline_ns, "connecting to the peer's queue pair"));
    return finish_connection(k);
}
