/* A client that greets an orchestrator whose gate hangs up, at once and when its limit is over. */
#include "tests/transport/pair.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "transport/connect/gate.h"
#include "transport/connect/greet.h"
#include "transport/net.h"

#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>

/* Accepts one after the other: each of the first n_hang_up is kept for hold_ms and closed, the next one is answered. */
struct gate {
    int listen_fd, n_hang_up, hold_ms;
    int n_came;
    enum gr_status st;
    pthread_t thread;
    char address[64];
};

static void *run_gate(void *arg)
{
    struct gate *g = arg;
    const struct gr_hello self = hello_of(GR_ROLE_ORCHESTRATOR);
    struct gr_hello peer;
    for (int fd; (fd = accept(g->listen_fd, NULL, NULL)) >= 0; close(fd)) {
        if (g->n_came++ == g->n_hang_up) {
            g->st = gr_hello_exchange(fd, &self, key_a, WAIT_MS, &peer);
        } else {
            /* What it says is read, so that the end of this socket is an end and no reset. The hold is the limit of a
             * gate: who proves nothing waits for it, as here. */
            char said[4096];
            const uint64_t until_ns = gr_clock_ns() + (uint64_t)g->hold_ms * GR_MS;
            (void)!recv(fd, said, sizeof(said), 0);
            (void)poll(NULL, 0, gr_ms_left(until_ns, gr_clock_ns()));
        }
    }
    return NULL;
}

static void gate_open(struct gate *g, int n_hang_up, int hold_ms)
{
    *g = (struct gate){.n_hang_up = n_hang_up, .hold_ms = hold_ms, .st = GR_AGAIN};
    assert_int_equal(gr_tcp_listen("127.0.0.1:0", &g->listen_fd, g->address), GR_OK);
    assert_int_equal(pthread_create(&g->thread, NULL, run_gate, g), 0);
}

static void gate_close(struct gate *g)
{
    shutdown(g->listen_fd, SHUT_RDWR);
    pthread_join(g->thread, NULL);
    close(g->listen_fd);
}

static enum gr_status greet(const struct gate *g, int *fd_out)
{
    struct gr_hello self = hello_of(GR_ROLE_CLIENT), peer;
    const struct gr_greeting greeting = {.address = g->address, .self = &self, .key = key_a, .timeout_ms = WAIT_MS};
    return gr_greet_as_client(&greeting, 0, fd_out, &peer);
}

static void test_its_time_ran_out(void **state)
{
    (void)state;
    struct gate g;
    int fd;
    gate_open(&g, 2, GR_ACCEPT_TIMEOUT_MS * 6 / 10);
    assert_int_equal(greet(&g, &fd), GR_OK);
    close(fd);
    gate_close(&g);
    assert_int_equal(g.n_came, 3);
    assert_int_equal(g.st, GR_OK);
}

static void test_turned_away(void **state)
{
    (void)state;
    struct gate g;
    char text[1024];
    int fd;
    enum gr_status st;
    gate_open(&g, 2, 0);
    CAPTURE_STDERR(text, sizeof(text), st = greet(&g, &fd));
    gate_close(&g);
    assert_int_equal(st, GR_ECLOSED);
    assert_int_equal(g.n_came, 1);
    assert_non_null(strstr(text, g.address));
    assert_ptr_equal(strchr(text, '\n'), text + strlen(text) - 1); /* one line */
}

/* Who greets once hears that it may try again, and nothing is written. */
static void test_once(void **state)
{
    (void)state;
    struct gr_hello self = hello_of(GR_ROLE_TARGET), peer;
    char text[1024], why[GR_GREET_WHY_BYTES];
    enum gr_status st;
    int fd[2];
    make_tcp_sockets(fd);
    assert_int_equal(shutdown(fd[1], SHUT_WR), 0);
    const struct gr_greeting greeting = {.self = &self, .key = key_a, .timeout_ms = WAIT_MS};
    CAPTURE_STDERR(text, sizeof(text), st = gr_greet(&greeting, fd[0], why, &peer));
    assert_int_equal(st, GR_AGAIN);
    assert_string_equal(text, "");
    assert_string_not_equal(why, "");
    close(fd[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_its_time_ran_out),
        cmocka_unit_test(test_turned_away),
        cmocka_unit_test(test_once),
    };
    gr_log_init("test_greet");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
