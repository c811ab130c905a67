/* The target alone under SpecPV: what a roll-back does to trees and lengths, and what ends a turn whose last tokens are
 * provisional. Every final text is compared with the table model's own. */
#include "tests/sim/target_rig.h"

static const struct gr_specpv_params small = {
    .n_sink = 1, .n_retrieval = 2, .n_window = 1, .n_buffer = 40, .threshold = 10, .interval = 4};

static void set_up(struct world *w, enum gr_specpv_mode mode, uint32_t corrupt, int32_t n_block)
{
    rig_specpv = small;
    rig_specpv_mode = mode;
    rig_corrupt = corrupt;
    create(w, n_block);
}

static int tear_down(void **state)
{
    (void)state;
    rig_specpv = (struct gr_specpv_params){0};
    rig_specpv_mode = GR_SPECPV_OFF;
    rig_corrupt = 0;
    rig_stop_ids.n = 0;
    rig_partial_blur = rig_odd = rig_odd_partial = 0;
    rig_odd_hidden = false;
    return 0;
}

static const struct gr_target_counters *counters(const struct world *w)
{
    return gr_target_counters(w->target);
}

static void lengths(const struct world *w, uint64_t id, int32_t *len, int32_t *kv_len)
{
    const int32_t *token = NULL;
    const struct gr_kv_table *table = NULL;
    assert_true(gr_target_peek(w->target, id, &token, len, kv_len, &table));
}

static void pass_until_provisional(struct world *w, uint64_t id, int32_t n)
{
    while (w->text[id].len - w->text[id].final_len < n) {
        assert_true(one_pass(w, 1000));
    }
}

/* A step that starts a pass, which one_pass() then finishes. */
static void start(struct world *w, uint64_t now_ns)
{
    (void)gr_target_step(w->target, now_ns);
    assert_non_null(w->pass);
}

static void test_exact_text(void **state)
{
    (void)state;
    for (uint32_t corrupt = 0; corrupt < 4; corrupt++) {
        for (int blur = 0; blur < 8; blur += 3) {
            struct world w;
            rig_partial_blur = blur;
            set_up(&w, GR_SPECPV_EXACT, corrupt, 24);
            open_prompt(&w, 1, 40, 60);
            open_prompt(&w, 2, 5, 90);
            run(&w);
            assert_int_equal(w.text[1].len, 100);
            assert_int_equal(w.text[1].final_len, 100);
            assert_plain(&w.text[1], 40);
            assert_plain(&w.text[2], 5);
            assert_int_equal(w.finish[1], GR_FINISH_LENGTH);
            assert_true(counters(&w)->n_partial_round > 20 && counters(&w)->n_judge > 0);
            assert_int_equal(counters(&w)->n_roll_back > 0, corrupt > 0 || blur > 0);
            destroy(&w);
        }
    }
}

/* Sessions yield with provisional tokens, which are made again. */
static void test_preempted(void **state)
{
    (void)state;
    rig_specpv = small;
    rig_specpv_mode = GR_SPECPV_EXACT;
    rig_corrupt = 3;
    uint64_t n_yield = 0;
    for (int32_t n_block = 8; n_block < 20; n_block++) {
        n_yield += run_too_many(n_block);
    }
    assert_true(n_yield > 0);
}

