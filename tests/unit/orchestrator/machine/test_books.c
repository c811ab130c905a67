/* What the machine keeps of all sessions, each against a look at all of them. */
#include "orchestrator/machine/due_times.h"
#include "orchestrator/machine/place_set.h"
#include "orchestrator/machine/queue_flows.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define N 1000

static int next_of(const bool *member, int from)
{
    for (int i = from; i < N; i++) {
        if (member[i]) {
            return i;
        }
    }
    return -1;
}

static void test_places(void **state)
{
    (void)state;
    struct gr_place_set s;
    bool member[N] = {false};
    uint32_t n = 0;
    assert_true(gr_place_set_create(&s, N));
    assert_int_equal(gr_place_set_next(&s, 0), -1);
    srand(2);
    for (int round = 0; round < 100000; round++) {
        const int i = rand() % N;
        const bool put = rand() % (round / 10000 + 2) == 0; /* fewer and fewer of them */
        n += (uint32_t)put - (uint32_t)member[i];
        member[i] = put;
        gr_place_set_put(&s, (uint32_t)i, put);
        const int from = rand() % N;
        assert_int_equal(gr_place_set_next(&s, (uint32_t)from), next_of(member, from));
        assert_int_equal(s.n, n);
    }
    assert_int_equal(gr_place_set_next(&s, 1u << 20), -1);
    gr_place_set_destroy(&s);
}

static uint64_t first_of(const uint64_t *at_ns)
{
    uint64_t first = UINT64_MAX;
    for (int i = 0; i < N; i++) {
        first = at_ns[i] < first ? at_ns[i] : first;
    }
    return first;
}

static void test_times(void **state)
{
    (void)state;
    struct gr_due_times d;
    static uint64_t at_ns[N];
    memset(at_ns, 0xff, sizeof(at_ns));
    assert_true(gr_due_times_create(&d, N));
    assert_int_equal(gr_due_times_take(&d, UINT64_MAX), -1);
    srand(3);
    for (int round = 0; round < 30000; round++) {
        const int i = rand() % N;
        const uint64_t now_ns = (uint64_t)round;
        at_ns[i] = rand() % 4 == 0 ? UINT64_MAX : now_ns + (uint64_t)(rand() % 3000);
        gr_due_times_set(&d, (uint32_t)i, at_ns[i]);
        assert_true(gr_due_times_first_ns(&d) == first_of(at_ns));
        for (int due = gr_due_times_take(&d, now_ns); due >= 0; due = gr_due_times_take(&d, now_ns)) {
            assert_true(at_ns[due] <= now_ns);
            at_ns[due] = UINT64_MAX;
        }
        assert_true(first_of(at_ns) > now_ns);
    }
    gr_due_times_destroy(&d);
}

#define N_OWNER 5

/* Owners' turns, whose arrival is noted: the one that came last of those that are left. */
static int last_of(const uint64_t *flow, const int *came, uint64_t of)
{
    int last = -1;
    for (int i = 0; i < N; i++) {
        if (flow[i] == of && (last < 0 || came[i] > came[last])) {
            last = i;
        }
    }
    return last;
}

static void test_flows(void **state)
{
    (void)state;
    struct gr_queue_flows f;
    static uint64_t flow[N];
    static int came[N];
    assert_true(gr_queue_flows_create(&f, N));
    assert_true(gr_queue_flow_of(1, 2) != gr_queue_flow_of(2, 1));
    srand(4);
    for (int round = 0; round < 50000; round++) {
        const int i = rand() % N;
        const uint64_t of = gr_queue_flow_of((uint64_t)(rand() % N_OWNER), (uint32_t)(rand() % 2));
        if (flow[i] == 0 && rand() % 3 == 0) { /* at times a flow has none */
            flow[i] = of;
            came[i] = round;
            gr_queue_flows_join(&f, (uint32_t)i, of);
        } else {
            flow[i] = 0;
            gr_queue_flows_leave(&f, (uint32_t)i); /* also where it is in no list */
        }
        assert_int_equal(gr_queue_flows_last(&f, of), last_of(flow, came, of));
    }
    for (int i = 0; i < N; i++) {
        gr_queue_flows_leave(&f, (uint32_t)i);
    }
    assert_int_equal(gr_queue_flows_last(&f, gr_queue_flow_of(0, 0)), -1);
    gr_queue_flows_destroy(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_places),
        cmocka_unit_test(test_times),
        cmocka_unit_test(test_flows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
