/* The target's side of features: every frame holds the true rows of its positions, in order, after the tokens that
 * need them and within the window; what passes, cuts, attachments and missing credit do to it. */
#include "tests/sim/feature_rig.h"

/* Chunk by chunk, one chunk after; after the prompt the drafter lacks nothing. */
static void test_prompt_by_the_chunk(void **state)
{
    (void)state;
    struct bench b;
    bench_create(&b, true);
    open_session(&b, 1, 60, false, true);
    resync(&b, 1, 0, 0);
    assert_int_equal(b.told[1].known, 60);
    for (int chunk = 1; chunk <= 4; chunk++) {
        assert_int_equal(b.told[1].end, CHUNK * (GR_MAX(chunk - 2, 0)));
        assert_true(round_once(&b)); /* the step sends the chunk before, and starts this one */
    }
    assert_int_equal(b.told[1].len, 61);
    (void)gr_target_step(b.target, b.now_ns);
    assert_int_equal(b.told[1].end, 60);
    assert_true(strstr(b.order, "v1") < strstr(b.order + 2 + (strstr(b.order, "v1") - b.order), "f1"));
    bench_destroy(&b);
}

/* No more than the window without TAKEN; only a TAKEN that fits counts. */
static void test_window(void **state)
{
    (void)state;
    struct bench b;
    bench_create(&b, true);
    open_session(&b, 1, 90, true, true);
    resync(&b, 1, 0, 0);
    while (b.told[1].len < 91) {
        assert_true(round_once(&b));
    }
    settle(&b);
    assert_int_equal(b.told[1].end, WINDOW);
    say_taken(&b, 1, 40, 1); /* other tokens */
    say_taken(&b, 1, 80, 0); /* more than was sent */
    settle(&b);
    assert_int_equal(b.told[1].end, WINDOW);
    say_taken(&b, 1, 10, 0);
    say_taken(&b, 1, 5, 0); /* an old one */
    settle(&b);
    assert_int_equal(b.told[1].end, WINDOW + 10);
    say_taken(&b, 1, 74, 0);
    settle(&b);
    assert_int_equal(b.told[1].end, b.told[1].known - 1);
    assert_int_equal(gr_target_counters(b.target)->n_feature_start, 0);
    bench_destroy(&b);
}

/* Without credit for bulk, verdicts and rounds go on; the features follow in order. */
static void test_no_credit(void **state)
{
    (void)state;
    struct bench b;
    bench_create(&b, true);
    b.n_bulk_credit = 0;
    open_session(&b, 1, 20, false, true);
    resync(&b, 1, 0, 0);
    while (b.told[1].len < 30) {
        (void)round_once(&b);
    }
    assert_int_equal(b.told[1].n_frame, 0);
    assert_non_null(strstr(b.order, "v1"));
    b.n_bulk_credit = 1;
    settle(&b);
    assert_int_equal(b.told[1].n_frame, 1);
    b.n_bulk_credit = 100;
    settle(&b);
    assert_int_equal(b.told[1].end, b.told[1].known - 1);
    assert_int_equal(b.told[1].n_again, 0);
    bench_destroy(&b);
}

/* A head that looks back 50 positions: what lies before them at the prompt's end is not even made, and later they begin
 * anew only where the drafter has not been told for longer. */
static void test_context(void **state)
{
    (void)state;
    struct bench b;
    bench_context = 50;
    bench_create(&b, true);
    open_session(&b, 1, 200, false, true);
    resync(&b, 1, 0, 0);
    while (b.told[1].len < 201) {
        assert_true(round_once(&b));
    }
    settle(&b);
    const struct told *t = &b.told[1];
    assert_int_equal(t->n_start, 1);
    assert_int_equal(t->first, 150);
    assert_int_equal(t->end, t->known - 1);
    assert_in_range(b.n_made, 50, 50 + CHUNK);
    assert_int_equal(gr_target_counters(b.target)->n_feature_row, t->end - 150);
    while (t->len < 300) { /* it follows: no gap, however long the text gets */
        say_taken(&b, 1, t->end - 2, 0);
        (void)round_once(&b);
    }
    assert_int_equal(t->n_start, 1);
    resync(&b, 1, t->known, (uint32_t)(t->end - 20));
    settle(&b);
    assert_true(t->n_start == 1 && t->end == t->known - 1); /* not so long ago */
    resync(&b, 1, t->known, (uint32_t)(t->end - 80));
    settle(&b);
    assert_int_equal(t->n_start, 2);
    assert_int_equal(t->first, t->len - 50);
    bench_context = 0;
    bench_destroy(&b);
}

