/* A model whose ranks share it out: the bits of logits and captured states, and greedy ids, are those of the model
 * alone, for 1, 2, 4 and 8 ranks and every instruction set; every rank adds something of its own to every sum; and
 * nothing that a rank other than 0 believes to be true of logits matters. `test_ranks long N`: N tokens, each text
 * another. */
#include "model/llama.h"
#include "model/load/shard.h"
#include "model/step.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "tests/unit/golden.h"
#include "tests/unit/log_capture.h"
#include "tests/unit/model/group/rank_threads.h"
#include "tests/unit/model/follower.h"

#define TARGET GR_SOURCE_ROOT "/models/demo/target"
#define HEAD GR_SOURCE_ROOT "/models/demo/eagle3"
#define N_OUT 5
#define N_GREEDY (GR_SANITIZED ? 4 : 24)
#define PATIENT UINT64_C(60000000000)

/* What is looked at while ranks run. */
struct watched {
    struct gr_group_ops ops;
    const struct gr_group_ops *real;
    int n_join, n_zero_part; /* parts of sums that were all zero */
    bool flips;              /* a bit of this rank's logits, after rank 0 has them */
};

struct ranks {
    struct rank_threads threads;
    struct gr_llama_config config;
    struct watched watched[GR_GROUP_RANK_MAX];
    struct gr_lm *lm; /* rank 0's */
};

static enum rank_threads_over over; /* what the ranks exchange their sums over */
static struct ranks *watching;      /* by the operations below */
static const float *planted;        /* logits that ranks have computed, as it were; NULL: their own */
static int n_block_fewer;           /* KV blocks that rank r has room for less than rank r - 1 */

static bool all_zero(const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (x[i] != 0.0f) {
            return false;
        }
    }
    return true;
}

static enum gr_status watched_join(struct gr_group *g, float *out, size_t n)
{
    struct watched *w = &watching->watched[g->rank];
    if (g->step > 0) { /* a pass, not the start */
        w->n_join++;
        w->n_zero_part += all_zero(g->part, n);
    }
    return w->real->join(g, out, n);
}

static enum gr_status watched_gather(struct gr_group *g, const struct gr_group_rows *rows)
{
    struct watched *w = &watching->watched[g->rank];
    if (planted != NULL && rows->n_row == 1) {
        const int begin = rows->begin[g->rank], width = rows->begin[g->rank + 1] - begin;
        memcpy((float *)(uintptr_t)rows->mine, planted + begin, (size_t)width * sizeof(float));
    }
    const enum gr_status st = w->real->gather(g, rows);
    if (w->flips && rows->n_row > 0) {
        uint32_t bits = 0;
        float *first = (float *)(uintptr_t)rows->mine;
        memcpy(&bits, first, sizeof(bits));
        bits ^= UINT32_C(1) << 30;
        memcpy(first, &bits, sizeof(bits));
    }
    return st;
}

static void watch(struct ranks *r, int rank)
{
    struct gr_group *g = r->threads.group[rank];
    struct watched *w = &r->watched[rank];
    w->real = g->ops;
    w->ops = *g->ops;
    w->ops.join = watched_join;
    w->ops.gather = watched_gather;
    g->ops = &w->ops;
}

static struct follower followers[GR_GROUP_RANK_MAX];

static struct gr_llama_config config_of(const char *geometry, const char *isa)
{
    struct gr_llama_config c = {.dir = TARGET,
                                .isa = isa,
                                .n_thread = 1,
                                .n_ctx_max = 1024,
                                .n_row_max = GOLDEN_ROW_MAX,
                                .n_out_max = N_OUT,
                                .n_pool_block = GOLDEN_N_POOL,
                                .n_scratch_block = 4,
                                .n_seq_max = 2};
    assert_int_equal(gr_geometry_find(geometry, &c.geometry), GR_OK);
    return c;
}

/* n_rank 0: the model alone. */
static void open_ranks(struct ranks *r, const char *geometry, const char *isa, int n_rank)
{
    memset(r, 0, sizeof(*r));
    r->config = config_of(geometry, isa);
    watching = r;
    if (n_rank > 0) {
        struct gr_hf_config hf;
        assert_int_equal(gr_hf_config_load(TARGET, &hf), GR_OK);
        assert_int_equal(gr_expand_config(r->config.geometry, TARGET, &hf), GR_OK);
        rank_threads_open(&r->threads, over, n_rank, gr_llama_part_max(&hf, GOLDEN_ROW_MAX), PATIENT);
    }
    for (int i = 0; i < n_rank; i++) {
        watch(r, i);
        followers[i] = (struct follower){.config = r->config};
        followers[i].config.group = r->threads.group[i];
        followers[i].config.n_pool_block -= i * n_block_fewer;
    }
    for (int i = 1; i < n_rank; i++) {
        rank_threads_start(&r->threads, i, follow, &followers[i]);
    }
    r->config.group = n_rank > 0 ? r->threads.group[0] : NULL;
    r->config.head_dir = HEAD; /* rank 0's alone */
    assert_int_equal(gr_llama_create(&r->config, NULL, NULL, &r->lm), GR_OK);
}

