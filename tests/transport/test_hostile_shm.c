/* An shm peer that writes what it likes into the segment or the socket, and peers that die.
 * Whatever comes, the process lives and says GR_EPROTO or GR_ECLOSED. */
#include "tests/transport/pair.h"

#include "common/base/bytes.h"
#include "common/base/log.h"
#include "transport/impl.h"
#include "transport/ring.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- shm: a peer that writes into the segment ---- */

/* The segment as the peer sees it; the victim is conn[0]. */
static struct gr_ring_shared *segment_of(struct pair *p)
{
    size_t bytes;
    struct gr_ring_shared *shared = gr_shm_segment(p->conn[1], &bytes);
    assert_true(bytes > sizeof(*shared));
    return shared;
}

static void shm_expect_thrown_out(struct gr_conn *c)
{
    struct gr_frame frame;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(gr_conn_recv(c, &frame), GR_EPROTO);
        assert_int_equal(gr_conn_acquire(c, GR_FRAME_SMALL, 1, &frame), GR_ECLOSED);
        assert_int_equal(gr_conn_flush(c), GR_ECLOSED);
    }
}

static void test_shm_corrupt_sent(void **state)
{
    (void)state;
    for (int i = 0; i < 6; i++) {
        struct pair p;
        pair_open(&p, GR_TRANSPORT_SHM, &limits_default);
        struct gr_ring_ctl *ctl = &segment_of(&p)->ring[1][i % 2];
        uint32_t bytes_max = gr_class_bytes_max(&limits_default, i % 2);
        uint32_t n_slot = gr_class_n_slot(&limits_default, i % 2);
        switch (i / 2) {
        case 0:
            atomic_store(&ctl->n_sent, n_slot + 1); /* more than there are slots */
            break;
        case 1:
            atomic_store(&ctl->sent[0], (uint64_t)8 << 32 | n_slot); /* no such slot */
            atomic_store(&ctl->n_sent, 1);
            break;
        default:
            atomic_store(&ctl->sent[0], (uint64_t)(bytes_max + 1) << 32);
            atomic_store(&ctl->n_sent, 1);
            break;
        }
        shm_expect_thrown_out(p.conn[0]);
        struct gr_frame frame;
        assert_int_equal(recv_wait(NULL, p.conn[1], &frame), GR_ECLOSED);
        pair_close(&p);
    }
}

/* A slot that is still held comes again. */
static void test_shm_slot_twice(void **state)
{
    (void)state;
    struct pair p;
    struct gr_frame frame;
    pair_open(&p, GR_TRANSPORT_SHM, &limits_default);
    send_filled(p.conn[1], GR_FRAME_SMALL, 20, 1);
    assert_int_equal(gr_conn_recv(p.conn[0], &frame), GR_OK);
    struct gr_ring_ctl *ctl = &segment_of(&p)->ring[1][GR_FRAME_SMALL];
    atomic_store(&ctl->sent[1], atomic_load(&ctl->sent[0]));
    atomic_store(&ctl->n_sent, 2);
    shm_expect_thrown_out(p.conn[0]);
    assert_true(is_filled(frame.data, 20, 1));
    gr_conn_release(p.conn[0], &frame);
    pair_close(&p);
}

static void test_shm_corrupt_freed(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct pair p;
        struct gr_frame frame;
        pair_open(&p, GR_TRANSPORT_SHM, &limits_default);
        struct gr_ring_ctl *ctl = &segment_of(&p)->ring[0][GR_FRAME_SMALL];
        send_filled(p.conn[0], GR_FRAME_SMALL, 20, 1);
        uint32_t slot = (uint32_t)atomic_load(&ctl->sent[0]);
        atomic_store(&ctl->freed[0], i == 0 ? slot : i == 1 ? limits_default.n_small_slot : slot ^ 1);
        atomic_store(&ctl->n_freed, i == 0 ? 2 : 1); /* twice, no such slot, not in flight */
        assert_int_equal(gr_conn_acquire(p.conn[0], GR_FRAME_SMALL, 1, &frame), GR_ECLOSED);
        shm_expect_thrown_out(p.conn[0]);
        pair_close(&p);
    }
}

