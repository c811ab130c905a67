/* The target alone through turns: APPEND, TRUNCATE, opening again where KV stands, segments, traces. Every text is
 * compared with the table model's own. */
#include "tests/sim/target_rig.h"

static void test_three_turns(void **state)
{
    (void)state;
    struct world w;
    create(&w, 24);
    open_prompt(&w, 1, 37, 20);
    run(&w);
    assert_int_equal(w.text[1].len, 57);
    assert_int_equal(w.finish[1], GR_FINISH_LENGTH);
    assert_plain(&w.text[1], 37);
    uint64_t n_row = w.n_row;
    append_to(&w, 1, 1, 57, 10, 15);
    assert_int_equal(w.n_msg[GR_MSG_OPENED], 2);
    assert_int_equal(w.last[GR_MSG_OPENED].opened.usable_len, 56); /* the last token had no KV yet */
    assert_int_equal(w.last[GR_MSG_OPENED].opened.cache_hit, 1);
    run(&w);
    assert_int_equal(w.text[1].len, 82);
    assert_plain(&w.text[1], 67);
    assert_int_equal(w.n_row - n_row, 11 + 14); /* no token twice */
    append_to(&w, 1, 1, 40, 3, 9);              /* back into the first turn, and on from there */
    assert_int_equal(w.last[GR_MSG_OPENED].opened.usable_len, 40);
    run(&w);
    assert_int_equal(w.text[1].len, 52);
    assert_plain(&w.text[1], 43);
    assert_int_equal(w.n_msg[GR_MSG_ERROR], 0);
    gr_target_on_msg(w.target, &(struct gr_msg){.type = GR_MSG_CLOSE, .session = 1}, 0);
    assert_int_equal(w.n_msg[GR_MSG_CLOSED], 1);
    destroy(&w);
}

/* APPEND without ids goes on where a limit stopped. */
static void test_go_on(void **state)
{
    (void)state;
    struct world w;
    create(&w, 24);
    open_prompt(&w, 1, 20, 7);
    run(&w);
    const uint64_t n_row = w.n_row;
    append_to(&w, 1, 1, 27, 0, 9);
    run(&w);
    assert_int_equal(w.text[1].len, 36);
    assert_int_equal(w.n_row - n_row, 9);
    assert_plain(&w.text[1], 20);
    destroy(&w);
}

/* Before its second token every id would end the text, and may not yet. */
static void append_without_pick(struct world *w, uint64_t id, uint32_t keep_len)
{
    struct gr_msg m = {.type = GR_MSG_APPEND,
                       .session = id,
                       .append = {.epoch = 1,
                                  .keep_len = keep_len,
                                  .hash = w->text[id].hash[keep_len],
                                  .wishes = {.max_tokens = 5, .min_tokens = 2, .stop_ids = {.n = N_VOCAB}}}};
    for (int32_t i = 0; i < N_VOCAB; i++) {
        m.append.wishes.stop_ids.id[i] = i;
    }
    gr_target_on_msg(w->target, &m, 0);
}

/* A target that is to end takes neither OPEN nor APPEND, whatever is wrong with them besides; the turn that runs ends
 * as it would have, and its session is let go by CLOSE. */
static void test_one_that_drains_sends_elsewhere(void **state)
{
    (void)state;
    struct world w;
    int n = 0;
    create(&w, 24);
    open_prompt(&w, 1, 20, 10);
    open_prompt(&w, 2, 12, 4);
    while (w.text[2].len < 16) {
        assert_true(one_pass(&w, 1000));
    }
    gr_target_drain(w.target);
    append_to(&w, 2, 1, 16, 3, 4);
    expect_error(&w, &n, "takes no turn any more");
    assert_int_equal(w.last[GR_MSG_ERROR].error.code, (uint32_t)-GR_EDRAINING);
    open_with(&w, 3, 1, (int32_t[]){0, 5}, 2, 10);
    expect_error(&w, &n, "takes no turn any more");
    assert_int_equal(w.last[GR_MSG_ERROR].error.code, (uint32_t)-GR_EDRAINING);
    run(&w);
    assert_int_equal(w.text[1].len, 30);
    assert_plain(&w.text[1], 20);
    assert_int_equal(gr_target_n_session(w.target), 2);
    assert_int_equal(gr_target_counters(w.target)->n_sent_elsewhere, 2);
    gr_target_on_msg(w.target, &(struct gr_msg){.type = GR_MSG_CLOSE, .session = 2}, 0);
    assert_int_equal(gr_target_n_session(w.target), 1);
    destroy(&w);
}

