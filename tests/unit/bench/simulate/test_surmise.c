/* Curves, and what a simulated draft model knows: as often right as it was measured to be. */
#include "bench/simulate/curve.h"
#include "bench/simulate/surmise.h"

#include "common/rules/hash.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#define N 200000

static void near(double got, double want, double by)
{
    if (fabs(got - want) > by) {
        print_error("%g is not within %g of %g\n", got, by, want);
    }
    assert_true(fabs(got - want) <= by);
}

static void test_curve(void **state)
{
    (void)state;
    const struct gr_curve c = {.n = 3, .x = {1, 64, 65}, .y = {100, 226, 300}};
    const struct gr_curve one = {.n = 1, .x = {10}, .y = {50}};
    const struct gr_curve none = {.n = 0};
    near(gr_curve_at(&c, 0.5), 100, 0);
    near(gr_curve_at(&c, 1), 100, 0);
    near(gr_curve_at(&c, 32.5), 163, 1e-9);
    near(gr_curve_at(&c, 64), 226, 1e-9);
    near(gr_curve_at(&c, 65), 300, 1e-9);
    near(gr_curve_at(&c, 130), 600, 1e-9); /* in proportion */
    near(gr_curve_at(&one, 5), 50, 0);
    near(gr_curve_at(&one, 30), 150, 1e-9);
    near(gr_curve_at(&none, 3), 0, 0);
}

static const struct gr_surmise known = {
    .n_level = 2,
    .level = {{.n_class = 2,
               .n_other = 2,
               .class = {{.share = 0.25, .sure = 0.4, .hit = 0.5}, {.share = 0.75, .sure = 0.9, .hit = 0.8}},
               .other = {{.sure = 0.6, .hit = 0.7}, {.sure = 0.2, .hit = 0.1}}},
              {.n_class = 1, .class = {{.share = 1.0, .sure = 0.99, .hit = 1.0}}}}};

static void test_hits(void **state)
{
    (void)state;
    int n_rank[4] = {0};
    int n_unsure = 0;
    for (uint64_t i = 0; i < N; i++) {
        const struct gr_surmised s = gr_surmise(&known, 1, gr_mix64(i + 1));
        assert_in_range(s.rank, 0, 3);
        n_rank[s.rank]++;
        n_unsure += s.sure < 0.5;
    }
    const double hit = 0.25 * 0.5 + 0.75 * 0.8;
    near((double)n_unsure / N, 0.25, 0.005);
    near((double)n_rank[1] / N, hit, 0.005);
    near((double)n_rank[2] / N, (1 - hit) * 0.7, 0.005);
    near((double)n_rank[3] / N, (1 - hit) * 0.1, 0.005);
    near((double)n_rank[0] / N, (1 - hit) * 0.2, 0.005);
}

static void test_levels(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 1000; i++) { /* the last level stands for deeper ones */
        assert_int_equal(gr_surmise(&known, 2, gr_mix64(i)).rank, 1);
        assert_int_equal(gr_surmise(&known, 9, gr_mix64(i)).rank, 1);
    }
}

static void test_edges(void **state)
{
    (void)state;
    const struct gr_surmised s = {.level = &known.level[0], .sure = 0.4, .rank = 1};
    near(exp(gr_surmised_edge(&s, 1)), 0.4, 1e-6);
    near(exp(gr_surmised_edge(&s, 2)), 0.36, 1e-6);
    near(exp(gr_surmised_edge(&s, 3)), 0.12, 1e-6);
    const struct gr_surmised sure = {.level = &known.level[0], .sure = 1.0, .rank = 1};
    assert_true(isfinite(gr_surmised_edge(&sure, 2)));
}

/* The same context has the same children, in whatever pass. */
static void test_same(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 100; i++) {
        const struct gr_surmised a = gr_surmise(&known, 1, i);
        const struct gr_surmised b = gr_surmise(&known, 1, i);
        assert_int_equal(a.rank, b.rank);
        assert_true(a.sure == b.sure);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_curve), cmocka_unit_test(test_hits),
                                       cmocka_unit_test(test_levels), cmocka_unit_test(test_edges),
                                       cmocka_unit_test(test_same)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
