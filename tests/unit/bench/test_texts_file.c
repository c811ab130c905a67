/* Files of recorded texts: what is taken, and the words about what is wrong. */
#include "bench/texts_file.h"

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

#define FIRST "[[[1, 0.5, 0.25, 0.1, 0.05], [0, 0.3, 0.2, 0.1, 0]], [[2, 0.4, 0.3, 0, 0], [3, 0.4, 0.3, 0.2, 0]]]"
#define SECOND "[[[4, 1, 0, 0, 0], [5, 1, 0, 0, 0]], [[6, 1, 0, 0, 0], [7, 1, 0, 0, 0]]]"

static enum gr_status load(const char *text, struct gr_surmise_texts *out)
{
    char path[] = "/tmp/texts-XXXXXX";
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    write_file(path, text);
    const enum gr_status st = gr_texts_file_load(path, out);
    unlink(path);
    return st;
}

static int rank_at(const struct gr_surmise_texts *t, int text, int pos, int level)
{
    return gr_surmise_recall(t, text, pos, level).rank;
}

static void test_recall(void **state)
{
    (void)state;
    struct gr_surmise_texts t;
    assert_int_equal(load("{\"texts\": [" FIRST ", " SECOND "]}", &t), GR_OK);
    assert_int_equal(t.n_text, 2);
    assert_int_equal(rank_at(&t, 0, 0, 1), 1);
    assert_int_equal(rank_at(&t, 0, 0, 2), 0);
    assert_int_equal(rank_at(&t, 0, 1, 1), 2);
    assert_int_equal(rank_at(&t, 0, 1, 9), 3); /* the last level stands for deeper ones */
    assert_int_equal(rank_at(&t, 0, 2, 1), 1); /* a text begins anew after its end */
    assert_int_equal(rank_at(&t, 1, 1, 2), 7);
    assert_int_equal(rank_at(&t, 3, 1, 2), 7); /* and so do the texts */
    const struct gr_surmised s = gr_surmise_recall(&t, 0, 0, 1);
    assert_true(fabs(exp((double)gr_surmised_edge(&s, 2)) - 0.25) < 1e-6);
    assert_true(gr_surmised_edge(&s, 6) < gr_surmised_edge(&s, 5)); /* beyond what was recorded they fall off */
    assert_true(gr_surmised_edge(&s, 5) < gr_surmised_edge(&s, 4));
    free(t.row);
}

static void refused(const char *text, const char *words)
{
    struct gr_surmise_texts t;
    struct log_capture log;
    log_capture_begin(&log);
    const enum gr_status st = load(text, &t);
    const char *said = log_capture_end(&log);
    free(t.row);
    if (strstr(said, words) == NULL) {
        print_error("%s: %s\n", words, said);
    }
    assert_int_equal(st, GR_EFORMAT);
    assert_non_null(strstr(said, words));
}

static void test_refusals(void **state)
{
    (void)state;
    refused("{", "line 1");
    refused("{}", "\"texts\" must be a list");
    refused("{\"texts\": [[[]]]}", "\"texts\" must be a list");
    refused("{\"texts\": [" FIRST ", [[[1, 1, 0, 0, 0]]]]}", "text 1 has 1 positions, the first one has 2");
    refused("{\"texts\": [" FIRST ", [[[1, 1, 0, 0, 0]], [[1, 1, 0, 0, 0]]]]}", "text 1, position 0");
    refused("{\"texts\": [[[[16, 1, 0, 0, 0]]]]}", "text 0, position 0");
    refused("{\"texts\": [[[[1.5, 1, 0, 0, 0]]]]}", "text 0, position 0");
    refused("{\"texts\": [[[[1, 1.5, 0, 0, 0]]]]}", "text 0, position 0");
    refused("{\"texts\": [[[[1, 1, 0, 0]]]]}", "text 0, position 0");
}

static void test_no_file(void **state)
{
    (void)state;
    struct gr_surmise_texts t;
    struct log_capture log;
    log_capture_begin(&log);
    const enum gr_status st = gr_texts_file_load("/tmp/there-is-no-such-file.json", &t);
    assert_non_null(strstr(log_capture_end(&log), "there-is-no-such-file"));
    assert_int_equal(st, GR_ENOTFOUND);
    assert_null(t.row);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_recall), cmocka_unit_test(test_refusals),
                                       cmocka_unit_test(test_no_file)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