/* A tail's row takes the feature of the position before it: a head that looks back less is sent two all the same. */
static void test_least_context(void **state)
{
    (void)state;
    for (bench_context = 1; bench_context <= 3; bench_context++) {
        struct bench b;
        bench_create(&b, true);
        open_session(&b, 1, 100, false, true);
        resync(&b, 1, 0, 0);
        const struct told *t = &b.told[1];
        while (t->len < 101) {
            assert_true(round_once(&b));
        }
        settle(&b);
        assert_true(t->first <= t->known - 2 && t->first >= 100 - bench_context);
        assert_int_equal(t->end, t->known - 1);
        while (t->len < 140) {
            (void)round_once(&b);
            settle(&b);
            assert_int_equal(t->end, t->known - 1); /* every tail has its own */
        }
        bench_destroy(&b);
    }
    bench_context = 0;
}

/* A session that wants no tree ships nothing while it decodes; an attached drafter gets the last positions. */
static void test_silence_then_attach(void **state)
{
    (void)state;
    struct bench b;
    bench_create(&b, true);
    open_session(&b, 1, 30, true, true);
    resync(&b, 1, 0, 0);
    while (b.told[1].len < 40) {
        (void)round_once(&b);
    }
    settle(&b);
    const int n_frame = b.told[1].n_frame;
    const int32_t sent = b.told[1].end;
    while (b.told[1].len < 60) {
        (void)round_once(&b);
    }
    assert_int_equal(b.told[1].n_frame, n_frame);
    /* it asks where it stands: what was committed since comes from the ring, and two rows again */
    resync(&b, 1, 31, (uint32_t)sent);
    settle(&b);
    assert_int_equal(b.told[1].known, b.told[1].len);
    assert_int_equal(b.told[1].end, b.told[1].len - 1);
    assert_int_equal(b.told[1].n_start, 0);
    /* a new one, later than the ring reaches back */
    while (b.told[1].len < 300) {
        (void)round_once(&b);
    }
    resync(&b, 1, 0, 0);
    settle(&b);
    assert_int_equal(b.told[1].n_start, 1);
    assert_int_equal(b.told[1].end, b.told[1].first + WINDOW); /* the ring, and captured states after it */
    assert_in_range(b.told[1].len - 1 - KEEP - b.told[1].first, 0, GR_CAPTURE_KEEP);
    say_taken(&b, 1, b.told[1].end - 3, 0);
    settle(&b);
    assert_int_equal(b.told[1].end, b.told[1].len - 1);
    /* one that says it has more than there is */
    resync(&b, 1, b.told[1].len, (uint32_t)b.told[1].len);
    b.told[1].end = b.told[1].len;
    settle(&b);
    assert_int_equal(b.told[1].first, b.told[1].len - 2);
    assert_int_equal(b.told[1].end, b.told[1].len - 1);
    bench_destroy(&b);
}

/* K = 0: captured states wait, and are fused when there are too many, or when a drafter is told the tokens. Rows that
 * are cut meanwhile, and those that run again, leave no gap and no false row. */
static void test_kept_captures(void **state)
{
    (void)state;
    for (int32_t n_round = 1; n_round < KEEP - 25; n_round++) {
        struct bench b;
        bench_create(&b, true);
        struct told *t = &b.told[1];
        open_session(&b, 1, 20, true, true);
        resync(&b, 1, 0, 0);
        while (t->len < 21 + n_round) {
            (void)round_once(&b);
        }
        assert_int_equal(b.n_fuse, 0);
        const int32_t sent = t->end;
        assert_int_equal(sent, 19); /* the prompt's: no round asked for more */
        const int32_t keep_len = n_round % 3 == 0 ? t->len - n_round / 2 : t->len;
        if (keep_len < t->len) {
            const struct gr_msg m = {
                .type = GR_MSG_TRUNCATE, .session = 1, .truncate = {.epoch = EPOCH, .keep_len = (uint32_t)keep_len}};
            gr_target_on_msg(b.target, &m, b.now_ns);
            const int32_t ids[] = {3, 1};
            const struct gr_msg more = {.type = GR_MSG_APPEND,
                                        .session = 1,
                                        .append = {.epoch = EPOCH,
                                                   .keep_len = (uint32_t)keep_len,
                                                   .hash = t->hash[keep_len],
                                                   .ids = {(int32_t *)(uintptr_t)ids, 2},
                                                   .wishes = {.max_tokens = 100}}};
            t->len = keep_len;
            for (int k = 0; k < 2; k++) {
                t->hash[t->len + 1] = gr_hash_extend(t->hash[t->len], ids[k]);
                t->token[t->len++] = ids[k];
            }
            t->known = GR_MIN(t->known, keep_len);
            t->end = GR_MIN(t->end, keep_len - 2);
            gr_target_on_msg(b.target, &more, b.now_ns);
            while (t->len < keep_len + 7) {
                (void)round_once(&b);
            }
        }
        resync(&b, 1, t->known, (uint32_t)GR_MIN(sent, t->known));
        settle(&b);
        say_taken(&b, 1, t->end - 2, 0); /* the window may have held the last ones back */
        settle(&b);
        assert_int_equal(t->end, t->len - 1); /* complete, and each row is true (check_features) */
        assert_int_equal(t->n_start, 0);
        assert_true(b.n_fuse <= (all_raw || all_shipped ? 0 : 1));
        bench_destroy(&b);
    }
}

