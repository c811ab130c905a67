/* The target alone with its prefix cache: sessions that begin alike compute that beginning once, and each text is the
 * table model's own. That model reads what cells hold, so a block that is taken for another text, or was written since,
 * shows in the text; gr_target_check() after every pass sees what the cache promises. */
#include "tests/sim/target_rig.h"

#define BLOCK GR_KV_BLOCK_TOKENS

static uint64_t draw(uint64_t *rng, uint64_t n)
{
    *rng = gr_mix64(*rng + GR_HASH_GOLDEN);
    return *rng % n;
}

static void create_cached(struct world *w, int32_t n_block)
{
    rig_prefix_cache = true;
    create(w, n_block);
    rig_prefix_cache = false;
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

/* A prompt by its family, whose members are one another's beginnings. */
static void open_family(struct world *w, uint64_t id, int32_t family, int32_t n, uint32_t max_tokens)
{
    struct text *t = &w->text[id];
    t->len = t->n_back = 0;
    for (int32_t i = 0; i < n; i++) {
        add(t, (7 * family + i * i) % N_VOCAB);
    }
    t->final_len = t->len;
    w->finish[id] = GR_FINISH_NONE;
    open_with(w, id, 1, (int32_t[]){0, n}, 2, max_tokens);
    assert_int_equal(w->n_msg[GR_MSG_ERROR], 0);
}

/* Rows that the target runs for a session of the family, whose text is plain; *cached_out: what its COMMIT says. */
static int32_t rows_of(struct world *w, uint64_t id, int32_t family, int32_t n, uint32_t max_tokens,
                       int32_t *cached_out)
{
    const uint64_t before = w->n_row;
    open_family(w, id, family, n, max_tokens);
    *cached_out = -1;
    while (one_pass(w, 1000)) {
        if (*cached_out < 0 && w->text[id].len > n) {
            *cached_out = (int32_t)w->last[GR_MSG_COMMIT].commit.n_cached;
        }
    }
    assert_plain(&w->text[id], n);
    assert_int_equal(w->text[id].len, n + (int32_t)max_tokens);
    return (int32_t)(w->n_row - before);
}

/* Hits of every length around the borders of blocks and chunks: whole blocks, never the last token. */
static void test_borders(void **state)
{
    (void)state;
    for (int32_t n = 14; n <= 82; n++) {
        struct world w;
        int32_t cached = 0;
        create_cached(&w, 24);
        assert_int_equal(rows_of(&w, 1, 3, n, 3, &cached), n + 2);
        assert_int_equal(cached, 0);
        close_session(&w, 1);
        for (int32_t k = GR_MAX(n - 18, 1); k <= n + 18; k++) {
            const int32_t there = GR_MIN(n + 2, k - 1) / BLOCK * BLOCK; /* its own tokens go on otherwise */
            const int32_t want = k > n ? GR_MIN(n, k - 1) / BLOCK * BLOCK : there;
            const int32_t n_row = rows_of(&w, 2, 3, k, 3, &cached);
            assert_true(cached >= want && cached % BLOCK == 0 && cached < k);
            assert_int_equal(n_row, k + 2 - cached);
            close_session(&w, 2);
        }
        assert_int_equal(n_free(&w), 24);
        destroy(&w);
    }
}

/* A turn's text is found by a session that begins with it, as a client does that sends the conversation again. */
static void test_conversation(void **state)
{
    (void)state;
    struct world w;
    create_cached(&w, 24);
    int32_t cached = 0;
    (void)rows_of(&w, 1, 3, 37, 30, &cached);
    close_session(&w, 1);
    for (uint64_t id = 2; id <= 4; id++) {
        struct text *t = &w.text[id];
        *t = w.text[id - 1];
        add(t, 5);
        add(t, 9);
        t->final_len = t->len;
        const int32_t n = t->len;
        const uint64_t before = w.n_row;
        open_with(&w, id, 1, (int32_t[]){0, n}, 2, 20);
        run(&w);
        assert_plain(t, n);
        assert_int_equal(w.n_row - before, n + 19 - (n - 3) / BLOCK * BLOCK); /* the last token had no KV */
        close_session(&w, id);
    }
    destroy(&w);
}

/* Another salt hits nothing, whatever is opened or forked; the same one does. */
static void test_salts(void **state)
{
    (void)state;
    static const char *const salt[] = {"a", "b", "b", "a", ""};
    static const int32_t want[] = {0, 0, 48, 48, 0};
    struct world w;
    create_cached(&w, 24);
    for (uint64_t i = 0; i < 5; i++) {
        int32_t cached = 0;
        rig_salt = salt[i];
        rig_fork_of = i == 4 ? 3 : 0; /* which is open, and has another salt */
        assert_int_equal(rows_of(&w, i % 4 + 1 + (i == 4), 3, 50, 4, &cached), 53 - want[i]);
        assert_int_equal(cached, want[i]);
        if (i != 2) {
            close_session(&w, i % 4 + 1 + (i == 4));
        }
    }
    rig_salt = "";
    rig_fork_of = 0;
    destroy(&w);
}

/* Two that compute the same at once end with one copy of it, and whoever comes then has all of it. */
static void test_at_once(void **state)
{
    (void)state;
    struct world w;
    int32_t cached = 0;
    create_cached(&w, 24);
    open_family(&w, 1, 3, 50, 20);
    open_family(&w, 2, 3, 50, 20);
    run(&w);
    assert_plain(&w.text[1], 50);
    assert_plain(&w.text[2], 50);
    assert_int_equal(w.n_row, 2 * 69);
    assert_int_equal(gr_target_prefix(w.target).n_block, 4);
    assert_int_equal(n_free(&w), 24 - 6); /* four blocks of both, and one each that is begun */
    assert_int_equal(rows_of(&w, 3, 3, 50, 20, &cached), 69 - 48);
    close_session(&w, 1);
    close_session(&w, 2);
    close_session(&w, 3);
    assert_int_equal(n_free(&w), 24);
    destroy(&w);
}

/* Idle blocks are given up before any session yields, and counters tell what was looked up and found. */
static void test_pressure(void **state)
{
    (void)state;
    struct world w;
    create_cached(&w, 14);
    uint64_t n_cached = 0, n_prompt = 0;
    for (int32_t i = 0; i < 60; i++) {
        int32_t cached = 0;
        const int32_t n = 40 + i % 3 * 20;
        (void)rows_of(&w, 1 + (uint64_t)i % 2, i / 2 % 4, n, 20, &cached); /* each twice, and again much later */
        close_session(&w, 1 + (uint64_t)i % 2);
        n_cached += (uint64_t)cached;
        n_prompt += (uint64_t)n;
    }
    const struct gr_target_counters *c = gr_target_counters(w.target);
    assert_int_equal(c->n_prefix_query, n_prompt);
    assert_int_equal(c->n_prefix_hit, n_cached);
    assert_true(c->n_prefix_hit > 0 && gr_target_prefix(w.target).n_evicted > 20);
    assert_int_equal(c->n_evicted + c->n_preempted, 0);
    assert_int_equal(n_free(&w), 14);
    const struct gr_msg_pong *told = &w.last[GR_MSG_PONG].pong;
    assert_true(told->shares_prefixes != 0 && told->n_prefix_query == n_prompt && told->n_prefix_hit == n_cached);
    assert_int_equal(told->n_prefix_evicted, gr_target_prefix(w.target).n_evicted);
    (void)n_free(&w); /* each PONG tells of what was not told before */
    assert_int_equal(told->n_prefix_query + told->n_prefix_hit + told->n_prefix_evicted, 0);
    destroy(&w);
}

/* A session that waits for room holds none of what it will find: a running one that needs blocks gets those. */
static void test_waiting_holds_nothing(void **state)
{
    (void)state;
    struct world w;
    int32_t cached = 0;
    create_cached(&w, 10);
    (void)rows_of(&w, 1, 3, 50, 10, &cached);
    close_session(&w, 1); /* three blocks of it are kept */
    open_family(&w, 2, 4, 90, 60);
    while (w.text[2].len < 92) {
        assert_true(one_pass(&w, 1000));
    }
    const uint32_t before = n_free(&w);
    assert_int_equal(before, 10 - 6);
    open_family(&w, 3, 3, 120, 10); /* needs eight, three of which are there */
    (void)one_pass(&w, 1000);
    assert_int_equal(n_free(&w), before);
    run(&w);
    assert_plain(&w.text[2], 90);
    assert_plain(&w.text[3], 120);
    assert_int_equal(gr_target_counters(w.target)->n_preempted, 0);
    assert_int_equal(w.text[2].len, 150);
    destroy(&w);
}

/* More sessions than blocks: those that yield find their own blocks again, or compute them, and say the same. */
static void test_too_many(void **state)
{
    (void)state;
    uint64_t n_yield = 0;
    rig_prefix_cache = true;
    for (int32_t n_block = 7; n_block <= 24; n_block++) {
        n_yield += run_too_many(n_block);
    }
    rig_prefix_cache = false;
    assert_true(n_yield > 10);
}

/* A session's turn up to its n-th generated token, which the target is told much later was the last. */
static void run_past(struct world *w, uint64_t id, int32_t family, int32_t n, int32_t n_generated)
{
    open_family(w, id, family, n, 100);
    while (w->text[id].len < n + n_generated) {
        assert_true(one_pass(w, 1000));
    }
}

/* How many tokens of a text a session that begins with it finds. */
static int32_t n_found(struct world *w, const struct text *of)
{
    struct text *t = &w->text[4];
    *t = *of;
    t->final_len = t->len;
    open_with(w, 4, 1, (int32_t[]){0, t->len}, 2, 1);
    while (w->text[4].len == of->len) {
        assert_true(one_pass(w, 1000));
    }
    close_session(w, 4);
    assert_int_equal(w->last[GR_MSG_COMMIT].session, 4);
    return (int32_t)w->last[GR_MSG_COMMIT].commit.n_cached;
}

/* A stop is told when more has been computed: nothing after it is there for others, between passes and in one. */
static void test_after_a_stop(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        struct world w;
        create_cached(&w, 40);
        run_past(&w, 1, 3, 40, 50);
        const struct text said = w.text[1];
        assert_int_equal(n_found(&w, &said), (said.len - 1) / BLOCK * BLOCK);
        if (i % 2 == 1) {
            (void)gr_target_step(w.target, 1000);
            assert_non_null(w.pass);
        }
        truncate_to(&w, 1, 40 + 13);
        if (i / 2 == 1) {
            close_session(&w, 1);
        }
        run(&w);
        assert_int_equal(n_found(&w, &said), 48);
        struct text kept = said;
        kept.len = 53;
        assert_int_equal(n_found(&w, &kept), 48);
        close_session(&w, 1);
        assert_int_equal(n_free(&w), 40);
        destroy(&w);
    }
}

