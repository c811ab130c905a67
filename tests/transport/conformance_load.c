/* The suite's cases in which both ends are busy at once, a thread each. */
#include "tests/transport/conformance.h"

#include "common/base/clock.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

/* ---- soak ---- */

#define N_SOAK 4000 /* frames a direction; GRAFT_TEST_SOAK is another number */
#define N_HOLD 3

struct soak_end {
    struct gr_conn *conn;
    uint32_t random, n_frame; /* n_frame: to send, and to receive */
    uint32_t n_sent[GR_N_FRAME_CLASS], n_received[GR_N_FRAME_CLASS];
    struct gr_frame hold[N_HOLD];
    uint32_t hold_seed[N_HOLD];
    int n_hold;
    const char *failure;
};

static uint32_t soak_random(struct soak_end *e, uint32_t below)
{
    e->random = e->random * 1103515245u + 12345u;
    return (e->random >> 8) % below;
}

static bool soak_done(const struct soak_end *e, const uint32_t n[GR_N_FRAME_CLASS])
{
    return n[0] + n[1] >= e->n_frame;
}

/* One frame, if there is credit. true: progress. */
static bool soak_send(struct soak_end *e)
{
    enum gr_frame_class class = soak_random(e, 8) == 0 ? GR_FRAME_BULK : GR_FRAME_SMALL;
    uint32_t max = class == GR_FRAME_BULK ? limits_default.bulk_bytes_max : 600;
    uint32_t bytes = soak_random(e, max + 1);
    struct gr_frame frame;
    enum gr_status st = gr_conn_acquire(e->conn, class, bytes, &frame);
    if (st != GR_OK) {
        e->failure = st == GR_AGAIN ? e->failure : "acquire";
        return false;
    }
    if (soak_random(e, 16) == 0) {
        gr_conn_abandon(e->conn, &frame);
        return true;
    }
    fill_frame(e->conn, &frame, bytes, e->n_sent[class]++);
    if (gr_conn_send(e->conn, &frame, bytes) != GR_OK) {
        e->failure = "send";
    }
    if (soak_random(e, 4) == 0 && gr_conn_flush(e->conn) < 0) {
        e->failure = "flush";
    }
    return true;
}

static void soak_release(struct soak_end *e, int i)
{
    struct gr_frame *f = &e->hold[i];
    if (!frame_is_filled(e->conn, f, e->hold_seed[i])) {
        e->failure = "a held frame changed";
    }
    gr_conn_release(e->conn, f);
    e->n_hold--;
    e->hold[i] = e->hold[e->n_hold];
    e->hold_seed[i] = e->hold_seed[e->n_hold];
}

static bool soak_recv(struct soak_end *e)
{
    struct gr_frame frame;
    enum gr_status st = gr_conn_recv(e->conn, &frame);
    if (st != GR_OK) {
        e->failure = st == GR_AGAIN ? e->failure : "recv";
        return false;
    }
    uint32_t seed = e->n_received[frame.class]++;
    if (!frame_is_filled(e->conn, &frame, seed)) {
        e->failure = "wrong payload";
    }
    if (e->n_hold == N_HOLD) {
        soak_release(e, (int)soak_random(e, N_HOLD));
    }
    e->hold[e->n_hold] = frame;
    e->hold_seed[e->n_hold++] = seed;
    return true;
}

static void *soak_run(void *data)
{
    struct soak_end *e = data;
    while (e->failure == NULL && !(soak_done(e, e->n_sent) && soak_done(e, e->n_received))) {
        bool progress = !soak_done(e, e->n_sent) && soak_send(e);
        progress = soak_recv(e) || progress;
        if (progress || e->failure != NULL) {
            continue;
        }
        while (e->n_hold > 0) {
            soak_release(e, 0); /* who sleeps on credits must not sit on the other's */
        }
        if (!wait_conns(&e->conn, 1)) {
            e->failure = "nothing happened any more";
        }
    }
    while (e->n_hold > 0) {
        soak_release(e, 0);
    }
    while (e->failure == NULL && gr_conn_flush(e->conn) == GR_AGAIN) {
        if (!wait_conns(&e->conn, 1)) {
            e->failure = "could not flush";
        }
    }
    return NULL;
}

