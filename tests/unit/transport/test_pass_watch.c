/* When a computation is taken to have hung. */
#include "transport/worker/pass_watch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

/* Looks as a loop does that is woken in time. Returns after how many seconds a pass has hung; 0: not within n_s. */
static uint64_t looks(struct gr_pass_watch *w, uint64_t n_row, uint64_t begin_ns, uint64_t n_s)
{
    gr_pass_watch_begin(w, n_row, begin_ns);
    for (uint64_t s = 1; s <= n_s; s++) {
        assert_int_equal(gr_pass_watch_due_ns(w), begin_ns + (s - 1) * GR_S + GR_PASS_LOOK_NS);
        if (gr_pass_watch_look(w, begin_ns + s * GR_S)) {
            return s;
        }
    }
    return 0;
}

static void test_limit(void **state)
{
    (void)state;
    struct gr_pass_watch w = {.limit_ns = 120 * GR_S};
    gr_pass_watch_know(&w, 1, GR_MS);
    assert_int_equal(looks(&w, 1, 5, 1000), 121);
    struct gr_pass_watch none = {.longest_ns = 1, .longest_row = 1};
    gr_pass_watch_begin(&none, 1, 5);
    assert_int_equal(gr_pass_watch_due_ns(&none), UINT64_MAX);
    assert_false(gr_pass_watch_look(&none, 5 + 1000 * GR_S));
}

/* Nothing is known of how long passes are: the first one may be of a large model. */
static void test_the_first_pass(void **state)
{
    (void)state;
    struct gr_pass_watch w = {.limit_ns = 10 * GR_S};
    assert_int_equal(looks(&w, 1, 0, 1000), 10 * GR_PASS_LONGER + 1);
}

/* Where passes are long, one may be much longer. */
static void test_longer_passes(void **state)
{
    (void)state;
    struct gr_pass_watch w = {.limit_ns = 120 * GR_S};
    assert_int_equal(looks(&w, 256, 0, 60), 0);
    gr_pass_watch_end(&w, 60 * GR_S);
    assert_int_equal(looks(&w, 256, 100 * GR_S, 10), 0);
    gr_pass_watch_end(&w, 110 * GR_S); /* the longest is what counts, not the last */
    assert_int_equal(looks(&w, 256, 200 * GR_S, 5000), 60 * GR_PASS_LONGER + 1);
}

/* Many prompts may come at once, and all of them go into one pass. */
static void test_more_rows(void **state)
{
    (void)state;
    struct gr_pass_watch w = {.limit_ns = 120 * GR_S};
    gr_pass_watch_know(&w, 256, 2 * GR_S);
    assert_int_equal(gr_pass_watch_allowed_ns(&w), 120 * GR_S);
    assert_int_equal(looks(&w, 65 * 256, 0, 2600), 0);
    assert_int_equal(gr_pass_watch_allowed_ns(&w), (uint64_t)66 * 2 * GR_PASS_LONGER * GR_S);
    gr_pass_watch_end(&w, 2600 * GR_S);
    gr_pass_watch_begin(&w, 1, 3000 * GR_S); /* how long a row takes differs: fewer are not held to less */
    assert_int_equal(gr_pass_watch_allowed_ns(&w), (uint64_t)2600 * GR_PASS_LONGER * GR_S);
}

/* What was stopped together with who looks has not run meanwhile. */
static void test_a_judge_that_slept(void **state)
{
    (void)state;
    struct gr_pass_watch w = {.limit_ns = 120 * GR_S};
    gr_pass_watch_know(&w, 1, GR_MS);
    gr_pass_watch_begin(&w, 1, 0);
    assert_false(gr_pass_watch_look(&w, 10000 * GR_S));
    assert_int_equal(gr_pass_watch_due_ns(&w), 10001 * GR_S);
    gr_pass_watch_end(&w, 20000 * GR_S);
    assert_true(w.longest_ns <= 2 * GR_PASS_LOOK_NS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_limit), cmocka_unit_test(test_the_first_pass),
                                       cmocka_unit_test(test_longer_passes), cmocka_unit_test(test_more_rows),
                                       cmocka_unit_test(test_a_judge_that_slept)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
