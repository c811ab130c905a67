#include "orchestrator/server/hub.h"

#include "common/base/address.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "orchestrator/server/link_watch.h"
#include "transport/connect/control.h"
#include "transport/connect/gate.h"
#include "transport/connect/reach.h"
#include "transport/net.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

struct link {
    struct gr_control *control; /* NULL: slot is free */
    bool joined;                /* workers: JOIN has come */
    bool broken;                /* to be dropped: its queue is full */
    bool drained;               /* it has been told to end */
    uint64_t incarnation;       /* workers: JOIN's */
    enum gr_worker_role role;
    char host_id[48];
    uint64_t fc_fingerprint;
    uint32_t feature_width;
    char peer[GR_HOST_NAME_MAX]; /* numeric address that it comes from */
    char host[GR_HOST_NAME_MAX]; /* of JOIN */
    uint32_t pid;
};

#define N_LINK (GR_ORCH_WORKER_MAX + GR_CLIENT_MAX)

struct gr_hub {
    struct gr_hub_config config;
    struct gr_hello hello;
    struct gr_orch *orch;
    struct gr_gate *gate;
    int wake_fd;
    char address[64];
    char reach[GR_REACH_BYTES];
    struct link link[GR_ORCH_WORKER_MAX];
    struct link client[GR_CLIENT_MAX];
    struct gr_link_watch watch; /* workers by their numbers, clients after them */
    uint64_t step_ns;           /* when time next brings the machine something, as it said at its last step */
};

static uint32_t client_number(uint32_t client)
{
    return GR_ORCH_WORKER_MAX + client;
}

static bool is_clients(uint32_t number)
{
    return number >= GR_ORCH_WORKER_MAX;
}

static uint32_t client_of(uint32_t number)
{
    return number - GR_ORCH_WORKER_MAX;
}

static struct link *link_at(struct gr_hub *h, uint32_t number)
{
    return is_clients(number) ? &h->client[client_of(number)] : &h->link[number];
}

static uint32_t number_of(const struct gr_hub *h, const struct link *l)
{
    const bool is_client = l >= h->client && l < h->client + GR_CLIENT_MAX;
    return is_client ? client_number((uint32_t)(l - h->client)) : (uint32_t)(l - h->link);
}

static void close_link(struct gr_hub *h, struct link *l)
{
    if (l->control != NULL) {
        gr_link_watch_remove(&h->watch, number_of(h, l), l->control);
    }
    gr_control_destroy(l->control);
    *l = (struct link){0};
}

/* ---- who comes and goes ---- */

static void tell(const struct gr_hub *h, const struct link *l, const char *what)
{
    char line[256];
    snprintf(line, sizeof(line), "%s worker %u %s (host %s, address %s, pid %u)", gr_worker_role_name(l->role),
             (unsigned)(l - h->link) + 1, what, l->host[0] != '\0' ? l->host : "?", l->peer, l->pid);
    if (h->config.tells) {
        gr_log_notice("%s", line);
    } else {
        log_info("%s", line);
    }
}

static void note_peer(struct link *l, int fd)
{
    struct sockaddr_storage a = {0};
    socklen_t len = sizeof(a);
    (void)getpeername(fd, (struct sockaddr *)&a, &len);
    gr_sockaddr_host(&a, l->peer);
}

static struct link *free_link(struct link *links, int n)
{
    for (int i = 0; i < n; i++) {
        if (links[i].control == NULL) {
            return &links[i];
        }
    }
    return NULL;
}

/* Said before the link is closed; what does not fit the socket at once is not worth waiting for. */
static void turn_away(struct gr_control *control, const char *text)
{
    struct gr_msg m = {.type = GR_MSG_ERROR, .error = {.code = (uint32_t)-GR_ELIMIT}};
    snprintf(m.error.text, sizeof(m.error.text), "%s", text);
    if (gr_control_send(control, &m) == GR_OK) {
        enum gr_status st = gr_control_flush(control);
        (void)st;
    }
    gr_control_destroy(control);
}