static void close_ranks(struct ranks *r)
{
    gr_lm_destroy(r->lm);
    for (int i = 1; i < r->threads.n_rank; i++) {
        pthread_join(r->threads.thread[i], NULL);
        assert_int_equal(followers[i].st, GR_OK);
    }
    rank_threads_close(&r->threads);
}

/* Of logits of all rows of the vocabulary, padding included, and captured states. */
static uint64_t hash_floats(uint64_t h, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = 0;
        memcpy(&bits, x + i, sizeof(bits));
        h = gr_mix64(h ^ bits);
    }
    return h;
}

static uint64_t hash_pass(const struct gr_lm *lm, int n_row, int n_out, uint64_t h)
{
    h = hash_floats(h, lm->logits, (size_t)n_out * (size_t)lm->n_vocab_stride);
    return hash_floats(h, lm->capture, (size_t)n_row * (size_t)(lm->n_capture * lm->capture_width));
}

/* A prompt in two chunks, and greedy steps, the first of them aside of the best id; the hash of all of it. */
static uint64_t run_variant(struct gr_lm *lm, int i_case, int aside, int n_step, int32_t *greedy)
{
    int32_t ids[GOLDEN_ROW_MAX];
    uint64_t h = 1;
    const int n = golden_ids(&golden, i_case, "prompt_ids", ids), half = n / 2;
    golden_run(lm, ids, 0, half, 1, NULL);
    h = hash_pass(lm, half, 1, h);
    golden_run(lm, ids + half, half, n - half, 1, NULL);
    h = hash_pass(lm, n - half, 1, h);
    for (int k = 0; k < n_step; k++) {
        greedy[k] = (lm->kernels->argmax(lm->logits, lm->n_vocab, false) + (k == 0 ? aside : 0)) % lm->n_vocab;
        golden_run(lm, greedy + k, n + k, 1, 1, NULL);
        h = hash_pass(lm, 1, 1, h);
    }
    return h;
}

static uint64_t run_text(struct gr_lm *lm, int i_case, int n_step, int32_t *greedy)
{
    return run_variant(lm, i_case, 0, n_step, greedy);
}

static void check_equal(const char *geometry, const char *isa, int n_most)
{
    struct ranks r;
    int32_t want[2][N_GREEDY], got[N_GREEDY];
    uint64_t hash[2];
    open_ranks(&r, geometry, isa, 0);
    for (int i = 0; i < 2; i++) {
        hash[i] = run_text(r.lm, i, N_GREEDY, want[i]);
    }
    char alone[96];
    snprintf(alone, sizeof(alone), "%s", r.lm->numerics_id);
    close_ranks(&r);
    for (int n = 1; n <= n_most; n *= 2) {
        open_ranks(&r, geometry, isa, n);
        assert_string_equal(r.lm->numerics_id, alone);
        for (int i = 0; i < 2; i++) {
            assert_true(run_text(r.lm, i, N_GREEDY, got) == hash[i]);
            assert_memory_equal(got, want[i], sizeof(got));
        }
        close_ranks(&r);
        for (int k = 0; k < n; k++) {
            assert_true(r.watched[k].n_join == 2 * 2 * (2 + N_GREEDY) * 8);
            /* What is expanded to eight KV heads lies in all of them. */
            assert_int_equal(r.watched[k].n_zero_part, 0);
        }
    }
}

static void test_equal_bits(void **state)
{
    (void)state;
    check_equal("test-tp8", NULL, 8);
    check_equal(NULL, NULL, 2); /* the demo pair itself: two KV heads */
}

static void test_every_isa(void **state)
{
    (void)state;
    static const char *const isas[] = {"avx2", "c"};
    for (size_t i = 0; i < GR_ARRAY_LEN(isas); i++) {
        struct gr_kernels k;
        gr_kernels_init_ref(&k);
        if (!GR_SANITIZED && gr_kernels_init_cpu(&k, isas[i]) == GR_OK) {
            check_equal("test-tp8", isas[i], 4);
        }
    }
}

