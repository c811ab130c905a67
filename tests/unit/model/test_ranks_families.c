/* Model families whose ranks share them out: biases, norms of heads and after o and down, windows, layers without
 * rotary embedding, tied embeddings. The bits of two ranks are those of the model alone, as bf16 and as f32. */
#define TINY_FFN 176 /* three units of 64, the last of them shorter: 128 and 48 */

#include "model/llama.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "tests/unit/golden.h"
#include "tests/unit/model/family_folders.h"
#include "tests/unit/model/group/rank_threads.h"
#include "tests/unit/model/tree_pass.h"
#include "tests/unit/model/follower.h"

#define PATIENT UINT64_C(60000000000)

static struct gr_llama_config config_of(const char *dir, enum gr_weights_as as, struct gr_group *group)
{
    return (struct gr_llama_config){.dir = dir,
                                    .as = as,
                                    .n_thread = 1,
                                    .n_row_max = GOLDEN_ROW_MAX,
                                    .n_out_max = GOLDEN_ROW_MAX,
                                    .n_pool_block = GOLDEN_N_POOL,
                                    .n_scratch_block = 4,
                                    .n_seq_max = 1,
                                    .n_capture = 2,
                                    .capture_layer = {1, 4},
                                    .group = group};
}

/* Logits and captured states of all rows. */
static void run(const struct gr_llama_config *c, const int32_t *token, float *logits, float *captured)
{
    struct gr_lm *lm = NULL;
    assert_int_equal(gr_llama_create(c, NULL, NULL, &lm), GR_OK);
    golden_run(lm, token, 0, REF_ROWS / 2, 1, NULL);
    golden_run(lm, token + REF_ROWS / 2, REF_ROWS / 2, REF_ROWS / 2, REF_ROWS / 2, NULL);
    memcpy(logits, lm->logits, REF_ROWS / 2 * TINY_N_VOCAB * sizeof(*logits));
    memcpy(captured, lm->capture, (size_t)(REF_ROWS / 2 * 2 * TINY_HIDDEN) * sizeof(*captured));
    gr_lm_destroy(lm);
}

static void check_family(const char *dir, enum gr_weights_as as)
{
    static float logits[2][REF_ROWS / 2 * TINY_N_VOCAB], captured[2][REF_ROWS / 2 * 2 * TINY_HIDDEN];
    int32_t token[REF_ROWS];
    struct rank_threads t;
    random_tokens(5, REF_ROWS, TINY_N_VOCAB, token);
    const struct gr_llama_config alone = config_of(dir, as, NULL);
    run(&alone, token, logits[0], captured[0]);
    rank_threads_open(&t, OVER_MEMORY, 2, GOLDEN_ROW_MAX * TINY_HIDDEN, PATIENT);
    const struct gr_llama_config leads = config_of(dir, as, t.group[0]);
    struct follower f = {.config = config_of(dir, as, t.group[1])};
    rank_threads_start(&t, 1, follow, &f);
    run(&leads, token, logits[1], captured[1]);
    pthread_join(t.thread[1], NULL);
    assert_int_equal(f.st, GR_OK);
    assert_memory_equal(logits[0], logits[1], sizeof(logits[0]));
    assert_memory_equal(captured[0], captured[1], sizeof(captured[0]));
    assert_true(logits[0][0] != 0.0f && captured[0][0] != 0.0f);
    rank_threads_close(&t);
}

static void test_families(void **state)
{
    (void)state;
    for (size_t i = 0; i < GR_ARRAY_LEN(families); i++) {
        struct tiny_folder f;
        struct ref_family is;
        make(&f, &families[i], &is);
        print_message("# %s\n", families[i].name);
        check_family(f.dir, GR_WEIGHTS_BF16);
        check_family(f.dir, GR_WEIGHTS_F32);
        tiny_finish(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_families)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
