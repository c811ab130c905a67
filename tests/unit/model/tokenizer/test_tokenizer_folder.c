/* What tokenizer_config.json adds to tokenizer.json: the token that ends a text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdlib.h>
#include <unistd.h>

#include "model/tokenizer/tokenizer_of_model.h"
#include "tests/unit/log_capture.h"
#include "tests/unit/mini_tokenizer.h"
#include "tests/unit/write_file.h"

static char dir[] = "/tmp/graft-test-XXXXXX";

static void test_eos(void **state)
{
    (void)state;
    static const struct {
        const char *config;
        enum gr_status want;
        int32_t eos;
        const char *log; /* NULL: no line */
    } cases[] = {
        {"{}", GR_OK, -1, NULL},
        {"{\"eos_token\":null}", GR_OK, -1, NULL},
        {"{\"eos_token\":\"<tool>\"}", GR_OK, 301, NULL},
        {"{\"eos_token\":{\"content\":\"<bos>\",\"lstrip\":false}}", GR_OK, 300, NULL},
        {"{\"eos_token\":\"</s>\"}", GR_OK, -1, "eos_token </s> is no added token"},
        {"{\"eos_token\":7}", GR_EFORMAT, -1, "eos_token must be a string"},
        {"{\"eos_token\":", GR_EFORMAT, -1, "tokenizer_config.json"},
    };
    for (size_t i = 0; i < GR_ARRAY_LEN(cases); i++) {
        struct gr_tokenizer *tok = NULL;
        struct log_capture cap;
        write_file_in(dir, "tokenizer_config.json", cases[i].config);
        log_capture_begin(&cap);
        const enum gr_status st = gr_tokenizer_of_model(dir, &tok);
        const char *log = log_capture_end(&cap);
        assert_int_equal(st, cases[i].want);
        assert_int_equal(log_capture_n_line(log), cases[i].log != NULL);
        assert_true(cases[i].log == NULL || strstr(log, cases[i].log) != NULL);
        assert_int_equal(tok != NULL ? gr_tokenizer_eos_id(tok) : -1, cases[i].eos);
        gr_tokenizer_destroy(tok);
    }
}

static void test_none(void **state)
{
    (void)state;
    struct gr_tokenizer *tok = NULL;
    struct log_capture cap;
    char empty[] = "/tmp/graft-test-XXXXXX";
    char path[600];
    assert_non_null(mkdtemp(empty));
    snprintf(path, sizeof(path), "%s/x", empty);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fclose(f);
    assert_int_equal(gr_tokenizer_of_model(empty, &tok), GR_OK);
    assert_null(tok);
    log_capture_begin(&cap);
    assert_int_equal(gr_tokenizer_of_model_required(empty, &tok), GR_ENOTFOUND);
    assert_non_null(strstr(log_capture_end(&cap), "has no tokenizer"));
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(empty), 0);
}

static int setup(void **state)
{
    (void)state;
    json_t *root = mini_tokenizer();
    char *text = json_dumps(root, 0);
    if (text == NULL || mkdtemp(dir) == NULL) {
        return -1;
    }
    write_file_in(dir, "tokenizer.json", text);
    free(text);
    json_decref(root);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    static const char *const names[] = {"tokenizer.json", "tokenizer_config.json"};
    char path[600];
    for (size_t i = 0; i < GR_ARRAY_LEN(names); i++) {
        snprintf(path, sizeof(path), "%s/%s", dir, names[i]);
        (void)unlink(path);
    }
    return rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_eos), cmocka_unit_test(test_none)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
