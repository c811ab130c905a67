/* SpecPV's policy: when a session is verified under its view, when it is refreshed, and when not at all. */
#include "common/base/status.h"
#include "target_worker/policy/specpv.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

static const struct gr_specpv_params defaults = {.n_sink = 2,
                                                 .n_retrieval = 256,
                                                 .n_window = 8,
                                                 .n_buffer = 128,
                                                 .threshold = 4096,
                                                 .interval = 32,
                                                 .max_provisional = 128};
static const struct gr_specpv_drift no_drift = {.n_checked = 1000.0};

static struct gr_specpv_input input(void)
{
    return (struct gr_specpv_input){.mode = GR_SPECPV_EXACT,
                                    .params = &defaults,
                                    .context = 5000,
                                    .n_row = 64,
                                    .n_level = 8,
                                    .has_view = true,
                                    .drift = &no_drift};
}

static void assert_round(const struct gr_specpv_input *in, enum gr_specpv_round round, enum gr_specpv_why why)
{
    const struct gr_specpv_decision d = gr_specpv_decide(in);
    assert_int_equal(d.round, round);
    assert_int_equal(d.why, why);
}

static void test_gate(void **state)
{
    (void)state;
    struct gr_specpv_input in = input();
    assert_round(&in, GR_SPECPV_ROUND_PARTIAL, GR_SPECPV_WHY_NONE);
    in.context = 4096; /* not longer than the threshold */
    assert_round(&in, GR_SPECPV_ROUND_PLAIN, GR_SPECPV_WHY_NONE);
    in.context = 4097;
    assert_round(&in, GR_SPECPV_ROUND_PARTIAL, GR_SPECPV_WHY_NONE);
    in.has_view = false;
    assert_round(&in, GR_SPECPV_ROUND_SEED, GR_SPECPV_WHY_VIEW);
    in.mode = GR_SPECPV_OFF;
    assert_round(&in, GR_SPECPV_ROUND_PLAIN, GR_SPECPV_WHY_NONE);
    in.n_missing = 3; /* it was taken from the session: what is missing is made good */
    assert_round(&in, GR_SPECPV_ROUND_REFRESH, GR_SPECPV_WHY_ASKED);
}

static void test_triggers(void **state)
{
    (void)state;
    struct gr_specpv_input in = input();
    in.n_missing = 64;
    assert_round(&in, GR_SPECPV_ROUND_PARTIAL, GR_SPECPV_WHY_NONE);
    in.n_missing = 65; /* and 64 rows */
    assert_round(&in, GR_SPECPV_ROUND_REFRESH, GR_SPECPV_WHY_BUFFER);
    in.n_row = 1;
    assert_round(&in, GR_SPECPV_ROUND_PARTIAL, GR_SPECPV_WHY_NONE);
    in.n_partial = 31;
    assert_round(&in, GR_SPECPV_ROUND_PARTIAL, GR_SPECPV_WHY_NONE);
    in.n_partial = 32;
    assert_round(&in, GR_SPECPV_ROUND_REFRESH, GR_SPECPV_WHY_INTERVAL);
    in.n_partial = 1;
    in.asked = true;
    assert_round(&in, GR_SPECPV_ROUND_REFRESH, GR_SPECPV_WHY_ASKED);
    in.n_missing = 0; /* nothing is missing: the view alone */
    assert_round(&in, GR_SPECPV_ROUND_SEED, GR_SPECPV_WHY_ASKED);
    in.end_due = true;
    assert_round(&in, GR_SPECPV_ROUND_JUDGE, GR_SPECPV_WHY_END);
}

static void test_fraction_and_provisional(void **state)
{
    (void)state;
    struct gr_specpv_params p = defaults;
    struct gr_specpv_input in = input();
    in.params = &p;
    p.refresh_fraction = 0.01; /* of 264 blocks: 42.24 tokens */
    in.n_missing = 42;
    assert_round(&in, GR_SPECPV_ROUND_PARTIAL, GR_SPECPV_WHY_NONE);
    in.n_missing = 43;
    assert_round(&in, GR_SPECPV_ROUND_REFRESH, GR_SPECPV_WHY_FRACTION);
    p.refresh_fraction = 0.0;
    p.max_provisional = 52; /* 43, 8 levels and the bonus */
    assert_round(&in, GR_SPECPV_ROUND_PARTIAL, GR_SPECPV_WHY_NONE);
    p.max_provisional = 51;
    assert_round(&in, GR_SPECPV_ROUND_REFRESH, GR_SPECPV_WHY_PROVISIONAL);
    in.mode = GR_SPECPV_LOSSY; /* which has none */
    assert_round(&in, GR_SPECPV_ROUND_PARTIAL, GR_SPECPV_WHY_NONE);
}

