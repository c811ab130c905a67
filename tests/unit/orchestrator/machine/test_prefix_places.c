/* Where beginnings of texts have been computed: lengths, salts, the limit, and random use against a list. */
#include "orchestrator/machine/prefix_places.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define STEP GR_PREFIX_STEP
#define WORKERS 5
#define LONG ((GR_PREFIX_STEPS + 3) * STEP)

static int32_t text[2][LONG]; /* the second differs from the first after five steps */

static int fill(void **state)
{
    (void)state;
    for (int i = 0; i < LONG; i++) {
        text[0][i] = i % 251;
        text[1][i] = i < 5 * STEP ? text[0][i] : i % 241;
    }
    return 0;
}

static uint32_t held_by(const struct gr_prefix_places *p, uint64_t root, int which, uint32_t n, uint32_t worker)
{
    uint32_t held[WORKERS];
    gr_prefix_places_look(p, root, text[which], n, held, WORKERS);
    return held[worker];
}

static void test_lengths(void **state)
{
    (void)state;
    struct gr_prefix_places p;
    assert_true(gr_prefix_places_create(&p, 1000));
    const uint64_t root = gr_prefix_root(1, "");
    assert_int_equal(held_by(&p, root, 0, LONG, 0), 0);
    gr_prefix_places_put(&p, root, text[0], STEP - 1, 0); /* not a whole step */
    assert_int_equal(p.n, 0);
    gr_prefix_places_put(&p, root, text[0], 8 * STEP + 7, 0);
    gr_prefix_places_put(&p, root, text[0], 3 * STEP, 1);
    assert_int_equal(held_by(&p, root, 0, 20 * STEP, 0), 8 * STEP);
    assert_int_equal(held_by(&p, root, 0, 20 * STEP, 1), 3 * STEP);
    assert_int_equal(held_by(&p, root, 0, 20 * STEP, 2), 0);
    assert_int_equal(held_by(&p, root, 0, 4 * STEP + 100, 0), 4 * STEP); /* of what is asked for */
    assert_int_equal(held_by(&p, root, 0, STEP - 1, 0), 0);
    assert_int_equal(held_by(&p, root, 1, 20 * STEP, 0), 5 * STEP); /* as far as both begin alike */
    gr_prefix_places_put(&p, root, text[0], 8 * STEP, 0);           /* told again: no more entries */
    assert_int_equal(p.n, 11);
    gr_prefix_places_put(&p, root, text[0], LONG, 2);
    assert_int_equal(held_by(&p, root, 0, LONG, 2), GR_PREFIX_STEPS * STEP);
    assert_true(gr_prefix_places_check(&p));
    gr_prefix_places_destroy(&p);
}

static void test_models_and_salts(void **state)
{
    (void)state;
    struct gr_prefix_places p;
    assert_true(gr_prefix_places_create(&p, 100));
    gr_prefix_places_put(&p, gr_prefix_root(1, "a"), text[0], 2 * STEP, 0);
    assert_int_equal(held_by(&p, gr_prefix_root(1, "a"), 0, 2 * STEP, 0), 2 * STEP);
    assert_int_equal(held_by(&p, gr_prefix_root(2, "a"), 0, 2 * STEP, 0), 0);
    assert_int_equal(held_by(&p, gr_prefix_root(1, ""), 0, 2 * STEP, 0), 0);
    assert_int_equal(held_by(&p, gr_prefix_root(1, "b"), 0, 2 * STEP, 0), 0);
    gr_prefix_places_destroy(&p);
}

/* The longest unused goes first, and of a text its end. */
static void test_limit(void **state)
{
    (void)state;
    struct gr_prefix_places p;
    assert_true(gr_prefix_places_create(&p, 10));
    const uint64_t a = gr_prefix_root(1, "a"), b = gr_prefix_root(1, "b"), c = gr_prefix_root(1, "c");
    gr_prefix_places_put(&p, a, text[0], 4 * STEP, 0);
    gr_prefix_places_put(&p, b, text[0], 4 * STEP, 0);
    gr_prefix_places_put(&p, a, text[0], 4 * STEP, 0);
    gr_prefix_places_put(&p, c, text[0], 5 * STEP, 0);
    assert_int_equal(p.n, 10);
    assert_int_equal(held_by(&p, a, 0, 4 * STEP, 0), 4 * STEP);
    assert_int_equal(held_by(&p, b, 0, 4 * STEP, 0), STEP);
    assert_int_equal(held_by(&p, c, 0, 5 * STEP, 0), 5 * STEP);
    gr_prefix_places_put(&p, a, text[0], 100 * STEP, 1); /* longer than the table: its beginning stays */
    assert_int_equal(p.n, 10);
    assert_int_equal(held_by(&p, a, 0, 100 * STEP, 1), 10 * STEP);
    assert_true(gr_prefix_places_check(&p));
    gr_prefix_places_destroy(&p);
}