static void test_over_tcp(void **state)
{
    (void)state;
    over = OVER_TCP;
    check_equal("test-tp8", NULL, 8);
    over = OVER_MEMORY;
}

/* Ids, accepted counts and stops are rank 0's: what another rank has for its logits reaches nobody. */
static void test_flipped_bit(void **state)
{
    (void)state;
    struct ranks r;
    int32_t want[N_GREEDY], got[N_GREEDY];
    open_ranks(&r, "test-tp8", NULL, 0);
    const uint64_t hash = run_text(r.lm, 1, N_GREEDY, want);
    close_ranks(&r);
    open_ranks(&r, "test-tp8", NULL, 2);
    r.watched[1].flips = true;
    assert_true(run_text(r.lm, 1, N_GREEDY, got) == hash);
    close_ranks(&r);
}

/* Rows of logits that could be picked from in several ways. */
struct tie_rows {
    int n_vocab, n_row;                /* n_row: with padding */
    int border[GR_GROUP_RANK_MAX + 1]; /* of eight ranks, which are those of fewer, too */
    float *v;                          /* owned */
};

static void level(struct tie_rows *t, float at)
{
    for (int i = 0; i < t->n_row; i++) {
        t->v[i] = i < t->n_vocab ? at : 1e30f; /* padding can never win */
    }
}

/* Row `which` of the cases below; false: there are no more. */
static bool tie_row(struct tie_rows *t, int which)
{
    enum { PAIRS = 7, ALL = PAIRS, NOTHING, NOT_NUMBERS, AFTER_THEM, N_ROW };
    level(t, which == NOTHING ? -INFINITY : -3.0f);
    for (int r = 1; r < GR_GROUP_RANK_MAX; r++) {
        if (which == r - 1 || which == ALL || which == AFTER_THEM) {
            t->v[t->border[r] - 1] = t->v[t->border[r]] = 5.0f;
        }
    }
    if (which == NOT_NUMBERS || which == AFTER_THEM) {
        t->v[0] = t->v[t->border[4]] = NAN;
    }
    return which < N_ROW;
}

static int pick(struct gr_lm *lm, const struct tie_rows *t)
{
    static const int32_t token = 1;
    planted = t->v;
    golden_run(lm, &token, 0, 1, 1, NULL);
    planted = NULL;
    return lm->kernels->argmax(lm->logits, lm->n_vocab, false);
}

/* Equal maxima on both sides of every border, NaN, rows of -inf, padding: the id is that of one rank, the lowest. */
static void test_ties_at_borders(void **state)
{
    (void)state;
    struct ranks r;
    struct tie_rows t = {0};
    for (int n = 1; n <= GR_GROUP_RANK_MAX; n *= 2) {
        open_ranks(&r, "test-tp8", NULL, n);
        t.n_vocab = r.lm->n_vocab, t.n_row = r.lm->n_vocab_stride;
        t.v = calloc((size_t)t.n_row, sizeof(*t.v));
        assert_non_null(t.v);
        for (int k = 0; k <= GR_GROUP_RANK_MAX; k++) {
            t.border[k] = gr_shard_vocab(t.n_vocab, GR_GROUP_RANK_MAX, k);
        }
        for (int which = 0; tie_row(&t, which); which++) {
            const int want = r.lm->kernels->argmax(t.v, t.n_vocab, false);
            assert_int_equal(pick(r.lm, &t), want);
            assert_true(which > 6 || want == t.border[which + 1] - 1);
        }
        free(t.v);
        close_ranks(&r);
    }
}

/* One rank has less room than another: all have as many KV blocks as the one with the least. */
static void test_unequal_room(void **state)
{
    (void)state;
    struct ranks r;
    n_block_fewer = 3;
    open_ranks(&r, "test-tp8", NULL, 4);
    n_block_fewer = 0;
    assert_int_equal(r.lm->n_pool_block, GOLDEN_N_POOL - 9);
    close_ranks(&r);
}

static void test_refused(void **state)
{
    (void)state;
    struct rank_threads t;
    struct log_capture log;
    struct gr_lm *lm = NULL;
    struct gr_llama_config c = config_of(NULL, NULL);
    rank_threads_open(&t, OVER_MEMORY, 4, 1 << 20, PATIENT);
    c.group = t.group[0];
    log_capture_begin(&log);
    assert_int_equal(gr_llama_create(&c, NULL, NULL, &lm), GR_EINVAL);
    log_capture_end(&log);
    assert_non_null(strstr(log.text, "has 2 KV heads"));
    rank_threads_close(&t);
}

