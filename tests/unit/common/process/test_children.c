/* Child processes: how they end, what follows, and what happens where the system has none to give for a while. */
#include "common/process/children.h"
#include "common/base/clock.h"
#include "common/base/log.h"

#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

static bool fork_fails, child_gets_sigint;

/* In place of the C library's. */
pid_t fork(void)
{
    if (fork_fails) {
        errno = EAGAIN;
        return -1;
    }
    const pid_t pid = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
    if (pid == 0 && child_gets_sigint) {
        kill((pid_t)syscall(SYS_getpid), SIGINT); /* blocked: it is pending */
    }
    return pid;
}

static const struct gr_child_rule rule = {.restart = {.pause_max_ns = 5 * GR_S, .fruitless_max = 3}};

static enum gr_child_event await_end(struct gr_children *c)
{
    int signal_number = 0;
    int index = -1;
    enum gr_child_event e = GR_CHILD_NONE;
    for (int i = 0; i < 1000 && (e = gr_children_poll(c, &signal_number, &index)) == GR_CHILD_NONE; i++) {
        struct pollfd p = {.fd = c->signal_fd, .events = POLLIN};
        (void)poll(&p, 1, 10);
    }
    assert_int_equal(index, 0);
    return e;
}

static void begin(struct gr_children *c, const struct gr_child_rule *r, const char *command)
{
    const char *const argv[] = {"/bin/sh", "-c", command, NULL};
    int index = -1;
    gr_log_set_level(GR_LOG_ERROR);
    assert_int_equal(gr_children_init(c, NULL), GR_OK);
    assert_int_equal(gr_children_start(c, "test", argv, r, &index), GR_OK);
    assert_int_equal(index, 0);
}

/* The next life, without its pause. */
static void again(struct gr_children *c)
{
    assert_int_equal(gr_children_restart(c, gr_clock_ns() + 10 * GR_S), -1);
    assert_true(c->child[0].pid > 0);
}

/* A restart that fails is tried again after a while: a supervisor that waits for its only child would else wait for
 * ever. */
static void test_restart_is_tried_again(void **state)
{
    (void)state;
    struct gr_children c;
    begin(&c, &rule, "exit 0");
    assert_int_equal(await_end(&c), GR_CHILD_RESTARTED);
    const uint64_t now_ns = gr_clock_ns();
    fork_fails = true;
    const int wait_ms = gr_children_restart(&c, now_ns + 10 * GR_S);
    fork_fails = false;
    assert_in_range(wait_ms, 1, 5000);
    assert_int_equal(c.child[0].pid, 0);
    assert_int_equal(gr_children_restart(&c, now_ns + 20 * GR_S), -1);
    assert_true(c.child[0].pid > 0);
    assert_int_equal(await_end(&c), GR_CHILD_RESTARTED);
    gr_children_finish(&c, 1000);
}

/* Each way to end, in a first life. */
static void test_ends(void **state)
{
    (void)state;
    static const struct {
        const char *command;
        bool status_0_ends;
        enum gr_child_event want;
    } cases[] = {
        {"exit 0", true, GR_CHILD_ENDED},         {"exit 0", false, GR_CHILD_RESTARTED},
        {"exit 1", true, GR_CHILD_GIVEN_UP},      {"exit 3", true, GR_CHILD_ENDED},
        {"exit 3", false, GR_CHILD_RESTARTED},    {"exit 4", true, GR_CHILD_RESTARTED},
        {"kill -9 $$", true, GR_CHILD_RESTARTED}, {"kill -15 $$", false, GR_CHILD_RESTARTED},
    };
    for (size_t i = 0; i < GR_ARRAY_LEN(cases); i++) {
        const struct gr_child_rule r = {.restart = rule.restart, .status_0_ends = cases[i].status_0_ends};
        struct gr_children c;
        begin(&c, &r, cases[i].command);
        assert_int_equal(await_end(&c), cases[i].want);
        assert_string_equal(c.child[0].why, "");
        gr_children_finish(&c, 1000);
    }
}

