/* The target alone with sessions that begin with the tokens of another (fork_of): each text is the table model's own,
 * each token of a prompt has run once, and blocks are shared, whoever is cut, ends or goes on when. The table model
 * reads what cells hold, so a cell that somebody else has written shows in the text. */
#include "tests/sim/target_rig.h"

static uint64_t draw(uint64_t *rng, uint64_t n)
{
    *rng = gr_mix64(*rng + GR_HASH_GOLDEN);
    return *rng % n;
}

/* Session id begins with the first n tokens of session `of`, and goes on with n_more of its own. */
static void fork_of(struct world *w, uint64_t id, uint64_t of, int32_t n, int32_t n_more, uint32_t max_tokens)
{
    struct text *t = &w->text[id];
    const struct text from = w->text[of];
    t->len = t->n_back = 0;
    for (int32_t i = 0; i < n; i++) {
        add(t, from.token[i]);
    }
    for (int32_t i = 0; i < n_more; i++) {
        add(t, (int32_t)((5 * id + (uint64_t)i) % N_VOCAB));
    }
    t->final_len = t->len;
    rig_fork_of = of;
    open_with(w, id, 1, (int32_t[]){0, t->len}, 2, max_tokens);
    rig_fork_of = 0;
    assert_int_equal(w->n_msg[GR_MSG_ERROR], 0);
}

static const struct gr_kv_table *table_of(const struct world *w, uint64_t id)
{
    const int32_t *token = NULL;
    int32_t len = 0, kv_len = 0;
    const struct gr_kv_table *table = NULL;
    assert_true(gr_target_peek(w->target, id, &token, &len, &kv_len, &table));
    return table;
}

static uint32_t n_free(struct world *w)
{
    gr_target_on_msg(w->target, &(struct gr_msg){.type = GR_MSG_PING}, 0);
    return w->last[GR_MSG_PONG].pong.n_free_block;
}

static void close_session(struct world *w, uint64_t id)
{
    gr_target_on_msg(w->target, &(struct gr_msg){.type = GR_MSG_CLOSE, .session = id}, 0);
}

/* Three answers to a prompt of three blocks and a part: 50 rows, and two of those who need only its last token. */
static void test_prompt_runs_once(void **state)
{
    (void)state;
    struct world w;
    create(&w, 24);
    open_prompt(&w, 1, 50, 20);
    fork_of(&w, 2, 1, 50, 0, 20);
    fork_of(&w, 3, 1, 50, 0, 20);
    run(&w);
    assert_int_equal(w.n_row, 50 + 1 + 1 + 3 * 19);
    for (uint64_t id = 1; id <= 3; id++) {
        assert_int_equal(w.text[id].len, 70);
        assert_plain(&w.text[id], 50);
    }
    const struct gr_kv_table *a = table_of(&w, 1), *b = table_of(&w, 2), *c = table_of(&w, 3);
    assert_memory_equal(a->block, b->block, 3 * sizeof(int32_t));
    assert_memory_equal(a->block, c->block, 3 * sizeof(int32_t));
    assert_true(a->block[3] != b->block[3] && b->block[3] != c->block[3] && a->block[3] != c->block[3]);
    assert_int_equal(n_free(&w), 24 - 3 - 3 * 2);
    const struct gr_target_counters *n = gr_target_counters(w.target);
    assert_int_equal(n->n_fork, 2);
    assert_int_equal(n->n_fork_token, 2 * 49);
    close_session(&w, 1); /* what it began goes on with those that have it, too */
    assert_int_equal(n_free(&w), 24 - 3 - 2 * 2);
    append_to(&w, 2, 1, 70, 3, 10);
    append_to(&w, 3, 1, 70, 5, 10);
    run(&w);
    assert_plain(&w.text[2], 73);
    assert_plain(&w.text[3], 75);
    close_session(&w, 3);
    close_session(&w, 2);
    assert_int_equal(n_free(&w), 24);
    destroy(&w);
}

