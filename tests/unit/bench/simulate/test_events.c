/* The queue of events, against one that is searched from end to end. */
#include "bench/simulate/events.h"

#include "common/rules/hash.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#define N 5000

struct event {
    uint64_t at_ns;
    uint32_t number;
    char text[12];
};

static uint64_t draw(uint64_t *rng, uint64_t n)
{
    *rng = gr_mix64(*rng + GR_HASH_GOLDEN);
    return *rng % n;
}

/* Earliest first; of equal ones that with the lowest number, which was pushed first. */
static int earliest(const struct event *e, const int *there, int n)
{
    int best = -1;
    for (int i = 0; i < n; i++) {
        if (there[i] && (best < 0 || e[i].at_ns < e[best].at_ns)) {
            best = i;
        }
    }
    return best;
}

static void pop_and_compare(struct gr_events *q, const struct event *e, int *there, int n)
{
    struct event got;
    uint64_t at_ns = 0;
    const int want = earliest(e, there, n);
    assert_int_equal(gr_events_next_ns(q), e[want].at_ns);
    assert_memory_equal(gr_events_peek(q), &e[want], sizeof(got));
    assert_true(gr_events_pop(q, &at_ns, &got));
    assert_int_equal(at_ns, e[want].at_ns);
    assert_memory_equal(&got, &e[want], sizeof(got));
    there[want] = 0;
}

static void test_order(void **state)
{
    (void)state;
    static struct event e[N];
    static int there[N];
    struct gr_events *q = gr_events_create(sizeof(struct event));
    uint64_t rng = 7;
    size_t n_there = 0;
    assert_non_null(q);
    for (int i = 0; i < N; i++) {
        memset(&e[i], 0, sizeof(e[i]));
        e[i].at_ns = draw(&rng, 300); /* many at one time */
        e[i].number = (uint32_t)i;
        gr_events_push(q, e[i].at_ns, &e[i]);
        there[i] = 1;
        n_there++;
        while (n_there > 0 && draw(&rng, 3) == 0) {
            pop_and_compare(q, e, there, i + 1);
            n_there--;
        }
        assert_int_equal(gr_events_n(q), n_there);
    }
    for (; n_there > 0; n_there--) {
        pop_and_compare(q, e, there, N);
    }
    gr_events_destroy(q);
}

static void test_empty(void **state)
{
    (void)state;
    struct gr_events *q = gr_events_create(sizeof(struct event));
    struct event got;
    uint64_t at_ns = 0;
    assert_false(gr_events_pop(q, &at_ns, &got));
    assert_null(gr_events_peek(q));
    assert_int_equal(gr_events_next_ns(q), UINT64_MAX);
    gr_events_destroy(q);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_order), cmocka_unit_test(test_empty)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
