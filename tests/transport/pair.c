#include "tests/transport/pair.h"

#include "common/base/clock.h"
#include "transport/net.h"

#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

const struct gr_conn_limits limits_default = {
    .small_bytes_max = 4096, .bulk_bytes_max = 65536, .n_small_slot = 8, .n_bulk_slot = 4};

void make_unix_sockets(int fd[2])
{
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd), 0);
}

void make_tcp_sockets(int fd[2])
{
    int listener;
    char bound[64];
    assert_int_equal(gr_tcp_listen("127.0.0.1:0", &listener, bound), GR_OK);
    assert_int_equal(gr_tcp_connect(bound, WAIT_MS, &fd[0]), GR_OK);
    assert_int_equal(gr_tcp_accept(listener, &fd[1]), GR_OK);
    close(listener);
}

struct opening {
    int fd;
    const struct gr_conn_limits *limits;
    struct gr_conn *conn;
    enum gr_status st;
    struct gr_why why;
};

static void *open_shm_thread(void *data)
{
    struct opening *o = data;
    o->st = gr_transport_open_shm(o->fd, false, o->limits, 7, WAIT_MS, &o->conn, &o->why);
    return NULL;
}

static void open_shm(struct pair *p, const struct gr_conn_limits *limits)
{
    struct opening o = {.fd = p->fd[1], .limits = limits};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, open_shm_thread, &o), 0);
    struct gr_why why = {.text = ""};
    enum gr_status st = gr_transport_open_shm(p->fd[0], true, limits, 7, WAIT_MS, &p->conn[0], &why);
    pthread_join(thread, NULL);
    if (st != GR_OK || o.st != GR_OK) {
        fail_msg("shm: %s (%s) and %s (%s)", gr_status_text(st), why.text, gr_status_text(o.st), o.why.text);
    }
    p->conn[1] = o.conn;
}

struct gr_verbs_options pair_verbs[2] = {GR_VERBS_OPTIONS_DEFAULT, GR_VERBS_OPTIONS_DEFAULT};

static void *open_verbs_thread(void *data)
{
    struct opening *o = data;
    o->st = gr_transport_open_verbs(o->fd, false, &pair_verbs[1], o->limits, 1, 7, &o->conn);
    return NULL;
}

void pair_open_verbs(struct pair *p, const struct gr_conn_limits *limits, enum gr_status st_out[2])
{
    struct opening o = {.fd = p->fd[1], .limits = limits};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, open_verbs_thread, &o), 0);
    st_out[0] = gr_transport_open_verbs(p->fd[0], true, &pair_verbs[0], limits, 2, 7, &p->conn[0]);
    pthread_join(thread, NULL);
    st_out[1] = o.st;
    p->conn[1] = o.conn;
}

void pair_open(struct pair *p, enum gr_transport_kind kind, const struct gr_conn_limits *limits)
{
    memset(p, 0, sizeof(*p));
    p->fd[0] = p->fd[1] = -1;
    if (kind == GR_TRANSPORT_LOOP) {
        assert_int_equal(gr_transport_open_loop(limits, 7, p->conn), GR_OK);
    } else if (kind == GR_TRANSPORT_SHM) {
        make_unix_sockets(p->fd);
        open_shm(p, limits);
    } else if (kind == GR_TRANSPORT_VERBS) {
        enum gr_status st[2];
        make_tcp_sockets(p->fd);
        pair_open_verbs(p, limits, st);
        assert_int_equal(st[0], GR_OK);
        assert_int_equal(st[1], GR_OK);
    } else {
        make_tcp_sockets(p->fd);
        assert_int_equal(gr_transport_open_tcp(p->fd[0], limits, 7, &p->conn[0]), GR_OK);
        assert_int_equal(gr_transport_open_tcp(p->fd[1], limits, 7, &p->conn[1]), GR_OK);
    }
    for (int i = 0; i < 2; i++) {
        assert_string_equal(p->conn[i]->ops->name, gr_transport_name(kind));
        assert_int_equal(p->conn[i]->conn_generation, 7);
    }
}

bool pair_try_verbs(struct pair *p, const struct gr_conn_limits *limits)
{
    enum gr_status st[2];
    memset(p, 0, sizeof(*p));
    make_tcp_sockets(p->fd);
    pair_open_verbs(p, limits, st);
    for (int i = 0; i < 2 && (st[0] != GR_OK || st[1] != GR_OK); i++) {
        if (st[i] == GR_OK) {
            gr_conn_close(p->conn[i]);
        } else {
            close(p->fd[i]);
        }
    }
    return st[0] == GR_OK && st[1] == GR_OK;
}

void drop(struct pair *p, int side)
{
    gr_conn_close(p->conn[side]);
    p->conn[side] = NULL;
}

void pair_close(struct pair *p)
{
    drop(p, 0);
    drop(p, 1);
}

bool wait_conns(struct gr_conn **conns, int n)
{
    struct pollfd fds[4];
    bool ready = false;
    for (int i = 0; i < n; i++) {
        fds[i].fd = gr_conn_poll_fd(conns[i], &fds[i].events);
        ready = ready || fds[i].fd < 0;
    }
    return ready || poll(fds, (nfds_t)n, WAIT_MS) > 0;
}

