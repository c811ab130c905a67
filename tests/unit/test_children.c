/* Child processes where the system has none to give for a while. */
#include "common/children.h"
#include "common/clock.h"
#include "common/log.h"

#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <cmocka.h>

static bool fork_fails;

/* In place of the C library's. */
pid_t fork(void)
{
    if (fork_fails) {
        errno = EAGAIN;
        return -1;
    }
    return (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
}

static void await_end(struct gr_children *c)
{
    bool interrupted = false;
    int index = -1;
    for (int i = 0; i < 1000 && gr_children_poll(c, &interrupted, &index) != GR_CHILD_ENDED; i++) {
        struct pollfd p = {.fd = c->signal_fd, .events = POLLIN};
        (void)poll(&p, 1, 10);
    }
    assert_int_equal(index, 0);
}

/* A restart that fails is tried again after a while: a supervisor that waits for its only child would else wait for
 * ever. */
static void test_restart_is_tried_again(void **state)
{
    (void)state;
    static const char *const argv[] = {"/bin/true", NULL};
    struct gr_children c;
    int index = -1;
    assert_int_equal(gr_children_init(&c, NULL), GR_OK);
    assert_int_equal(gr_children_start(&c, "test", argv, &index), GR_OK);
    await_end(&c);
    const uint64_t now_ns = gr_clock_ns();
    gr_children_revive(&c, 0, now_ns);
    fork_fails = true;
    gr_log_set_level(GR_LOG_ERROR);
    const int wait_ms = gr_children_restart(&c, now_ns + 10 * GR_S);
    fork_fails = false;
    assert_in_range(wait_ms, 1, 5000);
    assert_int_equal(c.child[0].pid, 0);
    assert_int_equal(gr_children_restart(&c, now_ns + 20 * GR_S), -1);
    assert_true(c.child[0].pid > 0);
    await_end(&c);
    gr_children_finish(&c, 1000);
}

/* Lives that end at once: the first restart does not wait, the others longer and longer; a long life is a new start. */
static void test_back_off(void **state)
{
    (void)state;
    static const int want_ms[] = {0, 100, 200, 400, 800, 1600, 3200, 5000, 5000};
    struct gr_children c = {.n = 1, .child = {{.name = "test", .start_ns = GR_S}}};
    for (size_t i = 0; i < GR_ARRAY_LEN(want_ms); i++) {
        gr_children_revive(&c, 0, 2 * GR_S);
        assert_int_equal(c.child[0].restart_ns, 2 * GR_S + (uint64_t)want_ms[i] * GR_MS);
    }
    gr_children_revive(&c, 0, 12 * GR_S);
    assert_int_equal(c.child[0].restart_ns, 12 * GR_S);
    gr_children_revive(&c, 0, 2 * GR_S);
    assert_int_equal(c.child[0].restart_ns, 2 * GR_S + 100 * GR_MS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_back_off),
        cmocka_unit_test(test_restart_is_tried_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
