/* Control links: messages in any pieces, many at once. */
#include "common/base/clock.h"
#include "common/base/log.h"
#include "tests/unit/log_capture.h"
#include "transport/connect/control.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

static size_t put(uint8_t *out, size_t cap, const struct gr_msg *m)
{
    size_t n = 0;
    assert_int_equal(gr_msg_encode(m, out + 4, cap - 4, &n), GR_OK);
    const uint32_t len = (uint32_t)n;
    memcpy(out, &len, sizeof(len)); /* little-endian, as the machines that run this */
    return n + 4;
}

/* A PING and a PURGE. Returns how many bytes they are. */
static size_t put_two(uint8_t *out, size_t cap)
{
    const size_t n = put(out, cap, &(struct gr_msg){.type = GR_MSG_PING});
    return n + put(out + n, cap - n, &(struct gr_msg){.type = GR_MSG_PURGE});
}

static void make(int fd[2], struct gr_control **c)
{
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
    assert_int_equal(gr_control_create(fd[0], NULL, c), GR_OK);
}

/* Messages of many sizes, cut at every length. */
static void test_pieces(void **state)
{
    (void)state;
    static uint8_t bytes[4096];
    for (size_t piece = 1; piece < 80; piece++) {
        int fd[2];
        struct gr_control *c = NULL;
        struct gr_msg m;
        size_t n = 0;
        uint64_t next = 1;
        make(fd, &c);
        for (uint64_t i = 1; i <= 20; i++) {
            n += put(bytes + n, sizeof(bytes) - n, &(struct gr_msg){.type = GR_MSG_CLOSE, .session = i << (3 * i)});
        }
        for (size_t at = 0; at < n; at += piece) {
            const size_t len = piece < n - at ? piece : n - at;
            assert_int_equal(write(fd[1], bytes + at, len), (ssize_t)len);
            while (gr_control_recv(c, &m) == GR_OK) {
                assert_true(m.session == next << (3 * next));
                next++;
                gr_msg_finish(&m);
            }
        }
        assert_int_equal(next, 21);
        close(fd[1]);
        assert_int_equal(gr_control_recv(c, &m), GR_ECLOSED);
        gr_control_destroy(c);
    }
}

/* What came before the end is read before the end is told. */
static void test_end_comes_last(void **state)
{
    (void)state;
    uint8_t bytes[256];
    int fd[2];
    struct gr_control *c = NULL;
    struct gr_msg m;
    make(fd, &c);
    const size_t n = put_two(bytes, sizeof(bytes));
    assert_int_equal(write(fd[1], bytes, n), (ssize_t)n);
    close(fd[1]);
    assert_int_equal(gr_control_recv(c, &m), GR_OK);
    assert_int_equal(m.type, GR_MSG_PING);
    assert_int_equal(gr_control_recv(c, &m), GR_OK);
    assert_int_equal(m.type, GR_MSG_PURGE);
    assert_int_equal(gr_control_recv(c, &m), GR_ECLOSED);
    gr_control_destroy(c);
}

/* Whoever is told by poll() learns from the message whether to ask for another: not while a whole one is there. */
static void test_nothing_more(void **state)
{
    (void)state;
    uint8_t bytes[256];
    int fd[2];
    struct gr_control *c = NULL;
    struct gr_msg m;
    make(fd, &c);
    assert_false(gr_control_has_nothing(c)); /* nobody has looked */
    const size_t n = put_two(bytes, sizeof(bytes));
    assert_int_equal(write(fd[1], bytes, n), (ssize_t)n);
    assert_int_equal(gr_control_recv(c, &m), GR_OK);
    assert_false(gr_control_has_nothing(c));
    assert_int_equal(gr_control_recv(c, &m), GR_OK);
    assert_true(gr_control_has_nothing(c));
    assert_int_equal(write(fd[1], bytes, n - 1), (ssize_t)n - 1);
    assert_int_equal(gr_control_recv(c, &m), GR_OK);
    assert_true(gr_control_has_nothing(c)); /* part of one */
    assert_int_equal(write(fd[1], bytes + n - 1, 1), 1);
    assert_int_equal(gr_control_recv(c, &m), GR_OK);
    assert_int_equal(m.type, GR_MSG_PURGE);
    close(fd[1]);
    gr_control_destroy(c);
}

