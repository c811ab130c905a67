/* What a drafter says of its trees with more sessions, and where sessions go by that. */
#include "common/base/status.h"
#include "common/rules/hash.h"
#include "draft_worker/tree/tree_times.h"
#include "orchestrator/machine/placement.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#define N_SLOT 256

/* 0.3 ms for one session, a sixth of it for each one more, and a fifth of noise; factor: of a slower machine. */
static uint64_t tree_ns(int n, double factor, uint64_t *rng)
{
    *rng = gr_mix64(*rng + GR_HASH_GOLDEN);
    const double noise = 0.8 + 0.4 * ((double)(*rng >> 11) * 0x1p-53);
    return (uint64_t)(factor * noise * (3e5 + 5e4 * (n - 1)));
}

/* Rounds with 1, 2, ... n_most sessions, so many of each. */
static void live_through(struct gr_tree_times *t, int n_most, int n_round, double factor, uint64_t seed)
{
    for (int n = 1; n <= n_most; n++) {
        for (int i = 0; i < n * n_round; i++) {
            gr_tree_times_note(t, n, tree_ns(n, factor, &seed));
        }
    }
}

static struct gr_round_forecast forecast_of(const struct gr_tree_times *t, uint32_t n)
{
    const struct gr_tree_outlook o = gr_tree_outlook_of(t, (int)n);
    return (struct gr_round_forecast){
        .n_active = n, .round_ns = o.round_ns, .more_ns = o.more_ns, .first_ns = o.first_ns};
}

static void test_numbers(void **state)
{
    (void)state;
    struct gr_tree_times t = {0};
    struct gr_tree_outlook o = gr_tree_outlook_of(&t, 5);
    assert_true(o.round_ns == 0 && o.more_ns == 0 && o.first_ns == 0);
    gr_tree_times_note(&t, 1, 1000);
    o = gr_tree_outlook_of(&t, 1); /* an upper bound: a share more */
    assert_true(o.round_ns == 2000 && o.more_ns == 1000 && o.first_ns == 1000);
    gr_tree_times_note(&t, 8, 1700);
    o = gr_tree_outlook_of(&t, 0);
    assert_true(o.round_ns == 1000 && o.more_ns == 100 && o.first_ns == 1000);
    o = gr_tree_outlook_of(&t, 8);
    assert_true(o.round_ns == 1800);
    o = gr_tree_outlook_of(&t, 3); /* no tree was sent with so many */
    assert_true(o.round_ns == 1300);
    for (int i = 0; i < 200; i++) {
        gr_tree_times_note(&t, 8, 8000); /* something else takes the machine */
    }
    o = gr_tree_outlook_of(&t, 8);
    assert_in_range(o.round_ns, 8900, 9100);
    gr_tree_times_note(&t, 100000, 9000); /* more sessions than a class for each */
    o = gr_tree_outlook_of(&t, 100000);
    assert_true(o.round_ns >= 9000);
}

/* Nothing is seen of one session alone: no less than a share of the fewest. */
static void test_crowd_at_once(void **state)
{
    (void)state;
    struct gr_tree_times t = {0};
    gr_tree_times_note(&t, 10, 1000);
    const struct gr_tree_outlook o = gr_tree_outlook_of(&t, 10);
    assert_true(o.first_ns >= 100 && o.more_ns > 0 && o.round_ns > 1000);
}

/* Sessions that come at once: nobody says anything until all are there. told[i]: sessions that drafter i had when it
 * said what it said; they have ended. */
static void share_out(const struct gr_tree_times *t, const uint32_t *told, uint32_t n_session, uint32_t *n)
{
    struct gr_round_forecast f[2];
    int last = -1;
    n[0] = n[1] = 0;
    for (int i = 0; i < 2; i++) {
        f[i] = forecast_of(&t[i], told[i]);
    }
    for (uint32_t k = 0; k < n_session; k++) {
        struct gr_place p[2];
        for (int i = 0; i < 2; i++) {
            p[i] = (struct gr_place){.fits = true,
                                     .has_room = n[i] < N_SLOT,
                                     .n_active = n[i],
                                     .n_held = n[i],
                                     .round_ns = gr_forecast_round_ns(&f[i], n[i])};
        }
        last = gr_place_choose(p, 2, last);
        n[last]++;
    }
}

/* most[i]: with how many sessions drafter i has lived. */
static void check_even(const int *most, int n_round, const uint32_t *told)
{
    for (uint64_t seed = 1; seed <= 50; seed++) {
        struct gr_tree_times t[2] = {0};
        uint32_t n[2];
        for (int i = 0; i < 2; i++) {
            live_through(&t[i], most[i], n_round, 1.0, seed * 2 + (uint64_t)i);
        }
        share_out(t, told, 64, n);
        assert_in_range(n[0], 29, 35);
    }
}

static void test_shares(void **state)
{
    (void)state;
    static const int warm[] = {1, 1}, crowd[] = {32, 32}, unlike[] = {4, 40};
    static const uint32_t idle[] = {0, 0}, busy[] = {3, 29}, other[] = {4, 33};
    check_even(warm, 16, idle);
    check_even(crowd, 4, idle);
    check_even(crowd, 4, busy);
    check_even(unlike, 16, idle);
    check_even(unlike, 16, other);
}

/* One that takes three times as long has far fewer, whatever each had when it spoke. */
static void test_slow_one(void **state)
{
    (void)state;
    static const uint32_t told[][2] = {{0, 0}, {3, 29}, {29, 3}};
    for (size_t k = 0; k < GR_ARRAY_LEN(told); k++) {
        struct gr_tree_times t[2] = {0};
        uint32_t n[2];
        live_through(&t[0], 32, 4, 1.0, 5);
        live_through(&t[1], 32, 4, 3.0, 6);
        share_out(t, told[k], 64, n);
        assert_true(n[1] > 0 && n[1] * 2 < n[0]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_numbers), cmocka_unit_test(test_crowd_at_once),
                                       cmocka_unit_test(test_shares), cmocka_unit_test(test_slow_one)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
