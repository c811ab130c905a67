/* The headline and the points of a sweep: interpolation between counts of clients, medians over repetitions, whom a
 * point is compared with, what a folder that is gone on with has and has not. */
#include "bench/crowd.h"
#include "bench/sweep/point.h"
#include "tests/unit/log_capture.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

static void near(double a, double b)
{
    if (!(fabs(a - b) < 1e-9 * (1.0 + fabs(b)))) {
        fail_msg("%.12g is not %.12g", a, b);
    }
}

/* A pass of 2 ms and 0.1 ms for each session more is a straight line of 1 / speed: it is met between any two points. */
static void test_interpolation(void **state)
{
    const struct gr_capacity_point point[] = {
        {1, 1000.0 / 2.1}, {8, 1000.0 / 2.8}, {64, 1000.0 / 8.4}, {128, 1000.0 / 14.8}};
    (void)state;
    for (int n = 2; n < 128; n += 7) {
        const struct gr_capacity c = gr_capacity_at(point, 4, 1000.0 / (2.0 + 0.1 * n));
        assert_int_equal(c.kind, GR_CAPACITY_BETWEEN);
        near(c.n_client, n);
    }
    struct gr_capacity c = gr_capacity_at(point, 4, 500.0);
    assert_true(c.kind == GR_CAPACITY_BELOW && c.n_client == 1.0);
    c = gr_capacity_at(point, 4, 10.0);
    assert_true(c.kind == GR_CAPACITY_AT_LEAST && c.n_client == 128.0);
    c = gr_capacity_at(point, 4, 1000.0 / 14.8);
    assert_true(c.kind == GR_CAPACITY_AT_LEAST && c.n_client == 128.0);
    assert_int_equal(gr_capacity_at(point, 0, 10.0).kind, GR_CAPACITY_NONE);
}

/* Speeds that go below and up again: the first time counts. */
static void test_first_crossing(void **state)
{
    const struct gr_capacity_point point[] = {{1, 200.0}, {8, 50.0}, {16, 150.0}};
    (void)state;
    const struct gr_capacity c = gr_capacity_at(point, 3, 100.0);
    assert_int_equal(c.kind, GR_CAPACITY_BETWEEN);
    near(c.n_client, 1.0 + 7.0 * (1.0 / 100 - 1.0 / 200) / (1.0 / 50 - 1.0 / 200));
}

/* ---- folders ---- */

static struct gr_store store;
static char dir[] = "/tmp/graft-sweep-XXXXXX";

static void add_run(const char *fleet, const char *mode, int n_session, int repeat, double speed)
{
    const struct gr_run_id id = {.fleet = fleet, .mode = mode, .n_session = n_session, .repeat = repeat};
    json_t *row = json_pack("{s:f, s:f, s:f, s:n, s:s}", "tok/s", speed, "tok/s a client", speed / n_session,
                            "round ms", 2.0, "acceptance", "texts", "00");
    assert_int_equal(gr_store_add(&store, &id, speed > 0.0 ? row : NULL, "no room"), GR_OK);
    json_decref(row);
}

static void open_with(const char *commit)
{
    json_t *about = json_pack("{s:s, s:s}", "commit", commit, "card", "H100");
    assert_int_equal(gr_store_open(dir, about, &store), GR_OK);
    json_decref(about);
}

static bool is_done(const char *fleet, const char *mode, int n_session, int repeat)
{
    const struct gr_run_id id = {.fleet = fleet, .mode = mode, .n_session = n_session, .repeat = repeat};
    return gr_store_row(&store, &id) != NULL;
}

/* What was measured by the same build on the same machine is done; what failed, or comes from elsewhere, is not. */
static void test_resume(void **state)
{
    (void)state;
    open_with("a");
    add_run("split h1 t1 d1 tp1", "trees", 8, 0, 100.0);
    add_run("split h1 t1 d1 tp1", "trees", 8, 1, 0.0);
    gr_store_close(&store);
    open_with("a");
    assert_true(is_done("split h1 t1 d1 tp1", "trees", 8, 0));
    assert_false(is_done("split h1 t1 d1 tp1", "trees", 8, 1) || is_done("split h1 t1 d1 tp1", "trees", 1, 0) ||
                 is_done("split h1 t1 d1 tp1", "plain", 8, 0) || is_done("whole h1 t2 tp1", "trees", 8, 0));
    const struct gr_run_id failed = {.fleet = "split h1 t1 d1 tp1", .mode = "trees", .n_session = 8, .repeat = 1};
    assert_string_equal(gr_store_failure(&store, &failed), "no room");
    add_run("split h1 t1 d1 tp1", "trees", 8, 1, 110.0); /* tried again */
    assert_true(is_done("split h1 t1 d1 tp1", "trees", 8, 1) && gr_store_failure(&store, &failed) == NULL);
    gr_store_close(&store);
    open_with("b");
    assert_false(is_done("split h1 t1 d1 tp1", "trees", 8, 0));
    gr_store_close(&store);
    assert_int_equal(gr_store_open(dir, NULL, &store), GR_OK); /* to look at: the last that wrote */
    assert_string_equal(json_string_value(json_object_get(gr_store_about(&store), "commit")), "b");
    gr_store_close(&store);
}