static void admit(struct gr_hub *h, struct gr_arrival *a)
{
    struct gr_control *control = NULL;
    if (gr_control_create(a->fd, &a->peer.keys, &control) != GR_OK) {
        close(a->fd);
        return;
    }
    const bool is_client = a->peer.role == GR_ROLE_CLIENT;
    struct link *l = is_client ? free_link(h->client, GR_CLIENT_MAX) : free_link(h->link, GR_ORCH_WORKER_MAX);
    if (is_client && h->config.on_client_msg == NULL) {
        turn_away(control, "this orchestrator belongs to a `graft run'; clients need `graft serve'");
        return;
    }
    if (l == NULL) {
        char text[120], from[64];
        gr_sock_peer_text(a->fd, from);
        snprintf(text, sizeof(text), "the orchestrator has no more room: %d %ss are connected, the most there may be",
                 is_client ? GR_CLIENT_MAX : GR_ORCH_WORKER_MAX, is_client ? "client" : "worker");
        log_error("a %s from %s was turned away: %s", is_client ? "client" : "worker", from, text);
        turn_away(control, text);
        return;
    }
    if (gr_link_watch_add(&h->watch, number_of(h, l), control) != GR_OK) {
        gr_control_destroy(control);
        return;
    }
    if (is_client) {
        gr_control_limit_out(control, GR_CLIENT_QUEUE_BYTES);
    }
    *l = (struct link){.control = control, .role = a->peer.role == GR_ROLE_TARGET ? GR_WORKER_TARGET : GR_WORKER_DRAFT};
    memcpy(l->host_id, a->peer.host_id, sizeof(l->host_id));
    l->fc_fingerprint = a->peer.fc_fingerprint;
    l->feature_width = a->peer.feature_width;
    note_peer(l, a->fd);
}

/* Sockets with a finished HELLO become links; a worker's JOIN or a client's request follows on them. */
static void take_arrivals(struct gr_hub *h)
{
    struct gr_arrival a;
    while (gr_gate_take(h->gate, &a)) {
        admit(h, &a);
    }
}

static void lose_worker(struct gr_hub *h, uint32_t worker)
{
    struct link *l = &h->link[worker];
    const bool joined = l->joined;
    const enum gr_worker_role role = l->role;
    if (joined) {
        tell(h, l, l->drained ? "has ended, as it was told to" : "is gone: its connection has ended");
    }
    close_link(h, l);
    if (joined) {
        gr_orch_on_lost(h->orch, worker, gr_clock_ns());
        if (h->config.on_lost != NULL) {
            h->config.on_lost(h->config.io.ctx, role);
        }
    }
}

static void lose_client(struct gr_hub *h, uint32_t client)
{
    close_link(h, &h->client[client]);
    h->config.on_client_lost(h->config.io.ctx, client, gr_clock_ns());
}

/* ---- what comes in ---- */

/* An address that leads each host to itself is of use to drafters of the worker's own host alone. */
static enum gr_status check_data_path(const struct gr_hub *h, const struct link *l, const struct gr_msg *m)
{
    const char *list = m->join.address;
    if (list[0] == '\0') {
        return GR_OK;
    }
    if (list[0] == '@' || gr_address_check_peer("JOIN: the data path", list) != GR_OK) {
        log_error("a worker from %s was refused: its data path is not a list of HOST:PORT", l->peer);
        return GR_EPROTO;
    }
    if (gr_reach_is_local(list) && strcmp(l->host_id, h->hello.host_id) != 0 && !gr_reach_host_is_loopback(l->peer)) {
        log_warn("target worker %u (host %s, address %s) is reached at %s, which leads drafters of other hosts to "
                 "themselves: start it without --listen, or with an address of its host",
                 (unsigned)(l - h->link) + 1, m->join.host, l->peer, list);
    }
    return GR_OK;
}

/* A worker that comes back has lost the link that it had, whether that has shown here or not. */
static void drop_earlier_link(struct gr_hub *h, uint32_t worker, uint64_t incarnation)
{
    for (uint32_t i = 0; i < GR_ORCH_WORKER_MAX; i++) {
        if (i != worker && h->link[i].joined && h->link[i].incarnation == incarnation) {
            lose_worker(h, i);
        }
    }
}