/* A client that sent those very ids itself keeps them, and so do all who come after it. */
static void test_after_a_stop_of_others(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct world w;
        create_cached(&w, 40);
        run_past(&w, 1, 3, 40, 50);
        const struct text said = w.text[1];
        struct text *t = &w.text[2];
        *t = said;
        t->len = t->final_len = 75;
        open_with(&w, 2, 1, (int32_t[]){0, t->len}, 2, 1 + 20 * (uint32_t)i);
        while (t->len < 76) {
            assert_true(one_pass(&w, 1000));
        }
        truncate_to(&w, 1, 53);
        assert_int_equal(n_found(&w, &said), 64);
        run(&w);
        assert_plain(t, 75);
        close_session(&w, 1);
        close_session(&w, 2);
        assert_true(n_found(&w, &said) >= 64);
        destroy(&w);
    }
}

struct life {
    bool open[5];
    int32_t prompt[5]; /* where the generated tokens of its turn begin */
};

static void random_step(struct world *w, struct life *l, uint64_t *rng)
{
    const uint64_t id = 1 + draw(rng, 4);
    const uint64_t what = draw(rng, 8);
    const bool in_turn = l->open[id] && w->finish[id] == GR_FINISH_NONE;
    if (!l->open[id] && what < 4) {
        rig_salt = draw(rng, 4) == 0 ? "other" : "";
        rig_fork_of = draw(rng, 3) == 0 ? 1 + draw(rng, 4) : 0;
        open_family(w, id, (int32_t)draw(rng, 3), 1 + (int32_t)draw(rng, 90), 1 + (uint32_t)draw(rng, 30));
        l->open[id] = true;
        l->prompt[id] = w->text[id].len;
    } else if (l->open[id] && !in_turn && what < 3) {
        append_to(w, id, 1, 1 + (int32_t)draw(rng, (uint64_t)GR_MIN(w->text[id].len, 120)), 1 + (int32_t)draw(rng, 20),
                  1 + (uint32_t)draw(rng, 30));
        l->prompt[id] = w->text[id].len;
        w->finish[id] = GR_FINISH_NONE;
    } else if (l->open[id] && what == 6 && draw(rng, 2) == 0) {
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

/* Sessions that come, fork, go on, are cut back and end at random, with blocks for two or three of them. An evicted one
 * is not followed by the rig, so the pool holds all; what is given up are idle blocks. */
static void test_random(void **state)
{
    (void)state;
    uint64_t n_hit = 0, n_evicted = 0;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        struct world w;
        struct life l = {0};
        uint64_t rng = seed;
        create_cached(&w, 4 * 15);
        for (int i = 0; i < 400; i++) {
            random_step(&w, &l, &rng);
            assert_int_equal(w.n_msg[GR_MSG_ERROR], 0);
        }
        run(&w);
        n_hit += gr_target_counters(w.target)->n_prefix_hit;
        n_evicted += gr_target_prefix(w.target).n_evicted;
        assert_int_equal(w.n_msg[GR_MSG_EVICTED], 0);
        for (uint64_t id = 1; id <= 4; id++) {
            close_session(&w, id);
        }
        assert_int_equal(n_free(&w), 60);
        destroy(&w);
    }
    rig_salt = "";
    rig_fork_of = 0;
    assert_true(n_hit > 10000 && n_evicted > 1000);
}

/* Under SpecPV some rows answer from another table, and their KV is marked, which the model sees. What is published is
 * what full attention has computed: a plain session after it says what it always says. */
static void test_after_views(void **state)
{
    (void)state;
    static const enum gr_specpv_mode modes[] = {GR_SPECPV_EXACT, GR_SPECPV_LOSSY};
    for (int i = 0; i < 2; i++) {
        struct world w;
        int32_t cached = 0;
        rig_specpv = (struct gr_specpv_params){
            .n_sink = 1, .n_retrieval = 1, .n_window = 1, .n_buffer = 64, .threshold = 1, .interval = 1};
        rig_specpv_mode = modes[i];
        rig_partial_blur = 3;
        create_cached(&w, 40);
        open_family(&w, 1, 3, 70, 90);
        run(&w);
        assert_true(gr_target_counters(w.target)->n_partial_round > 10);
        const struct text said = w.text[1];
        rig_specpv_mode = GR_SPECPV_OFF;
        struct text *t = &w.text[2];
        *t = said;
        t->final_len = t->len;
        open_with(&w, 2, 1, (int32_t[]){0, t->len}, 2, 40);
        run(&w);
        assert_plain(t, said.len);
        close_session(&w, 2);
        assert_int_equal(rows_of(&w, 3, 3, 70, 90, &cached), 70 + 89 - 64);
        rig_specpv = (struct gr_specpv_params){0};
        rig_partial_blur = 0;
        destroy(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_borders),
        cmocka_unit_test(test_conversation),
        cmocka_unit_test(test_salts),
        cmocka_unit_test(test_at_once),
        cmocka_unit_test(test_pressure),
        cmocka_unit_test(test_waiting_holds_nothing),
        cmocka_unit_test(test_too_many),
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_after_views),
        cmocka_unit_test(test_after_a_stop),
        cmocka_unit_test(test_after_a_stop_of_others),
    };
    gr_log_set_level(GR_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
