/* One suite, run on every transport that is built. Nothing sleeps: what must happen is waited for
 * with a deadline, and what must not happen is asked right after something that would have made it
 * happen. */
#include "tests/transport/conformance.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "transport/impl.h"
#ifdef GR_HAVE_VERBS
#include "tests/transport/fake_verbs.h"
#include "tests/transport/test_far.h"
#endif

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

static void test_exchange(void **state)
{
    struct pair p;
    pair_open(&p, kind_of(state), &limits_default);
    struct gr_frame frame;
    assert_int_equal(gr_conn_recv(p.conn[0], &frame), GR_AGAIN);
    for (int side = 0; side < 2; side++) {
        struct gr_conn *from = p.conn[side], *to = p.conn[1 - side];
        send_filled(from, GR_FRAME_SMALL, 100, 1);
        send_filled(from, GR_FRAME_SMALL, 0, 2);
        expect_filled(from, to, GR_FRAME_SMALL, 100, 1);
        expect_filled(from, to, GR_FRAME_SMALL, 0, 2);
        send_filled(from, GR_FRAME_BULK, 5001, 3);
        expect_filled(from, to, GR_FRAME_BULK, 5001, 3);
        assert_int_equal(gr_conn_recv(to, &frame), GR_AGAIN);
        assert_int_equal(from->stats.n_sent[GR_FRAME_SMALL], 2);
        assert_int_equal(from->stats.n_sent[GR_FRAME_BULK], 1);
        assert_int_equal(from->stats.bytes_sent, 5101);
        assert_int_equal(to->stats.n_received[GR_FRAME_SMALL], 2);
        assert_int_equal(to->stats.n_received[GR_FRAME_BULK], 1);
        assert_int_equal(to->stats.bytes_received, 5101);
    }
    pair_close(&p);
}

/* Far more frames than slots; slots are filled in another order than they were acquired, and some
 * are abandoned. */
static void test_order(void **state)
{
    struct pair p;
    pair_open(&p, kind_of(state), &limits_default);
    for (uint32_t i = 0; i < 2000; i += 2) {
        enum gr_frame_class class = i % 6 == 0 ? GR_FRAME_BULK : GR_FRAME_SMALL;
        struct gr_frame first, second, third;
        assert_int_equal(acquire_wait(p.conn[0], class, 64, &first), GR_OK);
        assert_int_equal(acquire_wait(p.conn[0], class, 64, &second), GR_OK);
        assert_int_equal(acquire_wait(p.conn[0], class, 64, &third), GR_OK);
        fill_frame(p.conn[0], &second, 64, i);
        fill_frame(p.conn[0], &first, 64, i + 1);
        assert_int_equal(gr_conn_send(p.conn[0], &second, 64), GR_OK);
        gr_conn_abandon(p.conn[0], &third);
        assert_int_equal(gr_conn_send(p.conn[0], &first, 64), GR_OK);
        expect_filled(p.conn[0], p.conn[1], class, 64, i);
        expect_filled(p.conn[0], p.conn[1], class, 64, i + 1);
    }
    pair_close(&p);
}

static void test_small_overtakes_bulk(void **state)
{
    struct pair p;
    pair_open(&p, kind_of(state), &limits_default);
    for (uint32_t i = 0; i < 3; i++) {
        send_filled(p.conn[0], GR_FRAME_BULK, 60000, i);
    }
    send_filled(p.conn[0], GR_FRAME_SMALL, 100, 10);
    send_filled(p.conn[0], GR_FRAME_SMALL, 101, 11);
    expect_filled(p.conn[0], p.conn[1], GR_FRAME_SMALL, 100, 10);
    expect_filled(p.conn[0], p.conn[1], GR_FRAME_SMALL, 101, 11);
    for (uint32_t i = 0; i < 3; i++) {
        expect_filled(p.conn[0], p.conn[1], GR_FRAME_BULK, 60000, i);
    }
    pair_close(&p);
}

/* Bytes that arrived and were not read. */
static void wait_arrived(int fd, int n_byte)
{
    int n = 0;
    uint64_t deadline = gr_clock_ns() + WAIT_MS * GR_MS;
    while (n < n_byte && gr_clock_ns() < deadline) {
        assert_int_equal(ioctl(fd, FIONREAD, &n), 0);
    }
    assert_int_equal(n, n_byte);
}

