/* graft-bench transport with rows on a device, over devices in memory: what begins in one end's memory ends in the
 * other's, whichever way frames take, and the way's name. */
#include "tests/transport/test_far.h"
#include "tests/transport/verbs_pair.h"

#include "bench/exchange.h"
#include "common/base/log.h"

#include <pthread.h>
#include <string.h>

enum { N = 30, ROWS_BYTES = 16 * GR_FAR_PAGE_BYTES, BULK_BYTES = 60000 };

static struct test_far far[2];
static struct gr_rows rows[2];

static void open_rows(void)
{
    for (int i = 0; i < 2; i++) {
        test_far_init(&far[i], i == 0 ? "far:0" : "far:1", true);
        rows[i].far = &far[i].memory;
        assert_int_equal(far[i].memory.take(&far[i], ROWS_BYTES, &rows[i].at), GR_OK);
        memset(test_far_at(rows[i].at), 0, ROWS_BYTES);
    }
    fill(test_far_at(rows[0].at), ROWS_BYTES, 7);
}

static void close_rows(void)
{
    gr_verbs_forget_peers();
    for (int i = 0; i < 2; i++) {
        far[i].memory.give(&far[i], rows[i].at);
    }
}

static void *serve(void *data)
{
    struct pair *p = data;
    bool more = true;
    GR_ASSERT(gr_far_serve(p->conn[1], &rows[1], &more) == GR_OK && !more);
    drop(p, 1);
    return NULL;
}

/* Rows go there and, since the far end sends what it has, the same come back. */
static void expect_rows_arrive(struct pair *p, const char *path)
{
    pthread_t thread;
    char text[48];
    double sample[N], seconds = 0;
    struct gr_end e = {.conn = p->conn[0], .rows = rows[0]};
    const struct gr_step s = {.n = N, .up = BULK_BYTES, .down = 100, .bulk = BULK_BYTES, .each = true};
    gr_rows_path(&rows[0], p->conn[0], text);
    assert_string_equal(text, path);
    assert_int_equal(pthread_create(&thread, NULL, serve, p), 0);
    assert_int_equal(gr_near_run(&e, &s, sample, &seconds), GR_OK);
    assert_int_equal(gr_near_bye(&e, false), GR_OK);
    pthread_join(thread, NULL);
    drop(p, 0);
    const size_t n = BULK_BYTES - GR_BULK_HEAD_BYTES;
    uint8_t whole[ROWS_BYTES];
    fill(whole, ROWS_BYTES, 7);
    assert_memory_equal(test_far_at(rows[0].at), whole, ROWS_BYTES);
    assert_memory_equal(test_far_at(rows[1].at), whole, n);
    assert_int_equal(*test_far_at(rows[1].at + n), 0); /* not one byte more */
}

static void test_ways(void **state)
{
    (void)state;
    static const struct {
        int dmabuf_errno;
        bool peer_memory, two_sided;
        const char *path;
    } ways[] = {
        {0, false, false, "far:0 by dma-buf"},
        {95, true, false, "far:0 by peer memory"},
        {95, false, false, "far:0 by staging"},
        {0, false, true, "far:0 by dma-buf out, staging in"},
    };
    for (size_t i = 0; i < GR_ARRAY_LEN(ways); i++) {
        struct pair p;
        open_rows();
        fake_knobs.dmabuf_errno = ways[i].dmabuf_errno;
        fake_knobs.peer_memory = ways[i].peer_memory;
        pair_verbs[0].two_sided = ways[i].two_sided;
        pair_verbs[0].far = rows[0].far;
        pair_verbs[1].far = rows[1].far;
        open_pair(&p);
        expect_rows_arrive(&p, ways[i].path);
        close_rows();
    }
}

/* Other transports know nothing of such memory. */
static void test_tcp(void **state)
{
    (void)state;
    struct pair p;
    open_rows();
    pair_open(&p, GR_TRANSPORT_TCP, &limits_default);
    expect_rows_arrive(&p, "far:0 by staging");
    close_rows();
}

static void test_host(void **state)
{
    (void)state;
    struct pair p;
    char text[48];
    const struct gr_rows none = {.far = NULL};
    open_pair(&p);
    gr_rows_path(&none, p.conn[0], text);
    assert_string_equal(text, "host");
    pair_close(&p);
}

int main(void)
{
    gr_log_init("test_bench_rows");
#define CASE(f) cmocka_unit_test_setup_teardown(f, verbs_set_up, verbs_nothing_left)
    const struct CMUnitTest tests[] = {CASE(test_ways), CASE(test_tcp), CASE(test_host)};
    return cmocka_run_group_tests_name("bench rows", tests, NULL, NULL);
}
