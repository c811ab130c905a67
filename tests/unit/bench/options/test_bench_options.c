/* The table of graft-bench: that it is sound, that each benchmark's defaults are as they were, what its lists take. */
#include "bench/options/options.h"
#include "tests/unit/log_capture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

static struct gr_bench_options o;

static int read_words(enum gr_bench_command command, const char *a, const char *b)
{
    char *argv[] = {(char *)(uintptr_t) "x", (char *)(uintptr_t)a, (char *)(uintptr_t)b};
    return gr_bench_options_read(&o, command, b != NULL ? 3 : a != NULL ? 2 : 1, argv);
}

static void refused(enum gr_bench_command command, const char *name, const char *value, const char *word)
{
    struct log_capture cap;
    log_capture_begin(&cap);
    const int status = read_words(command, name, value);
    const char *log = log_capture_end(&cap);
    if (status != 2 || log_capture_n_line(log) != 1 || strstr(log, word) == NULL) {
        fail_msg("%s %s: status %d, %s", name, value != NULL ? value : "", status, log);
    }
}

static void test_table_is_sound(void **state)
{
    (void)state;
    const struct gr_option_table *t = &gr_bench_option_table;
    for (int i = 0; i < t->n_row; i++) {
        const struct gr_option *a = &t->row[i];
        assert_true(a->commands != 0 && a->help != NULL && strlen(a->help) <= 110);
        assert_true((a->argument != NULL) == (a->kind != GR_KIND_FLAG));
        assert_true((a->choices != NULL) == (a->kind == GR_KIND_CHOICE || a->kind == GR_KIND_CHOICES));
        for (int k = 0; k < i; k++) {
            const struct gr_option *b = &t->row[k];
            const bool shared = (a->commands & b->commands) != 0;
            assert_false(shared && strcmp(a->name, b->name) == 0);
            assert_false(shared && a->alias != 0 && a->alias == b->alias);
        }
    }
}

static void test_defaults(void **state)
{
    (void)state;
    assert_int_equal(read_words(GR_BENCH_E2E, NULL, NULL), -1);
    assert_true(o.reps == 5 && o.max_tokens == 256 && o.trees.n == 1 && o.trees.value[0] == GR_AUTO && o.modes.n == 2);
    assert_int_equal(read_words(GR_BENCH_SESSIONS, NULL, NULL), -1);
    assert_true(o.reps == 3 && o.max_tokens == 128 && o.sessions.n == 2 && o.sessions.value[1] == 16);
    assert_int_equal(read_words(GR_BENCH_TREE_SIZES, NULL, NULL), -1);
    assert_true(o.reps == 3 && o.sizes.n == 7 && o.sizes.value[6] == 12);
    assert_int_equal(read_words(GR_BENCH_SWEEP, "--tp", "1,4"), -1);
    assert_true(o.sweep_repeat == 3 && o.crowds.n == 3 && o.crowds.value[2] == 64 && o.tp.n == 2 && o.hosts.n == 1 &&
                o.devices.n == 1 && o.devices.device[0] == -1 && o.speed == 100 && o.max_tokens == 128);
    assert_int_equal(read_words(GR_BENCH_CLIENTS, NULL, NULL), -1);
    assert_true(o.reps == 1 && o.crowds.n == 3 && o.decoding.n == 2 && o.await_targets == 1);
    assert_int_equal(read_words(GR_BENCH_LONG, "--context", "4k,30k"), -1);
    assert_true(o.reps == 5 && o.contexts.value[1] == 30720 && o.nodes == 15 && o.specpv.n == 3 && o.budgets.n == 1);
    assert_int_equal(read_words(GR_BENCH_TUNE, "gemm", NULL), -1);
    assert_true(o.device.device[0] == 0 && o.tune_reps == 51 && o.what == GR_BENCH_GEMM);
    assert_int_equal(read_words(GR_BENCH_STAGES, "-o", "jsonl"), -1);
    assert_true(o.device.device[0] == -1 && o.stage_reps == 31 && o.format == 3);
}

static void test_lists(void **state)
{
    (void)state;
    assert_int_equal(read_words(GR_BENCH_E2E, "--num-speculative-tokens", "auto,8,16"), -1);
    assert_true(o.trees.n == 3 && o.trees.value[0] == GR_AUTO && o.trees.value[2] == 16);
    refused(GR_BENCH_E2E, "--num-speculative-tokens", "8,64", "`64' in `8,64' is not auto or a whole number from 1");
    refused(GR_BENCH_E2E, "--num-speculative-tokens", "1,2,3,4,5,6,7,8,9,10,11,12,13", "more than 12");
    assert_int_equal(read_words(GR_BENCH_E2E, "--modes", "pair"), -1);
    assert_true(o.modes.n == 1 && o.modes.value[0] == GR_BENCH_APART);
    refused(GR_BENCH_E2E, "--modes", "pair,both", "one of co-located, pair");
    refused(GR_BENCH_SESSIONS, "--modes", "pair", "one of plain, trees");
    refused(GR_BENCH_SESSIONS, "--sessions", "1,,2", "`' in `1,,2'");
    refused(GR_BENCH_LONG, "--specpv-budgets", "2000k", "(4k: 4096)");
    refused(GR_BENCH_LONG, "--context", "k", "`k' is not");
    static const char *const wrong[] = {"", "k", "0", "4x", "-1k", "2000k", "100000000000000000000"};
    for (size_t i = 0; i < GR_ARRAY_LEN(wrong); i++) {
        refused(GR_BENCH_E2E, "--prompt-tokens", wrong[i], "whole number from 1 to 1048576");
    }
}

static void test_names_mean_what_the_benchmark_says(void **state)
{
    (void)state;
    refused(GR_BENCH_SWEEP, "--sesions", "2", "unknown option --sesions");
    refused(GR_BENCH_SESSIONS, "--sesions", "2", "did you mean --sessions?");
    refused(GR_BENCH_TREE_SIZES, "--sessions", "2", "is not for this command; see graft-bench trees --help");
    refused(GR_BENCH_TUNE, "gem", NULL, "one of gemm, attention");
    refused(GR_BENCH_TUNE, "--reps", "51", "needs gemm|attention");
    refused(GR_BENCH_TUNE, "--reps", "49", "from 50 to 1001");
    refused(GR_BENCH_STAGES, "--reps", "102", "from 1 to 101");
    refused(GR_BENCH_TRANSPORT, "--peer", "127.0.0.1:65536", "65535");
    refused(GR_BENCH_TRANSPORT, "--transport", "tcp,tcp,tcp,tcp,tcp", "more than 4");
    refused(GR_BENCH_KERNELS, "-o", "yaml", "md, csv, json, jsonl");
    refused(GR_BENCH_KERNELS, "-x", NULL, "options start with --");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table_is_sound),
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_lists),
        cmocka_unit_test(test_names_mean_what_the_benchmark_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
