/* The table of sessions: against an array, with numbers that meet in one place. */
#include "orchestrator/journal/cells.h"
#include "tests/quiet_log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define N 5000

struct one {
    uint64_t session;
    uint32_t value;
};

/* Close to each other, far from each other, and the largest ones. */
static uint64_t number_of(uint32_t i)
{
    return i % 3 == 0 ? i + 1 : i % 3 == 1 ? (uint64_t)(i + 1) << 40 : UINT64_MAX - i;
}

static void assert_has(const struct gr_cells *t, uint32_t n)
{
    uint32_t n_seen = 0;
    for (uint32_t i = 0; i < N; i++) {
        const struct one *c = gr_cells_find(t, number_of(i));
        assert_int_equal(c != NULL, i < n);
        assert_true(c == NULL || (c->session == number_of(i) && c->value == i));
    }
    for (size_t i = 0; i < t->n_cell; i++) {
        n_seen += gr_cells_at(t, i) != NULL;
    }
    assert_int_equal(n_seen, n);
    assert_int_equal(t->n_used, n);
    assert_null(gr_cells_find(t, 0));
}

static void fill(struct gr_cells *t, uint32_t from, uint32_t to)
{
    for (uint32_t i = from; i < to; i++) {
        void *c = NULL;
        assert_int_equal(gr_cells_add(t, number_of(i), &c), GR_OK);
        assert_int_equal(((struct one *)c)->value, 0); /* a new one */
        ((struct one *)c)->value = i;
        assert_int_equal(gr_cells_add(t, number_of(i), &c), GR_OK);
        assert_int_equal(((struct one *)c)->value, i);
    }
}

static void test_what_was_added_is_found(void **state)
{
    (void)state;
    struct gr_cells t = {.cell_bytes = sizeof(struct one)};
    assert_has(&t, 0);
    fill(&t, 0, 7);
    assert_has(&t, 7);
    fill(&t, 7, N);
    assert_has(&t, N);
    gr_cells_finish(&t);
    assert_has(&t, 0);
    fill(&t, 0, 1);
    assert_has(&t, 1);
    gr_cells_finish(&t);
}

static void test_a_copy_is_its_own(void **state)
{
    (void)state;
    struct gr_cells t = {.cell_bytes = sizeof(struct one)}, copy;
    assert_int_equal(gr_cells_copy(&t, &copy), GR_OK);
    assert_has(&copy, 0);
    fill(&t, 0, 700);
    assert_int_equal(gr_cells_copy(&t, &copy), GR_OK);
    fill(&t, 700, 900);
    assert_has(&copy, 700);
    gr_cells_finish(&t);
    assert_has(&copy, 700);
    gr_cells_finish(&copy);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_was_added_is_found),
        cmocka_unit_test(test_a_copy_is_its_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
