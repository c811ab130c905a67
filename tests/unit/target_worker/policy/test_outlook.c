/* What a target says of its rounds with more sessions, and where sessions go by that. */
#include "orchestrator/machine/placement.h"
#include "target_worker/policy/outlook.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#define N_SLOT 256

/* What a pass of 1, 8, 64, 128 and 256 rows takes on two GPUs, in ms; the second is what rounds of 4 to 192 sessions of
 * an H200 took. */
static const double flat[] = {5.2, 5.3, 6.1, 7.8, 11.8}, steep[] = {3.8, 3.9, 5.0, 8.4, 17};

/* A GPU's passes, of which the one of two rows was measured so much too long. */
static struct gr_cost_table table_with(const double *ms, double noise_ns)
{
    static const int32_t rows[] = {1, 2, 8, 64, 128, 256};
    const double ns[] = {ms[0] * 1e6, ms[0] * 1e6 + noise_ns, ms[1] * 1e6, ms[2] * 1e6, ms[3] * 1e6, ms[4] * 1e6};
    struct gr_cost_table c;
    gr_cost_table_init(&c);
    gr_cost_table_calibrate(&c, 6, rows, ns);
    return c;
}

static struct gr_round_forecast forecast_of(const struct gr_cost_table *c, uint32_t n_active)
{
    struct gr_crowd_load crowd = {.n_context = 100, .n_room = N_SLOT - (int)n_active};
    for (uint32_t i = 0; i < n_active; i++) {
        gr_pass_load_add(&crowd.load, 1, gr_attends_all(crowd.n_context));
    }
    const struct gr_outlook o = gr_outlook_of(c, &crowd);
    return (struct gr_round_forecast){
        .n_active = n_active, .round_ns = o.round_ns, .more_ns = o.more_ns, .first_ns = o.first_ns};
}

static void test_numbers(void **state)
{
    (void)state;
    const struct gr_cost_table c = table_with(flat, 0);
    const struct gr_round_forecast idle = forecast_of(&c, 0), busy = forecast_of(&c, 100);
    assert_true(idle.round_ns == idle.first_ns && idle.more_ns > 0);
    assert_true(busy.first_ns == idle.first_ns && busy.round_ns > idle.round_ns && busy.more_ns > idle.more_ns);
    const struct gr_round_forecast full = forecast_of(&c, N_SLOT); /* no room: one more all the same */
    assert_true(full.more_ns > 0);
}

/* Workers that are alike, one of them with noise in its table, and sessions that come at once: nobody says anything
 * until all are there. before[i]: how many sessions worker i had when it said what it said; they have ended. */
static void share_out(const double *ms, const double *noise_ns, const uint32_t *before, int n_worker,
                      uint32_t n_session)
{
    struct gr_round_forecast f[4];
    uint32_t n[4] = {0};
    for (int i = 0; i < n_worker; i++) {
        const struct gr_cost_table c = table_with(ms, noise_ns[i]);
        f[i] = forecast_of(&c, before[i]);
    }
    int last = -1;
    for (uint32_t k = 0; k < n_session; k++) {
        struct gr_place p[4];
        for (int i = 0; i < n_worker; i++) {
            p[i] = (struct gr_place){.fits = true,
                                     .has_room = n[i] < N_SLOT,
                                     .n_active = n[i],
                                     .n_held = n[i],
                                     .round_ns = gr_forecast_round_ns(&f[i], n[i])};
        }
        last = gr_place_choose(p, n_worker, last);
        n[last]++;
    }
    const uint32_t even = n_session / (uint32_t)n_worker;
    for (int i = 0; i < n_worker; i++) {
        assert_in_range(n[i], even - even / 10, even + even / 10);
    }
}

static void test_shares(void **state)
{
    (void)state;
    const double noise[] = {0, 9e4, 0, 5e4};
    const uint32_t none[4] = {0}, some[] = {96, 0, 187, 10};
    share_out(flat, noise, none, 2, 192);
    share_out(flat, noise, none, 4, 768);
    share_out(flat, noise, some, 2, 192);
    share_out(flat, noise, some, 4, 384);
    share_out(steep, noise, none, 4, 768);
    share_out(steep, noise, some, 4, 768); /* a line through the next few sessions of one that is idle is too flat */
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_numbers), cmocka_unit_test(test_shares)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