/* A reader takes a little, the queue refills: CPU time of n such steps while about `fill` bytes wait, in ns. */
static uint64_t slow_reader(size_t fill, int n)
{
    static int32_t ids[1000];
    static uint8_t bytes[4096];
    const struct gr_msg m = {
        .type = GR_MSG_APPEND, .session = 1, .append = {.epoch = 1, .ids = {ids, 1000}, .wishes = {.max_tokens = 1}}};
    const int small = 4096;
    int fd[2];
    struct gr_control *c = NULL;
    make(fd, &c);
    assert_int_equal(setsockopt(fd[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof(small)), 0);
    const size_t all = gr_control_room(c);
    struct timespec begin = {0}, end;
    for (int i = 0; i < n; i++) {
        while (all - gr_control_room(c) < fill) {
            assert_int_equal(gr_control_send(c, &m), GR_OK);
        }
        assert_int_equal(gr_control_flush(c), GR_AGAIN);
        assert_true(read(fd[1], bytes, sizeof(bytes)) > 0);
        if (i == 0) { /* what filled it does not count */
            (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
        }
    }
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
    gr_control_destroy(c);
    close(fd[1]);
    return (uint64_t)(end.tv_sec - begin.tv_sec) * GR_S + (uint64_t)end.tv_nsec - (uint64_t)begin.tv_nsec;
}

/* What waits for a slow reader is not moved for each message: a full queue costs about what a short one does. */
static void test_slow_reader(void **state)
{
    (void)state;
    const uint64_t short_ns = slow_reader(65536, 4000);
    const uint64_t long_ns = slow_reader((size_t)GR_MSG_BYTES_MAX / 8 * 7, 4000);
    print_message("# 4000 reads: %.0f ms of CPU time with a short queue, %.0f ms with a long one\n",
                  (double)short_ns / 1e6, (double)long_ns / 1e6);
    assert_true(long_ns < 3 * short_ns);
}

/* Room that is told is there, wherever the queue's content lies, and no more is taken than that. */
static void test_room(void **state)
{
    (void)state;
    static int32_t ids[300];
    struct gr_msg got;
    int fd[2];
    struct gr_control *c = NULL, *reader = NULL;
    make(fd, &c);
    assert_int_equal(gr_control_create(fd[1], NULL, &reader), GR_OK);
    gr_control_limit_out(c, 4096);
    const size_t all = gr_control_room(c);
    assert_int_equal(all, 4096);
    uint64_t n_sent = 0, n_read = 0, n_refused = 0;
    struct log_capture log; /* each refusal is a line */
    log_capture_begin(&log);
    for (uint64_t step = 0; step < 20000; step++) {
        const struct gr_msg m = {
            .type = GR_MSG_APPEND,
            .session = n_sent,
            .append = {.epoch = 1, .wishes = {.max_tokens = 1}, .ids = {ids, (uint32_t)(step * 37 % 300)}}};
        const size_t room = gr_control_room(c);
        const enum gr_status st = gr_control_send(c, &m);
        assert_true(st == GR_OK || st == GR_ELIMIT);
        assert_true(st == GR_OK || room < 600); /* the largest of them */
        assert_true(gr_control_room(c) <= room && room <= all);
        n_sent += st == GR_OK;
        n_refused += st != GR_OK;
        if (step % 29 == 0) { /* the reader is slower than the writer */
            const enum gr_status flushed = gr_control_flush(c);
            assert_true(flushed == GR_OK || flushed == GR_AGAIN);
            while (gr_control_recv(reader, &got) == GR_OK) {
                assert_int_equal(got.session, n_read++);
                gr_msg_finish(&got);
            }
        }
    }
    (void)log_capture_end(&log);
    assert_true(n_refused > 0 && n_read > 1000);
    gr_control_destroy(c);
    gr_control_destroy(reader);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pieces),      cmocka_unit_test(test_end_comes_last), cmocka_unit_test(test_nothing_more),
        cmocka_unit_test(test_slow_reader), cmocka_unit_test(test_room),
    };
    gr_log_set_level(GR_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