/* ---- steps ---- */

/* A rank that has missed a step, or counted one too many, is an error that says so. */
struct stepping {
    struct gr_steps steps;
    enum gr_status st;
};

static void *take_step(void *arg)
{
    struct stepping *s = arg;
    struct gr_step step;
    s->st = gr_steps_next(&s->steps, &step);
    return NULL;
}

static void test_wrong_step(void **state)
{
    (void)state;
    struct rank_threads t;
    struct gr_memory memory = {0};
    struct log_capture log;
    struct gr_lm lm[2] = {{.n_row_max = 8, .n_out_max = 8, .n_ctx_max = 64, .n_pool_block = 4, .n_scratch_block = 1}};
    struct stepping s[2];
    lm[1] = lm[0];
    rank_threads_open(&t, OVER_MEMORY, 2, 1000, PATIENT);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(gr_steps_init(&s[i].steps, &memory, t.group[i], &lm[i], 1), GR_OK);
    }
    const int32_t cell[2] = {1, 99}; /* of 80 cells */
    log_capture_begin(&log);
    rank_threads_start(&t, 1, take_step, &s[1]);
    assert_int_equal(gr_steps_copy(&s[0].steps, 1, cell, cell), GR_OK);
    pthread_join(t.thread[1], NULL);
    const enum gr_status good = s[1].st;
    s[1].steps.number = 7;
    rank_threads_start(&t, 1, take_step, &s[1]);
    const enum gr_status sent = gr_steps_copy(&s[0].steps, 1, cell, cell);
    (void)sent; /* it may notice already */
    pthread_join(t.thread[1], NULL);
    log_capture_end(&log);
    assert_true(good == GR_OK && s[1].st == GR_EPROTO);
    assert_non_null(strstr(log.text, "rank 1: after step 7 rank 0 sent step 2"));
    rank_threads_close(&t);
    rank_threads_open(&t, OVER_MEMORY, 2, 1000, PATIENT);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(gr_steps_init(&s[i].steps, &memory, t.group[i], &lm[i], 1), GR_OK);
    }
    log_capture_begin(&log);
    rank_threads_start(&t, 1, take_step, &s[1]);
    assert_int_equal(gr_steps_copy(&s[0].steps, 1, cell, cell + 1), GR_OK);
    pthread_join(t.thread[1], NULL);
    log_capture_end(&log);
    assert_int_equal(s[1].st, GR_EPROTO);
    assert_non_null(strstr(log.text, "that cannot be"));
    rank_threads_close(&t);
    gr_memory_finish(&memory);
}

/* ---- many tokens ---- */

static int n_long;

static void test_long(void **state)
{
    (void)state;
    enum { A_TEXT = 500 };
    static int32_t want[A_TEXT], got[A_TEXT];
    struct ranks r;
    for (int done = 0, i = 0; done < n_long; done += A_TEXT, i++) {
        const int n_case = (int)json_array_size(golden.cases), i_case = i % n_case, aside = i / n_case * 17;
        open_ranks(&r, "test-tp8", NULL, 0);
        const uint64_t hash = run_variant(r.lm, i_case, aside, A_TEXT, want);
        close_ranks(&r);
        for (int n = 2; n <= 8; n *= 2) {
            open_ranks(&r, "test-tp8", NULL, n);
            assert_true(run_variant(r.lm, i_case, aside, A_TEXT, got) == hash);
            assert_memory_equal(got, want, sizeof(got));
            close_ranks(&r);
        }
        print_message("# %d tokens on 1, 2, 4 and 8 ranks\n", done + A_TEXT);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equal_bits),      cmocka_unit_test(test_over_tcp),     cmocka_unit_test(test_every_isa),
        cmocka_unit_test(test_ties_at_borders), cmocka_unit_test(test_unequal_room), cmocka_unit_test(test_flipped_bit),
        cmocka_unit_test(test_refused),         cmocka_unit_test(test_wrong_step),
    };
    const struct CMUnitTest long_tests[] = {cmocka_unit_test(test_long)};
    if (argc == 3 && strcmp(argv[1], "long") == 0) {
        n_long = atoi(argv[2]);
        return cmocka_run_group_tests(long_tests, golden_setup, golden_teardown);
    }
    return cmocka_run_group_tests(tests, golden_setup, golden_teardown);
}