/* One that has joined by loopback listens there alone: good for drafters beside it, of no use to others. */
static void check_pair(const struct gr_hub *h, uint32_t target, uint32_t draft)
{
    const struct gr_worker_info *t = gr_orch_worker(h->orch, target, NULL);
    const struct gr_worker_info *d = gr_orch_worker(h->orch, draft, NULL);
    if (t != NULL && d != NULL && t->role == GR_WORKER_TARGET && d->role == GR_WORKER_DRAFT &&
        gr_reach_is_local(t->address) && strcmp(t->host_id, d->host_id) != 0 && strcmp(t->peer, d->peer) != 0) {
        log_warn("draft worker %u (host %s, address %s) cannot reach target worker %u (host %s) at %s: start that one "
                 "with --join of an address that is not loopback, or with --listen :0",
                 draft + 1, d->host, d->peer, target + 1, t->host, t->address);
    }
}

static void check_pairs(const struct gr_hub *h, uint32_t worker)
{
    for (uint32_t i = 0; i < GR_ORCH_WORKER_MAX; i++) {
        check_pair(h, worker, i);
        check_pair(h, i, worker);
    }
}

static enum gr_status on_join(struct gr_hub *h, uint32_t worker, const struct gr_msg *m)
{
    struct link *l = &h->link[worker];
    const bool is_target = l->role == GR_WORKER_TARGET;
    if (l->joined || m->join.role != (is_target ? GR_ROLE_TARGET : GR_ROLE_DRAFT)) {
        log_error("worker %u sent %s", worker + 1, l->joined ? "JOIN twice" : "JOIN for another role than HELLO's");
        return GR_EPROTO;
    }
    GR_TRY(check_data_path(h, l, m));
    struct gr_worker_info info = {.role = l->role,
                                  .model_fingerprint = m->join.model_fingerprint,
                                  .tokenizer_fingerprint = m->join.tokenizer_fingerprint,
                                  .fc_fingerprint = l->fc_fingerprint,
                                  .feature_width = l->feature_width,
                                  .n_vocab = m->join.n_vocab,
                                  .n_ctx_max = m->join.n_ctx_max,
                                  .incarnation = m->join.incarnation,
                                  .number = m->join.number,
                                  .n_slot = m->join.n_session,
                                  .n_block = m->join.n_block,
                                  .pid = m->join.pid};
    memcpy(info.address, m->join.address, sizeof(info.address));
    memcpy(info.host, m->join.host, sizeof(info.host));
    memcpy(info.model, m->join.model, sizeof(info.model));
    memcpy(info.seat, m->join.seat, sizeof(info.seat));
    memcpy(info.peer, l->peer, sizeof(info.peer));
    memcpy(l->host, m->join.host, sizeof(l->host));
    l->pid = m->join.pid;
    memcpy(info.numerics_id, m->join.numerics_id, sizeof(info.numerics_id));
    memcpy(info.host_id, l->host_id, sizeof(info.host_id));
    l->incarnation = m->join.incarnation;
    drop_earlier_link(h, worker, l->incarnation);
    const enum gr_status st = gr_orch_join(h->orch, worker, &info, gr_clock_ns());
    if (st != GR_OK) {
        enum gr_status flushed = gr_control_flush(l->control); /* the reason, before the link is closed */
        (void)flushed;
        if (st == GR_EMISMATCH && h->config.on_refused != NULL) {
            h->config.on_refused(h->config.io.ctx, gr_orch_why(h->orch));
        }
        return st;
    }
    l->joined = true;
    tell(h, l, "has joined");
    check_pairs(h, worker);
    if (h->config.on_join != NULL) {
        h->config.on_join(h->config.io.ctx, m);
    }
    return GR_OK;
}

static enum gr_status on_worker_msg(struct gr_hub *h, uint32_t worker, const struct gr_msg *m, uint64_t now_ns)
{
    if (m->type == GR_MSG_JOIN) {
        return on_join(h, worker, m);
    }
    if (!h->link[worker].joined) {
        return GR_EPROTO;
    }
    const enum gr_status st = gr_orch_on_msg(h->orch, worker, m, now_ns);
    if (m->type == GR_MSG_COMMIT && st == GR_OK) {
        gr_orch_handed_over(h->orch, gr_clock_ns() - now_ns, m->commit.ids.n);
    }
    return st;
}

