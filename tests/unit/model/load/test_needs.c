/* What a model needs of memory: what fits, what is told, what is shown while it loads; and that what was told is what
 * is taken, for the demo target and, where it is in the cache, SmolLM2's GGUF file. */
#include "model/load/needs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>

#include "common/base/free_memory.h"
#include "common/base/log.h"
#include "model/files/model_path.h"
#include "model/llama.h"
#include "model/load/progress.h"
#include "tests/unit/log_capture.h"

#define MIB ((uint64_t)1 << 20)

static const struct gr_needs ten = {.bf16_bytes = 100 * MIB,
                                    .other_bytes = 20 * MIB,
                                    .block_bytes = MIB,
                                    .n_scratch_block = 5,
                                    .n_block = 40,
                                    .n_block_least = 10,
                                    .n_session = 4,
                                    .n_ctx = 160};

static int blocks_of(const struct gr_needs *n, uint64_t free_mib)
{
    int n_block = -1;
    const struct gr_needs_of of = {
        .what = "m.gguf", .where = "", .free_bytes = free_mib * MIB, .free_by = "MemAvailable"};
    return gr_needs_fit(n, &of, &n_block) == GR_OK ? n_block : -1;
}

static void test_fit(void **state)
{
    (void)state;
    struct log_capture cap;
    struct gr_needs n = ten;
    assert_int_equal(blocks_of(&n, 165), 40); /* 100 + 20 + 5 + 40 */
    assert_int_equal(blocks_of(&n, 164), 39);
    assert_int_equal(blocks_of(&n, 135), 10);
    n.spare_bytes = 20 * MIB; /* taken before more than one context, and left out where it does not fit */
    assert_int_equal(blocks_of(&n, 165), 20);
    assert_int_equal(blocks_of(&n, 155), 10);
    assert_int_equal(blocks_of(&n, 154), 29);
    n = ten;
    n.leaves_room = true; /* a quarter of what lies beside one context */
    assert_int_equal(blocks_of(&n, 135), 10);
    assert_int_equal(blocks_of(&n, 155), 25);
    assert_int_equal(blocks_of(&n, 175), 40);
    n.n_block = 1000;
    for (uint64_t mib = 135; mib < 600; mib += 5) { /* what is left for the next is never less than its quarter */
        const uint64_t left = mib - gr_needs_bytes(&n, blocks_of(&n, mib)) / MIB;
        assert_true(4 * left >= mib - 135);
    }
    n = ten;
    n.n_block = n.n_block_least = 40; /* asked for */
    log_capture_begin(&cap);
    const int got = blocks_of(&n, 164);
    const char *log = log_capture_end(&cap);
    assert_int_equal(got, -1);
    assert_non_null(strstr(log, "m.gguf needs 165 MiB (weights 100 MiB as bf16, KV of 40 blocks 45 MiB), 164 MiB are "
                                "free (MemAvailable); lower --max-model-len, --sessions or --kv-blocks"));
    assert_int_equal(log_capture_n_line(log), 1);
}

static const char *told(struct log_capture *cap, const struct gr_needs *n, int n_block)
{
    const struct gr_needs_of of = {
        .what = "m.gguf", .where = "cuda:0: ", .free_bytes = 24 * 1024 * MIB, .free_by = "NVIDIA H100"};
    log_capture_begin(cap);
    gr_needs_tell(n, &of, n_block);
    return log_capture_end(cap);
}

/* Ranks of a group share the host: each may take its part of what is free, and one of them tells. */
static void test_ranks(void **state)
{
    (void)state;
    struct gr_free_memory available;
    struct log_capture log;
    int n_block = 0;
    gr_memory_available(&available);
    struct gr_needs n = {.other_bytes = available.bytes / 4, .block_bytes = 1024, .n_block = 4, .n_block_least = 2};
    n.n_rank = 2;
    n.quiet = true;
    log_capture_begin(&log);
    const enum gr_status two = gr_needs_fit_host(&n, "m", &n_block);
    assert_string_equal(log_capture_end(&log), "");
    n.n_rank = 8;
    log_capture_begin(&log);
    const enum gr_status eight = gr_needs_fit_host(&n, "m", &n_block);
    log_capture_end(&log);
    assert_true(two == GR_OK && n_block == 4 && eight == GR_ENOMEM);
    assert_non_null(strstr(log.text, "each of 8 ranks: m needs"));
}

