/* The prefix cache with the demo models, bit for bit: what follows a hit is what a cold run gives, tokens and
 * log-probabilities, for hits that end at every border of a computation (block 16, tile 64, prompt chunk 256, split of
 * attention 512), one before and one after, at temperatures 0 and 1, from a scattered pool, plain, with trees, with a
 * head, and under SpecPV. A head's acceptance after a hit is that of a cold run. */
#include "model/eagle3.h"
#include "model/llama.h"
#include "draft_worker/compute/grower.h"
#include "tests/sim/sim.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#define ROOT GR_SOURCE_ROOT
#define HEAD ROOT "/models/demo/eagle3"
#define N_SLOT 4
#define N_CTX 2048
#define N_BASE 1200 /* tokens of the text that all begin with */
#define N_TOKEN 12
#define LIMIT_NS (1000000ull * 1000000000ull)

/* Tokens that a prompt has in common with what was there. */
static const int32_t common[] = {15,  16,  17,  31,  33,  63,  64,  65,  127,  128,  129,
                                 255, 256, 257, 511, 512, 513, 767, 769, 1023, 1024, 1025};
#define N_COMMON ((int)GR_ARRAY_LEN(common))

static int32_t base[N_CTX];
/* A cold run is a simulation of its own, which would write over the other's blocks: each has its models. */
static struct gr_lm *target_lm[2], *draft_lm[2], *head_target_lm[2], *head_lm[2];

static struct gr_lm *load(const char *name, const char *head_dir, int n_scratch)
{
    char dir[512];
    snprintf(dir, sizeof(dir), "%s/models/demo/%s", ROOT, name);
    struct gr_lm *lm = NULL;
    const struct gr_llama_config c = {.dir = dir,
                                      .n_thread = 1,
                                      .n_ctx_max = N_CTX,
                                      .n_row_max = 768,
                                      .n_out_max = 640,
                                      .n_pool_block = 3 * N_CTX / 16,
                                      .n_scratch_block = N_SLOT * n_scratch,
                                      .head_dir = head_dir};
    return gr_llama_create(&c, NULL, NULL, &lm) == GR_OK ? lm : NULL;
}

static struct gr_lm *load_head(void)
{
    struct gr_lm *lm = NULL;
    const struct gr_eagle3_config c = {.dir = HEAD,
                                       .n_thread = 1,
                                       .target_dir = ROOT "/models/demo/target",
                                       .n_ctx_max = N_CTX,
                                       .n_row_max = 768,
                                       .n_out_max = 640,
                                       .n_pool_block = 3 * N_CTX / 16,
                                       .n_scratch_block = N_SLOT * 16,
                                       .n_state = N_SLOT * GR_GROWER_STATES};
    return gr_eagle3_create(&c, NULL, NULL, &lm) == GR_OK ? lm : NULL;
}

/* How the sessions of a comparison are run. */
struct way {
    struct gr_lm *const *target, *const *draft; /* (2), of cold and of warm runs; draft NULL: plain */
    float temperature;
    enum gr_specpv_mode specpv;
};

static struct sim *create(const struct way *way, bool cached)
{
    const struct sim_config c = {.seed = 1,
                                 .target_lm = way->target[cached],
                                 .draft_lm = way->draft != NULL ? way->draft[cached] : NULL,
                                 .n_session_max = N_SLOT,
                                 .prefill_chunk = 256,
                                 .round_deadline_ns = 1000000000,
                                 .feature_keep = N_CTX,
                                 .feature_window = GR_FEATURES_WINDOW,
                                 .prefix_cache = cached,
                                 .prefix_features = cached,
                                 .specpv = way->specpv != GR_SPECPV_OFF ? (struct gr_specpv_params){.n_sink = 1,
                                                                                                    .n_retrieval = 4,
                                                                                                    .n_window = 2,
                                                                                                    .n_buffer = 24,
                                                                                                    .threshold = 64,
                                                                                                    .interval = 4}
                                                                        : (struct gr_specpv_params){0}};
    return sim_create(&c);
}

static int submit(struct sim *s, const struct way *way, const int32_t *prompt, int32_t n, uint32_t n_token)
{
    const struct gr_session_request r = {
        .prompt = prompt,
        .n_prompt = (uint32_t)n,
        .wishes = {.turn = {.max_tokens = n_token, .n_logprob = way->specpv == GR_SPECPV_OFF ? 4 : 0},
                   .sampling = {.temperature = way->temperature, .top_p = 1.0f, .seed = 77},
                   .want_draft = way->draft != NULL,
                   .n_node = way->draft != NULL ? 12 : 0,
                   .draft_depth = 6,
                   .draft_top_k = 8,
                   .specpv = way->specpv}};
    return sim_submit(s, &r);
}

static void run(struct sim *s)
{
    assert_true(sim_run(s, LIMIT_NS));
}

/* A prompt that goes its own way after the first n tokens of the base. */
static int32_t prompt_of(int32_t n, int32_t *prompt)
{
    const int32_t n_own = 5 + n % 7;
    memcpy(prompt, base, (size_t)n * sizeof(*prompt));
    for (int32_t i = 0; i < n_own; i++) {
        prompt[n + i] = base[(n + 1 + 3 * i) % N_BASE];
    }
    prompt[n] = prompt[n] == base[n] ? base[n] + 1 : prompt[n];
    return n + n_own;
}

