/* Simulated fleets whose figures are known beforehand. */
#include "bench/simulate/fleet.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define N_PROMPT 40
#define N_NEW 100
#define PASS_NS 5e6
#define HOST_NS 13000.0
#define SESSION_NS 20000.0
#define CONTEXT_NS 50.0
#define LEVEL_NS 2e5

/* Passes cost what they cost whatever they hold, and a context by its length; the draft model is always right. */
static struct gr_sim_costs flat(void)
{
    struct gr_sim_costs c = {
        .target = {.rows = {.n = 2, .x = {1, 1e6}, .y = {PASS_NS, PASS_NS}},
                   .session_ns = SESSION_NS,
                   .context_ns = CONTEXT_NS,
                   .host_ns = HOST_NS},
        .draft = {.rows = {.n = 2, .x = {1, 1e6}, .y = {LEVEL_NS, LEVEL_NS}}},
        .data = {.latency_ns = 1000},
        .control = {.latency_ns = 1000},
    };
    c.surmise.n_level = 1;
    c.surmise.level[0].n_class = 1;
    c.surmise.level[0].class[0] = (struct gr_surmise_class){.share = 1.0, .sure = 0.99, .hit = 1.0};
    return c;
}

static struct gr_fleet_config plain_config(const struct gr_sim_costs *costs)
{
    return (struct gr_fleet_config){.costs = costs,
                                    .seed = 3,
                                    .n_target = 1,
                                    .n_slot = 64,
                                    .n_node = -1,
                                    .n_session = 1,
                                    .n_prompt = N_PROMPT,
                                    .n_new = N_NEW,
                                    .n_group = 1};
}

static struct gr_fleet_result run(const struct gr_fleet_config *config)
{
    struct gr_fleet_result r;
    struct gr_fleet *f = NULL;
    assert_int_equal(gr_fleet_create(config, &f), GR_OK);
    assert_int_equal(gr_fleet_run(f, &r), GR_OK);
    gr_fleet_destroy(f);
    assert_int_equal(r.n_failed, 0);
    return r;
}

/* Decode passes of n sessions one after another: row 0 of the k-th stands at position N_PROMPT + k. */
static double decode_seconds(int n_session)
{
    double ns = 0.0;
    for (int k = 0; k < N_NEW - 1; k++) {
        ns += floor(PASS_NS + HOST_NS + n_session * (SESSION_NS + CONTEXT_NS * (N_PROMPT + k)));
    }
    return 1e-9 * ns;
}

static void near(double got, double want, double by)
{
    if (fabs(got - want) > by * want) {
        print_error("%.9g is not %.9g\n", got, want);
    }
    assert_true(fabs(got - want) <= by * want);
}

static void test_one_plain_session(void **state)
{
    (void)state;
    const struct gr_sim_costs costs = flat();
    const struct gr_fleet_config c = plain_config(&costs);
    const struct gr_fleet_result r = run(&c);
    assert_int_equal(r.n_token, N_NEW - 1);
    assert_int_equal(r.n_pass, N_NEW); /* the prompt's, and one for each token but the first */
    near(r.seconds, decode_seconds(1), 1e-9);
    near(r.all_seconds, r.seconds, 1e-9);
}

static void test_many_plain_sessions(void **state)
{
    (void)state;
    const struct gr_sim_costs costs = flat();
    struct gr_fleet_config c = plain_config(&costs);
    c.n_session = 64;
    const struct gr_fleet_result one = run(&c);
    assert_int_equal(one.n_token, 64 * (N_NEW - 1));
    near(one.seconds, decode_seconds(64), 1e-9);
    c.n_target = 4; /* 16 sessions each */
    const struct gr_fleet_result four = run(&c);
    near(four.seconds, decode_seconds(16), 1e-3);
    assert_int_equal(four.n_pass, 4 * N_NEW);
}

/* A drafter that is always right, on a device of its own and told to make chains of 8: each round brings 9 tokens, and
 * takes a pass, the levels of the next chain, and its way there and back. */
static void test_sure_drafter(void **state)
{
    (void)state;
    const struct gr_sim_costs costs = flat();
    struct gr_fleet_config c = plain_config(&costs);
    c.n_draft = 1;
    c.n_node = 8;
    c.n_new = 9 * 40;
    c.n_warm = 1; /* in the first one the drafter reads the prompt while the target decodes */
    const struct gr_fleet_result r = run(&c);
    near(1.0 + (double)r.n_accepted / (double)r.n_draft, 9.0, 0.03);
    const double round_ns = PASS_NS + HOST_NS + SESSION_NS + CONTEXT_NS * (N_PROMPT + c.n_new / 2) + 8 * LEVEL_NS;
    near((double)r.n_token / r.seconds, 9e9 / round_ns, 0.06);
    c.ahead = true; /* levels are grown while the target verifies */
    const struct gr_fleet_result ahead = run(&c);
    assert_true(ahead.seconds < r.seconds);
}

/* One device for both: what one does the other waits for, so passes and levels add up to all of the time. */
static void test_one_device(void **state)
{
    (void)state;
    const struct gr_sim_costs costs = flat();
    struct gr_fleet_config c = plain_config(&costs);
    c.n_draft = 1;
    c.n_node = 8;
    c.shared = true;
    const struct gr_fleet_result r = run(&c);
    assert_true(r.target_busy > 0.98 && r.target_busy <= 1.0);
    assert_true(r.draft_busy == 0.0); /* it has no device of its own */
}

