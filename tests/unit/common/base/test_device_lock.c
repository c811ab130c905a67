/* The lock of a device's memory: one at a time among processes and within one, given back by a holder that is killed,
 * and no obstacle where its file cannot be had. */
#include "common/base/device_lock.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>
#include <fcntl.h>

#include "tests/unit/log_capture.h"

static char folder[64], file[96];

static bool is_free(void)
{
    const int fd = open(file, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    const bool got = flock(fd, LOCK_EX | LOCK_NB) == 0;
    close(fd);
    return got;
}

static void test_within_a_process(void **state)
{
    (void)state;
    struct gr_device_lock l = {0};
    gr_device_lock_give(&l);
    for (int i = 0; i < 2; i++) { /* the file is made, then found */
        gr_device_lock_take(&l, file, "cuda:0");
        assert_true(l.held && !is_free());
        gr_device_lock_give(&l);
        assert_true(!l.held && is_free());
    }
}

/* A holder in a process of its own; says so on the pipe, and waits to be killed. */
static pid_t holder(void)
{
    int end[2];
    char byte = 0;
    assert_int_equal(pipe(end), 0);
    const pid_t pid = fork();
    if (pid == 0) {
        struct gr_device_lock l = {0};
        gr_device_lock_take(&l, file, "cuda:0");
        (void)!write(end[1], &byte, 1);
        pause();
        _exit(0);
    }
    assert_true(pid > 0);
    assert_int_equal(read(end[0], &byte, 1), 1);
    close(end[0]);
    close(end[1]);
    return pid;
}

static void test_between_processes(void **state)
{
    (void)state;
    struct gr_device_lock l = {0};
    const pid_t first = holder();
    int end[2];
    char byte = 0;
    assert_false(is_free());
    assert_int_equal(pipe(end), 0);
    const pid_t second = fork();
    if (second == 0) { /* waits for the first, which is killed below */
        gr_device_lock_take(&l, file, "cuda:0");
        (void)!write(end[1], l.held ? "h" : "-", 1);
        _exit(0);
    }
    assert_int_equal(kill(first, SIGKILL), 0);
    assert_int_equal(waitpid(first, NULL, 0), first);
    assert_int_equal(read(end[0], &byte, 1), 1);
    assert_int_equal(byte, 'h');
    assert_int_equal(waitpid(second, NULL, 0), second);
    assert_true(is_free());
    close(end[0]);
    close(end[1]);
}

static void test_no_file(void **state)
{
    (void)state;
    struct gr_device_lock l = {0};
    struct log_capture cap;
    log_capture_begin(&cap);
    gr_device_lock_take(&l, "/nonexistent/lock", "cuda:3");
    const char *log = log_capture_end(&cap);
    assert_false(l.held);
    assert_non_null(strstr(log, "cuda:3: /nonexistent/lock: No such file or directory"));
    assert_int_equal(log_capture_n_line(log), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_within_a_process),
        cmocka_unit_test(test_between_processes),
        cmocka_unit_test(test_no_file),
    };
    snprintf(folder, sizeof(folder), "/tmp/graft-lock-XXXXXX");
    if (mkdtemp(folder) == NULL) {
        return 1;
    }
    snprintf(file, sizeof(file), "%s/lock", folder);
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    (void)unlink(file);
    (void)rmdir(folder);
    return failed;
}