/* A drafter that was told to let go: the round that waits for its tree goes on at once, plain, and so do the next
 * turn's; a fall-back it is not. One that comes is asked again. */
static void test_detached(void **state)
{
    (void)state;
    struct world w;
    uint8_t f[64];
    create(&w, 24);
    open_with_drafter(&w);
    run(&w);
    assert_int_equal(w.text[1].len, 21); /* it waits */
    const struct gr_msg detach = {.type = GR_MSG_DETACH, .session = 1};
    gr_target_on_msg(w.target, &detach, 1000);
    assert_true(one_pass(&w, 1000));
    assert_true(one_pass(&w, 1000));
    assert_int_equal(w.text[1].len, 23);
    gr_target_on_msg(w.target, &detach, 1000); /* it has none: nothing changes */
    const struct gr_frame_header h = {.session = 1, .epoch = 1};
    const size_t n = gr_wire_encode_resync(&h, &(struct gr_resync){.feature_len = GR_FEATURES_NONE}, f, sizeof(f));
    assert_int_equal(gr_target_on_frame(w.target, 7, f, n, 1000), GR_OK);
    run(&w);
    assert_true(w.text[1].len < 30); /* it waits again */
    gr_target_on_msg(w.target, &detach, 1000);
    run(&w);
    assert_int_equal(w.text[1].len, 120);
    append_to(&w, 1, 1, 120, 3, 5);
    run(&w);
    assert_int_equal(w.text[1].len, 128);
    assert_plain(&w.text[1], 123);
    assert_int_equal(gr_target_counters(w.target)->n_fallback, 0);
    gr_target_on_msg(w.target, &(struct gr_msg){.type = GR_MSG_DETACH, .session = 5}, 1000);
    assert_int_equal(w.n_msg[GR_MSG_ERROR], 0);
    destroy(&w);
}

static void test_bad_appends(void **state)
{
    (void)state;
    struct world w;
    int n = 0;
    create(&w, 24);
    open_prompt(&w, 1, 20, 10);
    append_to(&w, 1, 1, 20, 1, 5);
    expect_error(&w, &n, "in a turn");
    run(&w);
    append_to(&w, 2, 1, 0, 5, 5);
    expect_error(&w, &n, "unknown session");
    append_to(&w, 1, 2, 30, 5, 5);
    expect_error(&w, &n, "epoch 1, not 2");
    w.text[1].hash[25] ^= 1;
    append_to(&w, 1, 1, 25, 5, 5);
    expect_error(&w, &n, "are others here");
    append_to(&w, 1, 1, 31, 5, 5);
    expect_error(&w, &n, "are others here");
    append_to(&w, 1, 1, 30, N_CTX - 30, 5);
    expect_error(&w, &n, "the context holds 256");
    append_to(&w, 1, 1, 30, 2, 0);
    expect_error(&w, &n, "max_tokens");
    append_without_pick(&w, 1, 30);
    expect_error(&w, &n, "as many ids may be banned as the vocabulary has");
    append_to(&w, 1, 1, 30, 2, 5); /* it stands as it stood */
    run(&w);
    assert_int_equal(w.text[1].len, 37);
    assert_plain(&w.text[1], 32);
    open_with(&w, 1, 1, (int32_t[]){0, 37}, 2, 5);
    expect_error(&w, &n, "open already"); /* not a later epoch */
    w.text[3].len = 0;
    add(&w.text[3], 1);
    open_with(&w, 3, 1, (int32_t[]){0, 2}, 2, 5);
    expect_error(&w, &n, "do not add up");
    open_with(&w, 3, 1, (int32_t[]){3, 1}, 2, 5);
    expect_error(&w, &n, "a segment's kind");
    destroy(&w);
}

/* TRUNCATE at any moment, also during a pass, prompt chunks included; the turn that follows is right. */
static void test_truncate_anywhere(void **state)
{
    (void)state;
    for (int after = 0; after < 14; after++) {
        for (int during = 0; during < 2; during++) {
            struct world w;
            create(&w, 24);
            open_prompt(&w, 1, 50, 30);
            for (int i = 0; i < after; i++) {
                one_pass(&w, 1000);
            }
            if (during != 0) {
                (void)gr_target_step(w.target, 1000);
            }
            const int32_t len = w.text[1].len;
            const int32_t keep = GR_MAX(len - 3, 1);
            gr_target_on_msg(
                w.target,
                &(struct gr_msg){.type = GR_MSG_TRUNCATE, .session = 1, .truncate = {.epoch = 9, .keep_len = 1}},
                0); /* of another epoch: nothing */
            gr_target_on_msg(w.target,
                             &(struct gr_msg){.type = GR_MSG_TRUNCATE,
                                              .session = 1,
                                              .truncate = {.epoch = 1, .keep_len = (uint32_t)keep}},
                             0);
            if (during != 0) {
                one_pass(&w, 1000);
            }
            assert_int_equal(w.text[1].len, len); /* the round that was under way does not count */
            assert_false(one_pass(&w, 1000));
            append_to(&w, 1, 1, keep, 4, 6);
            assert_int_equal(w.n_msg[GR_MSG_ERROR], 0);
            run(&w);
            assert_int_equal(w.text[1].len, keep + 10);
            assert_plain(&w.text[1], keep + 4);
            destroy(&w);
        }
    }
}

