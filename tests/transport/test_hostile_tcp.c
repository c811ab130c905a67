/* A tcp peer that breaks the rules: raw bytes, laid out from docs/protocol.md. Whatever comes, the
 * process lives, says GR_EPROTO or GR_ECLOSED, and has delivered what came whole before. */
#include "tests/transport/pair.h"

#include "common/base/bytes.h"
#include "common/base/log.h"
#include "transport/impl.h"

#include <poll.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

/* The layout of docs/protocol.md, written apart from tcp.c. */
struct raw_header {
    uint32_t magic;
    uint8_t class, reserved0;
    uint16_t n_small_credit, n_bulk_credit, reserved1;
    uint32_t sequence, bytes;
};
#define RAW_HEADER_BYTES 20

struct raw {
    int fd; /* the peer's end: no graft there */
    struct gr_conn *conn;
    uint32_t sequence;
};

static void raw_open(struct raw *r, const struct gr_conn_limits *limits)
{
    int fd[2];
    make_tcp_sockets(fd);
    r->fd = fd[0];
    r->sequence = 0;
    assert_int_equal(gr_transport_open_tcp(fd[1], limits, 1, &r->conn), GR_OK);
}

static void raw_close(struct raw *r)
{
    gr_conn_close(r->conn);
    close(r->fd);
}

static void raw_write(struct raw *r, const void *p, size_t n)
{
    for (size_t at = 0; at < n;) {
        ssize_t put = send(r->fd, (const uint8_t *)p + at, n - at, MSG_NOSIGNAL);
        assert_true(put > 0);
        at += (size_t)put;
    }
}

static struct raw_header raw_header(struct raw *r, uint8_t class, uint32_t bytes)
{
    return (struct raw_header){.magic = 0x31465247, .class = class, .sequence = r->sequence++, .bytes = bytes};
}

static void raw_encode(const struct raw_header *h, uint8_t out[RAW_HEADER_BYTES])
{
    struct gr_writer w = {.p = out, .cap = RAW_HEADER_BYTES};
    gr_write_u32(&w, h->magic);
    gr_write_u8(&w, h->class);
    gr_write_u8(&w, h->reserved0);
    gr_write_u16(&w, h->n_small_credit);
    gr_write_u16(&w, h->n_bulk_credit);
    gr_write_u16(&w, h->reserved1);
    gr_write_u32(&w, h->sequence);
    gr_write_u32(&w, h->bytes);
    assert_false(w.failed);
    assert_int_equal(w.at, RAW_HEADER_BYTES);
}

static void raw_send_header(struct raw *r, const struct raw_header *h)
{
    uint8_t bytes[RAW_HEADER_BYTES];
    raw_encode(h, bytes);
    raw_write(r, bytes, sizeof(bytes));
}

static void raw_send_frame(struct raw *r, enum gr_frame_class class, uint32_t bytes, uint32_t seed)
{
    uint8_t payload[4096];
    struct raw_header h = raw_header(r, (uint8_t) class, bytes);
    raw_send_header(r, &h);
    fill(payload, bytes, seed);
    raw_write(r, payload, bytes);
}

/* GR_EPROTO, for good; nothing can be sent; the peer sees the end. */
static void raw_expect_thrown_out(struct raw *r)
{
    struct gr_frame frame;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(recv_wait(NULL, r->conn, &frame), GR_EPROTO);
        assert_int_equal(gr_conn_acquire(r->conn, GR_FRAME_SMALL, 1, &frame), GR_ECLOSED);
        assert_int_equal(gr_conn_flush(r->conn), GR_ECLOSED);
    }
    uint8_t rest[256];
    struct pollfd fd = {.fd = r->fd, .events = POLLIN};
    ssize_t n;
    do {
        assert_int_equal(poll(&fd, 1, WAIT_MS), 1);
        n = recv(r->fd, rest, sizeof(rest), 0);
    } while (n > 0);
}

