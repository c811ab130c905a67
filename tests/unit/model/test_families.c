/* Model families: the runtime against a forward pass in double precision that was written apart from it, trees against
 * the sequences that they stand for, and what is refused. Checkpoints are made here, from seeds.
 *
 * By hand: test_families FOLDER holds what tools/make_tiny.py put there against its golden values of transformers;
 * docs/models.md has what was measured. */
#include "model/files/family.h"
#include "model/llama.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "tests/unit/golden.h"
#include "tests/unit/log_capture.h"
#include "tests/unit/model/family_folders.h"
#include "tests/unit/model/tree_pass.h"

static enum gr_status try_load(const char *dir, int n_ctx, struct gr_lm **out)
{
    const struct gr_llama_config c = {.dir = dir,
                                      .as = GR_WEIGHTS_F32,
                                      .n_thread = 2,
                                      .n_ctx_max = n_ctx,
                                      .n_row_max = GOLDEN_ROW_MAX,
                                      .n_out_max = GOLDEN_ROW_MAX,
                                      .n_pool_block = GOLDEN_N_POOL,
                                      .n_scratch_block = 4,
                                      .n_capture = 2,
                                      .capture_layer = {1, 2}};
    return gr_llama_create(&c, NULL, NULL, out);
}

static struct gr_lm *load(const char *dir)
{
    struct gr_lm *lm = NULL;
    assert_int_equal(try_load(dir, 0, &lm), GR_OK);
    return lm;
}

static void test_reference(void **state)
{
    (void)state;
    static float want[REF_ROWS * TINY_N_VOCAB];
    int32_t token[REF_ROWS];
    random_tokens(5, REF_ROWS, TINY_N_VOCAB, token);
    for (size_t i = 0; i < GR_ARRAY_LEN(families); i++) {
        struct tiny_folder f;
        struct ref_family is;
        make(&f, &families[i], &is);
        ref_logits(&f, &is, token, REF_ROWS, want);
        struct gr_lm *lm = load(f.dir);
        golden_run(lm, token, 0, REF_ROWS, REF_ROWS, NULL);
        const double worst = relative_norm(lm->logits, want, REF_ROWS * TINY_N_VOCAB);
        print_message("# %s: relative norm %.2e\n", families[i].name, worst);
        assert_true(worst < 1e-5);
        gr_lm_destroy(lm);
        tiny_finish(&f);
    }
}

/* Prompt chunks and single tokens leave the bits of one pass. */
static void test_chunks(void **state)
{
    (void)state;
    enum { N = 40 };
    int32_t token[N];
    random_tokens(6, N, TINY_N_VOCAB, token);
    for (size_t i = 0; i < GR_ARRAY_LEN(families); i++) {
        struct tiny_folder f;
        struct ref_family is;
        make(&f, &families[i], &is);
        struct gr_lm *lm = load(f.dir);
        golden_run(lm, token, 0, N, N, NULL);
        float *whole = malloc(N * TINY_N_VOCAB * sizeof(float));
        memcpy(whole, lm->logits, N * TINY_N_VOCAB * sizeof(float));
        for (int p = 0, n = 0; p < N; p += n) {
            n = p < 20 ? 7 : 1;
            n = GR_MIN(n, N - p);
            golden_run(lm, token + p, p, n, n, NULL);
            assert_memory_equal(lm->logits, whole + (size_t)p * TINY_N_VOCAB, (size_t)n * TINY_N_VOCAB * sizeof(float));
        }
        free(whole);
        gr_lm_destroy(lm);
        tiny_finish(&f);
    }
}

static void test_trees(void **state)
{
    (void)state;
    int32_t token[REF_ROWS];
    random_tokens(9, REF_ROWS, TINY_N_VOCAB, token);
    for (size_t i = 0; i < GR_ARRAY_LEN(families); i++) {
        struct tiny_folder f;
        struct ref_family is;
        make(&f, &families[i], &is);
        struct gr_lm *lm = load(f.dir);
        check_tree(lm, token, 1);
        check_tree(lm, token, 37);
        gr_lm_destroy(lm);
        tiny_finish(&f);
    }
}

/* ---- the window's edge ---- */