/* Messages of one link that are handled before the others have their turn. */
#define BATCH_MAX 64

static enum gr_status handle(struct gr_hub *h, uint32_t number, const struct gr_msg *m)
{
    const uint64_t now_ns = gr_clock_ns();
    return is_clients(number) ? h->config.on_client_msg(h->config.io.ctx, client_of(number), m, now_ns)
                              : on_worker_msg(h, number, m, now_ns);
}

/* st: why it is lost. */
static void lose(struct gr_hub *h, uint32_t number, enum gr_status st)
{
    if (!is_clients(number)) {
        lose_worker(h, number);
        return;
    }
    const bool broken = link_at(h, number)->broken;
    if (st != GR_ECLOSED || broken) {
        log_warn("client %u is cut off: %s", client_of(number),
                 broken ? "it does not read what it asked for" : "it broke the protocol");
    }
    lose_client(h, client_of(number));
}

/* False: nothing had come. */
static bool receive(struct gr_hub *h, uint32_t number)
{
    struct link *l = link_at(h, number);
    for (int i = 0; i < BATCH_MAX; i++) {
        struct gr_msg m;
        enum gr_status st = l->broken ? GR_ECLOSED : gr_control_recv(l->control, &m);
        if (st == GR_AGAIN) {
            gr_link_watch_read(&h->watch, number, false);
            return i > 0;
        }
        if (st == GR_OK) {
            st = handle(h, number, &m);
            gr_msg_finish(&m);
        }
        if (st != GR_OK) {
            lose(h, number, st);
            return true;
        }
        if (l->control != NULL && gr_control_has_nothing(l->control)) { /* epoll tells of more */
            gr_link_watch_read(&h->watch, number, l->broken);
            return true;
        }
    }
    return true;
}

/* ---- what goes out ---- */

/* One whose queue is full is dropped when it is looked at next. */
static void queue(struct gr_hub *h, uint32_t number, const struct gr_msg *m)
{
    struct link *l = link_at(h, number);
    l->broken = gr_control_send(l->control, m) == GR_ELIMIT || l->broken;
    gr_link_watch_queued(&h->watch, number);
}

static void send_to(void *ctx, uint32_t worker, const struct gr_msg *m)
{
    struct gr_hub *h = ctx;
    if (h->link[worker].control != NULL) {
        queue(h, worker, m); /* a dead link shows at the next receive; the machine hears of either as a lost worker */
    }
}

void gr_hub_send_client(struct gr_hub *h, uint32_t client, const struct gr_msg *m)
{
    GR_ASSERT(client < GR_CLIENT_MAX);
    const struct link *l = &h->client[client];
    if (l->control != NULL && !l->broken) {
        queue(h, client_number(client), m);
    }
}

/* The machine gave this worker up: it has been told to itself already. */
static void drop(void *ctx, uint32_t worker)
{
    struct gr_hub *h = ctx;
    const enum gr_worker_role role = h->link[worker].role;
    tell(h, &h->link[worker], "is dropped");
    close_link(h, &h->link[worker]);
    if (h->config.on_lost != NULL) {
        h->config.on_lost(h->config.io.ctx, role);
    }
}

/* Ids that count from 1 would be given out again after a restart, and a client would go on with another's session. */
static uint64_t new_id(void *ctx)
{
    (void)ctx;
    uint64_t id = 0;
    randombytes_buf(&id, sizeof(id));
    return id;
}

