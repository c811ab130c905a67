/* A head on a GPU whose features lie there as bf16, in far memory, gives the bits that it gives when the host hands
 * them in as f32. Skipped without a GPU. */
#include "common/base/device.h"
#include "common/rules/bf16.h"
#include "model/cuda/eagle3.h"
#include "model/cuda/far_memory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "tests/unit/golden.h"

#define HEAD GR_SOURCE_ROOT "/models/demo/eagle3"
#define TARGET GR_SOURCE_ROOT "/models/demo/target"

enum { N_ROW = 40, N_OUT = 8, WIDTH = 384, N_STATE = 16 };

static const struct gr_far_memory *far;
static struct gr_lm *lm;
static uint16_t *at; /* (N_ROW, WIDTH), in the far memory */

static int set_up(void **state)
{
    (void)state;
    uint8_t *p = NULL;
    const struct gr_eagle3_config c = {.dir = HEAD,
                                       .target_dir = TARGET,
                                       .n_thread = 1,
                                       .n_row_max = 64,
                                       .n_out_max = 64,
                                       .n_pool_block = GOLDEN_N_POOL,
                                       .n_scratch_block = 1,
                                       .n_seq_max = 1,
                                       .n_state = N_STATE,
                                       .far_feature_bytes = N_ROW * WIDTH * sizeof(*at)};
    assert_int_equal(gr_cuda_far_memory_open(0, &far), GR_OK);
    assert_int_equal(far->take(far->ctx, gr_far_whole_pages(N_ROW * WIDTH * sizeof(*at)), &p), GR_OK);
    assert_int_equal(gr_cuda_eagle3_create(&c, 0, NULL, NULL, &lm), GR_OK);
    assert_int_equal(lm->feature_width, WIDTH);
    at = (uint16_t *)(void *)p;
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    gr_lm_destroy(lm);
    far->give(far->ctx, (uint8_t *)at);
    gr_cuda_far_memory_close(far);
    return 0;
}

/* The same values on the host and in the far memory, where they are when this returns. */
static void draw(uint32_t seed, float whole[N_ROW * WIDTH])
{
    static uint16_t half[N_ROW * WIDTH];
    for (size_t i = 0; i < N_ROW * WIDTH; i++) {
        seed = seed * 1664525u + 1013904223u;
        half[i] = gr_bf16_from_f32((float)(seed >> 16) / 8192.0f - 4.0f);
        whole[i] = gr_bf16_to_f32(half[i]);
    }
    assert_int_equal(far->copy(far->ctx, at, half, sizeof(half)), GR_OK);
    assert_int_equal(far->wait(far->ctx), GR_OK);
}

static size_t logits_bytes(void)
{
    return (size_t)N_OUT * (size_t)lm->n_vocab_stride * sizeof(float);
}

/* Both ways over the same rows, of which some take kept states: equal logits. Returns them, owned. */
static float *run_both(const struct golden_rows *rows, const float *whole)
{
    struct golden_rows r = *rows;
    float *want = malloc(logits_bytes());
    assert_non_null(want);
    r.feature = whole;
    golden_run_rows(lm, &r);
    memcpy(want, lm->logits, logits_bytes());
    memset(lm->logits, 0, logits_bytes());
    r.feature = NULL;
    r.far = at;
    golden_run_rows(lm, &r);
    assert_memory_equal(lm->logits, want, logits_bytes());
    return want;
}

/* Each time others are written there: none are those of the pass before. */
static void test_prompt(void **state)
{
    (void)state;
    static float whole[N_ROW * WIDTH];
    int32_t token[N_ROW];
    float *before = NULL;
    for (uint32_t seed = 1; seed <= 5; seed++) {
        for (int i = 0; i < N_ROW; i++) {
            token[i] = (int32_t)((seed * 131 + (uint32_t)i * 37) % 4000);
        }
        draw(seed, whole);
        float *now = run_both(&(struct golden_rows){.token = token, .n_row = N_ROW, .n_out = N_OUT}, whole);
        assert_true(before == NULL || memcmp(before, now, logits_bytes()) != 0);
        free(before);
        before = now;
    }
    free(before);
}

/* Rows of committed tokens and a level beside them: the ones take features, the others states. */
static void test_states(void **state)
{
    (void)state;
    static float whole[N_ROW * WIDTH];
    int32_t token[N_ROW], none[N_ROW], from[N_ROW], to[N_ROW];
    for (int i = 0; i < N_ROW; i++) {
        token[i] = (i * 53 + 7) % 4000;
        none[i] = -1;
        from[i] = i >= N_ROW - N_OUT && i % 2 == 0 ? i % N_STATE : -1;
        to[i] = i < N_STATE ? i : -1;
    }
    draw(9, whole);
    golden_run_rows(
        lm, &(struct golden_rows){.token = token, .n_row = N_ROW, .n_out = N_OUT, .far = at, .from = none, .to = to});
    const struct golden_rows rows = {.token = token, .n_row = N_ROW, .n_out = N_OUT, .from = from, .to = none};
    float *with = run_both(&rows, whole);
    golden_run_rows(lm, &(struct golden_rows){.token = token, .n_row = N_ROW, .n_out = N_OUT, .far = at});
    assert_true(memcmp(with, lm->logits, logits_bytes()) != 0); /* so the states counted */
    free(with);
}

int main(void)
{
    if (gr_device_check(0) != GR_OK) {
        puts("1..0 # SKIP no GPU"); /* meson takes a case that cmocka skips for one that has failed */
        return 0;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_prompt), cmocka_unit_test(test_states)};
    return cmocka_run_group_tests_name("features in a GPU's memory", tests, set_up, tear_down);
}