void test_soak(void **state)
{
    struct pair p;
    pair_open(&p, kind_of(state), &limits_default);
    const char *n = getenv("GRAFT_TEST_SOAK");
    const uint32_t n_frame = n != NULL ? (uint32_t)atoi(n) : N_SOAK;
    struct soak_end e[2] = {{.conn = p.conn[0], .random = 1, .n_frame = n_frame},
                            {.conn = p.conn[1], .random = 2, .n_frame = n_frame}};
    pthread_t thread[2];
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_create(&thread[i], NULL, soak_run, &e[i]), 0);
    }
    for (int i = 0; i < 2; i++) {
        pthread_join(thread[i], NULL);
    }
    for (int i = 0; i < 2; i++) {
        if (e[i].failure != NULL) {
            fail_msg("end %d: %s", i, e[i].failure);
        }
        assert_int_equal(e[i].n_sent[GR_FRAME_SMALL], e[1 - i].n_received[GR_FRAME_SMALL]);
        assert_int_equal(e[i].n_sent[GR_FRAME_BULK], e[1 - i].n_received[GR_FRAME_BULK]);
        assert_int_equal(p.conn[i]->stats.bytes_sent, p.conn[1 - i]->stats.bytes_received);
    }
    pair_close(&p);
}

/* ---- the classes' order, looked for without a pause ---- */

#define N_QUESTION 5000

/* A receiver that looks all the time meets the moment between two frames of the sender. Where both have one CPU it
 * would look in vain for the rest of its time slice: so now and then it lets others run. */
static enum gr_status recv_busy(struct gr_conn *c, struct gr_frame *frame_out)
{
    const uint64_t deadline = gr_clock_ns() + WAIT_MS * GR_MS;
    enum gr_status st = GR_AGAIN;
    for (uint32_t n = 1; st == GR_AGAIN && (n % 4096 != 0 || gr_clock_ns() < deadline); n++) {
        st = gr_conn_recv(c, frame_out);
        if (n % 256 == 0) {
            sched_yield();
        }
    }
    return st;
}

static bool send_one(struct gr_conn *c, enum gr_frame_class class)
{
    struct gr_frame frame;
    return acquire_wait(c, class, 64, &frame) == GR_OK && gr_conn_send(c, &frame, 64) == GR_OK;
}

/* Answers each small frame with a small and a bulk one. Ends with NULL, or with what went wrong. */
static void *answer_questions(void *data)
{
    struct gr_conn *c = data;
    struct gr_frame frame;
    for (int i = 0; i < N_QUESTION; i++) {
        if (recv_busy(c, &frame) != GR_OK) {
            return "no question came";
        }
        gr_conn_release(c, &frame);
        if (!send_one(c, GR_FRAME_SMALL) || !send_one(c, GR_FRAME_BULK) || gr_conn_flush(c) < 0) {
            return "no answer could be sent";
        }
    }
    return NULL;
}

void test_bulk_never_first(void **state)
{
    struct pair p;
    pthread_t thread;
    void *failure;
    pair_open(&p, kind_of(state), &limits_default);
    assert_int_equal(pthread_create(&thread, NULL, answer_questions, p.conn[1]), 0);
    for (int i = 0; i < N_QUESTION; i++) {
        assert_true(send_one(p.conn[0], GR_FRAME_SMALL));
        assert_int_equal(gr_conn_flush(p.conn[0]), GR_OK);
        for (int k = 0; k < GR_N_FRAME_CLASS; k++) { /* small, then bulk */
            struct gr_frame frame;
            assert_int_equal(recv_busy(p.conn[0], &frame), GR_OK);
            assert_int_equal(frame.class, k);
            gr_conn_release(p.conn[0], &frame);
        }
    }
    pthread_join(thread, &failure);
    assert_null(failure);
    pair_close(&p);
}