/* The machine's callbacks carry the client's ctx, but send needs the hub: a trampoline for each. */
static void fwd_report(void *ctx, uint64_t session, void *user, const struct gr_msg *m)
{
    const struct gr_hub *h = ctx;
    if (h->config.io.on_report != NULL) {
        h->config.io.on_report(h->config.io.ctx, session, user, m);
    }
}
static void fwd_tokens(void *ctx, uint64_t session, void *user, const int32_t *id, uint32_t n)
{
    const struct gr_hub *h = ctx;
    if (h->config.io.on_tokens != NULL) {
        h->config.io.on_tokens(h->config.io.ctx, session, user, id, n);
    }
}
static void fwd_done(void *ctx, uint64_t session, void *user, enum gr_finish finish, const char *text)
{
    const struct gr_hub *h = ctx;
    h->config.io.on_done(h->config.io.ctx, session, user, finish, text);
}
static void fwd_closed(void *ctx, uint64_t session, void *user, const char *why)
{
    const struct gr_hub *h = ctx;
    if (h->config.io.on_closed != NULL) {
        h->config.io.on_closed(h->config.io.ctx, session, user, why);
    }
}
static void fwd_placed(void *ctx, uint64_t session, void *user)
{
    const struct gr_hub *h = ctx;
    if (h->config.io.on_placed != NULL) {
        h->config.io.on_placed(h->config.io.ctx, session, user);
    }
}
static void fwd_pong(void *ctx, uint32_t worker, uint64_t cookie, uint64_t rtt_ns, const struct gr_msg *pong)
{
    const struct gr_hub *h = ctx;
    if (h->config.io.on_pong != NULL) {
        h->config.io.on_pong(h->config.io.ctx, worker, cookie, rtt_ns, pong);
    }
}

static enum gr_status open_gate(struct gr_hub *h)
{
    struct gr_gate_config c = {
        .wake_fd = h->wake_fd, .self = &h->hello, .key = h->config.key, .timeout_ms = h->config.hello_timeout_ms};
    GR_TRY(gr_tcp_listen_own(h->config.listen, &c.at));
    GR_TRY(gr_gate_create(&c, &h->gate));
    memcpy(h->address, c.at.bound, sizeof(h->address));
    gr_reach_list(&c.at, -1, h->reach);
    return GR_OK;
}

enum gr_status gr_hub_create(const struct gr_hub_config *config, struct gr_hub **out)
{
    struct gr_hub *h = calloc(1, sizeof(*h));
    if (h == NULL) {
        log_error("no memory for the links of %d workers and %d clients (%zu bytes)", GR_ORCH_WORKER_MAX, GR_CLIENT_MAX,
                  sizeof(*h));
        return GR_ENOMEM;
    }
    h->config = *config;
    h->config.hello_timeout_ms = config->hello_timeout_ms > 0 ? config->hello_timeout_ms : GR_ACCEPT_TIMEOUT_MS;
    h->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    gr_hello_for_messages(GR_ROLE_ORCHESTRATOR, &h->hello);
    h->hello.secrecy = config->secrecy;
    snprintf(h->hello.cluster, sizeof(h->hello.cluster), "%s", config->cluster != NULL ? config->cluster : "");
    const struct gr_orch_io io = {.ctx = h,
                                  .send = send_to,
                                  .new_id = new_id,
                                  .on_report = fwd_report,
                                  .on_tokens = fwd_tokens,
                                  .on_done = fwd_done,
                                  .on_closed = fwd_closed,
                                  .drop = drop,
                                  .on_placed = fwd_placed,
                                  .on_pong = fwd_pong};
    enum gr_status st = gr_link_watch_create(&h->watch, N_LINK);
    if (st == GR_OK) {
        st = gr_orch_create(&io, &h->orch);
    }
    if (st == GR_OK) {
        st = open_gate(h);
    }
    if (st != GR_OK) {
        gr_hub_destroy(h);
        return st;
    }
    *out = h;
    return GR_OK;
}

void gr_hub_destroy(struct gr_hub *h)
{
    if (h == NULL) {
        return;
    }
    gr_gate_destroy(h->gate);
    for (int i = 0; i < GR_ORCH_WORKER_MAX; i++) {
        gr_control_destroy(h->link[i].control);
    }
    for (int i = 0; i < GR_CLIENT_MAX; i++) {
        gr_control_destroy(h->client[i].control);
    }
    gr_link_watch_destroy(&h->watch);
    if (h->wake_fd >= 0) {
        close(h->wake_fd);
    }
    gr_orch_destroy(h->orch);
    free(h);
}

const char *gr_hub_address(const struct gr_hub *h)
{
    return h->address;
}

const char *gr_hub_reach(const struct gr_hub *h)
{
    return h->reach;
}

struct gr_orch *gr_hub_orch(struct gr_hub *h)
{
    return h->orch;
}

