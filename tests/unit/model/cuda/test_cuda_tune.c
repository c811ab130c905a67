/* Which shapes a model on a GPU gets: those of a file, else the formula's; what is said where one is missing. Needs a
 * build with CUDA, but no GPU. */
#include "model/cuda/tune.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "tests/unit/log_capture.h"

static const struct gr_hf_config hf = {
    .hidden = 4096, .n_layer = 32, .n_head = 32, .n_kv_head = 8, .head_dim = 128, .ffn = 14336, .n_vocab = 128256};
static const struct gr_cuda_device h200 = {.index = 1, .name = "NVIDIA H200"};
static const struct gr_cuda_tune_model model = {.model = "target", .draft = "head"};

static struct gr_tuned one_of_each(bool required)
{
    return (struct gr_tuned){.file = "tuned.json",
                             .required = required,
                             .gpu = "NVIDIA H200",
                             .linear = {{.n_out = 6144, .n_in = 4096, .cut = {32, 1}}},
                             .n_linear = 1,
                             .attention = {{.n_head = 32, .n_kv_head = 8, .head_dim = 128, .n_split_max = 4}},
                             .n_attention = 1};
}

static void without_a_file_it_is_as_ever(void **state)
{
    struct gr_model_shapes s;
    char id[96];
    (void)state;
    gr_llama_shapes(&hf, 0, 0, &s);
    assert_int_equal(gr_cuda_tune(&s, NULL, &h200, &model), GR_OK);
    for (int i = 0; i < s.n_linear; i++) {
        const struct gr_cuda_cut cut = gr_cuda_linear_cut(s.linear[i].n_out, s.linear[i].n_in);
        assert_int_equal(s.linear[i].cut.width, cut.width);
        assert_int_equal(s.linear[i].cut.parts, cut.parts);
        assert_true(gr_cuda_cut_allowed(s.linear[i].n_in, cut));
    }
    gr_cuda_numerics_id(&s, id, sizeof(id));
    assert_string_equal(id, "cuda/" GR_CUDA_ARCH "/sums2/seg8/stale8/tile64/near64/split8/kv-bf16");
}

static void a_file_goes_first(void **state)
{
    const struct gr_tuned t = one_of_each(false);
    struct gr_model_shapes s;
    char id[96];
    (void)state;
    gr_llama_shapes(&hf, 0, 0, &s);
    assert_int_equal(gr_cuda_tune(&s, &t, &h200, &model), GR_OK);
    const struct gr_linear_shape *qkv = gr_shapes_find(&s, 6144, 4096);
    assert_int_equal(qkv->cut.width, 32);
    assert_int_equal(qkv->cut.parts, 1);
    assert_int_equal(gr_shapes_find(&s, 4096, 4096)->cut.width, gr_cuda_linear_cut(4096, 4096).width);
    assert_int_equal(s.n_split_max, 4);
    gr_cuda_numerics_id(&s, id, sizeof(id));
    const char *want = "cuda/" GR_CUDA_ARCH "/sums2/seg8/stale8/tile64/near64/split4/kv-bf16/tuned-";
    assert_memory_equal(id, want, strlen(want));
    assert_int_equal(strlen(id), strlen(want) + 8);
}

static void says_what_is_missing(void **state)
{
    struct gr_tuned t = one_of_each(true);
    struct gr_model_shapes s;
    struct log_capture c;
    (void)state;
    gr_llama_shapes(&hf, 0, 0, &s);
    log_capture_begin(&c);
    const enum gr_status st = gr_cuda_tune(&s, &t, &h200, &model);
    log_capture_end(&c);
    assert_int_equal(st, GR_ENOTFOUND);
    assert_int_equal(log_capture_n_line(c.text), 1);
    assert_non_null(strstr(c.text, "tuned.json has no linear 4096 x 4096"));
    assert_non_null(
        strstr(c.text, "graft-bench tune gemm --model target --draft head --device cuda:1 --output tuned.json"));
}

static void another_gpu(void **state)
{
    struct gr_model_shapes s;
    (void)state;
    for (int required = 0; required < 2; required++) {
        struct gr_tuned t = one_of_each(required == 1);
        struct log_capture c;
        strcpy(t.gpu, "NVIDIA H100 80GB HBM3");
        gr_llama_shapes(&hf, 0, 0, &s);
        log_capture_begin(&c);
        const enum gr_status st = gr_cuda_tune(&s, &t, &h200, &model);
        log_capture_end(&c);
        assert_int_equal(st, required ? GR_EMISMATCH : GR_OK);
        assert_int_equal(log_capture_n_line(c.text), 1);
        assert_non_null(strstr(c.text, "NVIDIA H100 80GB HBM3"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_a_file_it_is_as_ever),
        cmocka_unit_test(a_file_goes_first),
        cmocka_unit_test(says_what_is_missing),
        cmocka_unit_test(another_gpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