/* A child that has joined and cannot start again is no reason to give up; whether it has joined it says itself. */
static void test_joined(void **state)
{
    (void)state;
    static const char joins[] = "printf '\\1\\0\\0\\0\\0\\0\\0\\0' >&$GRAFT_JOINED_FD; exit 1";
    const struct gr_child_rule for_ever = {.restart = {.pause_max_ns = 5 * GR_S}};
    struct gr_children c;
    begin(&c, &for_ever, joins);
    assert_int_equal(await_end(&c), GR_CHILD_RESTARTED);
    assert_true(c.child[0].restart.worked && !c.child[0].restart.joined);
    for (int i = 0; i < 5; i++) {
        again(&c);
        assert_int_equal(await_end(&c), GR_CHILD_RESTARTED);
    }
    gr_children_finish(&c, 1000);
    begin(&c, &for_ever, "exit 1");
    assert_int_equal(await_end(&c), GR_CHILD_GIVEN_UP);
    gr_children_finish(&c, 1000);
}

/* One that has said that it is to end is not started again, however it ends; what it joined meanwhile is heard, too. */
static void test_told_to_end(void **state)
{
    (void)state;
    static const struct {
        const char *command;
        int status;
        bool joined;
    } cases[] = {
        {"printf '\\0\\0\\0\\0\\1\\0\\0\\0' >&$GRAFT_JOINED_FD; exit 1", 1, false},
        {"printf '\\1\\0\\0\\0\\1\\0\\0\\0' >&$GRAFT_JOINED_FD; exit 4", 4, true},
        {"printf '\\1\\0\\0\\0\\1\\0\\0\\0' >&$GRAFT_JOINED_FD; kill -9 $$", 0, true},
    };
    const struct gr_child_rule for_ever = {.restart = {.pause_max_ns = 5 * GR_S}, .status_0_ends = true};
    for (size_t i = 0; i < GR_ARRAY_LEN(cases); i++) {
        struct gr_children c;
        begin(&c, &for_ever, cases[i].command);
        assert_int_equal(await_end(&c), GR_CHILD_GIVEN_UP);
        assert_true(gr_children_ends(&c, 0));
        assert_int_equal(c.child[0].exit_status, cases[i].status);
        assert_int_equal(c.child[0].restart.worked, cases[i].joined);
        assert_int_equal(gr_children_restart(&c, gr_clock_ns() + 100 * GR_S), -1);
        assert_int_equal(c.child[0].pid, 0);
        gr_children_finish(&c, 1000);
    }
}

/* One that dies of the signal by which it was told to end has heeded it: no line, and no other life. */
static void test_dies_of_the_end(void **state)
{
    (void)state;
    struct gr_children c;
    char line[256] = "";
    begin(&c, &rule, "exec sleep 100");
    gr_log_hold(line, sizeof(line));
    gr_children_signal(&c, SIGTERM);
    assert_int_equal(await_end(&c), GR_CHILD_GIVEN_UP);
    gr_log_hold(NULL, 0);
    assert_string_equal(line, "");
    assert_int_equal(gr_children_restart(&c, gr_clock_ns() + 100 * GR_S), -1);
    gr_children_finish(&c, 1000);
}

/* Silent from the second start on, once the reason has been told. */
static void test_silence(void **state)
{
    (void)state;
    const struct gr_child_rule for_ever = {.restart = {.pause_max_ns = 5 * GR_S}};
    struct gr_children c;
    begin(&c, &for_ever, "test -n \"$GRAFT_SILENT_UNTIL_JOINED\" && exit 7; kill -9 $$");
    assert_int_equal(await_end(&c), GR_CHILD_RESTARTED);
    assert_int_equal(c.child[0].exit_status, 0);
    c.child[0].silent = true;
    again(&c);
    assert_int_equal(await_end(&c), GR_CHILD_RESTARTED);
    assert_int_equal(c.child[0].exit_status, 7);
    gr_children_finish(&c, 1000);
}

