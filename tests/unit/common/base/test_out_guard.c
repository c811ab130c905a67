/* Writes to a pipe that nobody reads, with and without a signal. */
#include "common/base/log.h"
#include "common/base/out_guard.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#define PIPE_BYTES 4096

static char data[3 * PIPE_BYTES];

static void make_pipe(int fd[2])
{
    assert_int_equal(pipe2(fd, O_CLOEXEC), 0);
    assert_int_equal(fcntl(fd[1], F_SETPIPE_SZ, PIPE_BYTES), PIPE_BYTES);
}

static void *read_all(void *arg)
{
    static char got[sizeof(data)];
    size_t n = 0;
    for (ssize_t k = 1; k > 0 && n < sizeof(got); n += (size_t)(k > 0 ? k : 0)) {
        k = read(*(int *)arg, got + n, sizeof(got) - n);
    }
    return n == sizeof(data) && memcmp(got, data, n) == 0 ? got : NULL;
}

static void all_arrives(void **state)
{
    int fd[2];
    pthread_t reader;
    void *whole = NULL;
    (void)state;
    make_pipe(fd);
    for (size_t i = 0; i < sizeof(data); i++) {
        data[i] = (char)(i * 7 + i / 251);
    }
    assert_int_equal(fcntl(fd[1], F_SETFL, fcntl(fd[1], F_GETFL) | O_NONBLOCK), 0); /* as a parent may have set it */
    pthread_create(&reader, NULL, read_all, &fd[0]);
    assert_int_equal(gr_out_write(fd[1], data, sizeof(data)), GR_OK);
    pthread_join(reader, &whole);
    assert_non_null(whole);
    close(fd[0]);
    assert_int_equal(gr_out_write(fd[1], data, 1), GR_ECLOSED);
    close(fd[1]);
    assert_int_equal(gr_out_write(fd[1], data, 1), GR_EIO);
}

static void guarded(void **state)
{
    sigset_t set;
    (void)state;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigprocmask(SIG_BLOCK, &set, NULL);
    assert_int_equal(gr_out_guard(&set), GR_OK);
    assert_int_equal(gr_out_guard(&set), GR_OK);
    all_arrives(state);
    assert_int_equal(gr_out_cut_by(), 0);
}

/* What there is room for is still written; the signal stays for who waits for it. */
static void a_signal_cuts(void **state)
{
    int fd[2];
    sigset_t pending;
    (void)state;
    make_pipe(fd);
    raise(SIGTERM);
    assert_int_equal(gr_out_write(fd[1], data, 100), GR_OK);
    assert_int_equal(gr_out_cut_by(), 0);
    assert_int_equal(gr_out_write(fd[1], data, sizeof(data)), GR_ECANCELED);
    assert_int_equal(gr_out_cut_by(), SIGTERM);
    sigpending(&pending);
    assert_int_equal(sigismember(&pending, SIGTERM), 1);
    FILE *f = gr_out_stream(fd[1]);
    assert_non_null(f);
    errno = 0;
    assert_true(fputs("x", f) >= 0 && fflush(f) == EOF && errno == EINTR);
    (void)fclose(f);
    close(fd[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_arrives),
        cmocka_unit_test(guarded),
        cmocka_unit_test(a_signal_cuts),
    };
    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