/* Everything flushed by `from` has reached `to`: n frames wait there. */
static void wait_verbs(struct gr_conn *from, struct gr_conn *to, uint32_t n)
{
    uint64_t deadline = gr_clock_ns() + WAIT_MS * GR_MS;
    bool idle = false;
    uint32_t n_waiting = 0;
    while (n_waiting < n && gr_clock_ns() < deadline) {
        (void)gr_verbs_n_waiting(from, &idle);
        n_waiting = gr_verbs_n_waiting(to, &idle);
    }
    assert_int_equal(n_waiting, n);
}

/* A small frame also overtakes bulk frames that have arrived, and were read, before it. */
static void test_small_overtakes_received_bulk(void **state)
{
    struct pair p;
    pair_open(&p, kind_of(state), &limits_default);
    bool tcp = kind_of(state) == GR_TRANSPORT_TCP, verbs = kind_of(state) == GR_TRANSPORT_VERBS;
    send_filled(p.conn[0], GR_FRAME_BULK, 500, 1);
    send_filled(p.conn[0], GR_FRAME_BULK, 500, 2);
    assert_int_equal(gr_conn_flush(p.conn[0]), GR_OK);
    if (tcp) {
        wait_arrived(p.fd[1], 2 * (500 + 20));
    } else if (verbs) {
        wait_verbs(p.conn[0], p.conn[1], 2);
    }
    expect_filled(NULL, p.conn[1], GR_FRAME_BULK, 500, 1);
    send_filled(p.conn[0], GR_FRAME_SMALL, 100, 3);
    assert_int_equal(gr_conn_flush(p.conn[0]), GR_OK);
    if (tcp) {
        wait_arrived(p.fd[1], 100 + 20);
    } else if (verbs) {
        wait_verbs(p.conn[0], p.conn[1], 2);
    }
    expect_filled(NULL, p.conn[1], GR_FRAME_SMALL, 100, 3);
    expect_filled(NULL, p.conn[1], GR_FRAME_BULK, 500, 2);
    pair_close(&p);
}

/* Bulk output is stuck halfway through the first frame: a small one comes before the second all the
 * same. */
static void test_small_overtakes_stuck_bulk(void **state)
{
    const struct gr_conn_limits limits = {
        .small_bytes_max = 256, .bulk_bytes_max = GR_BULK_BYTES_MAX, .n_small_slot = 2, .n_bulk_slot = 2};
    struct pair p;
    pair_open(&p, kind_of(state), &limits);
    send_filled(p.conn[0], GR_FRAME_BULK, GR_BULK_BYTES_MAX, 1);
    send_filled(p.conn[0], GR_FRAME_BULK, GR_BULK_BYTES_MAX, 2);
    enum gr_status st = gr_conn_flush(p.conn[0]);
    const bool queues = kind_of(state) == GR_TRANSPORT_TCP || kind_of(state) == GR_TRANSPORT_VERBS;
    assert_int_equal(st, queues ? GR_AGAIN : GR_OK);
    short events;
    (void)gr_conn_poll_fd(p.conn[0], &events);
    assert_int_equal((events & POLLOUT) != 0, kind_of(state) == GR_TRANSPORT_TCP);
    send_filled(p.conn[0], GR_FRAME_SMALL, 200, 3);
    struct gr_frame frame;
    int i_small = -1, n_bulk = 0;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(recv_wait(p.conn[0], p.conn[1], &frame), GR_OK);
        if (frame.class == GR_FRAME_SMALL) {
            assert_true(is_filled(frame.data, 200, 3));
            i_small = i;
        } else {
            assert_true(frame_is_filled(p.conn[1], &frame, (uint32_t)++n_bulk));
            assert_int_equal(frame.bytes, GR_BULK_BYTES_MAX);
        }
        gr_conn_release(p.conn[1], &frame);
    }
    assert_int_equal(n_bulk, 2);
    /* Devices in memory are never stuck: the second frame has left when the small one comes. */
    const bool instant = kind_of(state) == GR_TRANSPORT_VERBS && pair_verbs[0].lib != NULL;
    assert_in_range(i_small, 0, instant ? 2 : 1);
    pair_close(&p);
}