/* The more mismatches refreshes find, the fewer tokens wait for them; clean ones make that good. */
static void test_drift(void **state)
{
    (void)state;
    struct gr_specpv_drift d = {0};
    struct gr_specpv_input in = input();
    in.drift = &d;
    in.n_row = 1;
    in.n_missing = 31;
    assert_round(&in, GR_SPECPV_ROUND_PARTIAL, GR_SPECPV_WHY_NONE);
    in.n_missing = 32; /* nothing is known yet */
    assert_round(&in, GR_SPECPV_ROUND_REFRESH, GR_SPECPV_WHY_DRIFT);
    in.n_missing = 60;
    gr_specpv_drift_observe(&d, 32, 0);
    assert_round(&in, GR_SPECPV_ROUND_PARTIAL, GR_SPECPV_WHY_NONE);
    int least = 60;
    for (int i = 0; i < 10; i++) { /* one in ten */
        gr_specpv_drift_observe(&d, 10, 1);
        for (in.n_missing = 0; gr_specpv_decide(&in).round == GR_SPECPV_ROUND_PARTIAL;) {
            in.n_missing++;
        }
        assert_true(in.n_missing <= least);
        least = in.n_missing;
    }
    assert_in_range(least, 4, 9);
    in.n_missing = 60;
    assert_round(&in, GR_SPECPV_ROUND_REFRESH, GR_SPECPV_WHY_DRIFT);
    for (int i = 0; i < 60; i++) {
        gr_specpv_drift_observe(&d, 10, 0);
    }
    assert_round(&in, GR_SPECPV_ROUND_PARTIAL, GR_SPECPV_WHY_NONE);
    for (int i = 0; i < 80; i++) { /* everything is wrong: a partial round at a time */
        gr_specpv_drift_observe(&d, 10, 10);
    }
    in.n_missing = 0;
    assert_round(&in, GR_SPECPV_ROUND_PARTIAL, GR_SPECPV_WHY_NONE);
    in.n_missing = 1;
    assert_round(&in, GR_SPECPV_ROUND_REFRESH, GR_SPECPV_WHY_DRIFT);
}

static void test_preflight(void **state)
{
    (void)state;
    struct gr_specpv_params p = defaults;
    assert_null(gr_specpv_preflight(&p, 64, 63, 32768));
    p.n_buffer = 127;
    assert_non_null(strstr(gr_specpv_preflight(&p, 64, 63, 32768), "buffer"));
    p.n_buffer = 128;
    assert_int_equal(gr_specpv_view_tokens(&p), 4256);
    assert_null(gr_specpv_preflight(&p, 64, 8, 4384));
    assert_non_null(strstr(gr_specpv_preflight(&p, 64, 8, 4383), "budget"));
    p.max_provisional = 8;
    assert_non_null(strstr(gr_specpv_preflight(&p, 64, 8, 32768), "max_provisional"));
    p.max_provisional = 9;
    assert_null(gr_specpv_preflight(&p, 64, 8, 32768));
}

static void test_resolve(void **state)
{
    (void)state;
    const struct gr_specpv_params wanted = {.n_retrieval = 1000, .n_window = 3, .interval = 7, .max_provisional = 500};
    struct gr_specpv_params p = gr_specpv_resolve(&wanted, &defaults);
    assert_int_equal(p.n_sink, 2);
    assert_int_equal(p.n_retrieval, 256); /* views were made for no more */
    assert_int_equal(p.n_window, 3);
    assert_int_equal(p.interval, 7);
    assert_int_equal(p.threshold, 4096);
    assert_int_equal(p.max_provisional, 128);
    struct gr_specpv_params most = defaults;
    most.max_provisional = 0;
    p = gr_specpv_resolve(&(struct gr_specpv_params){.n_buffer = 40}, &most);
    assert_int_equal(p.max_provisional, 40); /* as the buffer goes */
}

static void test_automatic(void **state)
{
    (void)state;
    const struct gr_specpv_params nothing = {0}, told = {.n_retrieval = 100, .threshold = 9000, .n_window = 5};
    struct gr_specpv_params p = gr_specpv_automatic(&nothing, 16384);
    assert_int_equal(p.n_retrieval, 64); /* 1,024 tokens */
    assert_int_equal(p.threshold, 2048);
    assert_int_equal(p.n_window, 0); /* the target's */
    p = gr_specpv_automatic(&nothing, 100);
    assert_int_equal(p.n_retrieval, 32);
    assert_int_equal(p.threshold, 1024);
    p = gr_specpv_automatic(&nothing, UINT64_MAX);
    assert_int_equal(gr_specpv_resolve(&p, &defaults).n_retrieval, 256);
    p = gr_specpv_automatic(&told, 16384);
    assert_int_equal(p.n_retrieval, 100);
    assert_int_equal(p.threshold, 9000);
    assert_int_equal(p.n_window, 5);
}