/* In one layer a row sees itself and the six tokens before it, and no more. */
static void test_window_edge(void **state)
{
    (void)state;
    enum { N = 30, WINDOW = 7 };
    struct tiny_folder f;
    struct ref_family is;
    float logits[TINY_N_VOCAB];
    int32_t token[N];
    random_tokens(11, N, TINY_N_VOCAB, token);
    make(&f, family_of("mistral"), &is);
    for (size_t i = f.n; i-- > 0;) {
        if (strncmp(f.tensor[i].name, "model.layers.", 13) == 0 && f.tensor[i].name[13] != '0') {
            tiny_remove(&f, f.tensor[i].name);
        }
    }
    json_object_set_new(f.config, "num_hidden_layers", json_integer(1));
    tiny_write(&f);
    struct gr_lm *lm = NULL;
    const struct gr_llama_config c = {
        .dir = f.dir, .n_thread = 1, .n_row_max = N, .n_out_max = 1, .n_pool_block = GOLDEN_N_POOL};
    assert_int_equal(gr_llama_create(&c, NULL, NULL, &lm), GR_OK);
    golden_run(lm, token, 0, N, 1, NULL);
    memcpy(logits, lm->logits, sizeof(logits));
    for (int distance = WINDOW - 1; distance <= WINDOW; distance++) {
        int32_t *changed = &token[N - 1 - distance], old = *changed;
        *changed = (old + 1) % TINY_N_VOCAB;
        golden_run(lm, token, 0, N, 1, NULL);
        assert_int_equal(memcmp(logits, lm->logits, sizeof(logits)) == 0, distance == WINDOW);
        *changed = old;
    }
    gr_lm_destroy(lm);
    tiny_finish(&f);
}

/* A view and a window would each leave out keys: no views, unless the window hides nothing. */
static void test_views(void **state)
{
    (void)state;
    static const struct gr_kv_budget most = {.n_sink = 1, .n_retrieval = 1, .n_window = 1};
    struct tiny_folder f;
    struct ref_family is;
    struct log_capture cap;
    struct gr_lm *lm = NULL;
    make(&f, family_of("qwen2, windows"), &is);
    assert_int_equal(try_load(f.dir, 0, &lm), GR_OK);
    log_capture_begin(&cap);
    const enum gr_status st = gr_lm_view_create(lm, &most, 1);
    const char *log = log_capture_end(&cap);
    assert_int_equal(st, GR_EUNSUPPORTED);
    assert_int_equal(log_capture_n_line(log), 1);
    assert_non_null(strstr(log, "layer 2 has a window of 16 tokens"));
    gr_lm_destroy(lm);
    assert_int_equal(try_load(f.dir, 16, &lm), GR_OK);
    assert_int_equal(gr_lm_view_create(lm, &most, 1), GR_OK);
    gr_lm_destroy(lm);
    tiny_finish(&f);
}

/* ---- what is refused, and what decides ---- */

static const struct {
    const char *family, *path, *literal, *remove;
    enum gr_status status;
    const char *in_log;
} refused[] = {
    {"qwen2", NULL, NULL, "model.layers.2.self_attn.k_proj.bias", GR_ENOTFOUND, "layers.2.self_attn.k_proj.bias"},
    {"qwen3, yarn", NULL, NULL, "model.layers.1.self_attn.q_norm.weight", GR_ENOTFOUND, "layers.1.self_attn.q_norm"},
    {"qwen3, yarn", "attention_bias", "true", NULL, GR_ENOTFOUND, "layers.0.self_attn.q_proj.bias"},
    {"qwen3, yarn", "architectures", "[\"LlamaForCausalLM\"]", NULL, GR_EMISMATCH, "self_attn.k_norm.weight"},
    {"gemma3", NULL, NULL, "model.layers.3.post_feedforward_layernorm.weight", GR_ENOTFOUND, "post_feedforward"},
    {"llama, default", NULL, NULL, "lm_head.weight", GR_ENOTFOUND, "lm_head.weight"},
    {"llama, default", "architectures", "[\"LlamaForCausalLMEagle3\"]", NULL, GR_EUNSUPPORTED, GR_FAMILIES_RUN},
    {"mistral", "head_dim", "32", NULL, GR_EMISMATCH, "q_proj.weight"},
};

static void test_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < GR_ARRAY_LEN(refused); i++) {
        struct tiny_folder f;
        struct ref_family is;
        struct log_capture cap;
        struct gr_lm *lm = NULL;
        make(&f, family_of(refused[i].family), &is);
        if (refused[i].remove != NULL) {
            tiny_remove(&f, refused[i].remove);
        }
        if (refused[i].path != NULL) {
            json_patch_at(f.config, refused[i].path, refused[i].literal);
        }
        tiny_write(&f);
        log_capture_begin(&cap);
        const enum gr_status st = try_load(f.dir, 0, &lm);
        const char *log = log_capture_end(&cap);
        if (st != refused[i].status || strstr(log, refused[i].in_log) == NULL) {
            fail_msg("case %zu: status %d, log: %s", i, (int)st, log);
        }
        tiny_finish(&f);
    }
}

/* Whether there is an output matrix of its own is decided by the config, not by what lies in the files; that another
 * matrix than the embedding is left out is warned of. */