static void test_largest(void **state)
{
    const struct gr_conn_limits limits = {.small_bytes_max = GR_SMALL_BYTES_MAX,
                                          .bulk_bytes_max = GR_BULK_BYTES_MAX,
                                          .n_small_slot = 2,
                                          .n_bulk_slot = 1};
    struct pair p;
    pair_open(&p, kind_of(state), &limits);
    for (int side = 0; side < 2; side++) {
        struct gr_conn *from = p.conn[side], *to = p.conn[1 - side];
        for (uint32_t i = 0; i < 3; i++) {
            send_filled(from, GR_FRAME_SMALL, GR_SMALL_BYTES_MAX, i);
            expect_filled(from, to, GR_FRAME_SMALL, GR_SMALL_BYTES_MAX, i);
        }
        send_filled(from, GR_FRAME_BULK, GR_BULK_BYTES_MAX, 9);
        expect_filled(from, to, GR_FRAME_BULK, GR_BULK_BYTES_MAX, 9);
    }
    pair_close(&p);
}

static void test_oversize_refused(void **state)
{
    struct pair p;
    struct gr_frame frame;
    pair_open(&p, kind_of(state), &limits_default);
    assert_int_equal(gr_conn_acquire(p.conn[0], GR_FRAME_SMALL, 4097, &frame), GR_ELIMIT);
    assert_int_equal(gr_conn_acquire(p.conn[0], GR_FRAME_BULK, 65537, &frame), GR_ELIMIT);
    assert_int_equal(gr_conn_acquire(p.conn[0], GR_FRAME_BULK, UINT32_MAX, &frame), GR_ELIMIT);
    send_filled(p.conn[0], GR_FRAME_SMALL, 4096, 1);
    expect_filled(p.conn[0], p.conn[1], GR_FRAME_SMALL, 4096, 1);
    pair_close(&p);

    const struct gr_conn_limits no_bulk = {.small_bytes_max = 64, .n_small_slot = 2};
    pair_open(&p, kind_of(state), &no_bulk);
    assert_int_equal(gr_conn_acquire(p.conn[0], GR_FRAME_BULK, 0, &frame), GR_ELIMIT);
    send_filled(p.conn[0], GR_FRAME_SMALL, 64, 1);
    expect_filled(p.conn[0], p.conn[1], GR_FRAME_SMALL, 64, 1);
    pair_close(&p);
}

static void test_bad_limits(void **state)
{
    static const struct gr_conn_limits bad[] = {
        {.small_bytes_max = 63, .n_small_slot = 2},
        {.small_bytes_max = GR_SMALL_BYTES_MAX + 1, .n_small_slot = 2},
        {.small_bytes_max = 64, .n_small_slot = 1},
        {.small_bytes_max = 64, .n_small_slot = 257},
        {.small_bytes_max = 64, .n_small_slot = 2, .bulk_bytes_max = 1},
        {.small_bytes_max = 64, .n_small_slot = 2, .n_bulk_slot = 1},
        {.small_bytes_max = 64, .n_small_slot = 2, .bulk_bytes_max = 1, .n_bulk_slot = 65},
        {.small_bytes_max = 64, .n_small_slot = 2, .bulk_bytes_max = GR_BULK_BYTES_MAX + 1, .n_bulk_slot = 1},
    };
    struct gr_conn *conn[2];
    for (size_t i = 0; i < GR_ARRAY_LEN(bad); i++) {
        enum gr_status st = GR_OK;
        switch (kind_of(state)) {
        case GR_TRANSPORT_LOOP:
            st = gr_transport_open_loop(&bad[i], 1, conn);
            break;
        case GR_TRANSPORT_SHM:
            st = gr_transport_open_shm(-1, true, &bad[i], 1, 1, conn, NO_WHY);
            break;
        case GR_TRANSPORT_VERBS:
            st = gr_transport_open_verbs(-1, true, &pair_verbs[0], &bad[i], 1, 1, conn);
            break;
        default:
            st = gr_transport_open_tcp(-1, &bad[i], 1, conn);
            break;
        }
        assert_int_equal(st, GR_EINVAL);
    }
}

/* The other end is closed: what was flushed before is delivered, then the end is told, and stays
 * told. */
static void expect_end(struct pair *p, int side)
{
    struct gr_conn *c = p->conn[side];
    struct gr_frame frame;
    for (uint32_t i = 0; i < 3; i++) {
        expect_filled(NULL, c, GR_FRAME_SMALL, 50 + i, i);
    }
    expect_filled(NULL, c, GR_FRAME_BULK, 3000, 7);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(recv_wait(NULL, c, &frame), GR_ECLOSED);
        assert_int_equal(gr_conn_acquire(c, GR_FRAME_SMALL, 1, &frame), GR_ECLOSED);
        assert_int_equal(gr_conn_flush(c), GR_ECLOSED);
    }
}