/* A good header is changed in one place; a good frame goes before it and must arrive. */
static void test_tcp_malformed_header(void **state)
{
    (void)state;
    for (int i = 0; i < 12; i++) {
        struct raw r;
        raw_open(&r, &limits_default);
        raw_send_frame(&r, GR_FRAME_SMALL, 33, 5);
        struct raw_header h = raw_header(&r, GR_FRAME_SMALL, 8);
        switch (i) {
        case 0:
            h.magic ^= 0x100;
            break;
        case 1:
            h.class = 3;
            break;
        case 2:
            h.class = 255;
            break;
        case 3:
            h.reserved0 = 1;
            break;
        case 4:
            h.reserved1 = 0x8000;
            break;
        case 5:
            h.sequence++;
            break;
        case 6:
            h.sequence--;
            break;
        case 7:
            h.bytes = limits_default.small_bytes_max + 1;
            break;
        case 8:
            h.class = GR_FRAME_BULK;
            h.bytes = UINT32_MAX;
            break;
        case 9:
            h.n_small_credit = 1; /* nothing was sent to it */
            break;
        case 10:
            h.n_bulk_credit = 0xffff;
            break;
        default:
            h.class = 2; /* a credit record with a payload */
            break;
        }
        raw_send_header(&r, &h);
        expect_filled(NULL, r.conn, GR_FRAME_SMALL, 33, 5);
        raw_expect_thrown_out(&r);
        raw_close(&r);
    }
}

/* The same good header is taken when nothing is changed: the cases above fail for their change
 * alone. */
static void test_tcp_raw_frames_are_taken(void **state)
{
    (void)state;
    struct raw r;
    raw_open(&r, &limits_default);
    for (uint32_t i = 0; i < 40; i++) {
        raw_send_frame(&r, i % 5 == 0 ? GR_FRAME_BULK : GR_FRAME_SMALL, 4096 - i, i);
        expect_filled(NULL, r.conn, i % 5 == 0 ? GR_FRAME_BULK : GR_FRAME_SMALL, 4096 - i, i);
    }
    struct raw_header credit = raw_header(&r, 2, 0);
    raw_send_header(&r, &credit);
    raw_send_frame(&r, GR_FRAME_SMALL, 1, 50);
    expect_filled(NULL, r.conn, GR_FRAME_SMALL, 1, 50);
    raw_close(&r);
}

/* One byte at a time, so that every record is cut in every place. */
static void test_tcp_dribble(void **state)
{
    (void)state;
    struct raw r;
    raw_open(&r, &limits_default);
    uint8_t stream[3 * RAW_HEADER_BYTES + 60];
    size_t at = 0;
    for (uint32_t i = 0; i < 3; i++) {
        struct raw_header h = raw_header(&r, GR_FRAME_SMALL, 30 * i);
        raw_encode(&h, stream + at);
        at += RAW_HEADER_BYTES;
        if (i < 2) { /* the third: header only */
            fill(stream + at, h.bytes, i);
            at += h.bytes;
        }
    }
    uint32_t n = 0;
    for (size_t i = 0; i < at; i++) {
        raw_write(&r, stream + i, 1);
        struct pollfd fd = {.events = POLLIN};
        struct gr_frame frame;
        fd.fd = gr_conn_poll_fd(r.conn, &fd.events);
        assert_true(fd.fd < 0 || poll(&fd, 1, WAIT_MS) == 1);
        enum gr_status st = gr_conn_recv(r.conn, &frame);
        if (st == GR_OK) {
            assert_true(is_filled(frame.data, 30 * n, n));
            n++;
            gr_conn_release(r.conn, &frame);
        } else {
            assert_int_equal(st, GR_AGAIN);
        }
    }
    assert_int_equal(n, 2);
    /* Its end in the middle of a record: nothing is delivered of it. */
    shutdown(r.fd, SHUT_WR);
    struct gr_frame frame;
    assert_int_equal(recv_wait(NULL, r.conn, &frame), GR_ECLOSED);
    raw_close(&r);
}

static void test_tcp_frame_without_credit(void **state)
{
    (void)state;
    const struct gr_conn_limits limits = {.small_bytes_max = 64, .n_small_slot = 4};
    struct raw r;
    raw_open(&r, &limits);
    for (uint32_t i = 0; i < 5; i++) {
        raw_send_frame(&r, GR_FRAME_SMALL, 16, i);
    }
    struct gr_frame got[4];
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(recv_wait(NULL, r.conn, &got[i]), GR_OK);
        assert_true(is_filled(got[i].data, 16, i));
    }
    raw_expect_thrown_out(&r);
    for (uint32_t i = 0; i < 4; i++) {
        assert_true(is_filled(got[i].data, 16, i));
        gr_conn_release(r.conn, &got[i]);
    }
    raw_close(&r);

    /* Released, but the credit was not returned yet: five more of eight are allowed, not eight. */
    raw_open(&r, &limits_default);
    for (uint32_t i = 0; i < 3; i++) {
        raw_send_frame(&r, GR_FRAME_SMALL, 16, i);
        expect_filled(NULL, r.conn, GR_FRAME_SMALL, 16, i);
    }
    for (uint32_t i = 0; i < 6; i++) {
        raw_send_frame(&r, GR_FRAME_SMALL, 16, i);
    }
    for (uint32_t i = 0; i < 5; i++) {
        struct gr_frame frame; /* kept */
        assert_int_equal(recv_wait(NULL, r.conn, &frame), GR_OK);
    }
    raw_expect_thrown_out(&r);
    raw_close(&r);

    raw_open(&r, &limits);
    struct raw_header h = raw_header(&r, GR_FRAME_BULK, 0); /* there is no bulk here */
    raw_send_header(&r, &h);
    raw_expect_thrown_out(&r);
    raw_close(&r);
}