/* The session is closed, or cut, while what was kept is fused. */
static void test_cut_while_fusing(void **state)
{
    (void)state;
    for (int close = 0; close <= 1; close++) {
        struct bench b;
        bench_create(&b, true);
        struct told *t = &b.told[1];
        open_session(&b, 1, 20, true, true);
        resync(&b, 1, 0, 0);
        while (t->len < 40) {
            (void)round_once(&b);
        }
        resync(&b, 1, 20, 20);
        (void)gr_target_step(b.target, b.now_ns);
        assert_int_equal(b.n_fuse, 1);
        struct gr_pass *pass = b.pass;
        b.pass = NULL;
        const struct gr_msg m = {.type = close ? GR_MSG_CLOSE : GR_MSG_TRUNCATE,
                                 .session = 1,
                                 .truncate = {.epoch = EPOCH, .keep_len = 30}}; /* a CLOSE has no fields */
        gr_target_on_msg(b.target, &m, b.now_ns);
        assert_int_equal(gr_target_n_session(b.target), 1 - close);
        if (close) {
            open_session(&b, 2, 20, true, true); /* the same slot */
        }
        gr_target_on_pass_done(b.target, pass, b.now_ns);
        assert_true(gr_target_check(b.target));
        if (close) {
            resync(&b, 2, 0, 0);
            while (b.told[2].len < 30) {
                (void)round_once(&b);
            }
            resync(&b, 2, 0, 0);
            settle(&b);
            assert_int_equal(b.told[2].end, b.told[2].len - 1);
        }
        bench_destroy(&b);
    }
}

/* TRUNCATE and APPEND: from there on new features, and those under way again. */
static void test_cut(void **state)
{
    (void)state;
    struct bench b;
    bench_create(&b, true);
    struct told *t = &b.told[1];
    open_session(&b, 1, 30, true, true);
    resync(&b, 1, 0, 0);
    while (t->len < 50) {
        (void)round_once(&b);
    }
    resync(&b, 1, t->len, 0);
    settle(&b);
    assert_int_equal(t->end, t->len - 1);
    say_taken(&b, 1, 40, 0);
    const int32_t cut[] = {45, 12};
    for (int i = 0; i < 2; i++) {
        const int32_t ids[] = {4, 9, (int32_t)i};
        struct gr_msg m = {
            .type = GR_MSG_TRUNCATE, .session = 1, .truncate = {.epoch = EPOCH, .keep_len = (uint32_t)cut[i]}};
        gr_target_on_msg(b.target, &m, b.now_ns);
        m = (struct gr_msg){.type = GR_MSG_APPEND,
                            .session = 1,
                            .append = {.epoch = EPOCH,
                                       .keep_len = (uint32_t)cut[i],
                                       .hash = t->hash[cut[i]],
                                       .ids = {(int32_t *)(uintptr_t)ids, 3},
                                       .wishes = {.max_tokens = 20}}};
        t->len = cut[i];
        for (int k = 0; k < 3; k++) {
            t->hash[t->len + 1] = gr_hash_extend(t->hash[t->len], ids[k]);
            t->token[t->len++] = ids[k];
        }
        t->known = t->end = t->len;
        t->n_frame = 0;
        gr_target_on_msg(b.target, &m, b.now_ns);
        while (t->len < cut[i] + 4) {
            (void)round_once(&b);
        }
        settle(&b);
        assert_int_equal(t->end, cut[i] + 2); /* up to the tail's row of what the drafter was told */
        assert_true(t->n_frame > 0 && t->n_start == 0);
        assert_int_equal(t->first, i == 0 ? 40 : 10); /* from TAKEN; from two before the cut */
    }
    bench_destroy(&b);
}

