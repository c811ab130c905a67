/* The edge of the orchestrator where others misbehave or room runs out: it keeps its loop asleep, and its door open. */
#include "common/clock.h"
#include "common/log.h"
#include "orchestrator/hub.h"
#include "tests/unit/log_capture.h"
#include "transport/listener.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include <cmocka.h>

#define N_STRANGER 40 /* more than there are hand-shakes at a time */

static uint8_t key[GR_KEY_BYTES];

static void on_done(void *ctx, uint64_t session, void *user, enum gr_finish finish, const char *text)
{
    (void)ctx;
    (void)session;
    (void)user;
    (void)finish;
    (void)text;
}

static struct gr_hub *make(int hello_timeout_ms)
{
    struct gr_hub_config c = {.listen = "127.0.0.1:0", .io = {.on_done = on_done},
                              .hello_timeout_ms = hello_timeout_ms};
    struct gr_hub *h = NULL;
    memcpy(c.key, key, sizeof(c.key));
    assert_int_equal(gr_hub_create(&c, &h), GR_OK);
    return h;
}

/* A worker that wants in, on a thread of its own. */
struct guest {
    pthread_t thread;
    const char *address;
    int fd; /* connected; -1: it connects itself */
    enum gr_status st;
    bool done;
};

static void *run_guest(void *arg)
{
    struct guest *g = arg;
    struct gr_hello peer;
    const struct gr_hello self = {.version = GR_PROTOCOL_VERSION, .role = GR_ROLE_DRAFT, .incarnation = 1,
                                  .limits = {.small_bytes_max = 8192, .n_small_slot = 2}};
    g->st = g->fd < 0 ? gr_tcp_connect(g->address, 10000, &g->fd) : GR_OK;
    if (g->st == GR_OK) {
        g->st = gr_hello_exchange(g->fd, &self, key, 10000, &peer);
    }
    __atomic_store_n(&g->done, true, __ATOMIC_RELEASE);
    return NULL;
}

/* Until it has passed the hand-shake, or failed. */
static enum gr_status let_in(struct gr_hub *h, struct guest *g)
{
    assert_int_equal(pthread_create(&g->thread, NULL, run_guest, g), 0);
    while (!__atomic_load_n(&g->done, __ATOMIC_ACQUIRE)) {
        gr_hub_pump(h, 20, -1);
    }
    pthread_join(g->thread, NULL);
    close(g->fd);
    return g->st;
}

/* Strangers who connect and say nothing, in more numbers than hand-shakes: a worker that comes after them waits, and is
 * not turned away. */
static void test_silent_strangers(void **state)
{
    (void)state;
    struct gr_hub *h = make(200);
    int fd[N_STRANGER];
    gr_log_set_level(GR_LOG_ERROR);
    struct log_capture c;
    log_capture_begin(&c); /* each stranger is a line */
    for (int i = 0; i < N_STRANGER; i++) {
        assert_int_equal(gr_tcp_connect(gr_hub_address(h), 5000, &fd[i]), GR_OK);
        gr_hub_pump(h, 0, -1);
    }
    struct guest g = {.address = gr_hub_address(h), .fd = -1};
    const uint64_t begin_ns = gr_clock_ns();
    const enum gr_status st = let_in(h, &g);
    const uint64_t ns = gr_clock_ns() - begin_ns;
    (void)log_capture_end(&c);
    assert_int_equal(st, GR_OK);
    assert_true(ns < 5 * GR_S); /* three waves of 200 ms, and what a busy machine adds */
    log_capture_begin(&c);
    for (int i = 0; i < N_STRANGER; i++) {
        close(fd[i]);
    }
    gr_hub_destroy(h);
    (void)log_capture_end(&c);
}

/* The lowest number that a new descriptor would get becomes the limit of them. */
static rlim_t leave_no_descriptor(void)
{
    struct rlimit r;
    const int lowest = dup(STDERR_FILENO);
    assert_true(lowest >= 0);
    close(lowest);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &r), 0);
    const rlim_t was = r.rlim_cur;
    r.rlim_cur = (rlim_t)lowest;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &r), 0);
    return was;
}

/* No descriptor is left for one who waits at the door: the loop sleeps, says it once, and lets him in when there is. */
static void test_no_descriptors(void **state)
{
    (void)state;
    struct gr_hub *h = make(0);
    struct guest g = {.address = gr_hub_address(h), .fd = -1};
    struct log_capture c;
    struct rlimit r;
    gr_log_set_level(GR_LOG_ERROR);
    assert_int_equal(gr_tcp_connect(g.address, 5000, &g.fd), GR_OK);
    log_capture_begin(&c);
    const rlim_t was = leave_no_descriptor();
    const uint64_t end_ns = gr_clock_ns() + 2500 * GR_MS; /* two pauses and a half */
    int n_pump = 0;
    while (gr_clock_ns() < end_ns && n_pump < 100000) {
        gr_hub_pump(h, 500, -1);
        n_pump++;
    }
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &r), 0);
    r.rlim_cur = was;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &r), 0);
    const char *text = log_capture_end(&c);
    assert_true(n_pump < 100);
    assert_int_equal(log_capture_n_line(text), 1);
    assert_non_null(strstr(text, "ulimit -n"));
    assert_int_equal(let_in(h, &g), GR_OK);
    gr_hub_destroy(h);
}

int main(void)
{
    char hex[2 * GR_KEY_BYTES + 1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_silent_strangers),
        cmocka_unit_test(test_no_descriptors),
    };
    return gr_key_random(key, hex) == GR_OK ? cmocka_run_group_tests(tests, NULL, NULL) : 1;
}
