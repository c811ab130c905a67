/* Identity, bit for bit, with the demo models in one process: the text of a session is plain decoding's, whatever
 * drafts (a model or an EAGLE-3 head), whatever the tree's size and shape, the temperature, the company and the
 * instruction set. GRAFT_TEST_LONG=N runs the matrix with prompts of N tokens instead. */
#include "draft_worker/compute/grower.h"
#include "model/eagle3.h"
#include "model/llama.h"
#include "tests/sim/sim.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define ROOT GR_SOURCE_ROOT
#define HEAD ROOT "/models/demo/eagle3"
#define N_SESSION 8
#define LIMIT_NS (1000000ull * 1000000000ull)

static const float temperatures[] = {0.0f, 0.7f, 1.3f};
#define N_TEMPERATURE ((int)GR_ARRAY_LEN(temperatures))
#define N_TOKEN 16
#define N_CTX_SHORT 8192
#define N_CTX_LONG 17408

static int32_t prompt[N_SESSION][N_CTX_LONG];
static uint32_t n_prompt[N_SESSION];
static uint32_t n_long; /* 0: the short tests */
static struct gr_lm *target_lm, *draft_lm;
static struct gr_lm *head_target_lm, *head_lm; /* a target that serves the head */

static struct gr_lm *load_for(const char *name, const char *head_dir, const char *isa, int n_scratch)
{
    char dir[512];
    snprintf(dir, sizeof(dir), "%s/models/demo/%s", ROOT, name);
    struct gr_lm *lm = NULL;
    const int n_ctx = n_long > 0 ? N_CTX_LONG : N_CTX_SHORT;
    const struct gr_llama_config c = {.dir = dir,
                                      .n_thread = 1,
                                      .isa = isa,
                                      .n_ctx_max = n_ctx,
                                      .n_row_max = 1024,
                                      .n_out_max = 640,
                                      .n_pool_block = (n_long > 0 ? 4 : 2) * n_ctx / 16,
                                      .n_scratch_block = N_SESSION * n_scratch,
                                      .head_dir = head_dir};
    return gr_llama_create(&c, NULL, NULL, &lm) == GR_OK ? lm : NULL;
}

static struct gr_lm *load(const char *name, const char *isa, int n_scratch)
{
    return load_for(name, NULL, isa, n_scratch);
}

static struct gr_lm *load_head(void)
{
    struct gr_lm *lm = NULL;
    const struct gr_eagle3_config c = {.dir = HEAD,
                                       .n_thread = 1,
                                       .target_dir = ROOT "/models/demo/target",
                                       .n_ctx_max = N_CTX_SHORT,
                                       .n_row_max = 1024,
                                       .n_out_max = 640,
                                       .n_pool_block = 2 * N_CTX_SHORT / 16,
                                       .n_scratch_block = N_SESSION * 16,
                                       .n_state = N_SESSION * GR_GROWER_STATES};
    return gr_eagle3_create(&c, NULL, NULL, &lm) == GR_OK ? lm : NULL;
}

static struct sim_config sim_config_of(struct gr_lm *target, struct gr_lm *draft)
{
    return (struct sim_config){.seed = 1,
                               .target_lm = target,
                               .draft_lm = draft,
                               .n_session_max = N_SESSION,
                               .prefill_chunk = 256,
                               .round_deadline_ns = 1000000000,
                               .feature_keep = 2048,
                               .feature_window = GR_FEATURES_WINDOW};
}

struct shape {
    uint32_t n_node, shape;
};

/* Requests wish for bans, biases, penalties and a least length, too. */
static bool adjusted;

/* Ids of the prompt stand for any that the text may have. */
static void wish_adjust(struct gr_session_request *r, int i)
{
    struct gr_adjust *a = &r->wishes.adjust;
    a->repetition = i % 4 == 3 ? 0.0f : 1.2f;
    a->frequency = i % 2 == 0 ? 0.5f : 0.0f;
    a->presence = i % 2 == 0 ? 0.5f : -0.5f;
    a->banned = (struct gr_bias_ids){.n = 2, .id = {prompt[i][1], prompt[i][2]}};
    a->biased = (struct gr_bias_ids){.n = 1, .id = {prompt[i][n_prompt[i] - 1]}};
    a->bias = (struct gr_bias_values){.n = 1, .value = {2.5f}};
    a->bad = (struct gr_bad_words){.n = 6, .entry = {2, prompt[i][3], prompt[i][4], 2, prompt[i][4], prompt[i][5]}};
    r->wishes.turn.n_logprob = 1 + (uint32_t)i;
    r->wishes.turn.min_tokens = 8;
    r->wishes.turn.stop_ids = (struct gr_stop_ids){.n = 2, .id = {prompt[i][0], prompt[i][n_prompt[i] / 2]}};
}