static void test_tied(void **state)
{
    (void)state;
    struct tiny_folder f;
    struct ref_family is;
    float logits[TINY_N_VOCAB];
    const int32_t token[3] = {1, 2, 3};
    struct log_capture cap;
    make(&f, family_of("qwen2"), &is);
    struct gr_lm *lm = load(f.dir);
    golden_run(lm, token, 0, 3, 1, NULL);
    memcpy(logits, lm->logits, sizeof(logits));
    gr_lm_destroy(lm);
    tiny_add(&f, "lm_head.weight", TINY_N_VOCAB, TINY_HIDDEN);
    for (int tied = 0; tied < 2; tied++) {
        json_object_set_new(f.config, "tie_word_embeddings", json_boolean(tied));
        tiny_write(&f);
        log_capture_begin(&cap);
        lm = load(f.dir);
        assert_int_equal(strstr(log_capture_end(&cap), "left out although it is not the embedding") != NULL, tied);
        golden_run(lm, token, 0, 3, 1, NULL);
        assert_int_equal(memcmp(logits, lm->logits, sizeof(logits)) == 0, tied);
        gr_lm_destroy(lm);
    }
    tiny_finish(&f);
}

/* ---- by hand: a folder of tools/make_tiny.py ---- */

static int n_ids(const json_t *list, int32_t *out)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        out[i] = (int32_t)json_integer_value(json_array_get(list, i));
    }
    return (int)json_array_size(list);
}

static double golden_norm(const char *name, size_t i_case, const float *got, size_t stride, int n_prompt)
{
    char tensor[128];
    snprintf(tensor, sizeof(tensor), "%s.%zu.logits", name, i_case);
    const struct gr_tensor *t = gr_tensors_find(golden.tensors, tensor);
    GR_ASSERT(t != NULL);
    const int n = (int)t->shape[0], width = (int)t->shape[1];
    float *rows = malloc((size_t)n * (size_t)width * sizeof(float));
    for (int i = 0; i < n; i++) { /* the last n of the prompt */
        memcpy(rows + (size_t)i * (size_t)width, got + (size_t)(n_prompt - n + i) * stride,
               (size_t)width * sizeof(float));
    }
    const double norm = relative_norm(rows, t->data, (size_t)n * (size_t)width);
    free(rows);
    return norm;
}

static int greedy(struct gr_lm *lm, int32_t *token, int n, const json_t *want)
{
    for (size_t k = 0; k < json_array_size(want); k++) {
        const int got = lm->kernels->argmax(gr_lm_logits(lm, k == 0 ? n - 1 : 0), lm->n_vocab, false);
        if (got != json_integer_value(json_array_get(want, k))) {
            return (int)k;
        }
        token[n + (int)k] = got;
        golden_run(lm, token + n + k, n + (int)k, 1, 1, NULL);
    }
    return (int)json_array_size(want);
}

static int golden_case(const char *dir, const char *name, size_t i_case, const json_t *c)
{
    int32_t token[512];
    struct gr_lm *lm = NULL;
    if (try_load(dir, 0, &lm) != GR_OK) {
        return 1;
    }
    const int n = n_ids(json_object_get(c, "prompt_ids"), token);
    const json_t *want = json_object_get(c, "greedy_ids");
    golden_run(lm, token, 0, n, n, NULL);
    const double logits = golden_norm(name, i_case, lm->logits, (size_t)lm->n_vocab_stride, n);
    const int n_same = greedy(lm, token, n, want);
    check_tree(lm, token, n);
    printf("%-12s prompt of %d: logits %.2e; %d of %d greedy ids; tree equal\n", name, n, logits, n_same,
           (int)json_array_size(want));
    gr_lm_destroy(lm);
    return logits < 1e-4 && n_same == (int)json_array_size(want) ? 0 : 1;
}

static int golden_model(const char *root, const char *name, const json_t *cases)
{
    char dir[512];
    int n_failed = 0;
    snprintf(dir, sizeof(dir), "%s/%s", root, name);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        n_failed += golden_case(dir, name, i, json_array_get(cases, i));
    }
    return n_failed;
}

static int by_hand(const char *root)
{
    static char data[1 << 22];
    char path[512];
    int n_failed = 0;
    const char *name;
    json_t *cases;
    snprintf(path, sizeof(path), "%s/golden.json", root);
    golden.root = json_load_file(path, 0, NULL);
    snprintf(path, sizeof(path), "%s/golden.safetensors", root);
    FILE *f = fopen(path, "rb");
    GR_ASSERT(golden.root != NULL && f != NULL);
    const size_t len = fread(data, 1, sizeof(data), f);
    fclose(f);
    const enum gr_status st = gr_safetensors_parse(path, data, len, &golden.tensors);
    GR_ASSERT(st == GR_OK);
    json_object_foreach(json_object_get(golden.root, "cases"), name, cases)
    {
        n_failed += golden_model(root, name, cases);
    }
    return n_failed;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference),   cmocka_unit_test(test_chunks), cmocka_unit_test(test_trees),
        cmocka_unit_test(test_window_edge), cmocka_unit_test(test_views),  cmocka_unit_test(test_refused),
        cmocka_unit_test(test_tied),
    };
    return argc == 2 ? by_hand(argv[1]) : cmocka_run_group_tests(tests, NULL, NULL);
}
