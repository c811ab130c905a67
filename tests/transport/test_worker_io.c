/* The edge of a worker, with an orchestrator made by hand. */
#include "common/base/clock.h"
#include "common/base/log.h"
#include "tests/unit/log_capture.h"
#include "transport/connect/control.h"
#include "transport/worker/worker_io.h"
#include "transport/net.h"

#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

struct world {
    int listen_fd;
    char address[64];
    uint8_t key[GR_KEY_BYTES];
    struct gr_control *control; /* the orchestrator's end */
    struct gr_worker_io *io;
    pthread_t thread;
    enum gr_status st;
    const char *listen; /* data endpoint; NULL: none */
    char data[64];      /* where that is */
    int timeout_ms;
    /* the machine */
    int at;
    size_t room;
    bool computes; /* a pass that lasts until `pass_end' is posted */
    sem_t pass_end;
};

static void long_pass(void *arg)
{
    struct world *w = arg;
    while (sem_wait(&w->pass_end) != 0) {
    }
}

/* The first PING begins a pass; each is answered. */
static void on_msg(void *ctx, const struct gr_msg *m, uint64_t now_ns)
{
    struct world *w = ctx;
    const struct gr_msg pong = {.type = GR_MSG_PONG};
    (void)now_ns;
    if (m->type == GR_MSG_PING && !w->computes) {
        w->computes = true;
        gr_worker_io_compute(w->io, long_pass, w, 1, false);
    }
    if (m->type == GR_MSG_PING) {
        gr_worker_io_send_msg(w->io, &pong);
    }
}

static enum gr_status on_frame(void *ctx, uint32_t peer, const uint8_t *frame, size_t len, uint64_t now_ns)
{
    (void)ctx;
    (void)peer;
    (void)frame;
    (void)len;
    (void)now_ns;
    return GR_EPROTO;
}

static void on_peer_ready(void *ctx, uint32_t peer, const char *transport, uint64_t now_ns)
{
    (void)ctx;
    (void)peer;
    (void)transport;
    (void)now_ns;
}

static void on_peer_lost(void *ctx, uint32_t peer, enum gr_status why, const char *text, uint64_t now_ns)
{
    (void)text;
    (void)why;
    (void)ctx;
    (void)peer;
    (void)now_ns;
}

/* Told to the test by a message that nothing else sends. */
static void on_compute_done(void *ctx, uint64_t now_ns)
{
    struct world *w = ctx;
    (void)now_ns;
    gr_worker_io_send_msg(w->io, &(struct gr_msg){.type = GR_MSG_DRAFT_TROUBLE, .session = 1});
}

/* Asks for one more call; then says something, finds the queue not empty, and waits for it: the second PONG. */
static uint64_t step(void *ctx, uint64_t now_ns)
{
    struct world *w = ctx;
    const struct gr_msg pong = {.type = GR_MSG_PONG};
    if (w->at == 0 || w->at == 1) {
        w->at++;
        w->room = gr_worker_io_msg_room(w->io);
        return now_ns + 20 * GR_MS;
    }
    if (w->at == 2) {
        w->at++;
        w->room = gr_worker_io_msg_room(w->io);
        gr_worker_io_send_msg(w->io, &pong);
    } else if (w->at == 3 && gr_worker_io_msg_room(w->io) >= w->room) {
        w->at++;
        gr_worker_io_send_msg(w->io, &pong);
    }
    return UINT64_MAX;
}

static void *run_worker(void *arg)
{
    struct world *w = arg;
    struct gr_worker_config c = {.hello = {.version = GR_PROTOCOL_VERSION,
                                           .role = GR_ROLE_TARGET,
                                           .transport_mask = 4,
                                           .limits = {.small_bytes_max = 8192, .n_small_slot = 4}},
                                 .join = w->address,
                                 .listen = w->listen,
                                 .forced_transport = -1,
                                 .handshake_timeout_ms = w->timeout_ms,
                                 .join_msg = {.type = GR_MSG_JOIN, .join = {.role = GR_ROLE_TARGET}}};
    memcpy(c.key, w->key, sizeof(c.key));
    const struct gr_worker_machine machine = {.ctx = w,
                                              .on_msg = on_msg,
                                              .on_frame = on_frame,
                                              .on_peer_ready = on_peer_ready,
                                              .on_peer_lost = on_peer_lost,
                                              .on_compute_done = on_compute_done,
                                              .step = step};
    w->st = gr_worker_io_create(&c, &machine, &w->io);
    if (w->st == GR_OK) {
        w->st = gr_worker_io_run(w->io);
    }
    gr_worker_io_destroy(w->io);
    return NULL;
}