/* After recv returned, the peer cannot change what was received. */
static void test_shm_rewritten_payload(void **state)
{
    (void)state;
    struct pair p;
    pair_open(&p, GR_TRANSPORT_SHM, &limits_default);
    size_t bytes;
    uint8_t *segment = gr_shm_segment(p.conn[1], &bytes);
    for (int k = 0; k < GR_N_FRAME_CLASS; k++) {
        struct gr_frame frame;
        send_filled(p.conn[1], k, 4000, 3);
        assert_int_equal(gr_conn_recv(p.conn[0], &frame), GR_OK);
        memset(segment + sizeof(struct gr_ring_shared), 0xee, bytes - sizeof(struct gr_ring_shared));
        assert_true(is_filled(frame.data, 4000, 3));
        gr_conn_release(p.conn[0], &frame);
    }
    pair_close(&p);
}

struct scribbler {
    struct gr_ring_shared *shared;
    atomic_bool stop;
    atomic_int n_scribble;
};

static void *scribble(void *data)
{
    struct scribbler *s = data;
    uint32_t random = 99;
    while (!atomic_load(&s->stop)) {
        random = random * 1103515245u + 12345u;
        struct gr_ring_ctl *ctl = &s->shared->ring[random >> 30 & 1][random >> 29 & 1];
        uint32_t value = random >> 24 & 7, at = random >> 16 & 7;
        atomic_store(&ctl->sent[at], (uint64_t)value << 32 | at);
        atomic_store(&ctl->freed[at], value);
        atomic_fetch_add(random >> 8 & 1 ? &ctl->n_sent : &ctl->n_freed, 1);
        atomic_fetch_add(&s->n_scribble, 1);
    }
    return NULL;
}

/* The peer scribbles plausible values while we work: any answer, but no crash and no lost balance.
 */
static void test_shm_scribbler(void **state)
{
    (void)state;
    uint32_t n_thrown_out = 0;
    for (int round = 0; round < 50; round++) {
        struct pair p;
        pair_open(&p, GR_TRANSPORT_SHM, &limits_default);
        struct scribbler s = {.shared = segment_of(&p)};
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, scribble, &s), 0);
        enum gr_status st = GR_AGAIN;
        /* Until the scribbler has done enough, however late the scheduler starts it. */
        for (int i = 0; atomic_load(&s.n_scribble) < 20000 && st >= 0; i++) {
            struct gr_frame frame;
            if (gr_conn_acquire(p.conn[0], i % 2, 8, &frame) == GR_OK) {
                (void)!gr_conn_send(p.conn[0], &frame, 8);
            }
            st = gr_conn_recv(p.conn[0], &frame);
            if (st == GR_OK) {
                assert_true(frame.bytes <= 7);
                gr_conn_release(p.conn[0], &frame);
            }
        }
        n_thrown_out += st == GR_EPROTO;
        atomic_store(&s.stop, true);
        pthread_join(thread, NULL);
        pair_close(&p);
    }
    assert_true(n_thrown_out > 0);
}

static void test_shm_bell_flood(void **state)
{
    (void)state;
    struct pair p;
    struct gr_frame frame;
    pair_open(&p, GR_TRANSPORT_SHM, &limits_default);
    uint8_t bells[4096] = {0};
    assert_true(send(p.fd[1], bells, sizeof(bells), MSG_DONTWAIT) > 0);
    short events;
    for (int i = 0; i < 10; i++) {
        (void)gr_conn_poll_fd(p.conn[0], &events);
        assert_int_equal(gr_conn_recv(p.conn[0], &frame), GR_AGAIN);
    }
    send_filled(p.conn[1], GR_FRAME_SMALL, 20, 1);
    expect_filled(NULL, p.conn[0], GR_FRAME_SMALL, 20, 1);
    pair_close(&p);
}

/* ---- shm: opening ---- */

static void test_shm_is_unlinked(void **state)
{
    (void)state;
    struct pair p;
    pair_open(&p, GR_TRANSPORT_SHM, &limits_default);
    FILE *maps = fopen("/proc/self/maps", "r");
    assert_non_null(maps);
    char line[512];
    int n_segment = 0;
    while (fgets(line, sizeof(line), maps) != NULL) {
        if (strstr(line, "/graft-") != NULL) {
            n_segment++;
            assert_non_null(strstr(line, "(deleted)"));
        }
    }
    fclose(maps);
    assert_int_equal(n_segment, 2);
    pair_close(&p);
}

