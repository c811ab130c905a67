/* Calibration: the prior, convergence on what verdicts say, sessions beside the drafter, fading. */
#include "common/rules/hash.h"
#include "draft_worker/tree/acceptance.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

static double uniform(uint64_t *rng)
{
    *rng = gr_mix64(*rng + GR_HASH_GOLDEN);
    return (double)(*rng >> 11) * 0x1p-53;
}

/* What the target does when the model says p: other than the model by rank. */
static double truth(int rank, double p)
{
    static const double factor[] = {0.8, 0.5, 1.5, 0.25};
    return fmin(p * factor[gr_rank_class(rank)], 1.0);
}

static const struct gr_acceptance empty;

static struct gr_acceptance_curve curve_of(const struct gr_acceptance *a)
{
    struct gr_acceptance_curve c;
    gr_acceptance_curve(a, &empty, &c);
    return c;
}

static void test_prior_is_the_model(void **state)
{
    (void)state;
    const struct gr_acceptance_curve c = curve_of(&empty);
    for (int rank = 1; rank <= 10; rank++) {
        for (float p = 0.001f; p < 0.999f; p += 0.001f) {
            assert_true(gr_acceptance_prob(&c, rank, p) == p);
        }
    }
    assert_true(gr_acceptance_prob(&c, 1, 1.0f) < 1.0f);
    assert_true(gr_acceptance_prob(&c, 1, 0.0f) > 0.0f);
}

static void test_converges(void **state)
{
    (void)state;
    struct gr_acceptance a = {0};
    uint64_t rng = 1;
    for (int i = 0; i < 400000; i++) {
        const int rank = 1 + (int)(uniform(&rng) * 6.0);
        const double p = uniform(&rng);
        gr_acceptance_observe(&a, rank, (float)p, uniform(&rng) < truth(rank, p), 1e9f);
    }
    const struct gr_acceptance_curve c = curve_of(&a);
    double worst = 0.0;
    for (int rank = 1; rank <= 6; rank++) {
        /* by bucket: the mean is right; inside of one the slope stays the model's */
        for (double lo = 0.0; lo < 0.95; lo += 0.05) {
            double sum = 0.0;
            double want = 0.0;
            for (int k = 0; k < 1000; k++) {
                const double p = lo + 0.05 * (k + 0.5) / 1000.0;
                sum += gr_acceptance_prob(&c, rank, (float)p) / 1000.0;
                want += truth(rank, p) / 1000.0;
            }
            worst = fmax(worst, fabs(sum - want));
        }
    }
    print_message("# worst error of a mean over 0.05: %.3f\n", worst);
    assert_true(worst < 0.06);
    /* few observations move it little, many move it far */
    struct gr_acceptance few = {0};
    gr_acceptance_observe(&few, 1, 0.5f, false, 1e9f);
    const struct gr_acceptance_curve cf = curve_of(&few);
    const float after_one = gr_acceptance_prob(&cf, 1, 0.5f);
    assert_true(after_one < 0.5f && after_one > 0.4f);
    assert_true(gr_acceptance_prob(&cf, 2, 0.5f) == 0.5f); /* another rank */
    assert_true(gr_acceptance_prob(&cf, 1, 0.9f) == 0.9f); /* another bucket */
}

static void test_session_beside_drafter(void **state)
{
    (void)state;
    struct gr_acceptance all = {0};
    struct gr_acceptance session = {0};
    struct gr_acceptance_curve c;
    for (int i = 0; i < 1000; i++) {
        gr_acceptance_observe(&all, 1, 0.5f, i % 10 != 0, 2048.0f); /* 0.9 elsewhere */
    }
    gr_acceptance_curve(&all, &session, &c);
    assert_float_equal(gr_acceptance_prob(&c, 1, 0.5f), 0.9f, 0.01f);
    for (int i = 0; i < 100; i++) {
        gr_acceptance_observe(&session, 1, 0.5f, i % 10 == 0, 128.0f); /* 0.1 here */
    }
    gr_acceptance_curve(&all, &session, &c);
    assert_float_equal(gr_acceptance_prob(&c, 1, 0.5f), 0.29f, 0.02f);
}

/* The target changes its mind: old rounds fade. */
static void test_fades(void **state)
{
    (void)state;
    struct gr_acceptance a = {0};
    for (int i = 0; i < 10000; i++) {
        gr_acceptance_observe(&a, 1, 0.5f, true, 256.0f);
    }
    for (int i = 0; i < 1000; i++) {
        gr_acceptance_observe(&a, 1, 0.5f, false, 256.0f);
    }
    struct gr_acceptance_curve c = curve_of(&a);
    assert_true(gr_acceptance_prob(&c, 1, 0.5f) < 0.05f);
    assert_true(a.cell[0][6].n <= 256.0f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prior_is_the_model),
        cmocka_unit_test(test_converges),
        cmocka_unit_test(test_session_beside_drafter),
        cmocka_unit_test(test_fades),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