static bool receive_all(struct gr_hub *h)
{
    bool progress = false;
    take_arrivals(h);
    gr_gate_accept(h->gate, gr_clock_ns());
    const struct gr_place_set *to_read = &h->watch.to_read;
    for (int i = gr_place_set_next(to_read, 0); i >= 0; i = gr_place_set_next(to_read, (uint32_t)i + 1)) {
        progress |= receive(h, (uint32_t)i);
    }
    return progress;
}

/* False: the link is gone, or is to be dropped. */
static bool flush_link(struct gr_hub *h, uint32_t number)
{
    const struct link *l = link_at(h, number);
    const bool stands = gr_control_flush(l->control) != GR_ECLOSED && !l->broken;
    gr_link_watch_flushed(&h->watch, number, l->control);
    return stands;
}

static bool flush_all(struct gr_hub *h)
{
    const struct gr_place_set *to_send = &h->watch.to_send;
    bool progress = false;
    for (int i = gr_place_set_next(to_send, 0); i >= 0; i = gr_place_set_next(to_send, (uint32_t)i + 1)) {
        const uint32_t number = (uint32_t)i;
        if (flush_link(h, number)) {
            continue;
        }
        if (number < GR_ORCH_WORKER_MAX) {
            lose_worker(h, number);
            progress = true;
        } else {
            progress |= receive(h, number); /* says why and drops it */
        }
    }
    return progress;
}

/* wait_ms: -1: no limit. */
static void wait_for_more(struct gr_hub *h, int wait_ms, int extra_fd, uint64_t now_ns)
{
    struct pollfd fds[] = {{.fd = h->wake_fd, .events = POLLIN},
                           {.fd = h->watch.epoll_fd, .events = POLLIN},
                           {.fd = gr_gate_poll_fd(h->gate, now_ns), .events = POLLIN},
                           {.fd = extra_fd, .events = POLLIN}}; /* one that is -1 is passed over */
    if (poll(fds, GR_ARRAY_LEN(fds), wait_ms) <= 0) {
        return;
    }
    if ((fds[1].revents & POLLIN) != 0) {
        gr_link_watch_look(&h->watch);
    }
    if ((fds[0].revents & POLLIN) != 0) {
        uint64_t count = 0;
        ssize_t got = read(h->wake_fd, &count, sizeof(count));
        (void)got;
    }
}

void gr_hub_pump(struct gr_hub *h, int timeout_ms, int extra_fd)
{
    bool progress = receive_all(h);
    const uint64_t now_ns = gr_clock_ns();
    progress |= h->step_ns <= now_ns;
    h->step_ns = gr_orch_step(h->orch, now_ns);
    const int step_ms = gr_clock_ms_until(GR_MIN(h->step_ns, gr_gate_wake_ns(h->gate, now_ns)), now_ns);
    progress |= flush_all(h);
    wait_for_more(h, progress ? 0 : gr_clock_sooner_ms(step_ms, timeout_ms), extra_fd, now_ns);
}

int gr_hub_n_client(const struct gr_hub *h)
{
    int n = 0;
    for (int i = 0; i < GR_CLIENT_MAX; i++) {
        n += h->client[i].control != NULL;
    }
    return n;
}

static void drain_role(struct gr_hub *h, enum gr_worker_role role)
{
    const struct gr_msg m = {.type = GR_MSG_DRAIN};
    for (uint32_t i = 0; i < GR_ORCH_WORKER_MAX; i++) {
        if (h->link[i].control != NULL && h->link[i].joined && h->link[i].role == role) {
            send_to(h, i, &m);
            h->link[i].drained = true;
            enum gr_status st = gr_control_flush(h->link[i].control);
            (void)st;
        }
    }
}

/* Targets hear of it first: none takes the end of its drafter for a loss. */
void gr_hub_drain(struct gr_hub *h)
{
    drain_role(h, GR_WORKER_TARGET);
    drain_role(h, GR_WORKER_DRAFT);
}

void gr_hub_end(struct gr_hub *h, struct gr_children *children, bool all_joined, int grace_ms)
{
    if (h != NULL) {
        gr_hub_drain(h);
    }
    if (children->signal_fd > 0) {
        if (!all_joined) {
            gr_children_signal(children, SIGTERM);
        }
        gr_children_finish(children, grace_ms);
    }
    gr_hub_destroy(h);
}