static void read_exact(int fd, uint8_t *p, size_t n)
{
    for (size_t at = 0; at < n;) {
        ssize_t got = recv(fd, p + at, n - at, 0);
        assert_true(got > 0);
        at += (size_t)got;
    }
}

/* The creator's offer: magic, present, bytes, name. No segment may be left, whatever the peer
 * answers. */
static void test_shm_refused_offer(void **state)
{
    (void)state;
    static const struct {
        uint32_t magic, ok;
        int n_byte;
        int timeout_ms;
        enum gr_status st;
    } replies[] = {
        {0x4d534752, 0, 8, WAIT_MS, GR_EUNSUPPORTED}, /* could not map it */
        {0x4d534752, 2, 8, WAIT_MS, GR_EPROTO},       {0xbad, 1, 8, WAIT_MS, GR_EPROTO},
        {0x4d534752, 1, 5, 50, GR_ETIMEDOUT},         {0, 0, 0, WAIT_MS, GR_ECLOSED},
    };
    for (size_t i = 0; i < GR_ARRAY_LEN(replies); i++) {
        int fd[2];
        make_unix_sockets(fd);
        uint8_t reply[8], offer[64];
        struct gr_writer w = {.p = reply, .cap = sizeof(reply)};
        gr_write_u32(&w, replies[i].magic);
        gr_write_u32(&w, replies[i].ok);
        ssize_t n = replies[i].n_byte; /* written ahead; the creator reads it after its offer */
        assert_int_equal(send(fd[1], reply, (size_t)n, 0), n);
        if (n == 0) {
            shutdown(fd[1], SHUT_WR);
        }
        struct gr_conn *conn = NULL;
        struct gr_why why = {.text = ""};
        const enum gr_status st =
            gr_transport_open_shm(fd[0], true, &limits_default, 1, replies[i].timeout_ms, &conn, &why);
        if (st != replies[i].st) {
            fail_msg("reply %zu: %s (%s)", i, gr_status_text(st), why.text);
        }
        read_exact(fd[1], offer, sizeof(offer));
        const char *name = (const char *)offer + 16;
        assert_int_equal(strncmp(name, "/graft-", 7), 0);
        assert_int_equal(shm_open(name, O_RDWR, 0), -1);
        assert_int_equal(errno, ENOENT);
        close(fd[0]); /* still ours */
        close(fd[1]);
    }
}

static enum gr_status open_with_offer(uint32_t magic, uint64_t bytes, const char *name, uint32_t *ok_out)
{
    int fd[2];
    make_unix_sockets(fd);
    uint8_t offer[64] = {0}, reply[8];
    struct gr_writer w = {.p = offer, .cap = sizeof(offer)};
    gr_write_u32(&w, magic);
    gr_write_u32(&w, name != NULL);
    gr_write_u64(&w, bytes);
    if (name != NULL) {
        memcpy(offer + 16, name, strnlen(name, 48));
    }
    assert_int_equal(send(fd[1], offer, sizeof(offer), 0), (ssize_t)sizeof(offer));
    struct gr_conn *conn = NULL;
    enum gr_status st = gr_transport_open_shm(fd[0], false, &limits_default, 1, WAIT_MS, &conn, NO_WHY);
    *ok_out = 99;
    if (recv(fd[1], reply, sizeof(reply), MSG_DONTWAIT) == (ssize_t)sizeof(reply)) {
        struct gr_reader r = {.p = reply, .len = sizeof(reply)};
        assert_int_equal(gr_read_u32(&r), 0x4d534752);
        *ok_out = gr_read_u32(&r);
    }
    if (st == GR_OK) {
        gr_conn_close(conn);
    } else {
        close(fd[0]);
    }
    close(fd[1]);
    return st;
}

/* Locked as a maker's, so that no other test's sweep takes it for one that the dead have left. */
static int make_locked(const char *name)
{
    for (;;) {
        struct stat sb;
        const int fd = shm_open(name, O_CREAT | O_EXCL | O_RDWR, 0600);
        assert_true(fd >= 0);
        if (flock(fd, LOCK_EX | LOCK_NB) == 0 && fstat(fd, &sb) == 0 && sb.st_nlink > 0) {
            return fd;
        }
        (void)shm_unlink(name);
        close(fd); /* somebody swept between the two calls */
    }
}

