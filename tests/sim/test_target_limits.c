/* The target alone where room runs out (eviction, pre-emption, a full COMMIT queue) and where verdicts or drafters are
 * bad. Every text is compared with the table model's own. */
#include "tests/sim/target_rig.h"

/* ---- room ---- */

/* Idle sessions make room: the least recently used goes first, and its KV is computed again when it comes back. */
static void test_eviction(void **state)
{
    (void)state;
    struct world w;
    create(&w, 24); /* 384 tokens */
    for (uint64_t id = 1; id <= N_SLOT; id++) {
        open_prompt(&w, id, 40, 10);
        run(&w);
    }
    assert_int_equal(w.n_msg[GR_MSG_EVICTED], 0);
    open_prompt(&w, 5, 40, 10); /* no slot is free */
    assert_int_equal(w.n_msg[GR_MSG_EVICTED], 1);
    assert_int_equal(w.last[GR_MSG_EVICTED].session, 1);
    run(&w);
    open_prompt(&w, 6, 240, 10); /* no blocks are */
    run(&w);
    assert_int_equal(w.text[6].len, 250);
    assert_plain(&w.text[6], 240);
    assert_true(w.n_msg[GR_MSG_EVICTED] >= 3);
    int n = 0;
    append_to(&w, 2, 1, 50, 2, 5);
    expect_error(&w, &n, "unknown session");
    add(&w.text[2], 4); /* opened again with the transcript */
    open_with(&w, 2, 2, (int32_t[]){0, 40, 1, 10, 2, 1}, 6, 12);
    assert_int_equal(w.last[GR_MSG_OPENED].opened.cache_hit, 0);
    run(&w);
    assert_int_equal(w.text[2].len, 63);
    assert_plain(&w.text[2], 51);
    destroy(&w);
}

/* More sessions than blocks: the youngest yields, comes back, and all texts are right. */
static void test_preemption(void **state)
{
    (void)state;
    for (int32_t n_block = 8; n_block < 20; n_block++) {
        const uint64_t n_yield = run_too_many(n_block);
        assert_true(n_block > 16 || n_yield > 0);
    }
}

/* A full COMMIT queue pauses sessions, not passes; nothing is lost. */
static void test_commit_queue(void **state)
{
    (void)state;
    struct world w;
    create(&w, 24);
    open_prompt(&w, 1, 20, 10);
    open_prompt(&w, 2, 20, 10);
    w.room = 1;
    for (int i = 0; i < 6; i++) {
        assert_true(one_pass(&w, 1000));
    }
    w.room = 0;
    (void)one_pass(&w, 1000);
    assert_false(one_pass(&w, 1000));
    assert_true(gr_target_counters(w.target)->n_paused > 0);
    w.room = -1;
    run(&w);
    for (uint64_t id = 1; id <= 2; id++) {
        assert_int_equal(w.text[id].len, 30);
        assert_plain(&w.text[id], 20);
    }
    destroy(&w);
}

/* ---- verdicts that are broken on purpose, drafters that begin anew ---- */

static int spoil_kind;

static void spoil_walk(struct gr_pass *pass)
{
    for (int i = 0; i < pass->n_seq; i++) {
        struct gr_pass_seq *q = &pass->seq[i];
        if (q->kind != GR_PASS_TREE) {
            continue;
        }
        switch (spoil_kind) {
        case 0:
            q->walk.n_path = q->tree.n + 1;
            break;
        case 1:
            q->walk.n_path = 1;
            q->walk.node[0] = 1; /* no child of the tail */
            break;
        case 2:
            q->walk.bonus = (q->walk.bonus + 1) % N_VOCAB;
            break;
        case 3:
            q->walk.n_path = -1;
            break;
        case 4:
            q->tree.token[0] = (q->pick[0] + 1) % N_VOCAB; /* a node that was not picked, accepted */
            q->walk.n_path = 1;
            q->walk.node[0] = 0;
            break;
        default:
            pass->status = GR_EIO;
            break;
        }
    }
}

/* OPEN of session 1 with the 20 tokens of t, which outlive it. */
static struct gr_msg open_of(const struct text *t, uint32_t max_tokens, uint32_t n_node)
{
    static int32_t segments[] = {0, 20};
    return (struct gr_msg){.type = GR_MSG_OPEN,
                           .session = 1,
                           .open = {.epoch = 1,
                                    .ids = {(int32_t *)(uintptr_t)t->token, 20},
                                    .segments = {segments, 2},
                                    .wishes = {.turn = {.max_tokens = max_tokens},
                                               .want_draft = 1,
                                               .n_node = n_node,
                                               .sampling = {.top_p = 1.0}}}};
}

