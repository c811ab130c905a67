/* Memory that a model cannot have: rotary tables of contexts of millions of tokens are told before they are taken, and
 * refused where they do not fit. */
#include "common/base/memory.h"
#include "model/rope.h"
#include "tests/unit/log_capture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

static enum gr_status fit(int n_pos, uint64_t free_bytes, struct log_capture *cap)
{
    const struct gr_hf_config hf = {.head_dim = 64, .max_pos = 1 << 24};
    const struct gr_free_memory left = {.bytes = free_bytes, .from = "MemAvailable"};
    log_capture_begin(cap);
    const enum gr_status st = gr_rope_fit("models/long", &hf, n_pos, &left);
    (void)log_capture_end(cap);
    return st;
}

static void test_fit(void **state)
{
    (void)state;
    struct log_capture cap;
    const uint64_t gib = (uint64_t)1 << 30;
    assert_int_equal(fit(131072, 0, &cap), GR_OK);
    assert_string_equal(cap.text, "");
    assert_int_equal(fit(1 << 24, 5 * gib, &cap), GR_OK);
    assert_non_null(strstr(cap.text, "warning: models/long: max_position_embeddings (context_length) = 16777216"));
    assert_non_null(strstr(cap.text, "take 4.0 GiB; --max-model-len"));
    assert_int_equal(log_capture_n_line(cap.text), 1);
    assert_int_equal(fit(1 << 24, 3 * gib, &cap), GR_ENOMEM);
    assert_non_null(strstr(cap.text, "take 4.0 GiB, 3.0 GiB are free (MemAvailable); give a lower --max-model-len"));
    assert_int_equal(log_capture_n_line(cap.text), 1);
}

static void test_bytes(void **state)
{
    (void)state;
    struct gr_hf_config hf = {.head_dim = 128};
    assert_int_equal(gr_rope_bytes(&hf, 1000), 2 * 1000 * 64 * 4);
    hf.rope_local_theta = 1e4;
    assert_int_equal(gr_rope_bytes(&hf, 1000), 4 * 1000 * 64 * 4);
}

/* As under `ulimit -v`: whose memory it was is told. */
static void test_out_of_memory(void **state)
{
    (void)state;
    struct log_capture cap;
    struct gr_memory m = {.what = "models/long"};
    log_capture_begin(&cap);
    assert_null(gr_memory_take(&m, SIZE_MAX / 2));
    const char *log = log_capture_end(&cap);
    assert_non_null(strstr(log, "models/long: out of memory: the model needs another"));
    assert_int_equal(log_capture_n_line(log), 1);
    gr_memory_finish(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fit),
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