static void test_shm_hostile_offer(void **state)
{
    (void)state;
    static const char own_name[] = "/graft-00000000000000000000000000000001";
    size_t bytes = gr_ring_shared_bytes(&limits_default);
    uint32_t ok;
    assert_int_equal(open_with_offer(0x4d534752, 0, NULL, &ok), GR_EUNSUPPORTED);
    assert_int_equal(ok, 99); /* it knows already */
    assert_int_equal(open_with_offer(0x1, bytes, own_name, &ok), GR_EPROTO);
    static const char *const names[] = {"/../etc/passwd", "/graft-../../../../../../../etc/passwd",
                                        "/graft-0000000000000000000000000000000G",
                                        "/graft-00000000000000000000000000000000000000001",
                                        "/graft-000000000000000000000000000000ff" /* well formed, but there is none */};
    for (size_t i = 0; i < GR_ARRAY_LEN(names); i++) {
        assert_int_equal(open_with_offer(0x4d534752, bytes, names[i], &ok), GR_EUNSUPPORTED);
        assert_int_equal(ok, 0);
    }
    /* Segments that exist: too short for its limits; made for other limits; of another layout; and good ones, whatever
     * the creator's own count of connections (a restarted one begins anew). */
    for (int i = 0; i < 5; i++) {
        const int fd = make_locked(own_name);
        assert_int_equal(ftruncate(fd, (off_t)(i == 0 ? bytes - 4096 : bytes)), 0);
        struct gr_conn_limits limits = limits_default;
        limits.n_small_slot = i == 1 ? 9 : 8;
        struct gr_ring_shared header = {0};
        gr_ring_shared_init(&header, &limits, i == 4 ? 2 : 1);
        header.layout += i == 2;
        assert_int_equal(pwrite(fd, &header, sizeof(header), 0), (ssize_t)sizeof(header));
        assert_int_equal(open_with_offer(0x4d534752, bytes, own_name, &ok), i >= 3 ? GR_OK : GR_EUNSUPPORTED);
        close(fd);
        assert_int_equal(ok, i >= 3);
        assert_int_equal(shm_unlink(own_name), -1); /* the opener has done it */
    }
    assert_int_equal(open_with_offer(0x4d534752, bytes + 1, own_name, &ok), GR_EUNSUPPORTED);
    /* A segment that would fit, but not of our kind by its name: neither taken nor unlinked. */
    static const char foreign[] = "/gruft-00000000000000000000000000000001";
    int fd = shm_open(foreign, O_CREAT | O_RDWR, 0600);
    struct gr_ring_shared header = {0};
    gr_ring_shared_init(&header, &limits_default, 1);
    assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
    assert_int_equal(pwrite(fd, &header, sizeof(header), 0), (ssize_t)sizeof(header));
    close(fd);
    enum gr_status st = open_with_offer(0x4d534752, bytes, foreign, &ok);
    assert_int_equal(shm_unlink(foreign), 0);
    assert_int_equal(st, GR_EUNSUPPORTED);
    assert_int_equal(ok, 0);
}

/* ---- death ---- */

static _Noreturn void live_until_killed(enum gr_transport_kind kind, int fd, int ready_fd, bool holds_slot)
{
    struct gr_conn *c = NULL;
    enum gr_status st = kind == GR_TRANSPORT_SHM
                            ? gr_transport_open_shm(fd, false, &limits_default, 1, WAIT_MS, &c, NO_WHY)
                            : gr_transport_open_tcp(fd, &limits_default, 1, &c);
    struct gr_frame frame;
    for (uint32_t i = 0; st == GR_OK && i < 3; i++) {
        st = gr_conn_acquire(c, GR_FRAME_SMALL, 50, &frame);
        if (st == GR_OK) {
            fill(frame.data, 50, i);
            st = gr_conn_send(c, &frame, 50);
        }
    }
    if (st == GR_OK && holds_slot) {
        st = gr_conn_acquire(c, GR_FRAME_BULK, 50, &frame); /* dies with a slot in its hands */
    }
    if (st != GR_OK || gr_conn_flush(c) != GR_OK || write(ready_fd, "r", 1) != 1) {
        _exit(1);
    }
    for (;;) {
        pause();
    }
}