/* What the hosts do takes time of rounds and none of the device. */
static void test_host_time(void **state)
{
    (void)state;
    struct gr_sim_costs costs = flat();
    struct gr_fleet_config c = plain_config(&costs);
    c.n_draft = 1;
    c.n_node = 8;
    c.shared = true;
    costs.draft.host_ns = 1e6;
    costs.draft.host_level_ns = 1e5;
    costs.draft.host_session_ns = 5e5;
    costs.target.host_tree_ns = 2e6;
    const struct gr_fleet_result r = run(&c);
    /* A round of the device: a pass and 8 levels, or 9 with the committed tokens' rows. Its hosts: 1 + 0.5 ms of the
     * job, 0.1 ms a level, 2 ms of the tree. */
    const double device_ns = PASS_NS + 8.5 * LEVEL_NS + SESSION_NS + CONTEXT_NS * (N_PROMPT + N_NEW / 2);
    const double host_ns = 3.5e6 + 8.5e5 + HOST_NS;
    near(r.target_busy, device_ns / (device_ns + host_ns), 0.05);
}

/* A text that its drafter knew but for every fourth token: a chain of 8 is right three times, or less after a miss. */
static void test_recorded_text(void **state)
{
    (void)state;
    struct gr_sim_costs costs = flat();
    struct gr_fleet_config c = plain_config(&costs);
    struct gr_surmise_row row[4];
    for (int i = 0; i < 4; i++) {
        row[i] = (struct gr_surmise_row){.rank = i < 3 ? 1 : 0, .prob = {0.9f, 0.05f, 0.01f, 0.01f}};
    }
    costs.texts = (struct gr_surmise_texts){.n_text = 1, .n_pos = 4, .n_level = 1, .row = row};
    c.n_draft = 1;
    c.n_node = 8;
    c.n_new = 400;
    c.n_warm = 1;
    const struct gr_fleet_result r = run(&c);
    near(1.0 + (double)r.n_accepted / (double)r.n_draft, 4.0, 0.02);
}

/* A link of 1 MB/s in place of an endless one: rounds wait for it, and it is what limits. */
static void test_slow_link(void **state)
{
    (void)state;
    struct gr_sim_costs costs = flat();
    struct gr_fleet_config c = plain_config(&costs);
    c.n_draft = 1;
    c.n_node = 8;
    costs.feature_bytes = 8192;
    const struct gr_fleet_result fast = run(&c);
    assert_true(fast.link_busy_most == 0.0);
    costs.data.byte_ns = 1000.0;
    const struct gr_fleet_result slow = run(&c);
    assert_true(slow.link_busy_most > 0.3);
    assert_true(slow.seconds > 2.0 * fast.seconds);
}

/* The orchestrator takes a millisecond for each message: with 64 sessions in step it is always behind, and rounds do
 * not wait for it. */
static void test_slow_orchestrator(void **state)
{
    (void)state;
    struct gr_sim_costs costs = flat();
    struct gr_fleet_config c = plain_config(&costs);
    c.n_session = 64;
    const struct gr_fleet_result fast = run(&c);
    costs.orch.message_ns = 50000.0;
    const struct gr_fleet_result busy = run(&c);
    assert_true(busy.orch_busy > 0.4 && busy.orch_busy < 0.6);
    near((double)busy.n_pass, (double)fast.n_pass, 0.3);
    assert_true(busy.mean_wait_ns > 1000.0 && fast.mean_wait_ns == 0.0);
}

/* The same seed, the same run; what the clock of this computer says is left out. */
static void test_replays(void **state)
{
    (void)state;
    struct gr_sim_costs costs = flat();
    costs.surmise.level[0].class[0].hit = 0.8;
    struct gr_fleet_config c = plain_config(&costs);
    c.n_target = 3;
    c.n_draft = 2;
    c.n_node = 0;
    c.n_session = 20;
    c.run_ns = 3000000000u;
    c.warm_ns = 500000000u;
    c.mean_life_s = 2.0;
    c.restart_ns = 100000000u;
    c.notice_ns = 1000000u;
    struct gr_fleet_result a = run(&c);
    struct gr_fleet_result b = run(&c);
    assert_true(a.n_loss > 0 && a.n_done > 20);
    memset(&a.real, 0, sizeof(a.real));
    memset(&b.real, 0, sizeof(b.real));
    assert_memory_equal(&a, &b, sizeof(a));
    c.seed++;
    b = run(&c);
    assert_int_not_equal(a.n_event, b.n_event);
}

static void test_too_many(void **state)
{
    (void)state;
    const struct gr_sim_costs costs = flat();
    struct gr_fleet_config c = plain_config(&costs);
    struct gr_fleet *f = NULL;
    c.n_target = 1000000;
    assert_int_equal(gr_fleet_create(&c, &f), GR_ELIMIT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_plain_session), cmocka_unit_test(test_many_plain_sessions),
        cmocka_unit_test(test_sure_drafter),      cmocka_unit_test(test_one_device),
        cmocka_unit_test(test_host_time),         cmocka_unit_test(test_recorded_text),
        cmocka_unit_test(test_slow_link),         cmocka_unit_test(test_slow_orchestrator),
        cmocka_unit_test(test_replays),           cmocka_unit_test(test_too_many)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
