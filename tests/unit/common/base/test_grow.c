/* Arrays that grow. */
#include "common/base/grow.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>
#include <string.h>

static void test_grow(void **state)
{
    (void)state;
    size_t cap = 0;
    uint32_t *p = gr_grow(NULL, &cap, 1, sizeof(*p));
    assert_non_null(p);
    assert_int_equal(cap, GR_GROW_MIN);
    for (uint32_t i = 0; i < cap; i++) {
        p[i] = i;
    }
    assert_ptr_equal(gr_grow(p, &cap, cap, sizeof(*p)), p); /* there is room */
    uint32_t *q = gr_grow(p, &cap, cap + 1, sizeof(*p));
    assert_non_null(q);
    assert_int_equal(cap, 2 * GR_GROW_MIN);
    for (uint32_t i = 0; i < GR_GROW_MIN; i++) {
        assert_int_equal(q[i], i);
    }
    q = gr_grow(q, &cap, 1000, sizeof(*q)); /* more than twice as many */
    assert_int_equal(cap, 1000);
    const size_t most = SIZE_MAX / sizeof(*q);
    assert_null(gr_grow(q, &cap, most + 1, sizeof(*q))); /* its bytes cannot be counted */
    assert_int_equal(cap, 1000);
    assert_int_equal(q[1], 1);
    free(q);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_grow)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