/* Sessions of many lengths that end in another order than they came, so that free blocks and entries lie anywhere. */
static void scatter(struct sim *s, const struct way *way)
{
    int32_t prompt[6][512];
    for (int i = 0; i < 6; i++) {
        for (int k = 0; k < 512; k++) {
            prompt[i][k] = base[(k * (i + 2) + i) % N_BASE];
        }
        (void)submit(s, way, prompt[i], 40 + 71 * i, (uint32_t)(40 - 6 * i));
    }
    run(s);
}

struct drafts {
    uint64_t n, n_accepted;
};

static void count(struct drafts *d, const struct sim_result *r)
{
    d->n += r->metrics.num_drafts;
    d->n_accepted += r->metrics.num_accepted_tokens;
}

static void assert_same(const struct sim_result *a, const struct sim_result *b)
{
    assert_int_equal(a->n_token, N_TOKEN);
    assert_int_equal(b->n_token, N_TOKEN);
    assert_memory_equal(a->token, b->token, N_TOKEN * sizeof(int32_t));
    assert_int_equal(a->n_logprob, b->n_logprob);
    assert_int_equal(a->n_logprob_id, b->n_logprob_id);
    if (a->n_logprob > 0) {
        assert_memory_equal(a->logprob, b->logprob, a->n_logprob * sizeof(float));
        assert_memory_equal(a->logprob_id, b->logprob_id, a->n_logprob_id * sizeof(int32_t));
    }
}

/* Each prompt cold, and after the base was there; the same way for both. */
static void compare(const char *what, const struct way *way)
{
    struct drafts cold = {0}, warm = {0};
    int32_t prompt[N_CTX];
    struct sim *s = create(way, true);
    scatter(s, way);
    (void)submit(s, way, base, N_BASE, 4);
    run(s);
    const int step = way->draft != NULL ? 2 : 1; /* with drafts each temperature takes every other length */
    for (int i = way->draft != NULL && way->temperature > 0.0f ? 1 : 0; i < N_COMMON; i += step) {
        const int32_t n = prompt_of(common[i], prompt);
        struct sim *c = create(way, false);
        (void)submit(c, way, prompt, n, N_TOKEN);
        run(c);
        const struct sim_result *r = sim_result(s, submit(s, way, prompt, n, N_TOKEN));
        run(s);
        assert_same(sim_result(c, 0), r);
        assert_int_equal(sim_result(c, 0)->metrics.cached_tokens, 0);
        assert_int_equal(r->metrics.cached_tokens, common[i] / GR_KV_BLOCK_TOKENS * GR_KV_BLOCK_TOKENS);
        count(&cold, sim_result(c, 0));
        count(&warm, r);
        sim_destroy(c);
    }
    print_message("# %s at temperature %.0f: accepted %llu of %llu drafts cold, %llu of %llu after hits\n", what,
                  (double)way->temperature, (unsigned long long)cold.n_accepted, (unsigned long long)cold.n,
                  (unsigned long long)warm.n_accepted, (unsigned long long)warm.n);
    assert_int_equal(sim_target_counters(s)->n_partial_round > 0, way->specpv != GR_SPECPV_OFF);
    if (way->draft != NULL) {
        const double length_cold = 1.0 + (double)cold.n_accepted / (double)cold.n;
        const double length_warm = 1.0 + (double)warm.n_accepted / (double)warm.n;
        assert_true(cold.n_accepted > 20 && length_warm > 0.98 * length_cold && length_warm < 1.02 * length_cold);
    }
    sim_destroy(s);
}

static void compare_both(const char *what, struct way way)
{
    for (int t = 0; t < 2; t++) {
        way.temperature = (float)t;
        compare(what, &way);
    }
}

static void test_plain(void **state)
{
    (void)state;
    compare_both("plain", (struct way){.target = target_lm});
}

static void test_trees(void **state)
{
    (void)state;
    compare_both("draft model", (struct way){.target = target_lm, .draft = draft_lm});
}

static void test_head(void **state)
{
    (void)state;
    compare_both("head", (struct way){.target = head_target_lm, .draft = head_lm});
}

/* The last test: its views stay with the model. */
static void test_specpv(void **state)
{
    (void)state;
    compare_both("SpecPV", (struct way){.target = head_target_lm, .draft = head_lm, .specpv = GR_SPECPV_EXACT});
}

static int setup(void **state)
{
    (void)state;
    json_error_t error;
    json_t *root = json_load_file(ROOT "/tests/golden/demo-greedy.json", 0, &error);
    json_t *cases = json_object_get(root, "cases");
    int32_t n = 0;
    for (size_t i = 0; cases != NULL && n < N_CTX; i = (i + 1) % json_array_size(cases)) {
        json_t *ids = json_object_get(json_array_get(cases, i), "prompt_ids");
        for (size_t k = 0; k < json_array_size(ids) && n < N_CTX; k++) {
            base[n++] = (int32_t)json_integer_value(json_array_get(ids, k));
        }
    }
    json_decref(root);
    bool all = n == N_CTX;
    for (int i = 0; i < 2; i++) {
        target_lm[i] = load("target", NULL, 4);
        draft_lm[i] = load("draft", NULL, 16);
        head_target_lm[i] = load("target", HEAD, 4);
        head_lm[i] = load_head();
        all = all && target_lm[i] != NULL && draft_lm[i] != NULL && head_target_lm[i] != NULL && head_lm[i] != NULL;
    }
    return all ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        gr_lm_destroy(target_lm[i]);
        gr_lm_destroy(draft_lm[i]);
        gr_lm_destroy(head_target_lm[i]);
        gr_lm_destroy(head_lm[i]);
    }
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain),
        cmocka_unit_test(test_trees),
        cmocka_unit_test(test_head),
        cmocka_unit_test(test_specpv),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