static void send_last_words(struct gr_conn *c)
{
    for (uint32_t i = 0; i < 3; i++) {
        send_filled(c, GR_FRAME_SMALL, 50 + i, i);
    }
    send_filled(c, GR_FRAME_BULK, 3000, 7);
    assert_int_equal(gr_conn_flush(c), GR_OK);
}

static void test_peer_closes(void **state)
{
    for (int side = 0; side < 2; side++) {
        struct pair p;
        pair_open(&p, kind_of(state), &limits_default);
        /* The one who closes has unread input, too. */
        send_filled(p.conn[1 - side], GR_FRAME_SMALL, 10, 1);
        assert_int_equal(gr_conn_flush(p.conn[1 - side]), GR_OK);
        /* A frame that was acquired before the end may still be sent or abandoned after it. */
        struct gr_frame sent, abandoned;
        assert_int_equal(gr_conn_acquire(p.conn[1 - side], GR_FRAME_SMALL, 1, &sent), GR_OK);
        assert_int_equal(gr_conn_acquire(p.conn[1 - side], GR_FRAME_BULK, 1, &abandoned), GR_OK);
        send_last_words(p.conn[side]);
        drop(&p, side);
        expect_end(&p, 1 - side);
        assert_int_equal(gr_conn_send(p.conn[1 - side], &sent, 1), GR_ECLOSED);
        gr_conn_abandon(p.conn[1 - side], &abandoned);
        pair_close(&p);
    }
}

static void test_half_close(void **state)
{
    struct pair p;
    pair_open(&p, kind_of(state), &limits_default);
    send_last_words(p.conn[0]);
    if (kind_of(state) == GR_TRANSPORT_VERBS) {
        wait_verbs(p.conn[0], p.conn[1], 4); /* the end goes another way than frames */
    }
    assert_int_equal(shutdown(p.fd[0], SHUT_WR), 0);
    expect_end(&p, 1);
    pair_close(&p);
}

static void test_credits(void **state)
{
    const struct gr_conn_limits limits = {
        .small_bytes_max = 64, .bulk_bytes_max = 64, .n_small_slot = 4, .n_bulk_slot = 1};
    struct pair p;
    pair_open(&p, kind_of(state), &limits);
    struct gr_conn *a = p.conn[0], *b = p.conn[1];
    struct gr_frame frame, got[4];
    for (uint32_t i = 0; i < 4; i++) {
        send_filled(a, GR_FRAME_SMALL, 64, i);
    }
    assert_int_equal(gr_conn_acquire(a, GR_FRAME_SMALL, 1, &frame), GR_AGAIN);
    assert_int_equal(a->stats.n_no_credit, 1);
    send_filled(a, GR_FRAME_BULK, 64, 9); /* classes do not share credits */
    assert_int_equal(gr_conn_acquire(a, GR_FRAME_BULK, 1, &frame), GR_AGAIN);
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(recv_wait(a, b, &got[i]), GR_OK);
        assert_true(is_filled(got[i].data, 64, i));
    }
    expect_filled(a, b, GR_FRAME_BULK, 64, 9);
    /* Received is not released. */
    assert_int_equal(gr_conn_acquire(a, GR_FRAME_SMALL, 1, &frame), GR_AGAIN);
    gr_conn_release(b, &got[2]);
    assert_int_equal(acquire_wait(a, GR_FRAME_SMALL, 1, &frame), GR_OK);
    struct gr_frame none;
    assert_int_equal(gr_conn_acquire(a, GR_FRAME_SMALL, 1, &none), GR_AGAIN);
    gr_conn_abandon(a, &frame); /* gives the credit back at once */
    assert_int_equal(gr_conn_acquire(a, GR_FRAME_SMALL, 1, &frame), GR_OK);
    fill(frame.data, 20, 5);
    assert_int_equal(gr_conn_send(a, &frame, 20), GR_OK);
    /* What b still holds was not written over. */
    for (uint32_t i = 0; i < 4; i++) {
        if (i != 2) {
            assert_true(is_filled(got[i].data, 64, i));
            gr_conn_release(b, &got[i]);
        }
    }
    expect_filled(a, b, GR_FRAME_SMALL, 20, 5);
    assert_int_equal(acquire_wait(a, GR_FRAME_BULK, 1, &frame), GR_OK);
    gr_conn_abandon(a, &frame);
    pair_close(&p);
}