/* Rounds go before prompts. */
static void test_rounds_before_prompts(void **state)
{
    (void)state;
    struct bench b;
    bench_create(&b, true);
    open_session(&b, 2, 20, false, true);
    resync(&b, 2, 0, 0);
    while (b.told[2].len < 22) {
        (void)round_once(&b);
    }
    settle(&b);
    open_session(&b, 1, 90, false, true);
    resync(&b, 1, 0, 0);
    for (int i = 0; i < 2; i++) {
        (void)round_once(&b); /* a round of one and a chunk of the other, in one pass */
        b.n_order = 0;
        b.order[0] = '\0';
        (void)gr_target_step(b.target, b.now_ns);
        const char *round = strstr(b.order, "f2");
        const char *prompt = strstr(b.order, "f1");
        assert_true(prompt != NULL && round != NULL && round < prompt);
        struct gr_pass *pass = b.pass;
        b.pass = NULL;
        if (pass != NULL) {
            gr_target_on_pass_done(b.target, pass, b.now_ns);
        }
    }
    bench_destroy(&b);
}

/* Where nobody has a use for them, there are none. */
static void test_no_use(void **state)
{
    (void)state;
    struct bench b;
    bench_create(&b, true);
    open_session(&b, 1, 20, false, false);
    for (int i = 0; i < 6; i++) {
        b.now_ns += 2000;
        (void)gr_target_step(b.target, b.now_ns);
        assert_non_null(b.pass);
        assert_int_equal(b.pass->seq[0].n_feature, 0);
        struct gr_pass *pass = b.pass;
        b.pass = NULL;
        gr_target_on_pass_done(b.target, pass, b.now_ns);
    }
    /* one attaches all the same: from here on */
    resync(&b, 1, 0, 0);
    const int32_t len = b.told[1].len;
    assert_true(round_once(&b));
    assert_true(round_once(&b));
    settle(&b);
    assert_int_equal(b.told[1].n_start, 1);
    assert_int_equal(b.told[1].first, len - 1);
    /* a stand-alone draft model gets none */
    b.told[1].n_frame = 0;
    resync(&b, 1, 0, GR_FEATURES_NONE);
    assert_true(round_once(&b));
    settle(&b);
    assert_int_equal(b.told[1].n_frame, 0);
    bench_destroy(&b);
    /* and a head that asks a target without any is left alone */
    bench_create(&b, false);
    open_session(&b, 1, 20, false, true);
    resync(&b, 1, 0, 0);
    assert_int_equal(gr_target_counters(b.target)->n_fallback, 1);
    while (b.told[1].len < 25) {
        assert_true(round_once(&b));
    }
    assert_int_equal(b.n_order, 0);
    bench_destroy(&b);
}

static int ship_raw(void **state)
{
    (void)state;
    all_raw = true;
    return 0;
}

static int ship_at_once(void **state)
{
    (void)state;
    all_shipped = true;
    return 0;
}

static int ship_fused(void **state)
{
    (void)state;
    all_raw = all_shipped = false;
    all_far = BENCH_HOST;
    return 0;
}

#define RAW(test)                                       \
    {                                                   \
        "raw: " #test, test, ship_raw, ship_fused, NULL \
    }
static int ship_far(void **state)
{
    (void)ship_at_once(state);
    all_far = BENCH_FAR;
    return 0;
}

static int ship_far_bodies(void **state)
{
    (void)ship_at_once(state);
    all_far = BENCH_FAR_BODIES;
    return 0;
}

