/* From an authenticated bootstrap socket to a verbs connection. Records of one size go over that socket
 * (docs/protocol.md); each says whether its sender can go on, so that both sides know when one cannot:
 *
 *   both      READY    device there, mode, path MTU, bulk slots that its memory limit allows
 *   one       LISTEN   address, port and nonce for the other one's queue pair
 *             ... queue pairs connect (verbs_cm.c) ...
 *   both      KEYS     inbox: address, key, size; none in two-sided mode; that of bodies, where they are apart
 *             ... one record each way over the queue pairs: the wire carries data, in large packets, too ...
 *   both      DONE
 */
#include "transport/verbs/verbs_conn.h"
#include "transport/verbs/verbs_park.h"
#include "transport/net.h"

#include "common/base/bytes.h"
#include "common/base/clock.h"
#include "common/base/log.h"

#include <errno.h>
#include <poll.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define STEP_MAGIC 0x53565247u /* "GRVS" */
#define STEP_BYTES 96u
#define MODE_TWO_SIDED 1u /* READY: nobody may write into this side's memory */
#define MODE_APART 2u     /* bodies of bulk frames go apart from their heads: this side has them in far memory */
/* The peer has proved itself: it may take its time. Queue pairs: two attempts at an address, and the connection. */
#define OPEN_MS 8000
#define CONNECT_MS 5000 /* for the connection of queue pairs */

enum step_kind { STEP_READY = 1, STEP_LISTEN, STEP_KEYS, STEP_DONE };

struct step {
    uint32_t kind, ok;
    struct gr_verbs_mode mode; /* READY: two_sided, apart */
    uint32_t n_bulk_slot, mtu; /* READY */
    uint32_t family, port;     /* LISTEN: 4 or 6 */
    uint8_t addr[16];
    uint8_t nonce[GR_VERBS_NONCE_BYTES];
    uint64_t inbox, inbox_bytes, body; /* KEYS */
    uint32_t key, body_key;
};

static const char *const step_names[] = {"", "verbs READY", "verbs LISTEN", "verbs KEYS", "verbs DONE"};

/* ---- records ---- */

static enum gr_status write_step(int fd, const struct step *s, uint64_t deadline_ns)
{
    uint8_t out[STEP_BYTES] = {0};
    struct gr_writer w = {.p = out, .cap = sizeof(out)};
    gr_write_u32(&w, STEP_MAGIC);
    gr_write_u16(&w, s->kind);
    gr_write_u16(&w, s->ok);
    gr_write_u16(&w, (s->mode.two_sided ? MODE_TWO_SIDED : 0) | (s->mode.apart ? MODE_APART : 0));
    gr_write_u16(&w, s->n_bulk_slot);
    gr_write_u16(&w, s->family);
    gr_write_u16(&w, s->kind == STEP_READY ? s->mtu : s->port);
    memcpy(gr_write_bytes(&w, sizeof(s->addr)), s->addr, sizeof(s->addr));
    memcpy(gr_write_bytes(&w, sizeof(s->nonce)), s->nonce, sizeof(s->nonce));
    gr_write_u64(&w, s->inbox);
    gr_write_u64(&w, s->inbox_bytes);
    gr_write_u32(&w, s->key);
    gr_write_u64(&w, s->body);
    gr_write_u32(&w, s->body_key);
    GR_ASSERT(!w.failed);
    return gr_sock_write_peer(fd, out, sizeof(out), deadline_ns, step_names[s->kind]);
}

