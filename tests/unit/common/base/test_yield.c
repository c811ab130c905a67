/* Whom sched_yield() gave the CPU to is guessed from how long it took: common/base/yield.h. */
#include "common/base/status.h"
#include "common/base/yield.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

/* Yields one after the other, each of took_ns, until they are given up or total_ns is over. Returns the time then. */
static uint64_t yield_for(struct gr_yield *y, uint64_t now_ns, uint64_t took_ns, uint64_t total_ns)
{
    const uint64_t end_ns = now_ns + total_ns;
    while (now_ns < end_ns && gr_yield_pays(y, now_ns)) {
        now_ns += took_ns;
        if (took_ns > GR_YIELD_LONG_NS) {
            gr_yield_was_long(y, now_ns, took_ns);
        }
    }
    return now_ns;
}

static void test_a_busy_neighbour_ends_it(void **state)
{
    (void)state;
    struct gr_yield y = {0};
    const uint64_t begin_ns = 1000 * GR_S;
    const uint64_t now_ns = yield_for(&y, begin_ns, 4 * GR_MS, GR_S);
    assert_false(gr_yield_pays(&y, now_ns));
    assert_true(now_ns - begin_ns <= GR_YIELD_LOST_MAX_NS + 2 * 4 * GR_MS);
    assert_true(gr_yield_pays(&y, now_ns + GR_YIELD_REST_MIN_NS));
}

/* The neighbour stays: what is lost to it in ten seconds is a small share. */
static void test_rests_become_longer(void **state)
{
    (void)state;
    struct gr_yield y = {0};
    uint64_t now_ns = 1000 * GR_S, lost_ns = 0;
    const uint64_t end_ns = now_ns + 10 * GR_S;
    while (now_ns < end_ns) {
        const uint64_t from_ns = now_ns;
        now_ns = yield_for(&y, now_ns, 4 * GR_MS, end_ns - now_ns);
        lost_ns += now_ns - from_ns;
        now_ns = GR_MAX(now_ns, (uint64_t)y.rest_until_ns);
    }
    assert_in_range(y.rest_ns, GR_YIELD_REST_MAX_NS, 2 * GR_YIELD_REST_MAX_NS);
    assert_true(lost_ns < 10 * GR_S / 10);
    /* It went away: a short stall later begins with a short rest again. */
    now_ns = yield_for(&y, now_ns + 10 * GR_S, 4 * GR_MS, GR_S);
    assert_int_equal(y.rest_ns, GR_YIELD_REST_MIN_NS);
}

/* A stall of the machine now and then is no neighbour. */
static void test_stalls_are_forgiven(void **state)
{
    (void)state;
    struct gr_yield y = {0};
    for (uint64_t now_ns = 1000 * GR_S; now_ns < 1010 * GR_S; now_ns += 100 * GR_MS) {
        gr_yield_was_long(&y, now_ns, 8 * GR_MS);
        assert_true(gr_yield_pays(&y, now_ns));
        (void)yield_for(&y, now_ns, 100000, 50 * GR_MS);
        assert_true(gr_yield_pays(&y, now_ns + 50 * GR_MS));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_busy_neighbour_ends_it),
        cmocka_unit_test(test_rests_become_longer),
        cmocka_unit_test(test_stalls_are_forgiven),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
