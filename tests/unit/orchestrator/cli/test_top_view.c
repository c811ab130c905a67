/* What `graft top` shows of a snapshot: columns by width, order, filter, and names that would steer a terminal. */
#include "orchestrator/cli/top_view.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

static struct gr_msg_listed_worker worker[2];
static struct gr_msg_pong pong[2];
static struct gr_listing_session before_rows[2], now_rows[3];
static struct gr_listing before, now;
static struct gr_top_snapshot snapshot;
static struct gr_top_view view;

static struct gr_listing_session session(uint64_t id, uint32_t state, uint32_t n_token)
{
    return (struct gr_listing_session){.id = id, .is = {.state = state, .n_token = n_token, .target = 1, .drafter = 2}};
}

static int begin(void **state)
{
    (void)state;
    worker[0] = (struct gr_msg_listed_worker){.role = GR_ROLE_TARGET,
                                              .worker = 1,
                                              .n_slot = 8,
                                              .n_active = 2,
                                              .n_session = 3,
                                              .host = "alpha",
                                              .model = "big"};
    worker[1] = (struct gr_msg_listed_worker){
        .role = GR_ROLE_DRAFT, .worker = 2, .draining = 1, .host = "beta", .rtt_ns = 1500000};
    pong[0] = (struct gr_msg_pong){.worker = 1, .n_block = 200, .n_free_block = 50, .round_ns = 12340000};
    pong[1] = (struct gr_msg_pong){0};
    before_rows[0] = session(0xa, 3, 100);
    before_rows[1] = session(0xb, 3, 500);
    now_rows[0] = session(0xa, 3, 140);
    now_rows[1] = session(0xb, 4, 500);
    now_rows[2] = session(0xc, 1, 7);
    now_rows[0].is.n_tree = 10;
    now_rows[0].is.n_hit_token = 15;
    before = (struct gr_listing){.session = before_rows, .n_session = 2};
    now = (struct gr_listing){.session = now_rows, .n_session = 3, .worker = worker, .n_worker = 2};
    snapshot = (struct gr_top_snapshot){.now = &now, .before = &before, .pong = pong, .between_ns = 2000000000};
    return 0;
}

static int end(void **state)
{
    (void)state;
    gr_top_view_finish(&view);
    return 0;
}

static void make(enum gr_top_sort sort, int width, const char *pattern)
{
    const struct gr_top_settings settings = {.sort = sort, .width = width, .pattern = pattern};
    assert_int_equal(gr_top_view_make(&snapshot, &settings, &view), GR_OK);
}

static const struct gr_top_line *row(enum gr_top_kind kind, int n)
{
    for (int i = 0; i < view.n; i++) {
        if (view.line[i].kind == kind && n-- == 0) {
            return &view.line[i];
        }
    }
    return NULL;
}

static void test_whole(void **state)
{
    (void)state;
    make(GR_TOP_BY_SPEED, 0, NULL);
    assert_int_equal(view.n, 1 + 1 + 2 + 1 + 3);
    assert_string_equal(view.line[0].text, "targets 1, drafters 1; sessions 3: 1 running, 1 waiting, 1 idle; "
                                           "20.0 tokens/s, acceptance 2.50");
    now.journal_failed = true;
    make(GR_TOP_BY_SPEED, 0, NULL);
    assert_true(strncmp(view.line[0].text, "the journal has failed; targets 1,", 34) == 0);
    now.journal_failed = false;
    assert_non_null(strstr(row(GR_TOP_WORKER, 0)->text, "serving           2      3      8   75%     12.34"));
    assert_non_null(strstr(row(GR_TOP_WORKER, 1)->text, "drained           0      0      -     -         -     1.50"));
    assert_non_null(
        strstr(row(GR_TOP_SESSION, 0)->text, "000000000000000a  running       -      140      20.0    2.50"));
    assert_non_null(strstr(row(GR_TOP_SESSION, 0)->text, "big"));
}

/* A session that was not there before has no speed; one that stood still has 0. */
static void test_speed(void **state)
{
    (void)state;
    assert_true(gr_top_speed(&snapshot, 0) == 20.0);
    assert_true(gr_top_speed(&snapshot, 1) == 0.0);
    assert_true(gr_top_speed(&snapshot, 2) < 0);
    before_rows[0].is.n_token = 141; /* a turn was cut */
    assert_true(gr_top_speed(&snapshot, 0) < 0);
    snapshot.before = NULL;
    assert_true(gr_top_speed(&snapshot, 1) < 0);
}

/* Of the rounds since the look before; of all where none came since, or nobody looked. */
static void test_round(void **state)
{
    (void)state;
    before_rows[0].is.n_round = 10;
    before_rows[0].is.wait_ns = before_rows[0].is.verify_ns = 100000000;
    now_rows[0].is.n_round = 30;
    now_rows[0].is.wait_ns = 140000000;
    now_rows[0].is.verify_ns = 200000000;
    now_rows[0].is.draft_ns = 10000000;
    struct gr_top_round round = gr_top_round(&snapshot, 0);
    assert_int_equal(round.n, 20);
    assert_true(fabs(round.wait_ms - 2.0) < 1e-9 && fabs(round.verify_ms - 5.0) < 1e-9);
    assert_true(fabs(round.draft_ms - 0.5) < 1e-9 && round.host_ms == 0.0);
    make(GR_TOP_BY_SPEED, 0, NULL);
    assert_non_null(strstr(row(GR_TOP_SESSION, 0)->text, "    0.50      2.00       5.00      0.00"));
    snapshot.before = NULL;
    assert_int_equal(gr_top_round(&snapshot, 0).n, 30);
    assert_int_equal(gr_top_round(&snapshot, 1).n, 0);
    now_rows[2].is.place = 4;
    make(GR_TOP_BY_SPEED, 0, NULL);
    assert_non_null(strstr(row(GR_TOP_SESSION, 2)->text, "waiting       4        7"));
}

