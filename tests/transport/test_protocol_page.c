/* The bytes that docs/protocol.md shows: what the code puts on a wire, or into shared memory, is compared with them.
 * tests/unit/check_docs.py sees to it that the page has no other bytes than the strings here. */
#include "tests/transport/pair.h"

#include "transport/connect/control.h"
#include "transport/connect/hello.h"
#include "transport/ring.h"
#ifdef GR_HAVE_VERBS
#include "transport/verbs/verbs_conn.h"
#endif

#include <pthread.h>
#include <sodium.h>
#include <string.h>
#include <sys/socket.h>

static void expect_bytes(const uint8_t *bytes, size_t n, const char *hex)
{
    char text[256];
    assert_true(2 * n < sizeof(text));
    sodium_bin2hex(text, sizeof(text), bytes, n);
    assert_string_equal(text, hex);
}

static void read_exact(int fd, uint8_t *out, size_t n)
{
    assert_int_equal(recv(fd, out, n, MSG_WAITALL), (ssize_t)n);
}

static void test_control_message(void **state)
{
    (void)state;
    static const char hex[] = "28000000"
                              "84a174a85452554e43415445"
                              "a773657373696f6e07"
                              "a565706f636802"
                              "a86b6565705f6c656ecd012c";
    const struct gr_msg m = {.type = GR_MSG_TRUNCATE, .session = 7, .truncate = {.epoch = 2, .keep_len = 300}};
    uint8_t bytes[sizeof(hex) / 2];
    struct gr_control *c = NULL;
    int fd[2];
    make_unix_sockets(fd);
    assert_int_equal(gr_control_create(fd[0], NULL, &c), GR_OK);
    assert_int_equal(gr_control_send(c, &m), GR_OK);
    assert_int_equal(gr_control_flush(c), GR_OK);
    read_exact(fd[1], bytes, sizeof(bytes));
    expect_bytes(bytes, sizeof(bytes), hex);
    gr_control_destroy(c);
    assert_int_equal(recv(fd[1], bytes, 1, 0), 0); /* it was all */
    close(fd[1]);
}

static void *say_hello(void *fd)
{
    const struct gr_hello self = hello_of(GR_ROLE_DRAFT);
    struct gr_hello peer;
    assert_int_not_equal(gr_hello_exchange(*(int *)fd, &self, key_a, WAIT_MS, &peer), GR_OK);
    return NULL;
}

static void test_proof(void **state)
{
    (void)state;
    static uint8_t record[GR_HELLO_BYTES_MAX];
    static const uint8_t hello[] = {1, 0, 0, 0, 0xc0}; /* nobody reads it before the proof */
    int fd[2];
    pthread_t thread;
    make_unix_sockets(fd);
    assert_int_equal(pthread_create(&thread, NULL, say_hello, &fd[0]), 0);
    read_exact(fd[1], record, 4);
    read_exact(fd[1], record, record[0] | (size_t)record[1] << 8);
    assert_int_equal(send(fd[1], hello, sizeof(hello), MSG_NOSIGNAL), (ssize_t)sizeof(hello));
    read_exact(fd[1], record, 4 + 45);
    expect_bytes(record, 4, "2d000000");
    expect_bytes(record + 4, 13,
                 "82a4726f6c6503"
                 "a36d6163c420");
    close(fd[1]);
    pthread_join(thread, NULL);
    close(fd[0]);
}

static void test_tcp_record(void **state)
{
    (void)state;
    static const char hex[] = "47524631"
                              "0000"
                              "0100"
                              "0000"
                              "0000"
                              "01000000"
                              "03000000"
                              "616263";
    struct pair p;
    struct gr_frame f;
    uint8_t bytes[sizeof(hex) / 2];
    make_tcp_sockets(p.fd);
    struct gr_conn *c = NULL;
    assert_int_equal(gr_transport_open_tcp(p.fd[0], &limits_default, 1, &c), GR_OK);
    static const uint8_t first[] = {0x47, 0x52, 0x46, 0x31, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 'x'};
    assert_int_equal(send(p.fd[1], first, sizeof(first), MSG_NOSIGNAL), (ssize_t)sizeof(first));
    assert_int_equal(recv_wait(NULL, c, &f), GR_OK);
    send_filled(c, GR_FRAME_SMALL, 0, 1); /* before it is released: without a credit */
    assert_int_equal(gr_conn_flush(c), GR_OK);
    gr_conn_release(c, &f);
    assert_int_equal(acquire_wait(c, GR_FRAME_SMALL, 3, &f), GR_OK);
    memcpy(f.data, "abc", 3);
    assert_int_equal(gr_conn_send(c, &f, 3), GR_OK);
    assert_int_equal(gr_conn_flush(c), GR_OK);
    read_exact(p.fd[1], bytes, 20);
    expect_bytes(bytes, 20, "4752463100000000000000000000000000000000");
    read_exact(p.fd[1], bytes, sizeof(bytes));
    expect_bytes(bytes, sizeof(bytes), hex);
    gr_conn_close(c);
    close(p.fd[1]);
}

static void test_shm_segment(void **state)
{
    (void)state;
    const struct gr_conn_limits limits = {
        .small_bytes_max = 512, .bulk_bytes_max = 4096, .n_small_slot = 4, .n_bulk_slot = 2};
    static struct gr_ring_shared shared;
    gr_ring_shared_init(&shared, &limits, 5);
    expect_bytes((const uint8_t *)&shared, 40,
                 "47524652494e47310100000005000000"
                 "0090000000000000"
                 "00020000001000000400000002000000");
    assert_int_equal(gr_ring_shared_bytes(&limits), 0x9000);
}

#ifdef GR_HAVE_VERBS
static void test_verbs_header(void **state)
{
    (void)state;
    const struct gr_verbs_header h = {
        .class = GR_FRAME_BULK, .more = true, .n_credit = {3, 2}, .n_credit_record = 1, .sequence = 5, .bytes = 77};
    uint8_t bytes[GR_VERBS_HEADER_BYTES];
    gr_verbs_header_encode(&h, bytes);
    expect_bytes(bytes, sizeof(bytes),
                 "47525631"
                 "01010300020001000500"
                 "00004d000000");
    const uint32_t imm = gr_verbs_imm_encode(&h); /* the device is given it in network order */
    const uint8_t wire[] = {(uint8_t)(imm >> 24), (uint8_t)(imm >> 16), (uint8_t)(imm >> 8), (uint8_t)imm};
    expect_bytes(wire, sizeof(wire), "01822015");
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_control_message), cmocka_unit_test(test_proof),
        cmocka_unit_test(test_tcp_record),      cmocka_unit_test(test_shm_segment),
#ifdef GR_HAVE_VERBS
        cmocka_unit_test(test_verbs_header),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