/* Lengths around a block's: less than one, one, and those beside. */
static void test_lengths(void **state)
{
    (void)state;
    static const int32_t len[] = {1, 2, 15, 16, 17, 18, 31, 32, 33, 34, 48, 49};
    for (size_t i = 0; i < GR_ARRAY_LEN(len); i++) {
        for (int32_t n_more = 0; n_more < 3; n_more++) {
            struct world w;
            create(&w, 24);
            open_prompt(&w, 1, len[i], 20);
            fork_of(&w, 2, 1, len[i], n_more, 20);
            run(&w);
            const int32_t n_taken = GR_MIN(len[i], len[i] + n_more - 1);
            assert_int_equal(w.n_row, 2 * len[i] + n_more - n_taken + 2 * 19);
            assert_int_equal(gr_target_counters(w.target)->n_fork_token, n_taken);
            assert_plain(&w.text[1], len[i]);
            assert_plain(&w.text[2], len[i] + n_more);
            destroy(&w);
        }
    }
}

/* Of one that decodes, or is idle: its answer may be shared, too. */
static void test_later(void **state)
{
    (void)state;
    for (int after = 0; after < 30; after++) {
        struct world w;
        create(&w, 24);
        open_prompt(&w, 1, 40, 24);
        for (int i = 0; i < after; i++) {
            one_pass(&w, 1000);
        }
        fork_of(&w, 2, 1, w.text[1].len, 2, 20);
        const int32_t len = w.text[2].len;
        run(&w);
        assert_plain(&w.text[1], 40);
        assert_plain(&w.text[2], len);
        assert_int_equal(gr_target_counters(w.target)->n_fork, 1);
        destroy(&w);
    }
}

/* Blocks for the prompt once and the answers: nobody waits or yields. Without sharing it would take 28. */
static void test_admission_counts_once(void **state)
{
    (void)state;
    struct world w;
    create(&w, 6 + 4);
    open_prompt(&w, 1, 97, 15);
    for (uint64_t id = 2; id <= 4; id++) {
        fork_of(&w, id, 1, 97, 0, 15);
    }
    run(&w);
    assert_int_equal(n_free(&w), 0);
    assert_int_equal(w.n_row, 97 + 3 + 4 * 14);
    assert_int_equal(gr_target_counters(w.target)->n_preempted, 0);
    assert_int_equal(gr_target_counters(w.target)->n_evicted, 0);
    for (uint64_t id = 1; id <= 4; id++) {
        assert_plain(&w.text[id], 97);
    }
    destroy(&w);
}

/* Fewer: the younger yield, and make the same text later. */
static void test_too_few_blocks(void **state)
{
    (void)state;
    for (int32_t n_block = 7; n_block < 16; n_block++) {
        struct world w;
        create(&w, n_block);
        open_prompt(&w, 1, 50, 50);
        for (uint64_t id = 2; id <= 4; id++) {
            fork_of(&w, id, 1, 50, (int32_t)id - 2, 50);
        }
        run(&w);
        for (uint64_t id = 1; id <= 4; id++) {
            const int32_t from = id == 1 ? 50 : 48 + (int32_t)id;
            assert_int_equal(w.text[id].len, from + 50);
            assert_plain(&w.text[id], from);
        }
        destroy(&w);
    }
}

/* The other ends at any moment: what is shared stays, what is not there is computed. */
static void test_other_ends(void **state)
{
    (void)state;
    for (int after = 0; after < 12; after++) {
        for (int how = 0; how < 3; how++) {
            struct world w;
            create(&w, 24);
            open_prompt(&w, 1, 50, 30);
            fork_of(&w, 2, 1, 50, 0, 30);
            for (int i = 0; i < after; i++) {
                one_pass(&w, 1000);
            }
            if (how > 0) {
                (void)gr_target_step(w.target, 1000); /* during a pass */
            }
            if (how < 2) {
                close_session(&w, 1);
            } else {
                truncate_to(&w, 1, 20);
            }
            run(&w);
            assert_int_equal(w.text[2].len, 80);
            assert_plain(&w.text[2], 50);
            destroy(&w);
        }
    }
}

/* Back into what is shared, on either side: both go on, each by itself. */
static void test_cut_into_shared(void **state)
{
    (void)state;
    for (int32_t keep = 1; keep < 52; keep++) {
        for (uint64_t who = 1; who <= 2; who++) {
            struct world w;
            create(&w, 24);
            open_prompt(&w, 1, 50, 10);
            fork_of(&w, 2, 1, 50, 0, 10);
            run(&w);
            append_to(&w, who, 1, keep, 4, 20);
            append_to(&w, 3 - who, 1, 60, 4, 20);
            run(&w);
            assert_plain(&w.text[who], keep + 4);
            assert_plain(&w.text[3 - who], 64);
            assert_int_equal(w.n_msg[GR_MSG_ERROR], 0);
            destroy(&w);
        }
    }
}