/* The sender runs until it is refused, the reader then takes one frame; nothing is lost and nothing
 * grows. */
static void test_slow_reader(void **state)
{
    struct pair p;
    pair_open(&p, kind_of(state), &limits_default);
    uint32_t n_sent = 0, n_received = 0;
    while (n_received < 500) {
        struct gr_frame frame;
        if (n_sent < 500 && gr_conn_acquire(p.conn[0], GR_FRAME_SMALL, 4096, &frame) == GR_OK) {
            fill(frame.data, 4096, n_sent++);
            assert_int_equal(gr_conn_send(p.conn[0], &frame, 4096), GR_OK);
            continue;
        }
        assert_in_range(n_sent - n_received, 1, limits_default.n_small_slot);
        expect_filled(p.conn[0], p.conn[1], GR_FRAME_SMALL, 4096, n_received++);
    }
    assert_true(p.conn[0]->stats.n_no_credit > 0);
    pair_close(&p);
}

/* ---- sleeping and waking ---- */

struct sleeper {
    struct gr_conn *conn;
    sem_t armed; /* posted between poll_fd and poll */
    bool for_credit;
    bool failed;
};

static enum gr_status sleep_once(struct sleeper *s, struct gr_frame *frame)
{
    struct pollfd fd;
    enum gr_status st = GR_AGAIN;
    bool told = false;
    while (st == GR_AGAIN) {
        st = s->for_credit ? gr_conn_acquire(s->conn, GR_FRAME_SMALL, 8, frame) : gr_conn_recv(s->conn, frame);
        if (st != GR_AGAIN) {
            break;
        }
        fd.fd = gr_conn_poll_fd(s->conn, &fd.events);
        if (!told) {
            sem_post(&s->armed);
            told = true;
        }
        if (fd.fd >= 0 && poll(&fd, 1, WAIT_MS) <= 0) {
            return GR_ETIMEDOUT;
        }
        if (s->for_credit) {
            /* as an I/O loop does: a wake-up is answered by recv, which empties the bell */
            struct gr_frame none;
            st = gr_conn_recv(s->conn, &none);
        }
    }
    if (!told) {
        sem_post(&s->armed);
    }
    return st;
}

#define N_WAKE 300

static void *receive_sleeping(void *data)
{
    struct sleeper *s = data;
    for (uint32_t i = 0; i < N_WAKE && !s->failed; i++) {
        struct gr_frame frame;
        if (sleep_once(s, &frame) != GR_OK || frame.bytes != 40 || !is_filled(frame.data, 40, i)) {
            s->failed = true;
        } else {
            gr_conn_release(s->conn, &frame);
        }
    }
    return NULL;
}

static void sem_wait_all(sem_t *sem)
{
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += WAIT_MS / 1000;
    while (sem_timedwait(sem, &end) != 0) {
        assert_int_equal(errno, EINTR);
    }
}

static void test_wake_by_frame(void **state)
{
    struct pair p;
    pair_open(&p, kind_of(state), &limits_default);
    struct sleeper s = {.conn = p.conn[1]};
    sem_init(&s.armed, 0, 0);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, receive_sleeping, &s), 0);
    for (uint32_t i = 0; i < N_WAKE; i++) {
        struct gr_frame frame;
        sem_wait_all(&s.armed); /* it has armed: only our bell can wake it now */
        if (acquire_wait(p.conn[0], GR_FRAME_SMALL, 40, &frame) != GR_OK) {
            break;
        }
        fill(frame.data, 40, i);
        (void)!gr_conn_send(p.conn[0], &frame, 40);
        (void)!gr_conn_flush(p.conn[0]);
    }
    pthread_join(thread, NULL);
    assert_false(s.failed);
    sem_destroy(&s.armed);
    pair_close(&p);
}

static void *acquire_sleeping(void *data)
{
    struct sleeper *s = data;
    for (uint32_t i = 0; i < N_WAKE && !s->failed; i++) {
        struct gr_frame frame;
        if (sleep_once(s, &frame) != GR_OK) {
            s->failed = true;
        } else if (gr_conn_send(s->conn, &frame, 8) != GR_OK || gr_conn_flush(s->conn) != GR_OK) {
            s->failed = true;
        }
    }
    return NULL;
}