static struct gr_session_request request_of(int i, float temperature, uint32_t n_token, const struct shape *shape)
{
    struct gr_session_request r = {
        .prompt = prompt[i],
        .n_prompt = n_prompt[i],
        .wishes = {.turn = {.max_tokens = n_token},
                   .sampling = {.temperature = temperature, .top_p = 1.0f, .seed = 1000 + (uint64_t)i}}};
    if (i % 3 == 1 && temperature > 0.0f) { /* rows of one pass with different processors */
        r.wishes.sampling.top_k = 40;
        r.wishes.sampling.top_p = 0.9f;
    } else if (i % 3 == 2 && temperature > 0.0f) {
        r.wishes.sampling.min_p = 0.05f;
    }
    if (adjusted) {
        wish_adjust(&r, i);
    }
    if (shape != NULL) {
        r.wishes.want_draft = true;
        r.wishes.n_node = shape->n_node;
        r.wishes.tree_shape = shape->shape;
        r.wishes.draft_depth = 8;
        r.wishes.draft_top_k = 10;
    }
    return r;
}

/* Runs sessions begin .. begin + n - 1 together. */
static struct sim *run(struct gr_lm *target, struct gr_lm *draft, int begin, int n, float temperature, uint32_t n_token,
                       const struct shape *shape)
{
    const struct sim_config c = sim_config_of(target, draft);
    struct sim *s = sim_create(&c);
    for (int i = 0; i < n; i++) {
        const struct gr_session_request r = request_of(begin + i, temperature, n_token, shape);
        sim_submit(s, &r);
    }
    assert_true(sim_run(s, LIMIT_NS));
    return s;
}

static void assert_same(const struct sim_result *a, const struct sim_result *b)
{
    assert_int_equal(a->n_token, b->n_token);
    assert_int_equal(a->finish, b->finish);
    assert_memory_equal(a->token, b->token, a->n_token * sizeof(int32_t));
    assert_int_equal(a->n_logprob, b->n_logprob);
    assert_int_equal(a->n_logprob_id, b->n_logprob_id);
    if (a->n_logprob > 0) {
        assert_memory_equal(a->logprob, b->logprob, a->n_logprob * sizeof(float));
        assert_memory_equal(a->logprob_id, b->logprob_id, a->n_logprob_id * sizeof(int32_t));
    }
}

/* Plain decoding, one session at a time: what everything else must equal. Made once for each temperature. */
static struct sim *plain[2][N_TEMPERATURE][N_SESSION]; /* by `adjusted' */

static struct sim **plain_text(int t, uint32_t n_token)
{
    struct sim **text = plain[adjusted][t];
    for (int i = 0; i < N_SESSION && text[i] == NULL; i++) {
        text[i] = run(target_lm, NULL, i, 1, temperatures[t], n_token, NULL);
        assert_int_equal(sim_target_counters(text[i])->n_tree_round, 0);
        assert_int_equal(sim_result(text[i], 0)->metrics.num_drafts, 0);
    }
    return text;
}

struct pair {
    struct gr_lm *target, *draft;
};

/* t: which temperature. */
static void sweep(const struct pair *pair, int t, uint32_t n_token, const struct shape *shapes, int n_shape,
                  const int *counts, int n_count)
{
    struct sim *const *want = plain_text(t, n_token);
    for (int k = 0; k < n_shape; k++) {
        for (int c = 0; c < n_count; c++) {
            struct sim *s = run(pair->target, pair->draft, 0, counts[c], temperatures[t], n_token, &shapes[k]);
            uint64_t n_accepted = 0;
            uint64_t n_draft = 0;
            for (int i = 0; i < counts[c]; i++) {
                assert_same(sim_result(want[i], 0), sim_result(s, i));
                n_accepted += sim_result(s, i)->metrics.num_accepted_tokens;
                n_draft += sim_result(s, i)->metrics.num_drafts;
            }
            assert_true(n_accepted > 0); /* speculation took place */
            print_message("# T %.1f, %s of %u, %d sessions: mean acceptance length %.2f\n", (double)temperatures[t],
                          shapes[k].shape == GR_SHAPE_CHAIN ? "chain" : "tree", shapes[k].n_node, counts[c],
                          1.0 + (double)n_accepted / (double)n_draft);
            sim_destroy(s);
        }
    }
}

static const struct shape all_shapes[] = {
    {1, GR_SHAPE_DYNAMIC}, {4, GR_SHAPE_DYNAMIC}, {16, GR_SHAPE_DYNAMIC}, {63, GR_SHAPE_DYNAMIC},
    {1, GR_SHAPE_CHAIN},   {4, GR_SHAPE_CHAIN},   {16, GR_SHAPE_CHAIN},   {63, GR_SHAPE_CHAIN},
};