static enum gr_status decode_step(const uint8_t in[STEP_BYTES], enum step_kind kind, struct step *out)
{
    struct gr_reader r = {.p = in, .len = STEP_BYTES};
    const uint32_t magic = gr_read_u32(&r);
    struct step s = {.kind = gr_read_u16(&r)};
    s.ok = gr_read_u16(&r);
    const uint32_t mode = gr_read_u16(&r);
    s.mode = (struct gr_verbs_mode){.two_sided = (mode & MODE_TWO_SIDED) != 0, .apart = (mode & MODE_APART) != 0};
    s.n_bulk_slot = gr_read_u16(&r);
    s.family = gr_read_u16(&r);
    s.port = s.mtu = gr_read_u16(&r);
    memcpy(s.addr, gr_read_bytes(&r, sizeof(s.addr)), sizeof(s.addr));
    memcpy(s.nonce, gr_read_bytes(&r, sizeof(s.nonce)), sizeof(s.nonce));
    s.inbox = gr_read_u64(&r);
    s.inbox_bytes = gr_read_u64(&r);
    s.key = gr_read_u32(&r);
    s.body = gr_read_u64(&r);
    s.body_key = gr_read_u32(&r);
    if (magic != STEP_MAGIC || s.kind != (uint32_t)kind || s.ok > 1 || mode > (MODE_TWO_SIDED | MODE_APART)) {
        log_error("%s: malformed record", step_names[kind]);
        return GR_EPROTO;
    }
    *out = s;
    return GR_OK;
}

static enum gr_status read_step(int fd, enum step_kind kind, uint64_t deadline_ns, struct step *out)
{
    uint8_t in[STEP_BYTES];
    GR_TRY(gr_sock_read_peer(fd, in, sizeof(in), deadline_ns, step_names[kind]));
    return decode_step(in, kind, out);
}

/* The next record is there already and says no, or nothing will come any more. */
static bool peer_gave_up(int fd)
{
    uint8_t in[STEP_BYTES];
    const ssize_t n = recv(fd, in, sizeof(in), MSG_PEEK | MSG_DONTWAIT);
    if (n < 0) {
        return errno != EAGAIN && errno != EINTR;
    }
    return n == 0 || (n == (ssize_t)sizeof(in) && in[6] == 0 && in[7] == 0);
}

/* Says how it went here, hears how it went there. own_st is passed on: a failure here was logged here. GR_EUNSUPPORTED:
 * one of the two could not, and both know. */
static enum gr_status exchange_step(int fd, struct step *own, enum gr_status own_st, uint64_t deadline_ns,
                                    struct step *peer_out)
{
    own->ok = own_st == GR_OK;
    GR_TRY(write_step(fd, own, deadline_ns));
    GR_TRY(read_step(fd, (enum step_kind)own->kind, deadline_ns, peer_out));
    if (own->ok != 0 && peer_out->ok == 0) {
        log_warn("%s: the peer cannot; its log says why", step_names[own->kind]);
    }
    return own->ok != 0 && peer_out->ok != 0 ? GR_OK : GR_EUNSUPPORTED;
}

/* ---- what this side has ---- */

/* Of two registrations and what the libraries lock themselves; root is not bound by the limit. */
static uint16_t bulk_slots_allowed(const struct gr_conn_limits *limits, struct gr_verbs_mode mode)
{
    struct rlimit lim;
    if (geteuid() == 0 || getrlimit(RLIMIT_MEMLOCK, &lim) != 0 || lim.rlim_cur == RLIM_INFINITY) {
        return limits->n_bulk_slot;
    }
    const uint16_t n = gr_verbs_bulk_slots_within(limits, mode, (size_t)lim.rlim_cur - lim.rlim_cur / 8);
    if (n < limits->n_bulk_slot) {
        log_info("verbs: %u bulk slots of %u bytes instead of %u: RLIMIT_MEMLOCK is %llu KiB", n,
                 limits->bulk_bytes_max, limits->n_bulk_slot, (unsigned long long)lim.rlim_cur / 1024);
    }
    return n;
}

/* Where the options want bodies of bulk frames; a path that does not work is none. */
static enum gr_status take_far(struct gr_verbs_conn *v, const struct gr_verbs_options *o)
{
    struct gr_verbs_memory *m = v->memory;
    v->require_far = o->far != NULL && o->require_far;
    if (o->far == NULL || v->base.limits.n_bulk_slot == 0) {
        gr_verbs_bodies_release(&m->bodies, v->lib);
        return GR_OK;
    }
    return gr_verbs_bodies_make(&m->bodies, v->lib, m->pd, o, &v->base.limits);
}