/* The sleeper wants credits. The receiver lags by the two slots, so each acquire but the first two
 * is refused first, and only the release that follows can wake it. */
static void test_wake_by_credit(void **state)
{
    const struct gr_conn_limits limits = {.small_bytes_max = 64, .n_small_slot = 2};
    struct pair p;
    pair_open(&p, kind_of(state), &limits);
    struct sleeper s = {.conn = p.conn[0], .for_credit = true};
    sem_init(&s.armed, 0, 0);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, acquire_sleeping, &s), 0);
    sem_wait_all(&s.armed);
    sem_wait_all(&s.armed);
    bool ok = true;
    for (uint32_t i = 0; i < N_WAKE && ok; i++) {
        struct gr_frame frame;
        if (i + 2 < N_WAKE) {
            sem_wait_all(&s.armed);
        }
        ok = recv_wait(NULL, p.conn[1], &frame) == GR_OK;
        if (ok) {
            gr_conn_release(p.conn[1], &frame);
        }
    }
    pthread_join(thread, NULL);
    assert_true(ok);
    assert_false(s.failed);
    assert_true(p.conn[0]->stats.n_no_credit >= N_WAKE - 2);
    sem_destroy(&s.armed);
    pair_close(&p);
}

static void *receive_end(void *data)
{
    struct sleeper *s = data;
    struct gr_frame frame;
    s->failed = sleep_once(s, &frame) != GR_ECLOSED;
    return NULL;
}

static void test_wake_by_close(void **state)
{
    struct pair p;
    pair_open(&p, kind_of(state), &limits_default);
    struct sleeper s = {.conn = p.conn[1]};
    sem_init(&s.armed, 0, 0);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, receive_end, &s), 0);
    sem_wait_all(&s.armed);
    drop(&p, 0);
    pthread_join(thread, NULL);
    assert_false(s.failed);
    sem_destroy(&s.armed);
    pair_close(&p);
}

/* After everything was received a poll must really sleep: a bell left ringing would be a busy loop.
 */
static void test_quiet_when_idle(void **state)
{
    struct pair p;
    pair_open(&p, kind_of(state), &limits_default);
    struct pollfd fd;
    for (uint32_t i = 0; i < 20; i++) {
        fd.fd = gr_conn_poll_fd(p.conn[1], &fd.events);
        assert_true(fd.fd >= 0);
        assert_int_equal(poll(&fd, 1, 0), 0);
        send_filled(p.conn[0], GR_FRAME_SMALL, 30, i);
        assert_int_equal(gr_conn_flush(p.conn[0]), GR_OK);
        assert_int_equal(poll(&fd, 1, WAIT_MS), 1);
        expect_filled(p.conn[0], p.conn[1], GR_FRAME_SMALL, 30, i);
        struct gr_frame frame;
        assert_int_equal(gr_conn_recv(p.conn[1], &frame), GR_AGAIN);
    }
    /* Something there already: -1, or an fd that is ready at once. */
    send_filled(p.conn[0], GR_FRAME_SMALL, 30, 1);
    assert_int_equal(gr_conn_flush(p.conn[0]), GR_OK);
    fd.fd = gr_conn_poll_fd(p.conn[1], &fd.events);
    assert_true(fd.fd < 0 || poll(&fd, 1, WAIT_MS) == 1);
    pair_close(&p);
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(test_exchange),
    cmocka_unit_test(test_order),
    cmocka_unit_test(test_small_overtakes_bulk),
    cmocka_unit_test(test_small_overtakes_received_bulk),
    cmocka_unit_test(test_small_overtakes_stuck_bulk),
    cmocka_unit_test(test_largest),
    cmocka_unit_test(test_oversize_refused),
    cmocka_unit_test(test_bad_limits),
    cmocka_unit_test(test_peer_closes),
    cmocka_unit_test(test_credits),
    cmocka_unit_test(test_slow_reader),
    cmocka_unit_test(test_wake_by_frame),
    cmocka_unit_test(test_wake_by_credit),
    cmocka_unit_test(test_wake_by_close),
    cmocka_unit_test(test_quiet_when_idle),
    cmocka_unit_test(test_soak),
    cmocka_unit_test(test_bulk_never_first),
    cmocka_unit_test(test_half_close), /* last: loop has no socket to half-close */
};