/* APPEND right after a TRUNCATE, while the pass still runs: held, answered when it is done, and no KV is lost. */
static void test_append_meets_a_pass(void **state)
{
    (void)state;
    for (int after = 0; after < 14; after++) {
        for (int fails = 0; fails < 2; fails++) {
            struct world w;
            create(&w, 24);
            open_prompt(&w, 1, 50, 30);
            for (int i = 0; i < after; i++) {
                one_pass(&w, 1000);
            }
            (void)gr_target_step(w.target, 1000);
            const int32_t keep = GR_MAX(w.text[1].len - 3, 1);
            truncate_to(&w, 1, keep);
            append_to(&w, 1, 1, keep, 4, 6);
            assert_int_equal(w.n_msg[GR_MSG_ERROR], 0);
            assert_int_equal(w.n_msg[GR_MSG_OPENED], 1);
            w.pass->status = fails != 0 ? GR_EIO : GR_OK; /* of a round that does not count */
            one_pass(&w, 1000);
            assert_int_equal(w.n_msg[GR_MSG_ERROR], 0);
            assert_int_equal(w.n_msg[GR_MSG_OPENED], 2);
            const int32_t computed = after < 4 ? 16 * (after + 1 - fails) : w.text[1].len;
            assert_int_equal(w.last[GR_MSG_OPENED].opened.usable_len, GR_MIN(computed, keep));
            run(&w);
            assert_int_equal(w.text[1].len, keep + 10);
            assert_plain(&w.text[1], keep + 4);
            destroy(&w);
        }
    }
}

/* And that turn is stopped, too, before it began; or the session is closed; or it does not fit. */
static void test_held_append_ends(void **state)
{
    (void)state;
    struct world w;
    int n = 0;
    create(&w, 24);
    open_prompt(&w, 1, 20, 30);
    one_pass(&w, 1000);
    one_pass(&w, 1000);
    one_pass(&w, 1000);
    (void)gr_target_step(w.target, 1000);
    truncate_to(&w, 1, 21);
    append_to(&w, 1, 1, 22, 4, 6);
    expect_error(&w, &n, "are others here, where 21 are committed");
    append_to(&w, 1, 1, 21, N_CTX - 21, 6);
    expect_error(&w, &n, "the context holds");
    append_to(&w, 1, 1, 21, 4, 6);
    truncate_to(&w, 1, 24);
    struct text before = w.text[1];
    append_to(&w, 1, 1, 24, 4, 6); /* one is held: this one is refused, but not before that is answered */
    open_with(&w, 1, 2, (int32_t[]){0, w.text[1].len}, 2, 5); /* and so is this */
    w.text[1] = before;
    assert_int_equal(w.n_msg[GR_MSG_ERROR], n);
    w.last[GR_MSG_ERROR].error.text[0] = '\0';
    one_pass(&w, 1000);
    assert_int_equal(w.n_msg[GR_MSG_OPENED], 2);
    assert_int_equal(w.opened_at[1], w.error_at[n] - 1);
    n++;
    expect_error(&w, &n, "in a turn");
    assert_false(one_pass(&w, 1000));
    append_to(&w, 1, 1, 24, 4, 6);
    (void)gr_target_step(w.target, 1000);
    truncate_to(&w, 1, 10);
    append_to(&w, 1, 1, 10, 4, 6);
    assert_int_equal(w.n_msg[GR_MSG_ERROR], n);
    gr_target_on_msg(w.target, &(struct gr_msg){.type = GR_MSG_CLOSE, .session = 1}, 0);
    one_pass(&w, 1000);
    expect_error(&w, &n, "closed");
    assert_int_equal(w.n_msg[GR_MSG_CLOSED], 1);
    assert_int_equal(gr_target_n_session(w.target), 0);
    /* who asked for it is gone */
    open_with(&w, 1, 5, (int32_t[]){0, w.text[1].len}, 2, 9);
    (void)gr_target_step(w.target, 1000);
    gr_target_on_msg(
        w.target, &(struct gr_msg){.type = GR_MSG_TRUNCATE, .session = 1, .truncate = {.epoch = 5, .keep_len = 9}}, 0);
    append_to(&w, 1, 5, 9, 4, 6);
    gr_target_on_orchestrator_lost(w.target, 1000);
    one_pass(&w, 1000);
    assert_false(one_pass(&w, 1000));
    assert_int_equal(w.n_msg[GR_MSG_OPENED], 4);
    destroy(&w);
}

