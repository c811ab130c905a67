/* Features where SpecPV is at work: rows under a view have features that are a little off (here: changed in
 * every byte), and a refresh has the true ones. Whatever waits, is fused late, is shipped raw, taken back or sent
 * again: once tokens are judged the drafter has the true row of each, and at no time a row that is neither. */
#include "tests/sim/feature_rig.h"

#define N_PROMPT 20
#define THRESHOLD 30

static int32_t kv_len_of(const struct bench *b)
{
    const int32_t *token = NULL;
    const struct gr_kv_table *table = NULL;
    int32_t len = 0;
    int32_t kv_len = 0;
    assert_true(gr_target_peek(b->target, 1, &token, &len, &kv_len, &table));
    return kv_len;
}

/* The drafter is told everything and takes it. */
static void tell_all(struct bench *b)
{
    struct told *t = &b->told[1];
    for (int i = 0; i < 8 && t->end < t->len - 1; i++) {
        settle(b);
        say_taken(b, 1, t->end, 0);
    }
    settle(b);
    assert_int_equal(t->end, t->len - 1);
}

static void assert_judged_rows_are_true(const struct bench *b)
{
    const int32_t kv_len = kv_len_of(b);
    for (int32_t pos = 0; pos < GR_MIN(kv_len, b->told[1].end); pos++) {
        assert_false(b->told[1].partial[pos]);
    }
}

/* What a run has met, so that a test can say that it met it. */
struct met {
    int n_kept_with_chain; /* refreshes whose missing tokens stand after captures that wait */
    int n_partial, n_back, n_again;
};

static void look_at_pass(const struct bench *b, struct met *m)
{
    const struct gr_pass_seq *q = b->pass != NULL ? &b->pass->seq[0] : NULL;
    m->n_kept_with_chain += q != NULL && q->n_chain > 0 && q->n_kept > 0;
}

static void rounds(struct bench *b, int n, struct met *m)
{
    for (int i = 0; i < n; i++) {
        b->now_ns += 2000;
        answer(b, 1);
        (void)gr_target_step(b->target, b->now_ns);
        struct gr_pass *pass = b->pass;
        look_at_pass(b, m);
        b->pass = NULL;
        if (pass != NULL) {
            gr_target_on_pass_done(b->target, pass, b->now_ns);
        }
        assert_true(gr_target_check(b->target));
    }
}

static void start_session(struct bench *b, bool single_token)
{
    bench_create(b, true);
    open_session(b, 1, N_PROMPT, single_token, true);
    resync(b, 1, 0, 0);
    while (b->told[1].len == N_PROMPT) {
        assert_true(round_once(b));
    }
}

static void note_run(const struct bench *b, struct met *m)
{
    m->n_partial += b->told[1].n_partial;
    m->n_back += b->told[1].n_back;
    m->n_again += b->told[1].n_again;
}

/* K = 0: the drafter hears nothing, captures wait, and refreshes come meanwhile. Then it is told, more rounds go by,
 * and it is told again. */
static void silent(int32_t n_round, struct met *m)
{
    struct bench b;
    struct told *t = &b.told[1];
    start_session(&b, true);
    rounds(&b, n_round, m);
    resync(&b, 1, t->known, (uint32_t)t->end);
    tell_all(&b);
    assert_judged_rows_are_true(&b);
    rounds(&b, 9, m);
    resync(&b, 1, GR_MIN(t->known, t->len), (uint32_t)GR_MIN(t->end, t->len));
    tell_all(&b);
    assert_judged_rows_are_true(&b);
    note_run(&b, m);
    bench_destroy(&b);
}

/* A drafter that answers each round, and is sent features with each. */
static void awake(int32_t n_round, struct met *m)
{
    struct bench b;
    struct told *t = &b.told[1];
    start_session(&b, false);
    for (int i = 0; i < n_round; i++) {
        rounds(&b, 1, m);
        if (i % 3 == 0) {
            say_taken(&b, 1, GR_MIN(t->end, t->len - 1), 0);
        }
    }
    gr_target_on_msg(b.target, &(struct gr_msg){.type = GR_MSG_REFRESH, .session = 1}, b.now_ns);
    rounds(&b, 2, m);
    settle(&b);
    say_taken(&b, 1, GR_MIN(t->end, t->known - 1), 0);
    settle(&b);
    assert_int_equal(t->end, t->known - 1);
    assert_judged_rows_are_true(&b);
    note_run(&b, m);
    bench_destroy(&b);
}

static void every_way(void (*way)(int32_t n_round, struct met *m), struct met *m)
{
    static const enum gr_specpv_mode modes[] = {GR_SPECPV_EXACT, GR_SPECPV_LOSSY};
    bench_specpv = (struct gr_specpv_params){
        .n_sink = 1, .n_retrieval = 1, .n_window = 1, .n_buffer = 24, .threshold = THRESHOLD, .interval = 7};
    for (int i = 0; i < 2; i++) {
        for (uint32_t corrupt = 0; corrupt < 4; corrupt += 3) {
            bench_mode = modes[i];
            bench_corrupt = corrupt;
            for (int32_t n_round = 1; n_round < KEEP - 20; n_round++) {
                way(n_round, m);
            }
        }
    }
}

static void test_silent_drafter(void **state)
{
    (void)state;
    struct met m = {0};
    every_way(silent, &m);
    print_message("# %d refreshes after captures that waited; %d partial rows told, %d sent again, %d roll-backs\n",
                  m.n_kept_with_chain, m.n_partial, m.n_again, m.n_back);
    assert_true(m.n_partial > 0 && m.n_back > 0 && m.n_again > 0);
    assert_true((m.n_kept_with_chain > 0) == (!all_raw && !all_shipped)); /* others do not wait */
}

static void test_drafter_in_every_round(void **state)
{
    (void)state;
    struct met m = {0};
    every_way(awake, &m);
    print_message("# %d partial rows told, %d sent again, %d roll-backs\n", m.n_partial, m.n_again, m.n_back);
    assert_true(m.n_partial > 0 && m.n_back > 0 && m.n_again > 0);
}

static int tear_down(void **state)
{
    (void)state;
    bench_specpv = (struct gr_specpv_params){0};
    bench_mode = GR_SPECPV_OFF;
    bench_corrupt = 0;
    all_raw = all_shipped = false;
    return 0;
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

#define FUSED(test)                                  \
    {                                                \
        "fused: " #test, test, NULL, tear_down, NULL \
    }
#define RAW(test)                                      \
    {                                                  \
        "raw: " #test, test, ship_raw, tear_down, NULL \
    }
#define AT_ONCE(test)                                          \
    {                                                          \
        "at once: " #test, test, ship_at_once, tear_down, NULL \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        FUSED(test_silent_drafter),       FUSED(test_drafter_in_every_round), RAW(test_silent_drafter),
        RAW(test_drafter_in_every_round), AT_ONCE(test_silent_drafter),       AT_ONCE(test_drafter_in_every_round),
    };
    gr_log_set_level(GR_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