#define FAR(test)                                                     \
    {"far: " #test, test, ship_far, ship_fused, NULL},                \
    {                                                                 \
        "far bodies: " #test, test, ship_far_bodies, ship_fused, NULL \
    }

#define AT_ONCE(test)                                           \
    {                                                           \
        "at once: " #test, test, ship_at_once, ship_fused, NULL \
    }

/* Rows that a fork does not run bring it no features: those of the other are its, as far back as they are kept. */
static void test_fork(void **state)
{
    (void)state;
    for (int n_prompt = 60; n_prompt <= 120; n_prompt += 60) {
        struct bench b;
        bench_create(&b, true);
        open_session(&b, 1, n_prompt, false, true);
        resync(&b, 1, 0, 0);
        open_fork(&b, 2, 1, n_prompt);
        resync(&b, 2, 0, 0);
        for (int i = 0; i < 20; i++) {
            assert_true(round_once(&b));
            for (uint64_t id = 1; id <= 2; id++) {
                say_taken(&b, id, b.told[id].end, 0);
                answer(&b, id);
            }
        }
        settle(&b);
        const struct gr_target_counters *c = gr_target_counters(b.target);
        assert_int_equal(c->n_fork, 1);
        assert_int_equal(c->n_fork_token, n_prompt - 1);
        assert_true(b.told[2].known > n_prompt + 1);
        assert_int_equal(b.told[2].end, b.told[2].known - 1);
        assert_true(b.told[2].first <= GR_MAX(n_prompt - KEEP + CHUNK, 0));
        bench_destroy(&b);
    }
}

static void run_rounds(struct bench *b, uint64_t id, int n)
{
    for (int i = 0; i < n; i++) {
        assert_true(round_once(b));
        say_taken(b, id, b->told[id].end, 0);
        answer(b, id);
    }
    settle(b);
}

/* Rows that a session takes of the prefix cache bring it no features. Where they are stored with the blocks it has
 * those that its ring has room for, with the values of its own rows; else its head starts after what it has taken. */
static void try_prefix(int n_prompt, bool stored)
{
    struct bench b;
    bench_prefix_cache = true;
    bench_prefix_features = stored;
    bench_create(&b, true);
    bench_prefix_cache = bench_prefix_features = false;
    open_session(&b, 1, n_prompt, false, true);
    resync(&b, 1, 0, 0);
    run_rounds(&b, 1, 12);
    const struct gr_msg close = {.type = GR_MSG_CLOSE, .session = 1};
    gr_target_on_msg(b.target, &close, b.now_ns);
    (void)round_once(&b);          /* the pass that it is in */
    open_fork(&b, 2, 1, n_prompt); /* of one that has gone: nothing but the cache has its KV */
    resync(&b, 2, 0, 0);
    run_rounds(&b, 2, 12);
    const struct gr_target_counters *c = gr_target_counters(b.target);
    const int32_t n_hit = (n_prompt - 1) / GR_KV_BLOCK_TOKENS * GR_KV_BLOCK_TOKENS;
    const int32_t n_kept = stored ? GR_MIN(n_hit, KEEP / GR_KV_BLOCK_TOKENS * GR_KV_BLOCK_TOKENS) : 0;
    assert_int_equal(c->n_prefix_hit, n_hit);
    assert_int_equal(c->n_prefix_feature, n_kept);
    assert_int_equal(b.told[2].end, b.told[2].known - 1);
    assert_int_equal(b.told[2].first, n_hit - n_kept);
    bench_destroy(&b);
}

static void test_prefix_cache(void **state)
{
    (void)state;
    for (int n_prompt = 17; n_prompt <= 130; n_prompt++) {
        try_prefix(n_prompt, true);
        try_prefix(n_prompt, false);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fork),
        cmocka_unit_test(test_prefix_cache),
        RAW(test_prefix_cache),
        AT_ONCE(test_prefix_cache),
        FAR(test_prefix_cache),
        cmocka_unit_test(test_prompt_by_the_chunk),
        cmocka_unit_test(test_window),
        cmocka_unit_test(test_no_credit),
        cmocka_unit_test(test_silence_then_attach),
        cmocka_unit_test(test_cut),
        cmocka_unit_test(test_rounds_before_prompts),
        cmocka_unit_test(test_no_use),
        cmocka_unit_test(test_kept_captures),
        cmocka_unit_test(test_context),
        cmocka_unit_test(test_least_context),
        AT_ONCE(test_context),
        cmocka_unit_test(test_cut_while_fusing),
        RAW(test_prompt_by_the_chunk),
        RAW(test_window),
        RAW(test_silence_then_attach),
        RAW(test_cut),
        RAW(test_kept_captures),
        AT_ONCE(test_prompt_by_the_chunk),
        AT_ONCE(test_window),
        AT_ONCE(test_silence_then_attach),
        AT_ONCE(test_cut),
        AT_ONCE(test_kept_captures),
        FAR(test_fork),
        FAR(test_prompt_by_the_chunk),
        FAR(test_window),
        FAR(test_no_credit),
        FAR(test_silence_then_attach),
        FAR(test_cut),
        FAR(test_rounds_before_prompts),
        FAR(test_context),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