static void start(struct world *w, const char *listen, int timeout_ms)
{
    char hex[2 * GR_KEY_BYTES + 1];
    struct gr_hello peer;
    int fd = -1;
    *w = (struct world){.listen = listen, .timeout_ms = timeout_ms};
    assert_int_equal(sem_init(&w->pass_end, 0, 0), 0);
    assert_int_equal(gr_key_random(w->key, hex), GR_OK);
    assert_int_equal(gr_tcp_listen("127.0.0.1:0", &w->listen_fd, w->address), GR_OK);
    assert_int_equal(pthread_create(&w->thread, NULL, run_worker, w), 0);
    struct pollfd p = {.fd = w->listen_fd, .events = POLLIN};
    assert_int_equal(poll(&p, 1, 5000), 1);
    assert_int_equal(gr_tcp_accept(w->listen_fd, &fd), GR_OK);
    const struct gr_hello self = {.version = GR_PROTOCOL_VERSION,
                                  .role = GR_ROLE_ORCHESTRATOR,
                                  .incarnation = 1,
                                  .limits = {.small_bytes_max = 8192, .n_small_slot = 2}};
    assert_int_equal(gr_hello_exchange(fd, &self, w->key, 5000, &peer), GR_OK);
    assert_int_equal(gr_control_create(fd, NULL, &w->control), GR_OK);
}

static bool receive(struct world *w, enum gr_msg_type type)
{
    const uint64_t end_ns = gr_clock_ns() + 2 * GR_S;
    while (gr_clock_ns() < end_ns) {
        struct gr_msg m;
        const enum gr_status st = gr_control_recv(w->control, &m);
        if (st == GR_OK) {
            const bool good = m.type == type;
            if (m.type == GR_MSG_JOIN) {
                memcpy(w->data, m.join.address, sizeof(w->data));
            }
            gr_msg_finish(&m);
            return good;
        }
        assert_int_equal(st, GR_AGAIN);
        struct pollfd p = {.fd = gr_control_fd(w->control), .events = POLLIN};
        (void)poll(&p, 1, 100);
    }
    return false;
}

/* A machine that waits for room in the queue to the orchestrator is called when there is, though nothing else happens.
 */
static void test_room_wakes(void **state)
{
    (void)state;
    struct world w;
    start(&w, NULL, 5000);
    assert_true(receive(&w, GR_MSG_JOIN));
    assert_true(receive(&w, GR_MSG_PONG));
    const bool resumed = receive(&w, GR_MSG_PONG);
    gr_control_destroy(w.control); /* the worker ends */
    pthread_join(w.thread, NULL);
    close(w.listen_fd);
    assert_true(resumed);
    assert_int_equal(w.st, GR_ECLOSED);
}

static bool send_now(struct world *w, const struct gr_msg *m)
{
    return gr_control_send(w->control, m) == GR_OK && gr_control_flush(w->control) == GR_OK;
}

/* A pass of any length: it ends when the test says so, and PINGs are answered before. */
static void test_pings_are_answered_in_a_pass(void **state)
{
    (void)state;
    struct world w;
    bool good = true;
    start(&w, NULL, 5000);
    good = receive(&w, GR_MSG_JOIN) && receive(&w, GR_MSG_PONG) && receive(&w, GR_MSG_PONG);
    for (int i = 0; good && i < 100; i++) {
        good = send_now(&w, &(struct gr_msg){.type = GR_MSG_PING}) && receive(&w, GR_MSG_PONG);
    }
    sem_post(&w.pass_end);
    const bool ended = receive(&w, GR_MSG_DRAFT_TROUBLE);
    gr_control_destroy(w.control); /* the worker ends */
    pthread_join(w.thread, NULL);
    close(w.listen_fd);
    sem_destroy(&w.pass_end);
    assert_true(good);
    assert_true(ended);
}

static enum gr_status call(const struct world *w, uint64_t number, struct gr_conn **conn)
{
    const struct gr_hello self = {.version = GR_PROTOCOL_VERSION,
                                  .role = GR_ROLE_DRAFT,
                                  .transport_mask = 4,
                                  .incarnation = 100 + number,
                                  .seat = "d1",
                                  .number = number,
                                  .limits = {.small_bytes_max = 8192, .n_small_slot = 4}};
    const struct gr_bootstrap_options o = {
        .initiator = true, .forced = -1, .generation = 1, .timeout_ms = 10000, .key = w->key};
    struct gr_hello peer;
    int fd = -1;
    GR_TRY(gr_tcp_connect(w->data, 5000, &fd));
    return gr_bootstrap(fd, &self, &o, &peer, conn);
}