/* A long context whose view costs a third: it pays, unless every second token is judged away, or the refresh's rows
 * cost too much, or waiting for trees is most of a round. */
static void test_pays(void **state)
{
    (void)state;
    struct gr_specpv_price p = {
        .full_ns = 3e6, .partial_ns = 1e6, .refresh_ns = 8e6, .rest_ns = 0.2e6, .n_token = 4.0, .n_missing = 64};
    assert_true(gr_specpv_pays(&p)); /* 68 tokens in 17 rounds of 3.2 ms, or 16 of 1.2 ms and one of 8.2 */
    p.drift = 0.5;
    assert_false(gr_specpv_pays(&p));
    p.drift = 0.005;
    assert_true(gr_specpv_pays(&p));
    p.refresh_ns = 40e6;
    assert_false(gr_specpv_pays(&p));
    p.refresh_ns = 8e6;
    p.partial_ns = 2.9e6;
    assert_false(gr_specpv_pays(&p));
    p.partial_ns = 1e6;
    p.rest_ns = 100e6; /* and one token more in 17 rounds does not make good what is thrown away */
    assert_false(gr_specpv_pays(&p));
    struct gr_specpv_drift d = no_drift;
    assert_int_equal(gr_specpv_usual_missing(&defaults, &d, 64, 4.0), 64);
    assert_int_equal(gr_specpv_usual_missing(&defaults, &d, 1, 1.0), 32); /* its interval */
    d = (struct gr_specpv_drift){.n_checked = 84.0, .n_mismatch = 9.75};
    assert_int_equal(gr_specpv_usual_missing(&defaults, &d, 64, 4.0), 5);
}

/* Ten rounds under the view, 4 tokens each, then a judgement that brings n_token; 28 ms in all. */
static void cycle(struct gr_specpv_trial *t, int32_t n_token)
{
    for (int k = 0; k < 10; k++) {
        gr_specpv_trial_round(t, GR_SPECPV_ROUND_PARTIAL, 4, 2e6);
        assert_true(gr_specpv_trial_due(t));
    }
    gr_specpv_trial_round(t, GR_SPECPV_ROUND_REFRESH, n_token, 8e6);
}

static void rest(struct gr_specpv_trial *t, uint32_t n)
{
    for (uint32_t k = 0; k < n; k++) {
        assert_false(gr_specpv_trial_due(t));
        gr_specpv_trial_round(t, GR_SPECPV_ROUND_PLAIN, 4, 4e6); /* a token a ms */
    }
    assert_true(gr_specpv_trial_due(t));
}

/* Tries that lose four rounds in full, later two, are not repeated soon; one cycle that loses among others that gain
 * changes nothing, and a gain forgets failures. */
static void test_trials(void **state)
{
    static const struct {
        int n_cycle;
        uint32_t n_rest;
    } failures[] = {{2, 32}, {1, 64}, {1, 128}}; /* a cycle of 18 tokens loses 10 ms, two rounds and a half */
    (void)state;
    struct gr_specpv_trial t = {0};
    rest(&t, 8);
    for (size_t i = 0; i < GR_ARRAY_LEN(failures); i++) {
        gr_specpv_trial_round(&t, GR_SPECPV_ROUND_SEED, 4, 50e6);
        for (int k = 0; k < failures[i].n_cycle; k++) {
            cycle(&t, -22);
        }
        rest(&t, failures[i].n_rest);
    }
    cycle(&t, -10); /* 30 tokens: a gain of 2 ms */
    for (int k = 0; k < 20; k++) {
        cycle(&t, -22);
        assert_true(gr_specpv_trial_due(&t));
        cycle(&t, 0); /* 40: 12 ms */
    }
    for (int k = 0; k < 2; k++) {
        cycle(&t, -22);
    }
    rest(&t, 32);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gate),
        cmocka_unit_test(test_triggers),
        cmocka_unit_test(test_fraction_and_provisional),
        cmocka_unit_test(test_drift),
        cmocka_unit_test(test_preflight),
        cmocka_unit_test(test_resolve),
        cmocka_unit_test(test_automatic),
        cmocka_unit_test(test_pays),
        cmocka_unit_test(test_trials),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
