/* Files of measured costs: what is taken, and the words about what is wrong. */
#include "bench/costs_file.h"

#include "tests/unit/log_capture.h"
#include "tests/unit/write_file.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#define TARGET                                                                                                         \
    "\"target\": {\"rows_us\": [[1, 5000], [64, 6000]], \"session_us\": 9, \"context_us_per_1000\": 44, \"host_us\": " \
    "13, \"host_tree_us\": 9}"
#define DRAFT                                                                                                 \
    "\"draft\": {\"rows_us\": [[1, 280]], \"kv_row_us\": 2, \"host_level_us\": 8, \"host_feature_us\": 1.5, " \
    "\"host_us\": 26, \"host_session_us\": 7}"
#define LINKS                                                                                           \
    "\"data_link\": {\"latency_us\": 20, \"gbytes_per_s\": 10}, \"control_link\": {\"latency_us\": 40}" \
    ", \"orchestrator\": {\"message_us\": 6}"
#define SURMISE                                                                                      \
    "\"surmise\": [{\"classes\": [[0.25, 0.5, 0.4], [0.75, 0.9, 0.95]], \"others\": [[0.5, 0.6]]}, " \
    "{\"classes\": [[1, 0.9, 0.95]]}]"
#define ABOUT "\"about\": \"a test\""
#define WHOLE "{" ABOUT ", " TARGET ", " DRAFT ", " LINKS ", \"feature_bytes\": 8192, " SURMISE "}"

static enum gr_status load(const char *text, struct gr_costs_file *out)
{
    char path[] = "/tmp/costs-XXXXXX";
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    write_file(path, text);
    const enum gr_status st = gr_costs_file_load(path, out);
    unlink(path);
    return st;
}

static void is(double got, double want)
{
    assert_true(fabs(got - want) < 1e-9);
}

static void test_units(void **state)
{
    (void)state;
    struct gr_costs_file f;
    assert_int_equal(load(WHOLE, &f), GR_OK);
    const struct gr_sim_costs *c = &f.costs;
    assert_string_equal(f.about, "a test");
    is(gr_curve_at(&c->target.rows, 64), 6e6);
    is(c->target.session_ns, 9000);
    is(c->target.context_ns, 44); /* us for 1000 tokens are ns for one */
    is(c->target.host_ns, 13000);
    is(c->target.host_tree_ns, 9000);
    is(c->draft.kv_row_ns, 2000);
    is(c->draft.host_level_ns, 8000);
    is(c->draft.host_feature_ns, 1500);
    is(c->draft.host_ns, 26000);
    is(c->draft.host_session_ns, 7000);
    is(c->data.latency_ns, 20000);
    is(c->data.byte_ns, 0.1);
    is(c->control.byte_ns, 0.0); /* no bandwidth: no limit */
    is(c->orch.message_ns, 6000);
    assert_int_equal(c->feature_bytes, 8192);
    assert_int_equal(c->surmise.n_level, 2);
    assert_int_equal(c->surmise.level[0].n_class, 2);
    is(c->surmise.level[0].class[1].hit, 0.95);
    is(c->surmise.level[0].other[0].hit, 0.6);
    assert_int_equal(c->surmise.level[1].n_other, 0);
}

static void refused(const char *text, const char *words)
{
    struct gr_costs_file f;
    struct log_capture log;
    log_capture_begin(&log);
    const enum gr_status st = load(text, &f);
    const char *said = log_capture_end(&log);
    if (st != GR_EFORMAT || strstr(said, words) == NULL) {
        print_error("%s: %d, %s\n", words, st, said);
    }
    assert_int_equal(st, GR_EFORMAT);
    assert_non_null(strstr(said, words));
}

#define WITH_TARGET(target) "{" ABOUT ", " target ", " DRAFT ", " LINKS ", " SURMISE "}"
#define WITH_SURMISE(surmise) "{" ABOUT ", " TARGET ", " DRAFT ", " LINKS ", " surmise "}"

static void test_refusals(void **state)
{
    (void)state;
    refused("{", "line 1");
    refused("[]", "\"about\": must be a text");
    refused(WITH_TARGET("\"target\": 3"), "\"target\": must be an object");
    refused(WITH_TARGET("\"target\": {\"row_us\": []}"), "\"target\", \"row_us\": there is no such key");
    refused(WITH_TARGET("\"target\": {}"), "\"target\", \"rows_us\": must be a list of 1 to 32 points");
    refused(WITH_TARGET("\"target\": {\"rows_us\": [[2, 5], [2, 6]]}"), "point 2 must be [rows, us]");
    refused(WITH_TARGET("\"target\": {\"rows_us\": [[0, 5]]}"), "point 1 must be [rows, us]");
    refused(WITH_TARGET("\"target\": {\"rows_us\": [[1, -5]]}"), "point 1 must be [rows, us]");
    refused(WITH_TARGET("\"target\": {\"rows_us\": [[1, 5]], \"session_us\": -1}"),
            "\"target\", \"session_us\": must be a number from 0");
    refused(WITH_TARGET("\"target\": {\"rows_us\": [[1, 5]], \"host_us\": \"x\"}"), "\"host_us\": must be a number");
    refused(WITH_SURMISE("\"surmise\": []"), "\"surmise\": must be a list of 1 to 8 levels");
    refused(WITH_SURMISE("\"surmise\": [{}]"), "\"classes\": must be a list");
    refused(WITH_SURMISE("\"surmise\": [{\"classes\": [[0.5, 1, 1]]}]"), "the shares of a level must come to 1");
    refused(WITH_SURMISE("\"surmise\": [{\"classes\": [[1, 1, 1.5]]}]"), "a class must be [share, sure, hit]");
    refused(WITH_SURMISE("\"surmise\": [{\"classes\": [[1, 1, 1]], \"others\": [[1]]}]"), "must be [sure, hit]");
    refused(WITH_SURMISE("\"surmise\": [{\"classes\": [[1, 1, 1]], \"others\": [[0, 0.9], [0, 0.9]]}]"),
            "come to more than 1");
    refused("{" ABOUT ", \"feature_bytes\": 1.5, " TARGET "}", "\"feature_bytes\": must be a whole number");
}

static void test_no_file(void **state)
{
    (void)state;
    struct gr_costs_file f;
    struct log_capture log;
    log_capture_begin(&log);
    const enum gr_status st = gr_costs_file_load("/tmp/there-is-no-such-file.json", &f);
    assert_non_null(strstr(log_capture_end(&log), "there-is-no-such-file"));
    assert_int_equal(st, GR_ENOTFOUND);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_units), cmocka_unit_test(test_refusals),
                                       cmocka_unit_test(test_no_file)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