/* 2.1 s. The rules are those of a device that keeps its own: soft RoCE does not when answers take longer than this (see
 * decision D-095), and an emulated machine can stand still for longer than the usual 67 ms. Not much
 * more: on its wire packets overtake each other at times, and what is sent again for that may wait as long. */
#define ACK_TIMEOUT 19

/* Two devices on one wire: GRAFT_TEST_VERBS=rxe0,rxe1. GRAFT_TEST_VERBS_ACK_TIMEOUT=0 leaves that to the transport. */
static bool verbs_devices(void)
{
    static char names[128];
    const char *env = getenv("GRAFT_TEST_VERBS");
    if (env == NULL || strlen(env) >= sizeof(names) || strchr(env, ',') == NULL) {
        return false;
    }
    snprintf(names, sizeof(names), "%s", env);
    gr_verbs_prepare();
    pair_verbs[0].hca = strtok(names, ",");
    pair_verbs[1].hca = strtok(NULL, ",");
    pair_verbs[0].spin_us = pair_verbs[1].spin_us = 0;
    pair_verbs[0].two_sided = getenv("GRAFT_TEST_VERBS_TWO_SIDED") != NULL;
    const char *timeout = getenv("GRAFT_TEST_VERBS_ACK_TIMEOUT");
    pair_verbs[0].ack_timeout = pair_verbs[1].ack_timeout = (uint8_t)(timeout != NULL ? atoi(timeout) : ACK_TIMEOUT);
    return true;
}

#ifdef GR_HAVE_VERBS
/* GRAFT_TEST_FAR=11: both ends of verbs have bodies of bulk frames in far memory; 10 and 01: the first, the second. */
static void put_bodies_far(bool guarded)
{
    static struct test_far far[2];
    static const char *const names[] = {"far:0", "far:1"};
    const char *which = getenv("GRAFT_TEST_FAR");
    for (int i = 0; which != NULL && i < 2; i++) {
        test_far_init(&far[i], names[i], guarded);
        pair_verbs[i].far = which[i] == '1' ? &far[i].memory : NULL;
        pair_verbs[i].require_far = !pair_verbs[0].two_sided;
    }
    fake_knobs.peer_memory = true;
}
#endif

int main(void)
{
    static enum gr_transport_kind all[] = {GR_TRANSPORT_SHM, GR_TRANSPORT_TCP,
#ifdef GR_HAVE_VERBS
                                           GR_TRANSPORT_VERBS, /* on devices in memory */
#endif
                                           GR_TRANSPORT_LOOP};
    static enum gr_transport_kind verbs[] = {GR_TRANSPORT_VERBS};
    static struct CMUnitTest tests[GR_ARRAY_LEN(all) * GR_ARRAY_LEN(cases)];
    static char names[GR_ARRAY_LEN(tests)][64];
    gr_log_init("test_conformance");
    const bool with_verbs = verbs_devices();
#ifdef GR_HAVE_VERBS
    if (!with_verbs) {
        fake_reset();
        pair_verbs[0] = (struct gr_verbs_options){.hca = "fake0", .gid_index = -1, .lib = &fake_verbs};
        pair_verbs[1] = (struct gr_verbs_options){.hca = "fake1", .gid_index = -1, .lib = &fake_verbs};
    }
#endif
#ifdef GR_HAVE_VERBS
    put_bodies_far(!with_verbs);
#endif
    enum gr_transport_kind *kinds = with_verbs ? verbs : all;
    const size_t n_test = with_verbs ? GR_ARRAY_LEN(cases) : GR_ARRAY_LEN(tests) - 1;
    for (size_t i = 0; i < n_test; i++) {
        size_t i_kind = i / GR_ARRAY_LEN(cases);
        tests[i] = cases[i % GR_ARRAY_LEN(cases)];
        snprintf(names[i], sizeof(names[i]), "%s: %s", gr_transport_name(kinds[i_kind]), tests[i].name);
        tests[i].name = names[i];
        tests[i].initial_state = &kinds[i_kind];
    }
    cmocka_set_test_filter(getenv("GRAFT_TEST_CASES")); /* a pattern; NULL: all */
    const int n_failed = _cmocka_run_group_tests(with_verbs ? "verbs" : "tests", tests, n_test, NULL, NULL);
    gr_verbs_forget_peers();
    return n_failed;
}