static enum gr_status take_device(struct gr_verbs_conn *v, const struct gr_verbs_options *o, uint64_t peer_id,
                                  struct step *ready)
{
    struct gr_verbs_device device;
    GR_TRY(gr_verbs_device_choose(v->lib, o, &device));
    v->memory = gr_verbs_unpark(v->lib, &device, peer_id);
    if (v->memory == NULL) {
        GR_TRY(gr_verbs_memory_create(v->lib, &device, peer_id, &v->memory));
    }
    GR_TRY(take_far(v, o));
    ready->mode.far = v->memory->bodies.far != NULL;
    ready->mode.two_sided = o->two_sided || device.iwarp;
    ready->mode.apart = ready->mode.far && !ready->mode.two_sided;
    ready->mtu = (uint32_t)device.mtu_bytes;
    ready->n_bulk_slot = bulk_slots_allowed(&v->base.limits, ready->mode);
    return GR_OK;
}

static enum gr_status post_receives(void *ctx)
{
    return gr_verbs_repost(ctx);
}

static enum gr_status take_memory(struct gr_verbs_conn *v, const struct step *a, const struct step *b)
{
    struct gr_verbs_layout layout;
    struct gr_conn_limits limits = v->base.limits;
    limits.n_bulk_slot = (uint16_t)GR_MIN(limits.n_bulk_slot, GR_MIN(a->n_bulk_slot, b->n_bulk_slot));
    if ((limits.n_bulk_slot == 0) != (limits.bulk_bytes_max == 0)) {
        log_error("verbs READY: the peer offers no bulk slots");
        return GR_EPROTO;
    }
    const bool two_sided = a->mode.two_sided || b->mode.two_sided;
    if (two_sided && v->require_far) {
        log_error("verbs: a two-sided connection receives into the host's memory, which --require-gpudirect forbids: "
                  "--verbs-mode one_sided at both ends (iWARP cannot)");
        return GR_EIO;
    }
    gr_verbs_layout_init(&layout, &limits,
                         (struct gr_verbs_mode){.two_sided = two_sided,
                                                .apart = !two_sided && (a->mode.apart || b->mode.apart),
                                                .far = a->mode.far});
    GR_TRY(gr_verbs_memory_layout(v->memory, &layout));
    GR_TRY(gr_verbs_conn_init(v));
    struct gr_verbs_link *k = &v->link;
    const uint32_t n_send = layout.n_out[GR_VERBS_OUT_SMALL] + layout.n_out[GR_VERBS_OUT_CREDIT] + 2 * 64;
    k->n_send = GR_MIN(n_send, GR_VERBS_SENT_MAX);
    k->n_recv = layout.n_recv;
    k->lib = v->lib;
    k->memory = v->memory;
    k->generation = v->base.conn_generation;
    k->post_receives = post_receives;
    k->ctx = v;
    k->peer_gave_up = peer_gave_up;
    k->fd = v->fd;
    if (k->n_recv > v->memory->device.n_wr_max || k->n_send + k->n_recv > v->memory->device.n_cqe_max) {
        log_error("verbs: %s: a connection needs %u receives, the device has %u a queue pair and %u completions",
                  v->memory->device.name, k->n_recv, v->memory->device.n_wr_max, v->memory->device.n_cqe_max);
        return GR_ELIMIT;
    }
    return gr_verbs_link_init(k);
}

/* ---- one end listens, the other one connects ---- */

/* Tells where to connect to, or that nobody can: *agreed_out, both go on to KEYS. The result is this side's own. */
static enum gr_status offer_address(struct gr_verbs_conn *v, enum gr_status st, uint64_t deadline_ns, bool *agreed_out)
{
    struct step s = {.kind = STEP_LISTEN};
    uint16_t port = 0;
    randombytes_buf(v->link.nonce, sizeof(v->link.nonce));
    if (st == GR_OK) {
        st = gr_verbs_link_listen(&v->link, &port);
    }
    if (st == GR_OK) {
        const struct sockaddr_storage *sa = &v->memory->device.addr;
        s.ok = 1;
        s.family = sa->ss_family == AF_INET ? 4 : 6;
        s.port = port;
        memcpy(s.nonce, v->link.nonce, sizeof(s.nonce));
        if (s.family == 4) {
            memcpy(s.addr, &((const struct sockaddr_in *)(const void *)sa)->sin_addr, 4);
        } else {
            memcpy(s.addr, &((const struct sockaddr_in6 *)(const void *)sa)->sin6_addr, 16);
        }
    }
    GR_TRY(write_step(v->fd, &s, deadline_ns));
    *agreed_out = s.ok != 0;
    return st;
}