/* Each shape at each temperature, with the small model or with the head: each of them has every other one. */
static void sweep_every_other(const struct pair *pair, int first)
{
    for (int t = 0; t < N_TEMPERATURE; t++) {
        for (int k = (first + t) % 2; k < (int)GR_ARRAY_LEN(all_shapes); k += 2) {
            sweep(pair, t, N_TOKEN, &all_shapes[k], 1, (const int[]){N_SESSION}, 1);
        }
    }
}

static void test_trees_temperatures(void **state)
{
    (void)state;
    sweep_every_other(&(struct pair){target_lm, draft_lm}, 0);
}

static void test_session_counts(void **state)
{
    (void)state;
    sweep(&(struct pair){target_lm, draft_lm}, 1, N_TOKEN, &all_shapes[2], 1, (const int[]){1, 2, 3, 4, 5, 6, 7}, 7);
}

static void test_head(void **state)
{
    (void)state;
    sweep_every_other(&(struct pair){head_target_lm, head_lm}, 1);
}

/* ---- bans, biases, penalties ---- */

/* 72 tokens: counts that were wrong by one show late, and a penalised text goes on where a plain one repeats itself.
 */
static void test_adjusted(void **state)
{
    (void)state;
    static const struct shape shapes[N_TEMPERATURE][2] = {{{1, GR_SHAPE_DYNAMIC}, {16, GR_SHAPE_CHAIN}},
                                                          {{63, GR_SHAPE_DYNAMIC}, {1, GR_SHAPE_CHAIN}},
                                                          {{16, GR_SHAPE_DYNAMIC}, {4, GR_SHAPE_CHAIN}}};
    adjusted = true;
    for (int t = 0; t < N_TEMPERATURE; t++) {
        sweep(&(struct pair){target_lm, draft_lm}, t, 72, shapes[t], 2, (const int[]){N_SESSION}, 1);
        sweep(&(struct pair){head_target_lm, head_lm}, t, 72, shapes[t], 2, (const int[]){N_SESSION}, 1);
    }
    adjusted = false;
}

/* What was banned is not there, a bad word's end not after its beginning, and the text is as long as was asked for. */
static void test_adjusted_texts(void **state)
{
    (void)state;
    adjusted = true;
    for (int t = 0; t < N_TEMPERATURE; t++) {
        for (int i = 0; i < N_SESSION; i++) {
            const struct sim_result *r = sim_result(plain_text(t, 72)[i], 0);
            const struct gr_session_request q = request_of(i, temperatures[t], 72, NULL);
            const struct gr_adjust *a = &q.wishes.adjust;
            assert_true(r->n_token >= q.wishes.turn.min_tokens);
            assert_int_equal(r->n_logprob, r->n_token * q.wishes.turn.n_logprob);
            for (uint32_t k = 0; k < r->n_token; k++) {
                assert_true(r->token[k] != a->banned.id[0] && r->token[k] != a->banned.id[1]);
                assert_false(k > 0 && r->token[k - 1] == a->bad.entry[1] && r->token[k] == a->bad.entry[2]);
                assert_false(k > 0 && r->token[k - 1] == a->bad.entry[4] && r->token[k] == a->bad.entry[5]);
                assert_false(k < q.wishes.turn.min_tokens && gr_stop_hits(&q.wishes.turn.stop_ids, r->token[k]));
            }
        }
    }
    adjusted = false;
}

/* ---- sessions share the head's passes ---- */

static const struct gr_lm_ops *head_ops;
static uint64_t n_head_pass;

static enum gr_status counted_forward(struct gr_lm *lm, const struct gr_batch *batch)
{
    n_head_pass++;
    return head_ops->forward(lm, batch);
}

/* Passes of the head while sessions begin .. begin + n - 1 run together. */
static uint64_t count_passes(int begin, int n)
{
    struct gr_lm_ops counted = *head_lm->ops;
    head_ops = head_lm->ops;
    counted.forward = counted_forward;
    head_lm->ops = &counted;
    n_head_pass = 0;
    sim_destroy(run(head_target_lm, head_lm, begin, n, 0.0f, 40, &all_shapes[2]));
    head_lm->ops = head_ops;
    return n_head_pass;
}

static void test_sessions_share_passes(void **state)
{
    (void)state;
    uint64_t n_alone = 0;
    for (int i = 0; i < N_SESSION; i++) {
        n_alone += count_passes(i, 1);
    }
    const uint64_t n_together = count_passes(0, N_SESSION);
    print_message("# passes of the head: %llu for %d sessions one by one, %llu together\n", (unsigned long long)n_alone,
                  N_SESSION, (unsigned long long)n_together);
    assert_true(n_alone > 0 && n_together * 2 < n_alone);
}

