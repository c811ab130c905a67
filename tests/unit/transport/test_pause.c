/* How long workers wait before they come back, by a clock of the test. */
#include "common/base/clock.h"
#include "transport/pause.h"
#include "transport/worker/rejoin.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#define N_WORKER 64
#define N_PAUSE 9 /* of a worker; the longest ones come twice */

/* All of them are within [whole / 2, whole], and they differ. */
static void expect_spread(const uint64_t pause_ms[N_WORKER], uint64_t whole_ms)
{
    size_t n_as_first = 0;
    for (size_t i = 0; i < N_WORKER; i++) {
        assert_in_range(pause_ms[i], whole_ms / 2, whole_ms);
        n_as_first += pause_ms[i] == pause_ms[0];
    }
    assert_in_range(n_as_first, 1, N_WORKER / 2);
}

static void test_pauses(void **state)
{
    (void)state;
    static const uint64_t whole_ms[] = {50, 100, 200, 400, 700, 700};
    uint64_t pause_ms[N_WORKER];
    for (uint32_t n = 0; n < sizeof(whole_ms) / sizeof(whole_ms[0]); n++) {
        for (size_t i = 0; i < N_WORKER; i++) {
            pause_ms[i] = gr_pause_ms(n, 50, 700);
        }
        expect_spread(pause_ms, whole_ms[n]);
    }
    assert_in_range(gr_pause_ms(UINT32_MAX, 50, 700), 350, 700);
    assert_in_range(gr_pause_ms(0, 1, 1), 0, 1);
}

/* When the worker that has lost its orchestrator at now_ns tries to reach it. */
static uint64_t next_try_ns(struct gr_rejoin *r, uint64_t now_ns)
{
    int fd = -1;
    struct gr_hello peer;
    uint64_t wake_ns = 0;
    gr_rejoin_begin(r, now_ns);
    assert_int_equal(gr_rejoin_step(r, now_ns, &fd, &peer, &wake_ns), GR_AGAIN);
    return wake_ns;
}

/* Workers that lose one orchestrator in one instant, again and again, and those for which it stood meanwhile. */
static void test_rejoin(void **state)
{
    (void)state;
    static const uint64_t whole_ms[N_PAUSE] = {50, 100, 200, 400, 800, 1600, 2000, 2000, 50};
    const struct gr_rejoin_config config = {.address = "127.0.0.1:1", .wake_fd = -1, .patience_ns = UINT64_MAX};
    struct gr_rejoin *worker[N_WORKER];
    uint64_t pause_ms[N_WORKER], now_ns = 1000 * GR_S;
    for (size_t i = 0; i < N_WORKER; i++) {
        assert_int_equal(gr_rejoin_create(&config, &worker[i]), GR_OK);
    }
    for (size_t n = 0; n < N_PAUSE; n++, now_ns += GR_S) {
        for (size_t i = 0; i < N_WORKER; i++) {
            if (n == N_PAUSE - 1) {
                gr_rejoin_stands(worker[i]);
            }
            pause_ms[i] = (next_try_ns(worker[i], now_ns) - now_ns) / GR_MS;
        }
        expect_spread(pause_ms, whole_ms[n]);
    }
    for (size_t i = 0; i < N_WORKER; i++) {
        gr_rejoin_destroy(worker[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_pauses), cmocka_unit_test(test_rejoin)};
    return cmocka_run_group_tests_name("pause", tests, NULL, NULL);
}