/* A second ctrl-C does not wait for children that take their time. */
static void test_haste(void **state)
{
    (void)state;
    struct gr_children c;
    begin(&c, &rule, "trap '' TERM; exec sleep 100");
    const uint64_t begin_ns = gr_clock_ns();
    assert_int_equal(raise(SIGINT), 0); /* blocked: it is read from the descriptor */
    gr_children_finish(&c, 60000);
    assert_true(gr_clock_ns() - begin_ns < 30 * GR_S);
}

static void test_given_up(void **state)
{
    (void)state;
    struct gr_children c;
    begin(&c, &rule, "kill -9 $$");
    for (int i = 0; i < 2; i++) {
        assert_int_equal(await_end(&c), GR_CHILD_RESTARTED);
        again(&c);
    }
    gr_children_progress(&c, 0); /* counts anew */
    for (int i = 0; i < 2; i++) {
        assert_int_equal(await_end(&c), GR_CHILD_RESTARTED);
        again(&c);
    }
    assert_int_equal(await_end(&c), GR_CHILD_GIVEN_UP);
    assert_non_null(strstr(c.child[0].why, "3 times in a row"));
    assert_non_null(strstr(c.child[0].why, "signal 9"));
    assert_non_null(strstr(c.child[0].why, "out of memory"));
    gr_children_finish(&c, 1000);
}

/* A ctrl-C that comes while a child is still of the terminal's group is the parent's alone. */
static void test_ctrl_c_at_birth(void **state)
{
    (void)state;
    static const struct gr_child_rule ends = {.restart = {.fruitless_max = 1}, .status_0_ends = true};
    struct gr_children c;
    child_gets_sigint = true;
    begin(&c, &ends, "exit 0");
    child_gets_sigint = false;
    assert_int_equal(await_end(&c), GR_CHILD_ENDED);
    gr_children_finish(&c, 1000);
}

static int hear_one(struct gr_children *c)
{
    struct pollfd p = {.fd = c->signal_fd, .events = POLLIN};
    int signal_number = 0;
    int index = -1;
    poll(&p, 1, 10000);
    (void)gr_children_poll(c, &signal_number, &index);
    return signal_number != 0;
}

/* As a process that its parent and others tell to end. Its status: one bit for each time that it was told something. */
static int be_told(int ready, int go_on)
{
    struct gr_children c;
    char byte = 0;
    int heard = 0;
    if (gr_children_init(&c, NULL) != GR_OK) {
        return 64;
    }
    kill((pid_t)syscall(SYS_getpid), SIGTERM);
    heard |= hear_one(&c);
    if (write(ready, &byte, 1) != 1 || read(go_on, &byte, 1) != 1) {
        return 64;
    }
    heard |= hear_one(&c) << 1; /* the parent's */
    kill((pid_t)syscall(SYS_getpid), SIGTERM);
    heard |= hear_one(&c) << 2;
    gr_children_finish(&c, 0);
    return heard;
}

/* Where all processes of a job are signalled, a supervisor hands on what its child has heard: that is not said twice.
 */
static void test_said_by_parent_and_others(void **state)
{
    (void)state;
    int ready[2], go_on[2], status = 0;
    char byte = 0;
    assert_true(pipe(ready) == 0 && pipe(go_on) == 0);
    const pid_t pid = fork();
    if (pid == 0) {
        _exit(be_told(ready[1], go_on[0]));
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    kill(pid, SIGTERM);
    assert_int_equal(write(go_on[1], &byte, 1), 1);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 1 | 4);
    for (int i = 0; i < 2; i++) {
        close(ready[i]);
        close(go_on[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ends),
        cmocka_unit_test(test_given_up),
        cmocka_unit_test(test_haste),
        cmocka_unit_test(test_joined),
        cmocka_unit_test(test_told_to_end),
        cmocka_unit_test(test_dies_of_the_end),
        cmocka_unit_test(test_silence),
        cmocka_unit_test(test_restart_is_tried_again),
        cmocka_unit_test(test_ctrl_c_at_birth),
        cmocka_unit_test(test_said_by_parent_and_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