/* Roll-back in round 4; what was drafted on tokens that are gone is neither verified nor taken for a desync. */
static void test_trees_after_the_fence(void **state)
{
    (void)state;
    struct world w;
    set_up(&w, GR_SPECPV_EXACT, 1, 24);
    open_with_drafter(&w);
    for (uint32_t round = 1; round < 4; round++) { /* a view is chosen, then partial rounds */
        send_tree(&w, round, 0);
        assert_true(one_pass(&w, 0));
    }
    assert_int_equal(counters(&w)->n_partial_round, 2);
    assert_true(w.text[1].len > w.text[1].final_len);
    gr_target_on_msg(w.target, &(struct gr_msg){.type = GR_MSG_REFRESH, .session = 1}, 0);
    start(&w, 3 * DEADLINE); /* without a tree: it comes now */
    send_tree(&w, 4, 3 * DEADLINE);
    const struct text before = w.text[1];
    assert_true(one_pass(&w, 3 * DEADLINE));
    assert_int_equal(w.text[1].n_back, 1);
    assert_int_equal(w.text[1].final_len, w.text[1].len);
    assert_true(w.text[1].len < before.len);
    assert_plain(&w.text[1], 20);
    const uint64_t n_tree = counters(&w)->n_tree_round;
    const struct text after = w.text[1];
    w.text[1] = before; /* one more, on what is gone */
    send_tree(&w, 4, 3 * DEADLINE);
    w.text[1] = after;
    assert_true(one_pass(&w, 9 * DEADLINE));
    assert_int_equal(counters(&w)->n_tree_round, n_tree);
    assert_int_equal(counters(&w)->n_desync, 0);
    destroy(&w);
}

/* TRUNCATE, between passes and during one: final tokens stay, and the next turn begins after them. */
static void test_truncate(void **state)
{
    (void)state;
    for (int in_pass = 0; in_pass < 2; in_pass++) {
        struct world w;
        int32_t len = 0;
        int32_t kv_len = 0;
        set_up(&w, GR_SPECPV_EXACT, 0, 24);
        open_prompt(&w, 1, 40, 60);
        pass_until_provisional(&w, 1, 3);
        if (in_pass != 0) {
            start(&w, 1000);
        }
        truncate_to(&w, 1, w.text[1].len); /* more than is final: the target knows better */
        if (in_pass != 0) {
            assert_true(one_pass(&w, 1000));
        }
        lengths(&w, 1, &len, &kv_len);
        assert_int_equal(len, w.text[1].final_len);
        assert_in_range(kv_len, len - 1, len);
        assert_true(counters(&w)->n_dropped >= 3);
        w.text[1].len = len;
        append_to(&w, 1, 1, len, 3, 20);
        run(&w);
        assert_plain(&w.text[1], len + 3);
        assert_int_equal(w.text[1].len, len + 23);
        destroy(&w);
    }
}

static void test_lossy_turns(void **state)
{
    (void)state;
    struct world w;
    set_up(&w, GR_SPECPV_LOSSY, 0, 24); /* its view says what full attention says */
    open_prompt(&w, 1, 40, 30);
    run(&w);
    int32_t len = 0;
    int32_t kv_len = 0;
    lengths(&w, 1, &len, &kv_len);
    assert_int_equal(len, 70);
    assert_true(kv_len < len - 1); /* what lacks full KV is computed with the next turn (the model looks) */
    append_to(&w, 1, 1, 70, 3, 20);
    run(&w);
    assert_int_equal(w.text[1].len, 93);
    assert_plain(&w.text[1], 73);
    assert_int_equal(w.n_msg[GR_MSG_ERROR], 0);
    destroy(&w);
}

/* A stop id in provisional text: the turn goes on where it does not stand, and ends where it does. */
static void test_provisional_end(void **state)
{
    (void)state;
    uint64_t n_judge = 0;
    uint64_t n_back = 0;
    for (int32_t id = 0; id < N_VOCAB; id++) {
        struct world w;
        int32_t n = 0;
        rig_partial_blur = 4;
        rig_stop_ids = (struct gr_stop_ids){.n = 1, .id = {id}};
        set_up(&w, GR_SPECPV_EXACT, 2, 24);
        open_prompt(&w, 1, 40, 50);
        run(&w);
        const struct text *t = &w.text[1];
        assert_plain(t, 40);
        for (int32_t i = 40; i < t->len - 1; i++) {
            n += t->token[i] == id;
        }
        assert_int_equal(n, 0);
        assert_int_equal(w.finish[1], t->token[t->len - 1] == id ? GR_FINISH_STOP : GR_FINISH_LENGTH);
        assert_true(t->len == 90 || w.finish[1] == GR_FINISH_STOP);
        n_judge += counters(&w)->n_judge;
        n_back += (uint64_t)t->n_back;
        destroy(&w);
    }
    assert_true(n_judge > 24 && n_back > 24); /* some ends did not stand */
}

