/* Control links: messages in any pieces, many at once. */
#include "common/clock.h"
#include "common/log.h"
#include "transport/control.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
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

static void make(int fd[2], struct gr_control **c)
{
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
    assert_int_equal(gr_control_create(fd[0], c), GR_OK);
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
    size_t n = put(bytes, sizeof(bytes), &(struct gr_msg){.type = GR_MSG_PING});
    n += put(bytes + n, sizeof(bytes) - n, &(struct gr_msg){.type = GR_MSG_PURGE});
    assert_int_equal(write(fd[1], bytes, n), (ssize_t)n);
    close(fd[1]);
    assert_int_equal(gr_control_recv(c, &m), GR_OK);
    assert_int_equal(m.type, GR_MSG_PING);
    assert_int_equal(gr_control_recv(c, &m), GR_OK);
    assert_int_equal(m.type, GR_MSG_PURGE);
    assert_int_equal(gr_control_recv(c, &m), GR_ECLOSED);
    gr_control_destroy(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_end_comes_last),
    };
    gr_log_set_level(GR_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