static void kill_child(pid_t pid)
{
    int status;
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status));
}

/* Delivered before its death or after: all three frames, then the end. */
static void run_killed(enum gr_transport_kind kind, bool receive_first)
{
    int fd[2], ready[2];
    if (kind == GR_TRANSPORT_SHM) {
        make_unix_sockets(fd);
    } else {
        make_tcp_sockets(fd);
    }
    assert_int_equal(pipe(ready), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        close(fd[0]);
        live_until_killed(kind, fd[1], ready[1], receive_first);
    }
    close(fd[1]);
    close(ready[1]);
    struct gr_conn *c;
    assert_int_equal(kind == GR_TRANSPORT_SHM
                         ? gr_transport_open_shm(fd[0], true, &limits_default, 1, WAIT_MS, &c, NO_WHY)
                         : gr_transport_open_tcp(fd[0], &limits_default, 1, &c),
                     GR_OK);
    char byte;
    assert_int_equal(read(ready[0], &byte, 1), 1);
    if (!receive_first) {
        kill_child(pid);
    }
    for (uint32_t i = 0; i < 3; i++) {
        expect_filled(NULL, c, GR_FRAME_SMALL, 50, i);
    }
    struct gr_frame frame;
    if (receive_first) {
        assert_int_equal(gr_conn_recv(c, &frame), GR_AGAIN);
        struct pollfd p;
        p.fd = gr_conn_poll_fd(c, &p.events);
        assert_true(p.fd >= 0);
        kill_child(pid);
        assert_int_equal(poll(&p, 1, WAIT_MS), 1);
    }
    assert_int_equal(recv_wait(NULL, c, &frame), GR_ECLOSED);
    assert_int_equal(gr_conn_acquire(c, GR_FRAME_SMALL, 1, &frame), GR_ECLOSED);
    gr_conn_close(c);
    close(ready[0]);
}

/* A busy-polling receiver, which never asks for the poll fd, sees the death too. */
static void test_shm_killed_busy_poll(void **state)
{
    (void)state;
    struct pair p;
    struct gr_frame frame;
    pair_open(&p, GR_TRANSPORT_SHM, &limits_default);
    /* As a death looks: the socket ends, and nobody set `closed`. */
    assert_int_equal(shutdown(p.fd[1], SHUT_RDWR), 0);
    enum gr_status st = GR_AGAIN;
    for (int i = 0; i < 1000 && st == GR_AGAIN; i++) {
        st = gr_conn_recv(p.conn[0], &frame);
    }
    assert_int_equal(st, GR_ECLOSED);
    pair_close(&p);

    /* And a busy-polling sender without credit. */
    pair_open(&p, GR_TRANSPORT_SHM, &limits_default);
    assert_int_equal(shutdown(p.fd[1], SHUT_RDWR), 0);
    for (int i = 0; i < 1000; i++) {
        st = gr_conn_acquire(p.conn[0], GR_FRAME_SMALL, 1, &frame);
        if (st == GR_ECLOSED) {
            break;
        }
        if (st == GR_OK) {
            (void)!gr_conn_send(p.conn[0], &frame, 1);
        }
    }
    assert_int_equal(st, GR_ECLOSED);
    pair_close(&p);
}

static void test_killed(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        run_killed(i / 2 == 0 ? GR_TRANSPORT_SHM : GR_TRANSPORT_TCP, i % 2 == 0);
    }
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_killed), /* first: it forks, before there are threads */
        cmocka_unit_test(test_shm_corrupt_sent),
        cmocka_unit_test(test_shm_slot_twice),
        cmocka_unit_test(test_shm_corrupt_freed),
        cmocka_unit_test(test_shm_rewritten_payload),
        cmocka_unit_test(test_shm_scribbler),
        cmocka_unit_test(test_shm_bell_flood),
        cmocka_unit_test(test_shm_is_unlinked),
        cmocka_unit_test(test_shm_refused_offer),
        cmocka_unit_test(test_shm_hostile_offer),
        cmocka_unit_test(test_shm_killed_busy_poll),
    };
    gr_log_init("test_hostile_shm");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