static void append(const char *text)
{
    char path[sizeof(dir) + 16];
    snprintf(path, sizeof(path), "%s/runs.jsonl", dir);
    FILE *f = fopen(path, "ae");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

/* A sweep that was killed while it wrote: the line is passed over, and the next one stands on its own. */
static void test_cut_line(void **state)
{
    struct log_capture cap;
    (void)state;
    append("{\"by\":\"00\",\"fleet\":\"spl");
    log_capture_begin(&cap);
    open_with("a");
    assert_non_null(strstr(log_capture_end(&cap), "cut short"));
    assert_true(is_done("split h1 t1 d1 tp1", "trees", 8, 1));
    add_run("split h1 t1 d1 tp1", "trees", 1, 0, 50.0);
    gr_store_close(&store);
    log_capture_begin(&cap);
    open_with("a");
    assert_string_equal(log_capture_end(&cap), ""); /* nothing is left of it */
    assert_true(is_done("split h1 t1 d1 tp1", "trees", 1, 0) && is_done("split h1 t1 d1 tp1", "trees", 8, 1));
    gr_store_close(&store);
}

/* Another program's file is not written to. */
static void test_other_file(void **state)
{
    struct log_capture cap;
    char path[sizeof(dir) + 16];
    (void)state;
    open_with("a");
    gr_store_close(&store);
    append("{\"rows\": 3}\n");
    json_t *about = json_object();
    log_capture_begin(&cap);
    assert_int_equal(gr_store_open(dir, about, &store), GR_EFORMAT);
    const char *log = log_capture_end(&cap);
    assert_true(log_capture_n_line(log) == 1 && strstr(log, "no run of a sweep") != NULL);
    json_decref(about);
    gr_store_close(&store);
    snprintf(path, sizeof(path), "%s/runs.jsonl", dir);
    assert_int_equal(unlink(path), 0);
}

static void test_two_at_once(void **state)
{
    static struct gr_store other;
    struct log_capture cap;
    (void)state;
    open_with("a");
    json_t *about = json_pack("{s:s}", "commit", "a");
    log_capture_begin(&cap);
    assert_int_equal(gr_store_open(dir, about, &other), GR_EIO);
    const char *log = log_capture_end(&cap);
    assert_true(log_capture_n_line(log) == 1 && strstr(log, "another sweep") != NULL);
    json_decref(about);
    gr_store_close(&other);
    gr_store_close(&store);
}

/* Medians, extremes, and whom a point is held against: as many devices, hosts and clients, and no others. */
static void test_points(void **state)
{
    static struct gr_point point[5];
    const struct gr_fleet split = {.n_host = 1, .n_target = 1, .n_draft = 1, .tp = 1};
    const struct gr_fleet two = {.whole = true, .n_host = 1, .n_target = 2, .tp = 1};
    const struct gr_fleet group = {.whole = true, .n_host = 1, .n_target = 1, .tp = 2};
    const struct gr_fleet four = {.whole = true, .n_host = 1, .n_target = 4, .tp = 1};
    (void)state;
    open_with("points");
    for (int i = 0; i < 3; i++) {
        add_run("split h1 t1 d1 tp1", "trees", 8, i, 100.0 + 10.0 * i);
    }
    add_run("whole h1 t2 tp1", "plain", 8, 0, 200.0);
    add_run("whole h1 t1 tp2", "plain", 8, 0, 220.0);
    add_run("whole h1 t4 tp1", "plain", 8, 0, 900.0);
    gr_point_read(&store, &split, GR_POINT_SPLIT, 8, 3, &point[0]);
    gr_point_read(&store, &two, GR_POINT_PLAIN, 8, 3, &point[1]);
    gr_point_read(&store, &group, GR_POINT_PLAIN, 8, 3, &point[2]);
    gr_point_read(&store, &four, GR_POINT_PLAIN, 8, 3, &point[3]);
    gr_point_read(&store, &split, GR_POINT_SPLIT, 1000, 3, &point[4]);
    assert_true(point[0].n_run == 3 && point[0].why[0] == '\0');
    near(point[0].speed, 110.0);
    near(point[0].low, 100.0);
    near(point[0].high, 120.0);
    near(gr_point_per_device(&point[0]), 55.0);
    assert_true(isnan(point[0].acceptance));
    assert_true(point[1].n_run == 1 && strcmp(point[1].why, "not run yet") == 0);
    assert_string_equal(point[4].why, "1000 sessions: 1 target has room for 256");
    assert_ptr_equal(gr_point_rival(point, 5, &point[0], GR_POINT_PLAIN), &point[2]);
    assert_null(gr_point_rival(point, 5, &point[0], GR_POINT_COLOCATED));
    gr_store_close(&store);
}

/* ---- what is measured of a crowd ---- */

/* Only what came while all of them decoded counts. */
static void test_window(void **state)
{
    uint64_t first[] = {1000000000, 2000000000, 3000000000}, second[] = {1500000000, 2500000000, 9000000000};
    const struct gr_crowd_session s[] = {{.when_ns = first, .n_token = 3}, {.when_ns = second, .n_token = 3}};
    (void)state;
    const struct gr_crowd_window w = gr_crowd_window(s, 2);
    near(w.seconds, 1.5);
    near(w.tokens, 3.0);
    near(w.all_seconds, 8.0);
    near(w.all_tokens, 5.0);
    near(w.least, 2.0 / 7.5);
    assert_int_equal(w.n_waited, 0);
}

#define N_CROWD 8
#define N_TOKEN 400

/* A crowd of N_CROWD sessions, each of 100 tokens/s; the last one's worker begins late_ns after the others', and that
 * one was asked for asked_ns after them. */
static struct gr_crowd_window window_of_late(uint64_t late_ns, uint64_t asked_ns)
{
    static uint64_t when[N_CROWD][N_TOKEN];
    struct gr_crowd_session s[N_CROWD];
    for (int i = 0; i < N_CROWD; i++) {
        s[i] = (struct gr_crowd_session){.when_ns = when[i],
                                         .n_token = N_TOKEN,
                                         .metrics = {.open_ns = 990000000 + (i == N_CROWD - 1 ? asked_ns : 0)}};
        for (uint64_t k = 0; k < N_TOKEN; k++) {
            when[i][k] = 1000000000 + 10000000 * k + (i == N_CROWD - 1 ? late_ns : 0);
        }
    }
    return gr_crowd_window(s, N_CROWD);
}

/* A worker with a cold start of two seconds: speed is within 2 % of what the crowd has when all run, not 8 / 6 of its
 * tokens' time. One that begins when the others are through was not let in before, and that is said. */
static void test_cold_start(void **state)
{
    (void)state;
    const struct gr_crowd_window w = window_of_late(2000000000, 0);
    assert_true(w.tokens / w.seconds > 0.98 * 800.0 && w.tokens / w.seconds < 1.02 * 800.0);
    assert_true(w.all_tokens / w.all_seconds < 0.7 * 800.0);
    assert_int_equal(w.n_waited, 0);
    assert_int_equal(window_of_late(5000000000, 0).n_waited, 1);
    assert_int_equal(window_of_late(5000000000, 4900000000).n_waited, 0);
}

static int begin(void **state)
{
    (void)state;
    return mkdtemp(dir) != NULL ? 0 : -1;
}

static int end(void **state)
{
    char path[sizeof(dir) + 16];
    (void)state;
    snprintf(path, sizeof(path), "%s/runs.jsonl", dir);
    (void)unlink(path);
    snprintf(path, sizeof(path), "%s/lock", dir);
    (void)unlink(path);
    return rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_interpolation), cmocka_unit_test(test_first_crossing), cmocka_unit_test(test_resume),
        cmocka_unit_test(test_cut_line),      cmocka_unit_test(test_other_file),     cmocka_unit_test(test_two_at_once),
        cmocka_unit_test(test_points),        cmocka_unit_test(test_window),         cmocka_unit_test(test_cold_start),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