union address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
};

static enum gr_status learn_address(struct gr_verbs_conn *v, uint64_t deadline_ns, union address *sa, bool *agreed_out)
{
    struct step s;
    GR_TRY(read_step(v->fd, STEP_LISTEN, deadline_ns, &s));
    if (s.ok == 0) {
        log_warn("verbs LISTEN: the peer cannot; its log says why");
        return GR_EUNSUPPORTED;
    }
    memset(sa, 0, sizeof(*sa));
    if (s.family == 4) {
        sa->v4.sin_family = AF_INET;
        sa->v4.sin_port = htons((uint16_t)s.port);
        memcpy(&sa->v4.sin_addr, s.addr, 4);
    } else {
        sa->v6.sin6_family = AF_INET6;
        sa->v6.sin6_port = htons((uint16_t)s.port);
        memcpy(&sa->v6.sin6_addr, s.addr, 16);
        if (IN6_IS_ADDR_LINKLOCAL(&sa->v6.sin6_addr)) {
            sa->v6.sin6_scope_id = ((const struct sockaddr_in6 *)(const void *)&v->memory->device.addr)->sin6_scope_id;
        }
    }
    memcpy(v->link.nonce, s.nonce, sizeof(s.nonce));
    *agreed_out = true;
    return GR_OK;
}

static enum gr_status accept_peer(struct gr_verbs_conn *v, enum gr_status st, uint64_t deadline_ns, bool *agreed_out)
{
    GR_TRY(offer_address(v, st, deadline_ns, agreed_out));
    return gr_verbs_link_accept(&v->link, GR_MIN(deadline_ns, gr_deadline_ns(CONNECT_MS)));
}

static enum gr_status connect_peer(struct gr_verbs_conn *v, enum gr_status st, uint64_t deadline_ns, bool *agreed_out)
{
    union address sa;
    GR_TRY(learn_address(v, deadline_ns, &sa, agreed_out));
    GR_TRY(st);
    return gr_verbs_link_connect(&v->link, &sa.any, GR_MIN(deadline_ns, gr_deadline_ns(CONNECT_MS)));
}

/* ---- the first records ---- */

static enum gr_status wait_record(struct gr_verbs_conn *v, uint64_t deadline_ns)
{
    while (v->n_record == 0) {
        struct gr_frame none;
        struct pollfd p = {.fd = -1};
        const enum gr_status st = gr_conn_recv(&v->base, &none); /* no frame comes before DONE */
        if (st != GR_AGAIN) {
            return st == GR_OK ? GR_EPROTO : st;
        }
        p.fd = gr_conn_poll_fd(&v->base, &p.events);
        if (v->n_record == 0 && peer_gave_up(v->fd)) {
            return GR_ECLOSED;
        }
        if (v->n_record == 0 && p.fd >= 0 && poll(&p, 1, 50) == 0 && gr_clock_ns() >= deadline_ns) {
            return GR_ETIMEDOUT;
        }
    }
    return v->gone ? GR_ECLOSED : GR_OK;
}

/* Who has connected speaks first: on iWARP the other one may not. */
static enum gr_status first_records(struct gr_verbs_conn *v, bool connects, uint64_t deadline_ns)
{
    const uint32_t bytes = gr_verbs_hello_bytes(&v->base.limits);
    enum gr_status st = connects ? gr_verbs_push_credit(v, bytes) : GR_OK;
    st = st == GR_OK ? wait_record(v, deadline_ns) : st;
    if (st != GR_OK && st != GR_EPROTO) {
        log_error("verbs: %s: the queue pairs are connected, but %u bytes do not come through: do both interfaces and "
                  "all between them take packets of the path MTU, %u bytes and headers?",
                  v->memory->device.name, bytes, v->path_mtu);
    }
    GR_TRY(st);
    return connects ? GR_OK : gr_verbs_push_credit(v, bytes);
}

