/* README promises: "every fall-back is one log line and a counter". Here the one place that does both, and that there
 * is no other; that each reason is really met, and reaches the metrics, is shown where it arises:
 * tests/sim/test_fallbacks.c, test_orch_workers.c, tests/system. */
#include "common/base/fallback.h"
#include "tests/quiet_log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static FILE *shell(const char *command)
{
    char line[1024];
    snprintf(line, sizeof(line), "cd '%s' && %s", GR_SOURCE_ROOT, command);
    FILE *f = popen(line, "r");
    assert_non_null(f);
    return f;
}

/* What the command prints first, without the end of its line; "": nothing. */
static void first_line(const char *command, char *out, size_t cap)
{
    FILE *f = shell(command);
    out[0] = '\0';
    (void)(fgets(out, (int)cap, f) != NULL);
    (void)pclose(f);
    out[strcspn(out, "\n")] = '\0';
}

static void test_readme_promises_it(void **state)
{
    (void)state;
    char line[512];
    first_line("tr -s '[:space:]' ' ' < README.md | grep -c 'every fall-back is one log line and a counter'", line,
               sizeof(line));
    assert_string_equal(line, "1");
}

static void test_each_is_told_and_counted(void **state)
{
    (void)state;
    struct gr_fallbacks f = {0};
    for (int r = GR_FALLBACK_NONE + 1; r < GR_N_FALLBACK; r++) {
        const int before = log_count_n;
        gr_fall_back(&f, (enum gr_fallback)r, 7, 3, "because");
        assert_int_equal(log_count_n, before + 1);
        assert_non_null(strstr(log_count_last, "][fallback] session 0000000000000007 round 3: "));
        assert_non_null(strstr(log_count_last, ": because; "));
        assert_int_equal(f.n[r], 1);
        assert_int_equal(f.n_untold, r);
    }
}

/* One that flaps is a line now and then; its count leaves none out. */
static void test_flapping(void **state)
{
    (void)state;
    struct gr_fallbacks f = {0};
    const int before = log_count_n;
    for (int i = 0; i < 34; i++) {
        gr_fall_back(&f, GR_FALLBACK_DRAFTER_SILENT, 1, 0, NULL);
    }
    assert_int_equal(log_count_n, before + 2);
    assert_non_null(strstr(log_count_last, "(10 times by now)"));
    assert_int_equal(f.n[GR_FALLBACK_DRAFTER_SILENT], 34);
    assert_int_equal(f.n_untold, 34);
    gr_fall_back(&f, GR_FALLBACK_DRAFT_POOL, 1, 0, NULL); /* another reason is told at once */
    assert_int_equal(log_count_n, before + 3);
    for (int i = 34; i < 1000; i++) {
        gr_fall_back(&f, GR_FALLBACK_DRAFTER_SILENT, 1, 0, NULL);
    }
    assert_int_equal(log_count_n, before + 5);
    assert_non_null(strstr(log_count_last, "(1000 times by now)"));
}

static void test_of_a_process(void **state)
{
    (void)state;
    struct gr_fallbacks f = {0};
    gr_fall_back(&f, GR_FALLBACK_COLOCATED_DRAFTER, 0, 0, NULL);
    assert_string_equal(log_count_last,
                        "[spec][fallback] the co-located drafter ended with an error; going on root-only");
    gr_fall_back(&f, GR_FALLBACK_NO_VIEWS, 0, 0, NULL);
    assert_string_equal(
        log_count_last,
        "[specpv][fallback] the target's partial views could not be made; sessions are verified in full");
}

/* No other code writes such a line: the words stand in no other file. */
static void test_there_is_no_other_place(void **state)
{
    (void)state;
    char line[512];
    first_line(
        "grep -rn 'fallback\\]' --include='*.c' --include='*.h' --include='*.cu' --include='*.inc' common "
        "transport model kernels target_worker draft_worker orchestrator bench | grep -v '^common/base/fallback\\.' "
        "| grep -v ' \\* '",
        line, sizeof(line));
    assert_string_equal(line, "");
}

/* A reason is given somewhere, and some test meets it. */
static void test_each_is_met(void **state)
{
    (void)state;
    for (int r = GR_FALLBACK_NONE + 1; r < GR_N_FALLBACK; r++) {
        const char *name = gr_fallback_name((enum gr_fallback)r);
        char command[512], line[512];
        snprintf(command, sizeof(command), "grep -rlw GR_FALLBACK_%s transport target_worker draft_worker orchestrator",
                 name);
        first_line(command, line, sizeof(line));
        if (line[0] == '\0') {
            print_error("nothing falls back for the reason %s\n", name);
        }
        assert_string_not_equal(line, "");
        snprintf(command, sizeof(command), "grep -rlw GR_FALLBACK_%s tests | grep -v test_fallback.c", name);
        first_line(command, line, sizeof(line));
        if (line[0] == '\0') {
            print_error("no test meets the reason %s\n", name);
        }
        assert_string_not_equal(line, "");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_readme_promises_it),
        cmocka_unit_test(test_each_is_told_and_counted),
        cmocka_unit_test(test_flapping),
        cmocka_unit_test(test_of_a_process),
        cmocka_unit_test(test_there_is_no_other_place),
        cmocka_unit_test(test_each_is_met),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