static void test_a_worker_that_leaves(void **state)
{
    (void)state;
    struct gr_prefix_places p;
    assert_true(gr_prefix_places_create(&p, 100));
    const uint64_t root = gr_prefix_root(1, "");
    for (uint32_t w = 0; w < WORKERS; w++) {
        gr_prefix_places_put(&p, root, text[0], (w + 1) * STEP, w);
    }
    gr_prefix_places_forget(&p, 4);
    gr_prefix_places_forget(&p, 1);
    assert_int_equal(p.n, 8);
    for (uint32_t w = 0; w < WORKERS; w++) {
        assert_int_equal(held_by(&p, root, 0, LONG, w), w == 1 || w == 4 ? 0 : (w + 1) * STEP);
    }
    assert_true(gr_prefix_places_check(&p));
    gr_prefix_places_destroy(&p);
}

/* Where nothing has to be given up the table knows what a list knows. */
static void test_random_use(void **state)
{
    (void)state;
    struct gr_prefix_places p;
    uint32_t want[2][WORKERS] = {{0}}; /* steps after the common five count for one text alone */
    assert_true(gr_prefix_places_create(&p, 2 * WORKERS * 40));
    const uint64_t root = gr_prefix_root(7, "");
    uint32_t x = 1;
    for (int i = 0; i < 3000; i++) {
        x = x * 1664525u + 1013904223u;
        const uint32_t worker = (x >> 8) % WORKERS, n = (x >> 16) % (40 * STEP), steps = n / STEP;
        const int which = (int)(x >> 31);
        if (i % 17 == 0) {
            gr_prefix_places_forget(&p, worker);
            want[0][worker] = want[1][worker] = 0;
        } else {
            gr_prefix_places_put(&p, root, text[which], n, worker);
            const uint32_t common = steps < 5 ? steps : 5;
            want[which][worker] = want[which][worker] > steps ? want[which][worker] : steps;
            want[1 - which][worker] = want[1 - which][worker] > common ? want[1 - which][worker] : common;
        }
        assert_int_equal(held_by(&p, root, which, 40 * STEP, worker), want[which][worker] * STEP);
        assert_int_equal(held_by(&p, root, 1 - which, 40 * STEP, worker), want[1 - which][worker] * STEP);
    }
    assert_true(gr_prefix_places_check(&p));
    gr_prefix_places_destroy(&p);
}

/* A table that is full all the time stays whole, and never says that somebody holds what nobody has told of. */
static void test_random_use_when_full(void **state)
{
    (void)state;
    struct gr_prefix_places p;
    assert_true(gr_prefix_places_create(&p, 64));
    uint32_t x = 5, most[WORKERS] = {0};
    for (int i = 0; i < 3000; i++) {
        x = x * 1664525u + 1013904223u;
        const uint32_t worker = (x >> 8) % WORKERS, n = (x >> 16) % (40 * STEP);
        const uint64_t root = gr_prefix_root(7, (x >> 28) % 2 == 0 ? "" : "s");
        gr_prefix_places_put(&p, root, text[0], n, worker);
        most[worker] = n > most[worker] ? n : most[worker];
        assert_true(held_by(&p, root, 0, 40 * STEP, worker) <= most[worker]);
        assert_true(held_by(&p, root, 0, 40 * STEP, worker) >= (n / STEP < 40 ? n / STEP * STEP : 0));
        assert_true(p.n <= 64);
        assert_true(gr_prefix_places_check(&p));
    }
    gr_prefix_places_destroy(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lengths),    cmocka_unit_test(test_models_and_salts),
        cmocka_unit_test(test_limit),      cmocka_unit_test(test_a_worker_that_leaves),
        cmocka_unit_test(test_random_use), cmocka_unit_test(test_random_use_when_full),
    };
    return cmocka_run_group_tests(tests, fill, NULL);
}
