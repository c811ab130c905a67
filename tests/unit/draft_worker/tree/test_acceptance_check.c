/* The check of the draft model against its target: what is reported, when an alarm is raised, and when it is not. */
#include "common/rules/hash.h"
#include "draft_worker/tree/acceptance_check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

static uint64_t rng_state;

static double draw01(void)
{
    rng_state = gr_mix64(rng_state + GR_HASH_GOLDEN);
    return (double)(rng_state >> 11) * 0x1p-53;
}

/* n rounds whose first child is accepted with probability `truth`, of which the model says p; counts events. */
static void rounds(struct gr_acceptance_check *c, int n, double p, double truth, int count[4])
{
    for (int i = 0; i < n; i++) {
        count[gr_acceptance_check_observe(c, (float)p, draw01() < truth)]++;
    }
}

/* A head that is right about itself: one report, and never an alarm, in a million rounds. */
static void test_honest_model(void **state)
{
    (void)state;
    static const double p[] = {0.05, 0.3, 0.6, 0.95};
    for (int i = 0; i < 4; i++) {
        struct gr_acceptance_check c = {0};
        int count[4] = {0};
        rng_state = (uint64_t)i;
        rounds(&c, 250000, p[i], p[i], count);
        assert_int_equal(count[GR_CHECK_REPORT], 1);
        assert_int_equal(count[GR_CHECK_ALARM], 0);
        assert_int_equal(c.n_alarm, 0);
    }
}

/* Half as good as it thinks is poor, not broken. */
static void test_overconfident_model(void **state)
{
    (void)state;
    struct gr_acceptance_check c = {0};
    int count[4] = {0};
    rounds(&c, 100000, 0.8, 0.4, count);
    assert_int_equal(count[GR_CHECK_ALARM], 0);
}

/* A wrong capture layer: 1 % acceptance, whatever the head believes. */
static void test_wrong_layers(void **state)
{
    (void)state;
    static const double p[] = {0.3, 0.6, 0.9};
    for (int i = 0; i < 3; i++) {
        struct gr_acceptance_check c = {0};
        int count[4] = {0};
        rounds(&c, GR_CHECK_WINDOW - 1, p[i], 0.01, count);
        assert_int_equal(count[GR_CHECK_NOTHING], GR_CHECK_WINDOW - 1);
        rounds(&c, 1, p[i], 0.01, count);
        assert_int_equal(count[GR_CHECK_ALARM], 1); /* with the first window, and once */
        rounds(&c, 100 * GR_CHECK_WINDOW, p[i], 0.01, count);
        assert_int_equal(count[GR_CHECK_ALARM], 1);
        assert_true(c.alarm && c.last_accepted < 0.2 && c.last_expected > 0.29);
    }
}

/* It collapses after a good start, comes back, and collapses again. */
static void test_collapse_and_return(void **state)
{
    (void)state;
    struct gr_acceptance_check c = {0};
    int count[4] = {0};
    rounds(&c, 10 * GR_CHECK_WINDOW, 0.6, 0.6, count);
    rounds(&c, 10 * GR_CHECK_WINDOW, 0.6, 0.02, count);
    assert_true(c.alarm);
    rounds(&c, 10 * GR_CHECK_WINDOW, 0.6, 0.6, count);
    assert_false(c.alarm);
    rounds(&c, 10 * GR_CHECK_WINDOW, 0.6, 0.0, count);
    assert_int_equal(count[GR_CHECK_REPORT], 1);
    assert_int_equal(count[GR_CHECK_ALARM], 2);
    assert_int_equal(count[GR_CHECK_END], 1);
    assert_int_equal(c.n_alarm, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_honest_model),
        cmocka_unit_test(test_overconfident_model),
        cmocka_unit_test(test_wrong_layers),
        cmocka_unit_test(test_collapse_and_return),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
