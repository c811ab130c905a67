/* Shared memory by name: what killed processes leave is removed, what living ones make is not, and limits are answers.
 */
#include "tests/transport/pair.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/process/program.h"
#include "transport/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define BYTES 65536

static bool stands(const char *name)
{
    const int fd = shm_open(name, O_RDONLY, 0);
    if (fd >= 0) {
        close(fd);
    }
    return fd >= 0;
}

static void finish(struct gr_segment *s)
{
    gr_segment_unlink(s);
    munmap(s->map, s->bytes);
}

/* A child that makes a segment, tells its name and waits for its death. */
static pid_t start_maker(struct gr_segment *out)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    const pid_t pid = fork();
    if (pid == 0) {
        struct gr_segment s;
        if (gr_segment_create(BYTES, &s, NO_WHY) != GR_OK || write(ends[1], &s, sizeof(s)) != (ssize_t)sizeof(s)) {
            _exit(1);
        }
        for (;;) {
            pause();
        }
    }
    assert_int_equal(read(ends[0], out, sizeof(*out)), (ssize_t)sizeof(*out));
    close(ends[0]);
    close(ends[1]);
    return pid;
}

static void test_dead_makers(void **state)
{
    (void)state;
    struct gr_segment dead, living, own;
    const pid_t killed = start_maker(&dead), lives = start_maker(&living);
    int status;
    assert_int_equal(gr_segment_create(BYTES, &own, NO_WHY), GR_OK);
    (void)gr_segment_sweep();
    assert_true(stands(dead.name));
    kill(killed, SIGKILL);
    assert_int_equal(waitpid(killed, &status, 0), killed);
    assert_true(stands(dead.name));
    (void)gr_segment_sweep(); /* or a process of another test has */
    assert_false(stands(dead.name));
    assert_true(stands(living.name));
    assert_true(stands(own.name));
    kill(lives, SIGKILL);
    assert_int_equal(waitpid(lives, &status, 0), lives);
    (void)gr_segment_sweep();
    assert_false(stands(living.name));
    finish(&own);
    assert_false(stands(own.name));
}

/* Files of other names, of other users and of other kinds are left alone. */
static void test_not_ours(void **state)
{
    (void)state;
    static const char *const names[] = {"/graft-test", "/graft-0123456789abcdef0123456789abcdeX",
                                        "/gruft-0123456789abcdef0123456789abcdef"};
    static const char fifo[] = "/dev/shm/graft-fedcba9876543210fedcba9876543210";
    static const char others[] = "/graft-fedcba9876543210fedcba9876543211";
    for (size_t i = 0; i < GR_ARRAY_LEN(names); i++) {
        close(shm_open(names[i], O_CREAT | O_RDWR, 0600));
    }
    assert_int_equal(mkfifo(fifo, 0600), 0);
    const int fd = shm_open(others, O_CREAT | O_RDWR, 0644);
    const bool given = fd >= 0 && geteuid() == 0 && fchown(fd, 65534, 65534) == 0; /* root alone can */
    close(fd);
    (void)gr_segment_sweep();
    for (size_t i = 0; i < GR_ARRAY_LEN(names); i++) {
        assert_int_equal(shm_unlink(names[i]), 0);
    }
    assert_int_equal(unlink(fifo), 0);
    assert_int_equal(shm_unlink(others), given ? 0 : -1);
}

static atomic_bool stop;

static void *sweep_on(void *arg)
{
    atomic_int *n = arg;
    while (!atomic_load(&stop)) {
        atomic_fetch_add(n, gr_segment_sweep());
    }
    return NULL;
}

/* Between making and locking somebody may sweep: then another is made, and the one that is handed out stays. */
static void test_sweep_beside_makers(void **state)
{
    (void)state;
    pthread_t thread[2];
    atomic_int n_swept = 0;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_create(&thread[i], NULL, sweep_on, &n_swept), 0);
    }
    for (int i = 0; i < 3000; i++) {
        struct gr_segment s;
        assert_int_equal(gr_segment_create(4096, &s, NO_WHY), GR_OK);
        assert_true(stands(s.name));
        finish(&s);
    }
    atomic_store(&stop, true);
    for (int i = 0; i < 2; i++) {
        pthread_join(thread[i], NULL);
    }
    print_message("# %d were swept before they were locked\n", atomic_load(&n_swept));
}

/* A child whose files may not grow beyond a limit: 0 if the answer is right. */
static int make_under_limit(size_t bytes, rlim_t limit)
{
    struct gr_segment s;
    struct gr_why why = {.text = ""};
    const struct rlimit r = {.rlim_cur = limit, .rlim_max = limit};
    gr_program_begin();
    if (setrlimit(RLIMIT_FSIZE, &r) != 0) {
        return 2;
    }
    const enum gr_status st = gr_segment_create(bytes, &s, &why);
    if (bytes <= limit) {
        gr_segment_unlink(&s);
        return st == GR_OK ? 0 : 3;
    }
    return st == GR_EUNSUPPORTED && strstr(why.text, "ulimit -f") != NULL ? 0 : 4;
}

static void test_file_size_limit(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        int status = 0;
        const pid_t pid = fork();
        if (pid == 0) {
            _exit(make_under_limit(BYTES, i == 0 ? BYTES - 1 : BYTES));
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
    }
}

/* More than there is room for, whatever has it taken. */
static void test_no_room(void **state)
{
    (void)state;
    struct gr_segment s;
    struct gr_why why = {.text = ""};
    assert_int_equal(gr_segment_create((size_t)1 << 50, &s, &why), GR_EUNSUPPORTED);
    assert_non_null(strstr(why.text, "of shared memory cannot be had"));
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dead_makers), /* first: these fork, before there are threads */
        cmocka_unit_test(test_file_size_limit), cmocka_unit_test(test_no_room),
        cmocka_unit_test(test_not_ours),        cmocka_unit_test(test_sweep_beside_makers),
    };
    gr_log_init("test_segment");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
