/* Which callers a target takes for outdated. */
#include "transport/worker/callers.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

static void test_order(void **state)
{
    (void)state;
    struct gr_callers c = {.n = 0};
    assert_int_equal(gr_callers_take(&c, "a", 5), GR_CALLER_TAKEN);
    assert_int_equal(gr_callers_take(&c, "a", 5), GR_CALLER_TAKEN);
    assert_int_equal(gr_callers_take(&c, "b", 4), GR_CALLER_TAKEN);
    assert_int_equal(gr_callers_take(&c, "a", 4), GR_CALLER_OUTDATED);
    assert_int_equal(gr_callers_take(&c, "a", 7), GR_CALLER_REPLACES);
    assert_int_equal(gr_callers_take(&c, "a", 5), GR_CALLER_OUTDATED);
    assert_int_equal(gr_callers_take(&c, "b", 4), GR_CALLER_TAKEN);
}

static void test_nothing_known(void **state)
{
    (void)state;
    struct gr_callers c = {.n = 0};
    assert_int_equal(gr_callers_take(&c, "", 5), GR_CALLER_TAKEN);
    assert_int_equal(gr_callers_take(&c, "", 4), GR_CALLER_TAKEN);
    assert_int_equal(gr_callers_take(&c, "a", 5), GR_CALLER_TAKEN);
    assert_int_equal(gr_callers_take(&c, "a", 0), GR_CALLER_TAKEN); /* its orchestrator numbers nobody */
    assert_int_equal(c.n, 1);
}

/* Many seats: the table is bounded, and the latest ones are known. */
static void test_many(void **state)
{
    (void)state;
    struct gr_callers c = {.n = 0};
    char seat[16];
    for (uint64_t i = 0; i < 1000; i++) {
        snprintf(seat, sizeof(seat), "s%d", (int)i);
        assert_int_equal(gr_callers_take(&c, seat, i + 10), GR_CALLER_TAKEN);
    }
    assert_int_equal(gr_callers_take(&c, "s999", 11), GR_CALLER_OUTDATED);
    assert_int_equal(gr_callers_take(&c, "s936", 11), GR_CALLER_OUTDATED);
    assert_int_equal(gr_callers_take(&c, "s0", 1), GR_CALLER_TAKEN); /* forgotten */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_nothing_known),
        cmocka_unit_test(test_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