static enum gr_status exchange_keys(struct gr_verbs_conn *v, enum gr_status st, uint64_t deadline_ns)
{
    struct step own = {.kind = STEP_KEYS}, peer;
    const struct gr_verbs_memory *m = v->memory;
    const size_t inbox_bytes = gr_verbs_granted_bytes(&m->layout);
    if (st == GR_OK && inbox_bytes > 0) {
        own.inbox = (uintptr_t)m->inbox;
        own.inbox_bytes = inbox_bytes;
        own.key = m->inbox_mr->rkey;
    }
    if (own.inbox_bytes > 0 && m->layout.mode.apart) {
        own.body = (uintptr_t)gr_verbs_inbox_bodies(m);
        own.body_key = m->layout.mode.far ? m->bodies.in_mr->rkey : own.key;
    }
    GR_TRY(exchange_step(v->fd, &own, st, deadline_ns, &peer));
    if (peer.inbox_bytes != inbox_bytes) {
        log_error("verbs KEYS: the peer's inbox has %llu bytes, the agreed limits need %zu",
                  (unsigned long long)peer.inbox_bytes, inbox_bytes);
        return GR_EPROTO;
    }
    v->remote_inbox = peer.inbox;
    v->remote_key = peer.key;
    v->remote_body = peer.body;
    v->remote_body_key = peer.body_key;
    return GR_OK;
}

/* The side of the socket's initiator; where the path MTUs differ, that of the smaller one, as the queue pairs of both
 * get what the connecting one has. */
static bool is_connecting(struct gr_verbs_conn *v, bool initiator, const struct step *own, const struct step *peer)
{
    v->path_mtu = GR_MIN(own->mtu, peer->mtu);
    if (own->mtu == peer->mtu || v->path_mtu == 0) { /* 0: that end does not know its own */
        return initiator;
    }
    log_info("verbs: path MTU %u here, %u at the peer: the smaller one is taken", own->mtu, peer->mtu);
    return own->mtu < peer->mtu;
}

/* st: how it stands here. GR_EUNSUPPORTED: no connection, and both know. */
static enum gr_status connect_pair(struct gr_verbs_conn *v, bool connects, enum gr_status st, uint64_t deadline_ns)
{
    bool agreed = false;
    st = connects ? connect_peer(v, st, deadline_ns, &agreed) : accept_peer(v, st, deadline_ns, &agreed);
    if (!agreed) {
        return st == GR_EIO || st == GR_ENOMEM || st == GR_ELIMIT ? GR_EUNSUPPORTED : st;
    }
    GR_TRY(exchange_keys(v, st, deadline_ns));
    st = gr_verbs_conn_watch(v);
    if (st == GR_OK) {
        st = first_records(v, connects, GR_MIN(deadline_ns, gr_deadline_ns(CONNECT_MS)));
    }
    struct step own = {.kind = STEP_DONE}, peer;
    GR_TRY(exchange_step(v->fd, &own, st, deadline_ns, &peer));
    return gr_verbs_conn_watch_socket(v);
}

static void say_open(const struct gr_verbs_conn *v)
{
    const struct gr_verbs_device *d = &v->memory->device;
    log_info("verbs: connection %u: device %s port %u, address %s (GID %d, %s), MTU %u, %u bytes inline, %s, %u+%u "
             "slots, %zu KiB locked, rows of bulk frames in %s%s%s",
             v->base.conn_generation, d->name, d->port, d->addr_text, d->gid_index, d->gid_text, v->path_mtu,
             v->link.inline_bytes, v->mode.two_sided ? "two-sided" : "one-sided", v->base.limits.n_small_slot,
             v->base.limits.n_bulk_slot, (v->memory->layout.local_bytes + v->memory->layout.inbox_bytes) / 1024,
             v->base.far != NULL ? v->base.far->name : "the host's memory", v->base.far != NULL ? " by " : "",
             v->base.far != NULL ? gr_far_path_name(v->memory->bodies.path) : "");
}