/* It is not here, is the session itself, or has other tokens: nothing is shared. */
static void test_nothing_to_share(void **state)
{
    (void)state;
    struct world w;
    create(&w, 24);
    rig_fork_of = 7;
    open_prompt(&w, 1, 40, 10);
    rig_fork_of = 2;
    open_prompt(&w, 2, 40, 10);
    rig_fork_of = 1;
    open_prompt(&w, 3, 40, 10);
    rig_fork_of = 0;
    run(&w);
    for (uint64_t id = 1; id <= 3; id++) {
        assert_plain(&w.text[id], 40);
    }
    assert_int_equal(gr_target_counters(w.target)->n_fork, 0);
    assert_int_equal(w.n_row, 3 * (40 + 9));
    destroy(&w);
}

struct life {
    bool open[5];
    int32_t prompt[5]; /* where the generated tokens of its turn begin */
    uint64_t n_turn;
};

static bool in_turn(const struct world *w, uint64_t id)
{
    return w->finish[id] == GR_FINISH_NONE;
}

static void begin(struct world *w, struct life *l, uint64_t id)
{
    l->open[id] = true;
    l->prompt[id] = w->text[id].len;
    w->finish[id] = GR_FINISH_NONE;
    l->n_turn++;
}

static void random_step(struct world *w, struct life *l, uint64_t *rng)
{
    const uint64_t id = 1 + draw(rng, 4);
    const uint64_t of = 1 + draw(rng, 4);
    const int32_t len = w->text[id].len;
    const uint64_t what = draw(rng, 8);
    if (!l->open[id] && l->open[of] && what < 4) {
        fork_of(w, id, of, 1 + (int32_t)draw(rng, (uint64_t)GR_MIN(w->text[of].len, 150)), (int32_t)draw(rng, 3),
                1 + (uint32_t)draw(rng, 30));
        begin(w, l, id);
    } else if (!l->open[id] && what == 4) {
        open_prompt(w, id, 20 + (int32_t)draw(rng, 60), 1 + (uint32_t)draw(rng, 30));
        begin(w, l, id);
    } else if (l->open[id] && !in_turn(w, id) && what < 3) {
        append_to(w, id, 1, 1 + (int32_t)draw(rng, (uint64_t)GR_MIN(len, 150)), 1 + (int32_t)draw(rng, 20),
                  1 + (uint32_t)draw(rng, 30));
        begin(w, l, id);
    } else if (l->open[id] && what == 6 && draw(rng, 3) == 0) {
        close_session(w, id);
        l->open[id] = false;
    } else {
        one_pass(w, 1000);
    }
    for (uint64_t i = 1; i <= 4; i++) {
        if (l->open[i]) {
            assert_plain(&w->text[i], l->prompt[i]);
        }
    }
}

/* Sessions that come, fork, go on, are cut back and end at random. The pool holds all of them, so that none is evicted,
 * which the rig would not follow. */
static void test_random(void **state)
{
    (void)state;
    uint64_t n_fork = 0;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        struct world w;
        struct life l = {0};
        uint64_t rng = seed;
        create(&w, 4 * N_CTX / GR_KV_BLOCK_TOKENS);
        for (int i = 0; i < 400; i++) {
            random_step(&w, &l, &rng);
            assert_int_equal(w.n_msg[GR_MSG_ERROR], 0);
        }
        run(&w);
        n_fork += gr_target_counters(w.target)->n_fork;
        assert_int_equal(w.n_msg[GR_MSG_EVICTED], 0);
        destroy(&w);
    }
    assert_true(n_fork > 500);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prompt_runs_once),
        cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_later),
        cmocka_unit_test(test_admission_counts_once),
        cmocka_unit_test(test_too_few_blocks),
        cmocka_unit_test(test_other_ends),
        cmocka_unit_test(test_cut_into_shared),
        cmocka_unit_test(test_nothing_to_share),
        cmocka_unit_test(test_random),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