static void test_broken_verdicts(void **state)
{
    (void)state;
    gr_log_set_level(GR_LOG_ERROR);
    for (spoil_kind = 0; spoil_kind < 6; spoil_kind++) {
        struct world w;
        uint8_t f[64];
        create(&w, 24);
        struct text *t = &w.text[1];
        for (int i = 0; i < 20; i++) {
            add(t, i);
        }
        const struct gr_msg m = open_of(t, 30, 8);
        gr_target_on_msg(w.target, &m, 0);
        const struct gr_frame_header h = {.session = 1, .epoch = 1};
        const size_t n = gr_wire_encode_resync(&h, &(struct gr_resync){.feature_len = GR_FEATURES_NONE}, f, sizeof(f));
        assert_int_equal(gr_target_on_frame(w.target, 7, f, n, 0), GR_OK);
        run(&w); /* the prompt; then it waits */
        assert_int_equal(t->len, 21);
        w.spoil = spoil_walk;
        send_tree(&w, 1, 2000);
        run(&w); /* the tree, broken; then single tokens to the end, without waiting */
        const struct gr_target_counters *c = gr_target_counters(w.target);
        assert_int_equal(c->n_fault, 1);
        assert_int_equal(c->n_tree_round, 0);
        assert_int_equal(c->n_root_round, 29);
        assert_int_equal(t->len, 50);
        assert_int_equal(w.finish[1], GR_FINISH_LENGTH);
        assert_plain(t, 20);
        assert_int_equal(w.n_msg[GR_MSG_ERROR], 0);
        destroy(&w);
    }
    gr_log_set_level(GR_LOG_WARN);
}

/* A drafter that comes while a tree of another is verified never saw that tree: it is told the tokens, not the nodes.
 */
static void test_resync_during_a_pass(void **state)
{
    (void)state;
    struct world w;
    struct gr_frame_header h;
    uint8_t f[128];
    create(&w, 24);
    open_with_drafter(&w);
    const struct text *t = &w.text[1];
    float logits[N_VOCAB];
    toy_lm_logits(&toy, t->token, t->len, logits);
    struct gr_token_tree tree = {.n = 1, .parent = {-1}};
    for (int i = 1; i < N_VOCAB; i++) { /* a node that is accepted */
        tree.token[0] = logits[i] > logits[tree.token[0]] ? i : tree.token[0];
    }
    const struct gr_frame_header d = {
        .session = 1, .epoch = 1, .round = 1, .base_len = (uint32_t)t->len, .prefix_hash = t->hash[t->len]};
    size_t n = gr_wire_encode_draft(&d, &tree, f, sizeof(f));
    assert_int_equal(gr_target_on_frame(w.target, 7, f, n, 2000), GR_OK);
    (void)gr_target_step(w.target, 2000);
    assert_non_null(w.pass);
    const struct gr_frame_header r = {.session = 1, .epoch = 1};
    n = gr_wire_encode_resync(&r, &(struct gr_resync){.feature_len = GR_FEATURES_NONE}, f, sizeof(f));
    assert_int_equal(gr_target_on_frame(w.target, 8, f, n, 3000), GR_OK);
    const int32_t told = t->len;
    one_pass(&w, 4000);
    assert_int_equal(t->len, told + 2);
    assert_int_equal(gr_wire_decode_header(frame, frame_len, &h), GR_OK);
    assert_int_equal(h.type, GR_FRAME_DELTA);
    assert_int_equal(h.base_len, t->len);
    assert_true((h.flags & GR_DELTA_DRAFT) != 0);
    destroy(&w);
}

/* A drafter that begins anew again and again, before each deadline, holds a round up for a while, not for ever. */
static void test_endless_resyncs(void **state)
{
    (void)state;
    gr_log_set_level(GR_LOG_ERROR);
    for (int desyncs = 0; desyncs < 2; desyncs++) {
        struct world w;
        uint8_t f[128];
        uint64_t now_ns = 1000;
        create(&w, 24);
        open_with_drafter(&w);
        const struct text *t = &w.text[1];
        for (int i = 0; i < 100; i++) {
            now_ns += DEADLINE / 2;
            if (desyncs != 0) { /* a tree on another prefix each time */
                const struct gr_frame_header d = {
                    .session = 1, .epoch = 1, .round = 100, .base_len = (uint32_t)t->len, .prefix_hash = 1};
                const size_t n = gr_wire_encode_draft(&d, &(struct gr_token_tree){.n = 0}, f, sizeof(f));
                assert_int_equal(gr_target_on_frame(w.target, 7, f, n, now_ns), GR_OK);
            }
            const struct gr_frame_header r = {.session = 1, .epoch = 1};
            const size_t n =
                gr_wire_encode_resync(&r, &(struct gr_resync){.feature_len = GR_FEATURES_NONE}, f, sizeof(f));
            assert_int_equal(gr_target_on_frame(w.target, 7, f, n, now_ns), GR_OK);
            (void)one_pass(&w, now_ns);
        }
        assert_true(t->len >= 21 + 100 / (2 * 3) - 1); /* three deadlines a round at most */
        destroy(&w);
    }
    gr_log_set_level(GR_LOG_WARN);
}