static enum gr_status open_steps(struct gr_verbs_conn *v, bool initiator, const struct gr_verbs_options *o,
                                 uint64_t peer_id)
{
    const uint64_t deadline_ns = gr_deadline_ns(OPEN_MS);
    struct step own = {.kind = STEP_READY}, peer;
    enum gr_status st = take_device(v, o, peer_id, &own);
    GR_TRY(exchange_step(v->fd, &own, st, deadline_ns, &peer));
    st = take_memory(v, &own, &peer);
    if (st == GR_EPROTO) {
        return st;
    }
    return connect_pair(v, is_connecting(v, initiator, &own, &peer), st, deadline_ns);
}

static const struct gr_verbs_lib *lib_of(const struct gr_verbs_options *options)
{
    return options->lib != NULL ? options->lib : &gr_verbs_real;
}

enum gr_status gr_transport_open_verbs(int fd, bool initiator, const struct gr_verbs_options *options,
                                       const struct gr_conn_limits *limits, uint64_t peer_id, uint32_t generation,
                                       struct gr_conn **conn_out)
{
    GR_TRY(gr_limits_check(limits));
    GR_ASSERT(sodium_init() >= 0);
    struct gr_verbs_conn *v = calloc(1, sizeof(*v));
    if (v == NULL) {
        log_error("verbs: out of memory");
        return GR_ENOMEM;
    }
    v->base = (struct gr_conn){.ops = &gr_transport_verbs, .limits = *limits, .conn_generation = generation};
    v->lib = lib_of(options);
    v->fd = fd;
    v->epoll_fd = -1;
    v->spin_us = options->spin_us;
    v->link.ack_timeout = options->ack_timeout;
    const enum gr_status st = open_steps(v, initiator, options, peer_id);
    if (st != GR_OK) {
        gr_verbs_conn_destroy(v); /* the socket stays the caller's */
        return st;
    }
    gr_sock_tune(fd);
    v->stats.inline_bytes = v->link.inline_bytes;
    say_open(v);
    *conn_out = &v->base;
    return GR_OK;
}

/* On a device of its own choice, which is opened for it alone. */
static enum gr_status try_on(const struct gr_verbs_lib *lib, const struct gr_verbs_options *o,
                             struct ibv_context *context, enum gr_far_path *path_out)
{
    const struct gr_conn_limits little = {.bulk_bytes_max = 4096, .n_bulk_slot = 1};
    struct gr_verbs_bodies bodies = {.far = NULL};
    struct ibv_pd *pd = lib->alloc_pd(context);
    if (pd == NULL) {
        log_error("verbs: no protection domain: %s", strerror(errno));
        return GR_EIO;
    }
    const enum gr_status st = gr_verbs_bodies_make(&bodies, lib, pd, o, &little);
    *path_out = bodies.path;
    gr_verbs_bodies_release(&bodies, lib);
    lib->dealloc_pd(pd);
    return st;
}

enum gr_status gr_verbs_try_far(const struct gr_verbs_options *options, enum gr_far_path *path_out)
{
    const struct gr_verbs_lib *lib = lib_of(options);
    struct gr_verbs_device device;
    GR_ASSERT(sodium_init() >= 0);
    GR_TRY(gr_verbs_device_choose(lib, options, &device));
    enum gr_status st = GR_ENOTFOUND;
    int n = 0;
    struct ibv_device **list = lib->get_device_list(&n);
    for (int i = 0; list != NULL && i < n; i++) {
        struct ibv_context *context =
            strcmp(lib->get_device_name(list[i]), device.name) == 0 ? lib->open_device(list[i]) : NULL;
        if (context != NULL) {
            st = try_on(lib, options, context, path_out);
            lib->close_device(context);
        }
    }
    if (list != NULL) {
        lib->free_device_list(list);
    }
    return st;
}

enum gr_status gr_verbs_check(const struct gr_verbs_options *options)
{
    struct gr_verbs_device device;
    return gr_verbs_device_choose(lib_of(options), options, &device);
}

bool gr_verbs_worth_offering(const struct gr_verbs_options *options)
{
    const struct gr_verbs_lib *lib = lib_of(options);
    int n = 0;
    struct ibv_device **list = options->hca == NULL ? lib->get_device_list(&n) : NULL;
    if (list != NULL) {
        lib->free_device_list(list);
    }
    return options->hca != NULL || n > 0;
}

void gr_verbs_forget_peers(void)
{
    gr_verbs_park_clear();
}