/* One drafted run on each instruction set: equal tokens. (That their values are equal bits is check_kernels' job; here
 * the whole runtime is compared, logits included.) */
static void test_instruction_sets(void **state)
{
    (void)state;
    static const char *const isas[] = {"avx512", "avx2", "c"};
    struct sim *want = run(target_lm, draft_lm, 0, 3, 0.7f, 8, &all_shapes[1]);
    int n_run = 0;
    for (size_t i = 0; i < GR_ARRAY_LEN(isas); i++) {
        struct gr_lm *target = load("target", isas[i], 4);
        struct gr_lm *draft = load("draft", isas[i], 16);
        if (target == NULL || draft == NULL) {
            print_message("# %s: not supported by this machine\n", isas[i]);
            gr_lm_destroy(target);
            gr_lm_destroy(draft);
            continue;
        }
        assert_string_equal(target->numerics_id, target_lm->numerics_id);
        struct sim *s = run(target, draft, 0, 3, 0.7f, 8, &all_shapes[1]);
        for (int k = 0; k < 3; k++) {
            assert_same(sim_result(want, k), sim_result(s, k));
        }
        sim_destroy(s);
        gr_lm_destroy(target);
        gr_lm_destroy(draft);
        n_run++;
    }
    assert_true(n_run >= 1);
    sim_destroy(want);
}

static void test_long_matrix(void **state)
{
    (void)state;
    for (int i = 0; i < N_SESSION; i++) { /* the prompts repeated in turn */
        uint32_t n = n_prompt[i];
        for (int k = i + 1; n < n_long; k++) {
            const uint32_t m = n_prompt[k % N_SESSION] < 256 ? n_prompt[k % N_SESSION] : 256;
            memcpy(prompt[i] + n, prompt[k % N_SESSION], m * sizeof(int32_t));
            n += m;
        }
        n_prompt[i] = n_long;
    }
    for (int t = 0; t < N_TEMPERATURE; t++) {
        sweep(&(struct pair){target_lm, draft_lm}, t, 48, all_shapes, GR_ARRAY_LEN(all_shapes), (const int[]){1, 2, 4},
              3);
    }
}

static int setup(void **state)
{
    (void)state;
    json_error_t error;
    json_t *root = json_load_file(ROOT "/tests/golden/demo-greedy.json", 0, &error);
    json_t *cases = json_object_get(root, "cases");
    if (cases == NULL) {
        return -1;
    }
    for (int i = 0; i < N_SESSION; i++) {
        json_t *ids = json_object_get(json_array_get(cases, (size_t)i), "prompt_ids");
        n_prompt[i] = (uint32_t)json_array_size(ids);
        for (size_t k = 0; k < n_prompt[i]; k++) {
            prompt[i][k] = (int32_t)json_integer_value(json_array_get(ids, k));
        }
    }
    json_decref(root);
    target_lm = load("target", NULL, 4);
    draft_lm = load("draft", NULL, 16);
    if (n_long == 0) {
        head_target_lm = load_for("target", HEAD, NULL, 4);
        head_lm = load_head();
    }
    const bool head_is_there = n_long > 0 || (head_target_lm != NULL && head_lm != NULL);
    return target_lm != NULL && draft_lm != NULL && head_is_there ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    for (int i = 0; i < 2 * N_TEMPERATURE * N_SESSION; i++) {
        struct sim *s = plain[i / N_SESSION / N_TEMPERATURE][i / N_SESSION % N_TEMPERATURE][i % N_SESSION];
        if (s != NULL) {
            sim_destroy(s);
        }
    }
    gr_lm_destroy(target_lm);
    gr_lm_destroy(draft_lm);
    gr_lm_destroy(head_target_lm);
    gr_lm_destroy(head_lm);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_trees_temperatures),
        cmocka_unit_test(test_session_counts),
        cmocka_unit_test(test_head),
        cmocka_unit_test(test_adjusted),
        cmocka_unit_test(test_adjusted_texts),
        cmocka_unit_test(test_sessions_share_passes),
        cmocka_unit_test(test_instruction_sets),
    };
    const struct CMUnitTest long_tests[] = {
        cmocka_unit_test(test_long_matrix),
    };
    const char *tokens = getenv("GRAFT_TEST_LONG");
    if (tokens != NULL) {
        n_long = (uint32_t)strtoul(tokens, NULL, 10);
        n_long = n_long < 1024 ? 1024 : n_long > 16384 ? 16384 : n_long;
        return cmocka_run_group_tests(long_tests, setup, teardown);
    }
    return cmocka_run_group_tests(tests, setup, teardown);
}