/* The largest tree enters a pass of a worker that is as small as may be. */
static void test_largest_tree_smallest_pass(void **state)
{
    (void)state;
    struct world w;
    uint8_t f[1024];
    struct gr_token_tree tree = {.n = GR_NODE_MAX};
    create_with(&w, 24, 16 + GR_TREE_MAX, GR_TREE_MAX + 1);
    open_with_drafter(&w);
    for (int i = 0; i < tree.n; i++) {
        tree.token[i] = i % N_VOCAB;
        tree.parent[i] = (int16_t)(i - 1);
    }
    const struct text *t = &w.text[1];
    const struct gr_frame_header h = {
        .session = 1, .epoch = 1, .round = 1, .base_len = (uint32_t)t->len, .prefix_hash = t->hash[t->len]};
    const size_t n = gr_wire_encode_draft(&h, &tree, f, sizeof(f));
    assert_int_equal(gr_target_on_frame(w.target, 7, f, n, 2000), GR_OK);
    assert_true(one_pass(&w, 2000));
    assert_int_equal(gr_target_counters(w.target)->n_tree_round, 1);
    assert_plain(t, 20);
    destroy(&w);
}

/* Near the limit a tree may be as wide as ever: what is left bounds the path alone. The last token needs none. */
static void test_width_to_the_end(void **state)
{
    (void)state;
    struct world w;
    uint8_t f[128];
    create(&w, 24);
    open_with_drafter(&w); /* 100 tokens, up to 63 nodes */
    const struct text *t = &w.text[1];
    const struct gr_token_tree none = {.n = 0};
    int n_round = 0;
    for (uint64_t now_ns = 2000; w.finish[1] == GR_FINISH_NONE; now_ns += 2000, n_round++) {
        const struct gr_frame_header h = {.session = 1,
                                          .epoch = 1,
                                          .round = (uint32_t)n_round + 1,
                                          .base_len = (uint32_t)t->len,
                                          .prefix_hash = t->hash[t->len]};
        const size_t n = gr_wire_encode_draft(&h, &none, f, sizeof(f));
        assert_int_equal(gr_target_on_frame(w.target, 7, f, n, now_ns), GR_OK);
        assert_true(one_pass(&w, now_ns));
        struct gr_frame_header got;
        struct gr_verdict v;
        assert_int_equal(gr_wire_decode_header(frame, frame_len, &got), GR_OK);
        assert_int_equal(got.type, GR_FRAME_VERDICT);
        assert_int_equal(gr_wire_decode_verdict(frame, frame_len, N_VOCAB, &v), GR_OK);
        if (t->len == 119) { /* nothing is told, nothing asked */
            assert_int_equal(got.round, n_round);
            run(&w);
            continue;
        }
        assert_int_equal(got.round, n_round + 1);
        assert_int_equal(v.n_want, 63);
    }
    assert_int_equal(t->len, 120);
    assert_int_equal(n_round, 98);
    assert_plain(t, 20);
    destroy(&w);
}

/* ---- logits that are not finite ---- */

/* The session ends with an error that names model and position, after the tokens before it; the others go on. */
static void test_not_finite(void **state)
{
    (void)state;
    int n_first = 0, n_later = 0;
    gr_log_set_level(GR_LOG_ERROR);
    for (rig_odd = 1; rig_odd < 60; rig_odd++) {
        struct world w;
        char want[64];
        create(&w, 24);
        open_prompt(&w, 1, 20, 60);
        run(&w);
        const struct text *t = &w.text[1];
        assert_plain(t, 20);
        const int32_t odd = first_odd(t, 19);
        const struct gr_target_counters *c = gr_target_counters(w.target);
        assert_int_equal(c->n_not_finite, w.n_msg[GR_MSG_ERROR]);
        if (w.n_msg[GR_MSG_ERROR] > 0) {
            assert_int_equal(odd, t->len - 1);
            snprintf(want, sizeof(want), "model toy: the logits after position %d hold", (int)odd);
            assert_non_null(strstr(w.last[GR_MSG_ERROR].error.text, want));
            assert_int_equal(w.last[GR_MSG_ERROR].error.ended, 1);
            assert_int_equal(w.n_msg[GR_MSG_CLOSED], 1);
            assert_int_equal(gr_target_n_session(w.target), 0);
            n_first += odd == 19;
            n_later += odd > 19;
        } else {
            assert_int_equal(t->len, 80);
            assert_true(odd >= 79); /* nobody needs the row after the last token */
        }
        destroy(&w);
    }
    rig_odd = 0;
    assert_true(n_first > 0 && n_later > 5);
}