/* Credits for frames that were sent are taken once. */
static void test_tcp_credits_are_counted(void **state)
{
    (void)state;
    struct raw r;
    raw_open(&r, &limits_default);
    send_filled(r.conn, GR_FRAME_SMALL, 10, 1);
    send_filled(r.conn, GR_FRAME_SMALL, 10, 2);
    assert_int_equal(gr_conn_flush(r.conn), GR_OK);
    struct raw_header h = raw_header(&r, 2, 0);
    h.n_small_credit = 2;
    raw_send_header(&r, &h);
    raw_send_frame(&r, GR_FRAME_SMALL, 9, 3);
    expect_filled(NULL, r.conn, GR_FRAME_SMALL, 9, 3);
    h = raw_header(&r, 2, 0);
    h.n_small_credit = 1;
    raw_send_header(&r, &h);
    raw_expect_thrown_out(&r);
    raw_close(&r);
}

static void test_tcp_garbage(void **state)
{
    (void)state;
    uint32_t random = 1;
    for (int i = 0; i < 200; i++) {
        struct raw r;
        raw_open(&r, &limits_default);
        uint8_t bytes[400];
        fill(bytes, sizeof(bytes), random++);
        if (i % 2 == 0) { /* half of them past the magic number and the sequence */
            struct raw_header h = raw_header(&r, bytes[0] % 4, bytes[1] * 300u);
            h.n_small_credit = bytes[2] % 2;
            raw_encode(&h, bytes);
        }
        raw_write(&r, bytes, sizeof(bytes));
        shutdown(r.fd, SHUT_WR);
        struct gr_frame frame;
        enum gr_status st;
        while ((st = recv_wait(NULL, r.conn, &frame)) == GR_OK) {
            assert_true(frame.bytes <= gr_class_bytes_max(&limits_default, frame.class));
            gr_conn_release(r.conn, &frame);
        }
        assert_true(st == GR_EPROTO || st == GR_ECLOSED);
        raw_close(&r);
    }
}

/* Flushed, but the peer's window is full; then close, with unread input. Nothing flushed is lost.
 */
static void test_tcp_close_with_unread_input(void **state)
{
    (void)state;
    struct raw r;
    raw_open(&r, &limits_default);
    int window = 16384;
    assert_int_equal(setsockopt(r.fd, SOL_SOCKET, SO_RCVBUF, &window, sizeof(window)), 0);
    struct gr_frame frame;
    size_t n_flushed = 0;
    while (gr_conn_acquire(r.conn, GR_FRAME_BULK, 30000, &frame) == GR_OK) {
        memset(frame.data, 5, 30000);
        assert_int_equal(gr_conn_send(r.conn, &frame, 30000), GR_OK);
        assert_int_equal(gr_conn_flush(r.conn), GR_OK);
        n_flushed += 30000 + RAW_HEADER_BYTES;
    }
    raw_send_frame(&r, GR_FRAME_SMALL, 10, 1);
    int n_unacked = 1;
    while (n_unacked > 0) { /* until it has arrived */
        assert_int_equal(ioctl(r.fd, TIOCOUTQ, &n_unacked), 0);
    }
    gr_conn_close(r.conn);
    size_t n = 0;
    uint8_t bytes[4096];
    ssize_t got;
    while ((got = recv(r.fd, bytes, sizeof(bytes), 0)) > 0) {
        n += (size_t)got;
    }
    assert_int_equal(got, 0);
    assert_int_equal(n, n_flushed);
    close(r.fd);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tcp_malformed_header),
        cmocka_unit_test(test_tcp_raw_frames_are_taken),
        cmocka_unit_test(test_tcp_dribble),
        cmocka_unit_test(test_tcp_frame_without_credit),
        cmocka_unit_test(test_tcp_credits_are_counted),
        cmocka_unit_test(test_tcp_garbage),
        cmocka_unit_test(test_tcp_close_with_unread_input),
    };
    gr_log_init("test_hostile_tcp");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