enum gr_status recv_wait(struct gr_conn *from, struct gr_conn *to, struct gr_frame *frame_out)
{
    struct gr_conn *conns[2] = {to, from};
    uint64_t deadline = gr_clock_ns() + WAIT_MS * GR_MS;
    while (gr_clock_ns() < deadline) {
        enum gr_status st = gr_conn_recv(to, frame_out);
        if (st != GR_AGAIN) {
            return st;
        }
        if (from != NULL && gr_conn_flush(from) < 0) {
            from = NULL; /* it has nothing more to push */
        }
        if (!wait_conns(conns, from == NULL ? 1 : 2)) {
            return GR_ETIMEDOUT;
        }
    }
    return GR_ETIMEDOUT;
}

enum gr_status acquire_wait(struct gr_conn *c, enum gr_frame_class class, uint32_t bytes, struct gr_frame *frame_out)
{
    uint64_t deadline = gr_clock_ns() + WAIT_MS * GR_MS;
    while (gr_clock_ns() < deadline) {
        enum gr_status st = gr_conn_acquire(c, class, bytes, frame_out);
        if (st != GR_AGAIN) {
            return st;
        }
        if (!wait_conns(&c, 1)) {
            return GR_ETIMEDOUT;
        }
    }
    return GR_ETIMEDOUT;
}

static uint32_t next_word(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state ^ *state >> 15;
}

void fill(uint8_t *p, uint32_t bytes, uint32_t seed)
{
    uint32_t state = seed * 2654435761u + bytes;
    for (uint32_t at = 0; at < bytes; at += 4) {
        uint32_t word = next_word(&state);
        memcpy(p + at, &word, GR_MIN(4u, bytes - at));
    }
}

bool is_filled(const uint8_t *p, uint32_t bytes, uint32_t seed)
{
    uint32_t state = seed * 2654435761u + bytes;
    for (uint32_t at = 0; at < bytes; at += 4) {
        uint32_t word = next_word(&state);
        if (memcmp(p + at, &word, GR_MIN(4u, bytes - at)) != 0) {
            return false;
        }
    }
    return true;
}

/* A payload in a frame whose rest may be far. */
static void put(struct gr_conn *c, struct gr_frame *f, const uint8_t *p, uint32_t bytes)
{
    const uint32_t here = f->body == NULL ? bytes : GR_MIN(bytes, GR_BULK_HEAD_BYTES);
    memcpy(f->data, p, here);
    if (here < bytes) {
        GR_ASSERT(c->far->copy(c->far->ctx, f->body, p + here, bytes - here) == GR_OK);
    }
}

static void get(struct gr_conn *c, const struct gr_frame *f, uint8_t *p)
{
    const uint32_t here = f->body == NULL ? f->bytes : GR_MIN(f->bytes, GR_BULK_HEAD_BYTES);
    memcpy(p, f->data, here);
    if (here < f->bytes) {
        GR_ASSERT(c->far->copy(c->far->ctx, p + here, f->body, f->bytes - here) == GR_OK);
    }
}

void fill_frame(struct gr_conn *c, struct gr_frame *f, uint32_t bytes, uint32_t seed)
{
    uint8_t *p = malloc(bytes + 1);
    fill(p, bytes, seed);
    put(c, f, p, bytes);
    free(p);
}

bool frame_is_filled(struct gr_conn *c, const struct gr_frame *f, uint32_t seed)
{
    uint8_t *p = malloc(f->bytes + 1);
    get(c, f, p);
    const bool is = is_filled(p, f->bytes, seed);
    free(p);
    return is;
}

void send_filled(struct gr_conn *c, enum gr_frame_class class, uint32_t bytes, uint32_t seed)
{
    struct gr_frame frame;
    assert_int_equal(gr_conn_acquire(c, class, bytes, &frame), GR_OK);
    assert_true(frame.bytes >= bytes);
    assert_int_equal((uintptr_t)frame.data % 64, 0);
    fill_frame(c, &frame, bytes, seed);
    assert_int_equal(gr_conn_send(c, &frame, bytes), GR_OK);
}

void expect_filled(struct gr_conn *from, struct gr_conn *to, enum gr_frame_class class, uint32_t bytes, uint32_t seed)
{
    struct gr_frame frame;
    assert_int_equal(recv_wait(from, to, &frame), GR_OK);
    assert_int_equal(frame.class, class);
    assert_int_equal(frame.bytes, bytes);
    assert_true(frame_is_filled(to, &frame, seed));
    gr_conn_release(to, &frame);
}

const uint8_t key_a[GR_KEY_BYTES] = {1, 2, 3};
const uint8_t key_b[GR_KEY_BYTES] = {1, 2, 4};

struct gr_hello hello_of(uint32_t role)
{
    struct gr_hello h = {
        .version = GR_PROTOCOL_VERSION,
        .role = role,
        .incarnation = 0xfedcba9876543210u + role,
        .tokenizer_fingerprint = 11,
        .model_fingerprint = 0x8000000000000000u | role,
        .fc_fingerprint = 13,
        .numerics_id = "cpu-lane16 f32 tile16",
        .n_vocab = 4096,
        .transport_mask = gr_transport_built_mask(),
        .feature_dtype = GR_DTYPE_BF16,
        .captures = "2,4,7",
        .feature_width = 384,
        .limits = limits_default,
    };
    (void)gr_host_id(h.host_id);
    return h;
}