static void ordered(enum gr_top_sort sort, uint64_t first, uint64_t second, uint64_t third)
{
    make(sort, 0, NULL);
    assert_int_equal(row(GR_TOP_SESSION, 0)->subject, first);
    assert_int_equal(row(GR_TOP_SESSION, 1)->subject, second);
    assert_int_equal(row(GR_TOP_SESSION, 2)->subject, third);
}

static void test_order(void **state)
{
    (void)state;
    now_rows[2].is.idle_ns = 5;
    now_rows[0].is.target = 3;
    ordered(GR_TOP_BY_SPEED, 0xa, 0xb, 0xc);
    ordered(GR_TOP_BY_TOKENS, 0xb, 0xa, 0xc);
    ordered(GR_TOP_BY_ACCEPTANCE, 0xa, 0xb, 0xc);
    ordered(GR_TOP_BY_IDLE, 0xc, 0xa, 0xb);
    ordered(GR_TOP_BY_TARGET, 0xb, 0xc, 0xa);
}

/* At every width no line is longer, and a column is there whole or not at all. */
static void test_widths(void **state)
{
    (void)state;
    for (int width = 1; width < 200; width++) {
        make(GR_TOP_BY_SPEED, width, NULL);
        for (int i = 0; i < view.n; i++) {
            assert_true(strlen(view.line[i].text) <= (size_t)width);
        }
    }
    make(GR_TOP_BY_SPEED, 80, NULL);
    assert_null(strstr(row(GR_TOP_HEADING, 1)->text, "rounds"));
    assert_non_null(strstr(row(GR_TOP_HEADING, 1)->text, "drafter"));
    make(GR_TOP_BY_SPEED, 27, NULL);
    assert_string_equal(row(GR_TOP_SESSION, 0)->text, "000000000000000a  running ");
}

static void test_filter(void **state)
{
    (void)state;
    make(GR_TOP_BY_SPEED, 0, "ALPHA");
    assert_int_equal(row(GR_TOP_WORKER, 0)->subject, 1);
    assert_null(row(GR_TOP_WORKER, 1));
    assert_null(row(GR_TOP_SESSION, 0));
    make(GR_TOP_BY_SPEED, 20, "big"); /* what a narrow terminal leaves out still matches */
    assert_non_null(row(GR_TOP_SESSION, 2));
    make(GR_TOP_BY_SPEED, 0, "");
    assert_non_null(row(GR_TOP_WORKER, 1));
}

static void test_hostile_names(void **state)
{
    (void)state;
    snprintf(worker[0].host, sizeof(worker[0].host), "a\x1b[2J\r\n\xff\xc3\xa9");
    snprintf(worker[0].model, sizeof(worker[0].model), "\x1b]0;title\x07\xc2\x9b");
    make(GR_TOP_BY_SPEED, 0, NULL);
    for (int i = 0; i < view.n; i++) {
        for (const char *c = view.line[i].text; *c != '\0'; c++) {
            assert_true(*c >= 0x20 && *c < 0x7f);
        }
    }
    assert_non_null(strstr(row(GR_TOP_WORKER, 0)->text, "a\\x1b[2J"));
}

static void test_nobody(void **state)
{
    (void)state;
    now.n_worker = now.n_session = 0;
    make(GR_TOP_BY_TOKENS, 80, NULL);
    assert_int_equal(view.n, 3);
}

static void test_json(void **state)
{
    (void)state;
    json_t *root = gr_top_json(&snapshot);
    assert_non_null(root);
    const json_t *w = json_object_get(root, "workers");
    const json_t *s = json_object_get(root, "sessions");
    assert_int_equal(json_integer_value(json_object_get(json_array_get(w, 0), "free_kv_blocks")), 50);
    assert_null(json_object_get(json_array_get(w, 1), "kv_blocks"));
    assert_true(json_real_value(json_object_get(json_array_get(s, 0), "tokens_per_second")) == 20.0);
    assert_true(json_is_null(json_object_get(json_array_get(s, 2), "tokens_per_second")));
    assert_int_equal(json_integer_value(json_object_get(json_object_get(root, "summary"), "waiting")), 1);
    json_decref(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_whole, begin, end),
        cmocka_unit_test_setup_teardown(test_speed, begin, end),
        cmocka_unit_test_setup_teardown(test_round, begin, end),
        cmocka_unit_test_setup_teardown(test_order, begin, end),
        cmocka_unit_test_setup_teardown(test_widths, begin, end),
        cmocka_unit_test_setup_teardown(test_filter, begin, end),
        cmocka_unit_test_setup_teardown(test_hostile_names, begin, end),
        cmocka_unit_test_setup_teardown(test_nobody, begin, end),
        cmocka_unit_test_setup_teardown(test_json, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