/* What plain decoding says next, three deep, and every other token beside it. */
static struct gr_token_tree true_and_other_tokens(const struct text *t)
{
    const struct gr_sampling greedy = {.top_p = 1.0f};
    float logits[N_VOCAB], scratch[N_VOCAB];
    int32_t work[N_VOCAB];
    struct gr_token_tree tree = {0};
    struct text ahead = *t;
    for (int d = 0; d < 3; d++) {
        toy_lm_logits(&toy, ahead.token, ahead.len, logits);
        const int32_t id = gr_sampler_pick(&greedy, logits, N_VOCAB, (uint32_t)ahead.len, scratch, work);
        tree.token[tree.n] = id;
        tree.parent[tree.n] = (int16_t)(tree.n - 1);
        tree.n++;
        add(&ahead, id);
    }
    for (int32_t id = 0; id < N_VOCAB; id++) {
        if (id != tree.token[0]) {
            tree.token[tree.n] = id;
            tree.parent[tree.n++] = -1;
        }
    }
    return tree;
}

/* Opens session 1 with a drafter, which asks for all it gets; the first token follows, unless it is an error. */
static void open_drafted(struct world *w)
{
    struct text *t = &w->text[1];
    uint8_t f[64];
    for (int i = 0; i < 20; i++) {
        add(t, (7 * rig_odd + i * i) % N_VOCAB);
    }
    const struct gr_msg m = open_of(t, 60, 30);
    gr_target_on_msg(w->target, &m, 0);
    const struct gr_frame_header h = {.session = 1, .epoch = 1};
    const size_t n = gr_wire_encode_resync(&h, &(struct gr_resync){.feature_len = GR_FEATURES_NONE}, f, sizeof(f));
    assert_int_equal(gr_target_on_frame(w->target, 7, f, n, 0), GR_OK);
    (void)one_pass(w, 0);
}

/* A tree whose nodes' rows are not finite: off the walk they are nothing; on it the tokens before come first. */
static void test_not_finite_in_trees(void **state)
{
    (void)state;
    int n_tree = 0, n_cut = 0;
    for (rig_odd = 2; rig_odd < 40; rig_odd++) {
        struct world w;
        uint8_t f[512];
        create(&w, 24);
        open_drafted(&w);
        struct text *t = &w.text[1];
        for (uint32_t round = 1; w.n_msg[GR_MSG_ERROR] == 0 && t->len < 80; round++) {
            const int32_t len = t->len;
            const struct gr_token_tree tree = true_and_other_tokens(t);
            const struct gr_frame_header d = {
                .session = 1, .epoch = 1, .round = round, .base_len = (uint32_t)len, .prefix_hash = t->hash[len]};
            const size_t n = gr_wire_encode_draft(&d, &tree, f, sizeof(f));
            assert_int_equal(gr_target_on_frame(w.target, 7, f, n, 1000 * round), GR_OK);
            assert_true(one_pass(&w, 1000 * round));
            n_tree++;
            n_cut += w.n_msg[GR_MSG_ERROR] == 0 && t->len < len + 4 && t->len < 80;
        }
        assert_plain(t, 20);
        assert_int_equal(w.n_msg[GR_MSG_ERROR] > 0 ? first_odd(t, 19) : 79, t->len - 1);
        assert_int_equal(gr_target_counters(w.target)->n_fault, 0);
        destroy(&w);
    }
    rig_odd = 0;
    assert_true(n_tree > 60 && n_cut > 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_eviction),
        cmocka_unit_test(test_preemption),
        cmocka_unit_test(test_commit_queue),
        cmocka_unit_test(test_broken_verdicts),
        cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_not_finite_in_trees),
        cmocka_unit_test(test_resync_during_a_pass),
        cmocka_unit_test(test_endless_resyncs),
        cmocka_unit_test(test_largest_tree_smallest_pass),
        cmocka_unit_test(test_width_to_the_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