/* Until the target says something, or hangs up. */
static enum gr_status wait_for_end(struct gr_conn *conn)
{
    struct gr_frame f;
    enum gr_status st = GR_AGAIN;
    const uint64_t end_ns = gr_clock_ns() + 20 * GR_S;
    while (st == GR_AGAIN && gr_clock_ns() < end_ns) {
        short events = 0;
        struct pollfd p = {.fd = gr_conn_poll_fd(conn, &events), .events = POLLIN};
        (void)poll(&p, 1, 100);
        st = gr_conn_recv(conn, &f);
    }
    return st;
}

/* A drafter that was frozen, and whose seat a newer process has: its connection ends when that one calls, and it is
 * turned away when it calls again. */
static void test_older_drafters_are_refused(void **state)
{
    (void)state;
    struct world w;
    struct log_capture log;
    struct gr_conn *conn[3] = {NULL, NULL, NULL};
    gr_log_set_level(GR_LOG_WARN);
    log_capture_begin(&log);
    start(&w, "127.0.0.1:0", 60000);
    bool good = receive(&w, GR_MSG_JOIN) && call(&w, 5, &conn[0]) == GR_OK && call(&w, 7, &conn[1]) == GR_OK;
    good = good && wait_for_end(conn[0]) == GR_ECLOSED;
    good = good && call(&w, 6, &conn[2]) == GR_OK && wait_for_end(conn[2]) == GR_ECLOSED;
    struct gr_frame f;
    const bool stands = good && gr_conn_recv(conn[1], &f) == GR_AGAIN;
    gr_control_destroy(w.control); /* the worker ends */
    pthread_join(w.thread, NULL);
    const char *lines = log_capture_end(&log);
    gr_log_set_level(GR_LOG_ERROR);
    for (size_t i = 0; i < GR_ARRAY_LEN(conn); i++) {
        gr_conn_close(conn[i]);
    }
    close(w.listen_fd);
    assert_true(good);
    assert_true(stands);
    assert_non_null(strstr(lines, "a drafter was turned away: its seat `d1'"));
    const char *first = strstr(lines, "belongs to a newer process"); /* 7 may come to its place before 5 */
    assert_true(first != NULL && strstr(first + 1, "belongs to a newer process") != NULL);
}

/* Strangers who connect and say nothing, in more numbers than there are hand-shakes: they take no data connection, and
 * a drafter that comes after them is let in without waiting for the time of theirs to be over. */
static void test_silent_strangers(void **state)
{
    (void)state;
    struct world w;
    struct gr_hello peer;
    struct gr_conn *conn = NULL;
    struct log_capture log;
    int fd[200], drafter = -1;
    log_capture_begin(&log); /* each stranger is a line */
    start(&w, "127.0.0.1:0", 60000);
    const bool joined = receive(&w, GR_MSG_JOIN);
    for (size_t i = 0; joined && i < GR_ARRAY_LEN(fd); i++) {
        assert_int_equal(gr_tcp_connect(w.data, 5000, &fd[i]), GR_OK);
    }
    const struct gr_hello self = {.version = GR_PROTOCOL_VERSION,
                                  .role = GR_ROLE_DRAFT,
                                  .transport_mask = 4,
                                  .incarnation = 2,
                                  .limits = {.small_bytes_max = 8192, .n_small_slot = 4}};
    enum gr_status st = gr_tcp_connect(w.data, 5000, &drafter);
    if (st == GR_OK) {
        const struct gr_bootstrap_options o = {
            .initiator = true, .forced = -1, .generation = 1, .timeout_ms = 10000, .key = w.key};
        st = gr_bootstrap(drafter, &self, &o, &peer, &conn);
    }
    gr_control_destroy(w.control); /* the worker ends */
    pthread_join(w.thread, NULL);
    (void)log_capture_end(&log);
    for (size_t i = 0; joined && i < GR_ARRAY_LEN(fd); i++) {
        close(fd[i]);
    }
    assert_int_equal(st, GR_OK);
    gr_conn_close(conn);
    close(w.listen_fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_room_wakes),
        cmocka_unit_test(test_pings_are_answered_in_a_pass),
        cmocka_unit_test(test_older_drafters_are_refused),
        cmocka_unit_test(test_silent_strangers),
    };
    gr_log_set_level(GR_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
