/* The automatic size of a drafter's trees: it follows what passes cost and beats fixed sizes; where nothing is told of
 * costs it is the configured one. The drafter's machine against a target made by hand. */
#include "tests/sim/drafter_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

struct auto_run {
    double n_node, n_accepted;
    double rate; /* tokens a millisecond, in the prices that were told */
    uint64_t n_empty, n_level, n_draft;
};

static struct auto_run auto_run(const struct rig_config *c, uint32_t overhead_us, uint32_t base_us, uint32_t row_us,
                                int n_want)
{
    struct auto_run a = {0};
    struct rig *r = rig_create(c);
    rig_start(r, 30, 1);
    rig_send_cost(r, 1, 1, 1000000);
    const struct rig_frame old_cost = r->log[r->n_log - 1];
    (void)rig_verify(r, &r->tree, r->draft_header.round, -1, n_want);
    rig_send_cost(r, overhead_us, base_us, row_us);
    const double draft0_ns = r->draft_ns;
    const int32_t len0 = r->len;
    while (r->len < 420) {
        rig_await_draft(r);
        rig_run(r, c->ahead ? 3 : 0);
        assert_int_equal(gr_drafter_on_frame(r->drafter, RIG_PEER, old_cost.bytes, old_cost.len, 0), GR_OK);
        assert_true(r->tree.n <= n_want);
        for (int i = 0; i < r->tree.n; i++) {
            assert_true(gr_tree_depth(&r->tree, i) <= c->depth);
        }
        a.n_node += r->tree.n;
        a.n_draft++;
        a.n_accepted += rig_verify(r, &r->tree, r->draft_header.round, -1, n_want);
    }
    const struct gr_drafter_counters *k = gr_drafter_counters(r->drafter);
    assert_int_equal(k->n_stale_frame, a.n_draft); /* the old COST */
    a.n_empty = k->n_empty_choice;
    a.n_level = k->n_level;
    const double pass_us = (double)a.n_draft * (overhead_us + base_us + row_us) + a.n_node * row_us;
    a.rate = (r->len - len0) / (pass_us * 1e-3 + (r->draft_ns - draft0_ns) * 1e-6);
    a.n_node /= (double)a.n_draft;
    a.n_accepted /= (double)a.n_draft;
    assert_int_equal(k->n_desync, 0);
    /* what was tried at depth 1 and accepted there was tried at depth 2 when it had children */
    const struct gr_acceptance_counts *counts = gr_drafter_acceptance(r->drafter);
    assert_true(counts->n_tried[1][0] >= counts->n_tried[2][0]);
    assert_true(counts->n_accepted[1][0] <= counts->n_tried[1][0]);
    rig_destroy(r);
    return a;
}

static void test_auto_follows_cost(void **state)
{
    (void)state;
    for (int ahead = 0; ahead < 2; ahead++) {
        struct rig_config c = {.seed = 3,
                               .blur = 4,
                               .ahead = ahead,
                               .auto_tree = true,
                               .n_node = 63,
                               .depth = 16,
                               .top_k = 8,
                               .sharpness = 40.0f};
        double last = 64.0;
        static const uint32_t row_us[] = {0, 10, 40, 200, 2000};
        for (size_t i = 0; i < GR_ARRAY_LEN(row_us); i++) {
            const struct auto_run a = auto_run(&c, 20, 300, row_us[i], 63);
            print_message("# ahead %d, %d us a row: %.1f nodes, %.2f accepted, %.2f levels a tree, %d empty\n", ahead,
                          (int)row_us[i], a.n_node, a.n_accepted, (double)a.n_level / (double)a.n_draft,
                          (int)a.n_empty);
            assert_true(a.n_node <= last + 1.0);
            last = a.n_node;
            if (row_us[i] == 2000) {
                assert_true(a.n_empty > 0 && a.n_node < 1.0);
            } else if (row_us[i] == 0) {
                assert_true(a.n_node > 30.0);
            }
        }
        const struct auto_run capped = auto_run(&c, 20, 300, 0, 5);
        assert_true(capped.n_node <= 5.0);
        /* certain drafts make deep chains, up to the depth that is allowed */
        c.blur = 0;
        c.sharpness = 400.0f;
        const struct auto_run deep = auto_run(&c, 200, 3000, 5, 63);
        print_message("# certain: %.1f nodes, %.2f accepted\n", deep.n_node, deep.n_accepted);
        assert_true(deep.n_accepted > 14.0);
    }
}

/* Rounds as the prices have them: no fixed tree of this session is faster by more than chance. */
static void test_auto_beats_fixed(void **state)
{
    (void)state;
    static const uint32_t costs[][3] = {{20, 300, 2}, {20, 300, 40}, {100, 3000, 20}, {20, 100, 200}};
    for (size_t i = 0; i < GR_ARRAY_LEN(costs); i++) {
        for (int blur = 2; blur <= 6; blur += 4) {
            struct rig_config c = {
                .seed = 3, .blur = blur, .auto_tree = true, .n_node = 63, .depth = 16, .top_k = 8, .sharpness = 40.0f};
            const struct auto_run a = auto_run(&c, costs[i][0], costs[i][1], costs[i][2], 63);
            c.ahead = true;
            const struct auto_run ahead = auto_run(&c, costs[i][0], costs[i][1], costs[i][2], 63);
            double best = 0.0;
            int best_n = 0;
            c.auto_tree = c.ahead = false;
            for (int n = 1; n <= 63; n = 2 * n + 1) {
                for (int depth = 1; depth <= 8; depth *= 2) {
                    c.n_node = n;
                    c.depth = depth;
                    const double rate = auto_run(&c, costs[i][0], costs[i][1], costs[i][2], 63).rate;
                    best_n = rate > best ? n : best_n;
                    best = rate > best ? rate : best;
                }
            }
            print_message(
                "# cost %zu blur %d: %.2f tokens/ms (%.1f nodes), ahead %.2f; best of 24 fixed %.2f (%d nodes)\n", i,
                blur, a.rate, a.n_node, ahead.rate, best, best_n);
            assert_true(a.rate > 0.95 * best);
        }
    }
}

/* Without COST the size is the one that is configured, or wanted. */
static void test_auto_without_cost(void **state)
{
    (void)state;
    struct rig_config c = {.seed = 3, .blur = 3, .auto_tree = true, .n_node = 14, .depth = 6, .top_k = 4};
    struct rig *r = rig_create(&c);
    rig_start(r, 30, 63);
    assert_int_equal(r->tree.n, 14);
    (void)rig_verify(r, &r->tree, r->draft_header.round, -1, 6);
    rig_await_draft(r);
    assert_int_equal(r->tree.n, 6);
    c.auto_tree = false;
    rig_assert_fresh(r, &c, 6);
    rig_destroy(r);
}

/* With the argument `head` the draft model is a head, which checks every feature that it is given. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_auto_follows_cost),
        cmocka_unit_test(test_auto_beats_fixed),
        cmocka_unit_test(test_auto_without_cost),
    };
    rig_heads = argc > 1 && strcmp(argv[1], "head") == 0;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