/* Logits that are not finite under a view only: it is refreshed, and the text is whole. */
static void test_not_finite_under_a_view(void **state)
{
    (void)state;
    for (int odd = 2; odd < 12; odd++) {
        for (int mode = 0; mode < 2; mode++) {
            struct world w;
            rig_odd_partial = odd;
            rig_partial_blur = mode == 0 ? 5 : 0;
            set_up(&w, mode == 0 ? GR_SPECPV_EXACT : GR_SPECPV_LOSSY, 0, 24);
            open_prompt(&w, 1, 40, 60);
            run(&w);
            assert_int_equal(w.n_msg[GR_MSG_ERROR], 0);
            assert_int_equal(w.text[1].len, 100);
            assert_plain(&w.text[1], 40);
            assert_true(counters(&w)->n_view_not_finite > 0 && counters(&w)->n_partial_round > 5);
            assert_int_equal(counters(&w)->n_not_finite + counters(&w)->n_fault + counters(&w)->n_fallback, 0);
            destroy(&w);
        }
    }
}

/* Under full attention only, or both: tokens up to the row are final and told, those after it are not; then the end.
 * */
static void test_not_finite_judged(void **state)
{
    (void)state;
    uint64_t n_end = 0, n_more = 0;
    for (rig_odd = 5; rig_odd < 60; rig_odd++) {
        for (int hidden = 0; hidden < 2; hidden++) {
            struct world w;
            char want[64];
            rig_odd_hidden = hidden != 0;
            rig_partial_blur = rig_odd % 3 == 0 ? 6 : 0;
            set_up(&w, GR_SPECPV_EXACT, 0, 24);
            open_prompt(&w, 1, 40, 60);
            run(&w);
            struct text *t = &w.text[1];
            n_more += t->len > t->final_len; /* provisional tokens that were never judged to stand */
            t->len = t->final_len;
            assert_plain(t, 40);
            if (w.n_msg[GR_MSG_ERROR] > 0) {
                const int32_t odd = first_odd(t, 39);
                assert_int_equal(odd, t->final_len - 1);
                snprintf(want, sizeof(want), "model toy: the logits after position %d hold", (int)odd);
                assert_non_null(strstr(w.last[GR_MSG_ERROR].error.text, want));
                n_end += odd > 40;
            } else {
                assert_int_equal(t->len, 100);
            }
            assert_int_equal(counters(&w)->n_fault, 0);
            destroy(&w);
        }
    }
    assert_true(n_end > 20 && n_more > 0);
}

/* Everything that is not asked for costs nothing: no view, no branch. */
static void test_off(void **state)
{
    (void)state;
    struct world w;
    create(&w, 24);
    rig_specpv_mode = GR_SPECPV_EXACT; /* of a target that was started without */
    open_prompt(&w, 1, 40, 20);
    run(&w);
    assert_plain(&w.text[1], 40);
    assert_null(w.lm->view);
    assert_int_equal(counters(&w)->n_fallback, 1);
    assert_int_equal(counters(&w)->n_partial_round + counters(&w)->n_refresh + counters(&w)->n_view_seed, 0);
    destroy(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_exact_text, tear_down),
        cmocka_unit_test_teardown(test_preempted, tear_down),
        cmocka_unit_test_teardown(test_trees_after_the_fence, tear_down),
        cmocka_unit_test_teardown(test_truncate, tear_down),
        cmocka_unit_test_teardown(test_lossy_turns, tear_down),
        cmocka_unit_test_teardown(test_provisional_end, tear_down),
        cmocka_unit_test_teardown(test_not_finite_under_a_view, tear_down),
        cmocka_unit_test_teardown(test_not_finite_judged, tear_down),
        cmocka_unit_test_teardown(test_off, tear_down),
    };
    gr_log_set_level(GR_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
