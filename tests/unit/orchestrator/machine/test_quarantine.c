/* The quarantine of workers that keep failing, on a clock of its own. */
#include "common/base/clock.h"
#include "orchestrator/machine/quarantine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <cmocka.h>

static const struct gr_quarantine_rule rule = {
    .n_failure = 3, .window_ns = 60 * GR_S, .pause_min_ns = GR_S, .pause_max_ns = 60 * GR_S};

static bool lose(struct gr_quarantine *q, uint64_t now_ns)
{
    return gr_quarantine_fail(q, &rule, GR_FAILURE_LOSS, now_ns);
}

static void test_enough_within_the_window(void **state)
{
    (void)state;
    struct gr_quarantine q = {0};
    assert_false(lose(&q, 10 * GR_S));
    assert_false(lose(&q, 20 * GR_S));
    assert_false(gr_quarantine_shuns(&q, 0));
    assert_int_equal(gr_quarantine_due_ns(&q), UINT64_MAX);
    assert_true(lose(&q, 70 * GR_S)); /* the first is 60 s old: it just counts */
    assert_int_equal(q.state, GR_QUARANTINE_OUT);
    assert_true(gr_quarantine_shuns(&q, 0));
    assert_int_equal(gr_quarantine_due_ns(&q), 71 * GR_S);
    q = (struct gr_quarantine){0};
    assert_false(lose(&q, 10 * GR_S));
    assert_false(lose(&q, 20 * GR_S));
    assert_false(lose(&q, 70 * GR_S + 1)); /* and by now it does not */
    assert_int_equal(q.state, GR_QUARANTINE_GOOD);
}

static void fail_until_out(struct gr_quarantine *q, uint64_t now_ns)
{
    assert_false(lose(q, now_ns - 2 * GR_S));
    assert_false(lose(q, now_ns - GR_S));
    assert_true(lose(q, now_ns));
}

/* 1, 2, 4 ... s, never more than the most; each pause ends in a trial. */
static void test_pauses_double(void **state)
{
    (void)state;
    static const uint64_t pause_s[] = {1, 2, 4, 8, 16, 32, 60, 60, 60};
    struct gr_quarantine q = {0};
    uint64_t now_ns = 100 * GR_S;
    fail_until_out(&q, now_ns);
    for (size_t i = 0; i < sizeof(pause_s) / sizeof(pause_s[0]); i++) {
        assert_int_equal(q.pause_ns, pause_s[i] * GR_S);
        now_ns += pause_s[i] * GR_S;
        assert_false(gr_quarantine_step(&q, now_ns - 1));
        assert_true(gr_quarantine_step(&q, now_ns));
        assert_false(gr_quarantine_step(&q, now_ns));
        assert_int_equal(q.state, GR_QUARANTINE_TRIAL);
        now_ns += 5 * GR_S;
        assert_true(lose(&q, now_ns)); /* one failure of a trial is enough */
    }
}

static void test_a_trial_is_one_session(void **state)
{
    (void)state;
    struct gr_quarantine q = {0};
    fail_until_out(&q, 100 * GR_S);
    assert_true(gr_quarantine_step(&q, 101 * GR_S));
    assert_false(gr_quarantine_shuns(&q, 0));
    assert_true(gr_quarantine_shuns(&q, 1));
    assert_true(gr_quarantine_succeed(&q));
    assert_false(gr_quarantine_shuns(&q, 1));
    assert_false(gr_quarantine_succeed(&q));
    /* all is forgotten: it takes as many failures as before, and the first pause is the shortest */
    fail_until_out(&q, 110 * GR_S);
    assert_int_equal(q.pause_ns, GR_S);
}

/* It was in use all the same, since there was no other. */
static void test_success_and_failure_while_out(void **state)
{
    (void)state;
    struct gr_quarantine q = {0};
    fail_until_out(&q, 100 * GR_S);
    assert_true(lose(&q, 100 * GR_S + GR_S / 2));
    assert_int_equal(gr_quarantine_due_ns(&q), 102 * GR_S + GR_S / 2);
    assert_true(gr_quarantine_succeed(&q));
    assert_int_equal(gr_quarantine_due_ns(&q), UINT64_MAX);
}

/* A session that goes well takes back what failed turns have shown, not what losses have. */
static void test_kinds(void **state)
{
    (void)state;
    struct gr_quarantine q = {0};
    for (uint64_t i = 1; i <= 20; i++) {
        assert_false(gr_quarantine_fail(&q, &rule, GR_FAILURE_TURN, i * GR_S));
        assert_false(gr_quarantine_succeed(&q));
    }
    for (uint64_t i = 21; i <= 22; i++) {
        assert_false(lose(&q, i * GR_S));
        assert_false(gr_quarantine_succeed(&q));
    }
    assert_true(gr_quarantine_fail(&q, &rule, GR_FAILURE_TURN, 23 * GR_S));
}

/* The sessions of a pass fail together, and count once. */
static void test_together(void **state)
{
    (void)state;
    struct gr_quarantine q = {0};
    for (uint64_t i = 0; i < 64; i++) {
        assert_false(gr_quarantine_fail(&q, &rule, GR_FAILURE_TURN, 10 * GR_S + i * GR_MS));
    }
    assert_int_equal(q.n_mark, 1);
}

static void test_off(void **state)
{
    (void)state;
    const struct gr_quarantine_rule off = {0};
    struct gr_quarantine q = {0};
    for (uint64_t i = 0; i < 100; i++) {
        assert_false(gr_quarantine_fail(&q, &off, GR_FAILURE_LOSS, i * GR_S));
    }
    assert_false(gr_quarantine_shuns(&q, 5));
}

/* A rule that asks for many: the marks are bounded, and the oldest ones leave. */
static void test_many(void **state)
{
    (void)state;
    struct gr_quarantine_rule many = rule;
    struct gr_quarantine q = {0};
    many.n_failure = GR_QUARANTINE_FAILURE_MAX;
    for (uint64_t i = 1; i < GR_QUARANTINE_FAILURE_MAX; i++) {
        assert_false(gr_quarantine_fail(&q, &many, GR_FAILURE_LOSS, i * GR_S));
    }
    assert_true(gr_quarantine_fail(&q, &many, GR_FAILURE_LOSS, 16 * GR_S));
    assert_true(gr_quarantine_fail(&q, &many, GR_FAILURE_LOSS, 17 * GR_S));
    assert_int_equal(q.n_mark, GR_QUARANTINE_FAILURE_MAX);
    assert_int_equal(q.mark[0].at_ns, 2 * GR_S);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_enough_within_the_window),
        cmocka_unit_test(test_pauses_double),
        cmocka_unit_test(test_a_trial_is_one_session),
        cmocka_unit_test(test_success_and_failure_while_out),
        cmocka_unit_test(test_kinds),
        cmocka_unit_test(test_together),
        cmocka_unit_test(test_off),
        cmocka_unit_test(test_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
