/* The runtime against Hugging Face transformers (float32 on the stored bf16 weights): logits of target and draft,
 * captured residual streams, greedy ids. */
#include "model/llama.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "tests/unit/golden.h"

static struct gr_lm *load(const char *name, int n_capture)
{
    char dir[512];
    snprintf(dir, sizeof(dir), "%s/models/demo/%s", GR_SOURCE_ROOT, name);
    struct gr_lm *lm = NULL;
    const struct gr_llama_config c = {.dir = dir,
                                      .n_ctx_max = 1024,
                                      .n_row_max = GOLDEN_ROW_MAX,
                                      .n_out_max = 16,
                                      .n_pool_block = GOLDEN_N_POOL,
                                      .n_scratch_block = 4,
                                      .n_capture = n_capture,
                                      .capture_layer = {2, 4, 7}};
    assert_int_equal(gr_llama_create(&c, NULL, NULL, &lm), GR_OK);
    return lm;
}

static void check_logits(const char *model, const char *what)
{
    struct gr_lm *lm = load(model, 0);
    for (int i = 0; i < 4; i++) {
        int32_t token[256];
        const int n = golden_ids(&golden, i, "prompt_ids", token);
        const struct gr_tensor *t = golden_tensor(&golden, what, i);
        const int n_out = (int)t->shape[0];
        golden_run(lm, token, 0, n, n_out, NULL);
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
        const int n = golden_ids(&golden, i, "prompt_ids", token);
        const struct gr_tensor *t = golden_tensor(&golden, "target.captured", i);
        assert_int_equal(t->shape[0], n);
        assert_int_equal(t->shape[1], 3 * lm->capture_width);
        golden_run(lm, token, 0, n, 1, NULL);
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
    for (int i = 0; i < (int)json_array_size(golden.cases); i++) {
        int32_t token[512];
        int n = golden_ids(&golden, i, "prompt_ids", token);
        json_t *want = json_object_get(json_array_get(golden.cases, (size_t)i), "greedy_ids");
        json_t *margin = json_object_get(json_array_get(golden.cases, (size_t)i), "margins");
        golden_run(lm, token, 0, n, 1, NULL);
        for (size_t k = 0; k < json_array_size(want); k++) {
            const int got = lm->kernels->argmax(lm->logits, lm->n_vocab, false);
            const int expected = (int)json_integer_value(json_array_get(want, k));
            if (got != expected) {
                assert_true(json_real_value(json_array_get(margin, k)) < 1e-3);
                n_excused++;
            }
            token[n++] = expected;
            golden_run(lm, token + n - 1, n - 1, 1, 1, NULL);
        }
    }
    print_message("# greedy: %d steps excused by their margin\n", n_excused);
    gr_lm_destroy(lm);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_target_logits),
        cmocka_unit_test(test_draft_logits),
        cmocka_unit_test(test_captured),
        cmocka_unit_test(test_greedy),
    };
    return cmocka_run_group_tests(tests, golden_setup, golden_teardown);
}
