/* The runtime against Hugging Face transformers (float32 on the stored bf16 weights): logits of target and draft,
 * captured residual streams, greedy ids. */
#include "common/accept.h"
#include "model/llama.h"
#include "model/safetensors.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define ROOT GR_SOURCE_ROOT
#define N_POOL 64

static json_t *root, *cases;
static struct gr_safetensors *golden;

static struct gr_lm *load(const char *name, int n_capture)
{
    char dir[512];
    snprintf(dir, sizeof(dir), "%s/models/demo/%s", ROOT, name);
    struct gr_lm *lm = NULL;
    const struct gr_llama_config c = {.dir = dir, .n_ctx_max = 1024, .n_row_max = 256, .n_out_max = 16,
                                      .n_pool_block = N_POOL, .n_scratch_block = 4, .n_capture = n_capture,
                                      .capture_layer = {2, 4, 7}};
    assert_int_equal(gr_llama_create(&c, NULL, NULL, &lm), GR_OK);
    return lm;
}

/* Runs tokens [begin, end) as one causal chunk; logits of the last n_out rows. */
static void run_chain(struct gr_lm *lm, const int32_t *token, int begin, int end, int n_out)
{
    static int32_t block[N_POOL], pos[256], cell[256], limit[256], n_anc[256], out_row[16];
    static int16_t anc[256 * GR_ATTN_ANC_MAX];
    const int n_row = end - begin;
    for (int i = 0; i < N_POOL; i++) {
        block[i] = (i * 37 + 5) % N_POOL; /* scattered on purpose */
    }
    for (int i = 0; i < n_row; i++) {
        pos[i] = begin + i;
        cell[i] = block[pos[i] / 16] * 16 + pos[i] % 16;
        limit[i] = pos[i] + 1;
    }
    for (int i = 0; i < n_out; i++) {
        out_row[i] = n_row - n_out + i;
    }
    const struct gr_attn_seq seq = {.n_row = n_row, .block = block, .limit = limit, .n_anc = n_anc, .anc = anc};
    const struct gr_batch b = {.n_row = n_row, .n_seq = 1, .n_out = n_out, .token = token + begin, .pos = pos,
                               .cell = cell, .seq = &seq, .out_row = out_row};
    assert_int_equal(gr_lm_forward(lm, &b), GR_OK);
}

static int prompt_of(int i, int32_t *token)
{
    json_t *ids = json_object_get(json_array_get(cases, (size_t)i), "prompt_ids");
    for (size_t k = 0; k < json_array_size(ids); k++) {
        token[k] = (int32_t)json_integer_value(json_array_get(ids, k));
    }
    return (int)json_array_size(ids);
}

static double relative_norm(const float *a, const float *b, size_t n)
{
    double diff = 0.0;
    double norm = 0.0;
    for (size_t i = 0; i < n; i++) {
        diff += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        norm += (double)b[i] * (double)b[i];
    }
    return sqrt(diff / norm);
}

static const struct gr_tensor *golden_tensor(const char *what, int i)
{
    char name[64];
    snprintf(name, sizeof(name), "%s.%d", what, i);
    const struct gr_tensor *t = gr_safetensors_find(golden, name);
    assert_non_null(t);
    return t;
}

static void check_logits(const char *model, const char *what)
{
    struct gr_lm *lm = load(model, 0);
    for (int i = 0; i < 4; i++) {
        int32_t token[256];
        const int n = prompt_of(i, token);
        const struct gr_tensor *t = golden_tensor(what, i);
        const int n_out = (int)t->shape[0];
        run_chain(lm, token, 0, n, n_out);
        const double worst = relative_norm(lm->logits, t->data, (size_t)n_out * (size_t)lm->n_vocab);
        print_message("# %s.%d: relative norm %.2e\n", what, i, worst);
        assert_true(worst < 1e-4);
    }
    gr_lm_destroy(lm);
}

static void test_target_logits(void **state)
{
    (void)state;
    check_logits("target", "target.logits");
}

static void test_draft_logits(void **state)
{
    (void)state;
    check_logits("draft", "draft.logits");
}

static void test_captured(void **state)
{
    (void)state;
    struct gr_lm *lm = load("target", 3);
    for (int i = 0; i < 4; i++) {
        int32_t token[256];
        const int n = prompt_of(i, token);
        const struct gr_tensor *t = golden_tensor("target.captured", i);
        assert_int_equal(t->shape[0], n);
        assert_int_equal(t->shape[1], 3 * lm->capture_width);
        run_chain(lm, token, 0, n, 1);
        const double worst = relative_norm(lm->capture, t->data, (size_t)n * 3 * (size_t)lm->capture_width);
        print_message("# target.captured.%d: relative norm %.2e\n", i, worst);
        assert_true(worst < 1e-4);
    }
    gr_lm_destroy(lm);
}

/* Greedy decoding one token at a time. A step may differ from the golden one only where the golden margin is
 * below 1e-3; the golden token is then followed. */
static void test_greedy(void **state)
{
    (void)state;
    struct gr_lm *lm = load("target", 0);
    int n_excused = 0;
    for (int i = 0; i < (int)json_array_size(cases); i++) {
        int32_t token[512];
        int n = prompt_of(i, token);
        json_t *want = json_object_get(json_array_get(cases, (size_t)i), "greedy_ids");
        json_t *margin = json_object_get(json_array_get(cases, (size_t)i), "margins");
        run_chain(lm, token, 0, n, 1);
        for (size_t k = 0; k < json_array_size(want); k++) {
            const int got = lm->kernels->argmax(lm->logits, lm->n_vocab);
            const int expected = (int)json_integer_value(json_array_get(want, k));
            if (got != expected) {
                assert_true(json_real_value(json_array_get(margin, k)) < 1e-3);
                n_excused++;
            }
            token[n++] = expected;
            run_chain(lm, token, n - 1, n, 1);
        }
    }
    print_message("# greedy: %d steps excused by their margin\n", n_excused);
    gr_lm_destroy(lm);
}

static int setup(void **state)
{
    (void)state;
    json_error_t error;
    root = json_load_file(ROOT "/tests/golden/demo-greedy.json", 0, &error);
    cases = json_object_get(root, "cases");
    void *data = NULL;
    FILE *f = fopen(ROOT "/tests/golden/demo-logits.safetensors", "rb");
    if (f == NULL || cases == NULL) {
        return -1;
    }
    fseek(f, 0, SEEK_END);
    const size_t len = (size_t)ftell(f);
    rewind(f);
    data = aligned_alloc(64, (len + 63) / 64 * 64);
    if (data == NULL || fread(data, 1, len, f) != len) {
        return -1;
    }
    fclose(f);
    return gr_safetensors_parse("demo-logits.safetensors", data, len, &golden) == GR_OK ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    json_decref(root);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_target_logits),
        cmocka_unit_test(test_draft_logits),
        cmocka_unit_test(test_captured),
        cmocka_unit_test(test_greedy),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
