/* Programs as children of a benchmark: their JSON, and the one line about one that failed. */
#include "bench/graft_run.h"

#include "tests/unit/log_capture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

static json_t *run(const char *script)
{
    return gr_bench_run_json((const char *const[]){"/bin/sh", "-c", script, NULL});
}

static void test_json(void **state)
{
    (void)state;
    json_t *root = run("echo '{\"speed\": 2.5}'");
    assert_non_null(root);
    assert_true(gr_bench_metric(root, "speed") == 2.5);
    json_decref(root);
    root = run("echo '{\"speed\": 1}'; head -c 200000 /dev/zero"); /* more than a pipe holds */
    assert_non_null(root);
    json_decref(root);
}

static void failed(const char *script, const char *words)
{
    struct log_capture log;
    log_capture_begin(&log);
    json_t *root = run(script);
    const char *text = log_capture_end(&log);
    assert_null(root);
    assert_non_null(strstr(text, words));
    assert_non_null(strstr(text, "; the command was: /bin/sh -c "));
    assert_int_equal(log_capture_n_line(text), 1);
}

static void test_failures(void **state)
{
    (void)state;
    failed("echo '{}'; exit 3", "/bin/sh ended with status 3; the command was");
    failed("exit 3", "/bin/sh ended with status 3: what it printed is no JSON: line ");
    failed("echo \"it's\"", "/bin/sh ended with status 0: what it printed is no JSON: line 1: ");
    failed("echo \"it's\"", "; the command was: /bin/sh -c 'echo \"it'\\''s\"'");
    failed("echo '{}'; kill -9 $$", "/bin/sh was killed by signal 9 (Killed); the command was");
}

static void test_no_program(void **state)
{
    struct log_capture log;
    (void)state;
    log_capture_begin(&log);
    assert_null(gr_bench_run_json((const char *const[]){"/no/such", "a b", NULL}));
    const char *text = log_capture_end(&log);
    assert_non_null(strstr(text, "cannot start /no/such: No such file or directory"));
    assert_non_null(strstr(text, "/no/such ended with status 127: "));
    assert_non_null(strstr(text, "; the command was: /no/such 'a b'\n"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_json),
        cmocka_unit_test(test_failures),
        cmocka_unit_test(test_no_program),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