/* Opened again as a later epoch where the KV stands: nothing that is common is computed twice. */
static void test_cache_hit(void **state)
{
    (void)state;
    struct world w;
    create(&w, 24);
    open_prompt(&w, 1, 60, 20);
    for (int i = 0; i < 9; i++) {
        one_pass(&w, 1000);
    }
    gr_target_on_orchestrator_lost(w.target, 1000);
    run(&w);
    struct text *t = &w.text[1];
    const int32_t n_generated = t->len - 60;
    assert_in_range(n_generated, 3, 19);
    const uint64_t n_row = w.n_row;
    open_with(&w, 1, 2, (int32_t[]){0, 60, 1, n_generated}, 4, (uint32_t)(20 - n_generated));
    assert_int_equal(w.last[GR_MSG_OPENED].opened.cache_hit, 1);
    assert_int_equal(w.last[GR_MSG_OPENED].opened.usable_len, t->len - 1);
    run(&w);
    assert_int_equal(t->len, 80);
    assert_int_equal(w.n_row - n_row, 20 - n_generated);
    assert_plain(t, 60);
    destroy(&w);
}

/* A re-opened session computes prompt and generated tokens in passes of their own. */
static const uint8_t *replay_kind;
static int n_replay_row;

static void watch_replay(struct gr_pass *pass)
{
    for (int i = 0; i < pass->n_seq; i++) {
        const struct gr_pass_seq *q = &pass->seq[i];
        for (int r = 0; q->kind == GR_PASS_PREFILL && r < q->n_row; r++) {
            assert_int_equal(q->replay, replay_kind[q->pos0 + r] == 1);
            n_replay_row += q->replay;
        }
    }
}

static void test_segments(void **state)
{
    (void)state;
    struct world w;
    static uint8_t kind[N_CTX];
    create(&w, 24);
    for (int i = 0; i < 90; i++) {
        kind[i] = i < 20 ? 0 : i < 55 ? 1 : i < 60 ? 2 : 1;
        add(&w.text[1], (i * 5 + 3) % N_VOCAB);
    }
    replay_kind = kind;
    n_replay_row = 0;
    w.spoil = watch_replay;
    open_with(&w, 1, 3, (int32_t[]){0, 20, 1, 35, 2, 5, 1, 30}, 8, 10);
    run(&w);
    assert_int_equal(n_replay_row, 35 + 29); /* the last one is the tail */
    assert_int_equal(w.text[1].len, 100);
    assert_plain(&w.text[1], 90);
    destroy(&w);
}

/* A turn is cut while its tree is verified and goes on without a new token: the tree of the new turn is no replay of
 * the one that was cut, for neither side. */
static void test_same_prefix_next_turn(void **state)
{
    (void)state;
    for (int during = 0; during < 2; during++) {
        struct world w;
        struct gr_frame_header h;
        create(&w, 24);
        open_with_drafter(&w);
        if (during != 0) {
            send_tree(&w, 1, 2000);
            (void)gr_target_step(w.target, 2000);
            assert_non_null(w.pass);
        }
        truncate_to(&w, 1, 21);
        if (during != 0) {
            one_pass(&w, 3000);
        }
        append_to(&w, 1, 1, 21, 0, 6);
        assert_false(one_pass(&w, 4000)); /* it waits for a tree */
        assert_int_equal(gr_wire_decode_header(frame, frame_len, &h), GR_OK);
        assert_int_equal(h.type, GR_FRAME_DELTA);
        assert_true((h.flags & GR_DELTA_DRAFT) != 0);
        assert_true(h.round > 1); /* the drafter has answered round 1 */
        send_tree(&w, h.round, 5000);
        assert_true(one_pass(&w, 6000));
        assert_int_equal(gr_target_counters(w.target)->n_tree_round, 1);
        assert_int_equal(gr_target_counters(w.target)->n_draft_stale, 0);
        destroy(&w);
    }
}

/* Closed in the midst of its prompt, or of its answer: the pass that is under way ends, and none of its rows is
 * computed after that; who comes meanwhile has the passes alone. */