static void test_tell(void **state)
{
    (void)state;
    struct log_capture cap;
    struct gr_needs n = ten;
    assert_string_equal(told(&cap, &n, 40), "");
    gr_log_set_level(GR_LOG_INFO);
    assert_string_equal(told(&cap, &n, 40),
                        "graft: info: cuda:0: loading m.gguf: weights 100 MiB as bf16, KV 45 MiB for 4 sessions of 160 "
                        "tokens, 20 MiB else, in all 165 MiB; 24.0 GiB are free (NVIDIA H100)\n");
    gr_log_set_level(GR_LOG_WARN);
    n.f32_bytes = 1024 * MIB;
    n.wider_bytes = 100 * MIB;
    assert_string_equal(
        told(&cap, &n, 39),
        "graft: cuda:0: loading m.gguf: weights 100 MiB as bf16 and 1.0 GiB as f32 (up to 1.2 GiB where "
        "values are wider than bf16), KV 44 MiB for less than 4 sessions of 160 tokens, 20 MiB else, in "
        "all 1.2 GiB; 24.0 GiB are free (NVIDIA H100)\n");
}

static void test_progress(void **state)
{
    (void)state;
    struct log_capture cap;
    struct gr_load_progress p;
    log_capture_begin(&cap); /* a file: no terminal */
    gr_load_progress_begin(&p, "m.gguf", GR_LOAD_LARGE);
    for (int i = 0; i < 1024; i++) {
        gr_load_progress_add(&p, GR_LOAD_LARGE / 1000);
    }
    gr_load_progress_end(&p);
    gr_load_progress_begin(&p, "small.gguf", GR_LOAD_LARGE - 1);
    gr_load_progress_add(&p, GR_LOAD_LARGE / 2);
    gr_load_progress_end(&p);
    assert_string_equal(log_capture_end(&cap), "graft: loading m.gguf: 25 %\ngraft: loading m.gguf: 50 %\n"
                                               "graft: loading m.gguf: 75 %\n");
}

/* ---- what is really taken ---- */

/* Memory of this process that no file stands behind, in MiB. */
static double anonymous_mib(void)
{
    FILE *f = fopen("/proc/self/status", "re");
    char line[256];
    unsigned long kib = 0;
    assert_non_null(f);
    while (kib == 0 && fgets(line, sizeof(line), f) != NULL) {
        (void)sscanf(line, "RssAnon: %lu", &kib);
    }
    assert_int_equal(fclose(f), 0);
    return (double)kib / 1024.0;
}

/* The formula of docs/models.md: bytes of weights as bf16. */
static double formula_mib(const struct gr_hf_config *hf, bool is_gguf)
{
    const double layer = 2.0 * hf->hidden * hf->head_dim * (hf->n_head + hf->n_kv_head) + 3.0 * hf->hidden * hf->ffn;
    const double table = (double)hf->n_vocab * hf->hidden;
    return 2.0 * (hf->n_layer * layer + table + (is_gguf ? table : 0.0)) / 1048576.0;
}

static double number_after(const char *text, const char *what)
{
    const char *at = strstr(text, what);
    assert_non_null(at);
    return strtod(at + strlen(what), NULL);
}

static void must_be_near(double a, double b, const char *what)
{
    if (fabs(a - b) > 0.03 * b + 0.1) {
        fail_msg("%s: %.1f MiB, expected %.1f", what, a, b);
    }
}

static void check_model(const char *path, bool is_gguf)
{
    struct gr_lm *lm = NULL;
    struct gr_hf_config hf;
    struct log_capture cap;
    const struct gr_llama_config c = {.dir = path,
                                      .n_thread = 1,
                                      .n_ctx_max = 64,
                                      .n_row_max = 8,
                                      .n_out_max = 1,
                                      .n_pool_block = 4,
                                      .n_scratch_block = 1,
                                      .n_seq_max = 1};
    const double before = anonymous_mib();
    gr_log_set_level(GR_LOG_INFO);
    log_capture_begin(&cap);
    const enum gr_status st = gr_llama_create(&c, &hf, NULL, &lm);
    const char *log = log_capture_end(&cap);
    gr_log_set_level(GR_LOG_WARN);
    assert_int_equal(st, GR_OK);
    const double taken = anonymous_mib() - before, weights = number_after(log, "weights ");
    print_message("# %s: told %.1f MiB of weights, by the formula %.1f; %.1f MiB taken\n", path, weights,
                  formula_mib(&hf, is_gguf), taken);
    must_be_near(weights, formula_mib(&hf, is_gguf), "what is told of weights");
    if (!GR_SANITIZED) { /* a sanitizer's own memory is many times that */
        must_be_near(taken, number_after(log, "in all "), "what is taken");
    }
    gr_lm_destroy(lm);
}

static void test_taken(void **state)
{
    (void)state;
    char path[512];
    const char *home = getenv("HOME");
    check_model(GR_SOURCE_ROOT "/models/demo/target", false);
    snprintf(path, sizeof(path), "%s/.cache/graft/SmolLM2-135M-Instruct.Q4_1.gguf", home != NULL ? home : "");
    if (access(path, R_OK) == 0) {
        check_model(path, true);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fit),      cmocka_unit_test(test_ranks), cmocka_unit_test(test_tell),
        cmocka_unit_test(test_progress), cmocka_unit_test(test_taken),
    };
    gr_log_init("graft");
    gr_log_set_level(GR_LOG_WARN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