static void test_closed_in_a_pass(void **state)
{
    (void)state;
    for (int prompt = 20; prompt <= 200; prompt += 180) {
        struct world w;
        create(&w, 24);
        open_prompt(&w, 1, prompt, 40);
        for (int i = 0; i < (prompt < 100 ? 6 : 1); i++) {
            one_pass(&w, 1000);
        }
        (void)gr_target_step(w.target, 1000);
        assert_non_null(w.pass);
        assert_int_equal(w.pass->seq[0].kind, prompt < 100 ? GR_PASS_ROOT : GR_PASS_PREFILL);
        const uint64_t n_row = w.n_row; /* with those of the pass under way */
        assert_true(prompt < 100 ? w.text[1].len < 60 : n_row < 200);
        gr_target_on_msg(w.target, &(struct gr_msg){.type = GR_MSG_CLOSE, .session = 1}, 2000);
        open_prompt(&w, 2, 20, 5);
        assert_int_equal(w.n_msg[GR_MSG_CLOSED], 0);
        one_pass(&w, 3000);
        assert_int_equal(w.n_msg[GR_MSG_CLOSED], 1);
        assert_int_equal(gr_target_n_session(w.target), 1);
        run(&w);
        assert_int_equal(w.n_row - n_row, 20 + 4);
        assert_int_equal(w.text[2].len, 25);
        assert_plain(&w.text[2], 20);
        destroy(&w);
    }
}

#define LATE_NS 80000000u /* more than flags can say */

/* What a DRAFT's flags say goes on with the COMMIT of its round: the drafter's time, and drafting ahead. */
static void test_flags_of_a_tree_are_told(void **state)
{
    (void)state;
    static const struct {
        uint16_t flags;
        uint32_t ahead;
        uint64_t draft_ns;
    } cases[] = {{0, 0, 0},
                 {5, 0, 20000},
                 {GR_FRAME_DRAFT_AHEAD | 5, 1, 20000},
                 {GR_FRAME_DRAFT_AHEAD | GR_FRAME_DRAFT_HIT | GR_FRAME_DRAFT_TIME, 2, 65532000},
                 {GR_FRAME_DRAFT_HIT, 0, 0}};
    for (size_t i = 0; i < GR_ARRAY_LEN(cases); i++) {
        struct world w;
        create(&w, 24);
        open_with_drafter(&w);
        w.tree_flags = cases[i].flags;
        send_tree(&w, 1, LATE_NS);
        assert_true(one_pass(&w, LATE_NS));
        const struct gr_msg_commit *m = &w.last[GR_MSG_COMMIT].commit;
        assert_int_equal(m->n_draft, 3);
        assert_int_equal(m->ahead, cases[i].ahead);
        assert_int_equal(m->draft_ns, cases[i].draft_ns);
        destroy(&w);
    }
}

static bool saw_gap;

static void watch_gap(struct gr_pass *pass)
{
    saw_gap = pass->seq[0].want_gap;
}

/* Each turn says whether it wants to be traced. */
static void test_trace_of_a_turn(void **state)
{
    (void)state;
    struct world w;
    create(&w, 24);
    open_prompt(&w, 1, 20, 10);
    w.spoil = watch_gap;
    run(&w);
    assert_false(saw_gap);
    for (int traced = 1; traced >= 0; traced--) {
        struct text *t = &w.text[1];
        const struct gr_msg m = {.type = GR_MSG_APPEND,
                                 .session = 1,
                                 .append = {.epoch = 1,
                                            .keep_len = (uint32_t)t->len,
                                            .hash = t->hash[t->len],
                                            .wishes = {.max_tokens = 4, .want_trace = (uint32_t)traced}}};
        gr_target_on_msg(w.target, &m, 0);
        run(&w);
        assert_int_equal(saw_gap, traced);
    }
    destroy(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_three_turns),
        cmocka_unit_test(test_go_on),
        cmocka_unit_test(test_one_that_drains_sends_elsewhere),
        cmocka_unit_test(test_detached),
        cmocka_unit_test(test_bad_appends),
        cmocka_unit_test(test_truncate_anywhere),
        cmocka_unit_test(test_append_meets_a_pass),
        cmocka_unit_test(test_held_append_ends),
        cmocka_unit_test(test_cache_hit),
        cmocka_unit_test(test_segments),
        cmocka_unit_test(test_same_prefix_next_turn),
        cmocka_unit_test(test_closed_in_a_pass),
        cmocka_unit_test(test_flags_of_a_tree_are_told),
        cmocka_unit_test(test_trace_of_a_turn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
