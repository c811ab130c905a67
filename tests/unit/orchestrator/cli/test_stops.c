/* What ends a turn: end-of-sequence ids, --stop-token-ids and stop strings that are special tokens, as one list. */
#include "orchestrator/cli/stops.h"
#include "tests/unit/log_capture.h"
#include "tests/unit/mini_tokenizer_open.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define BOS 300 /* the mini tokenizer's special token <bos>; 301, <tool>, is an added one that has text */
#define N_VOCAB 512

static struct gr_tokenizer *tok;
static struct gr_options o;
static struct gr_hf_config hf;
static struct gr_stop_ids stops;

static void begin(int n_eos)
{
    gr_options_default(&o, GR_CMD_RUN);
    memset(&hf, 0, sizeof(hf));
    for (int i = 0; i < n_eos; i++) {
        hf.eos_id[hf.n_eos++] = 10 + i;
    }
}

static enum gr_status set_from(const char *name, const char *value, enum gr_option_source source)
{
    char what[64];
    snprintf(what, sizeof(what), "--%s", name);
    return gr_option_set(&o.values, gr_option_find(&gr_option_table, GR_CMD_RUN, name, strlen(name)), what, value,
                         source);
}

static enum gr_status set(const char *name, const char *value)
{
    return set_from(name, value, GR_FROM_CLI);
}

static void refused(const char *word)
{
    struct log_capture cap;
    stops.n = 77;
    log_capture_begin(&cap);
    assert_int_equal(gr_stops_resolve(&o, &hf, tok, N_VOCAB, &stops), GR_EINVAL);
    const char *log = log_capture_end(&cap);
    assert_int_equal(log_capture_n_line(log), 1);
    if (strstr(log, word) == NULL) {
        fail_msg("`%s' is not in: %s", word, log);
    }
    assert_int_equal(stops.n, 77);
}

static void test_one_list(void **state)
{
    (void)state;
    begin(2);
    assert_int_equal(set("stop", "text"), GR_OK);
    assert_int_equal(set("stop", "<bos>"), GR_OK);
    assert_int_equal(set("stop", "<tool>"), GR_OK); /* has text, is looked for there */
    assert_int_equal(set("stop-token-ids", "7,11"), GR_OK);
    assert_int_equal(set("stop-token-ids", "0"), GR_OK);
    assert_int_equal(gr_stops_resolve(&o, &hf, tok, N_VOCAB, &stops), GR_OK);
    static const int32_t want[] = {10, 11, 7, 0, BOS}; /* each once */
    assert_int_equal(stops.n, GR_ARRAY_LEN(want));
    assert_memory_equal(stops.id, want, sizeof(want));
    assert_true(gr_stop_hits(&stops, BOS) && !gr_stop_hits(&stops, 301));
    /* what is asked for acts although the end of sequence is ignored, be it that token itself */
    o.ignore_eos = true;
    hf.eos_id[0] = BOS;
    assert_int_equal(gr_stops_resolve(&o, &hf, tok, N_VOCAB, &stops), GR_OK);
    assert_int_equal(stops.n, 4);
    assert_true(gr_stop_hits(&stops, BOS) && gr_stop_hits(&stops, 11));
}

static void test_mixed_strings(void **state)
{
    (void)state;
    static const char *const mixed[] = {"<bos>x", "\n<bos>", "<bos><bos>", "a<tool><bos>b"};
    for (size_t i = 0; i < GR_ARRAY_LEN(mixed); i++) {
        begin(1);
        assert_int_equal(set("stop", mixed[i]), GR_OK);
        refused("holds the special token <bos> and more");
    }
    begin(1);
    assert_int_equal(set("stop", "a<tool>b<bo"), GR_OK);
    assert_int_equal(gr_stops_resolve(&o, &hf, tok, N_VOCAB, &stops), GR_OK);
}

/* 64 of all kinds together, and not one more; none is left out in silence. */
static void test_limit(void **state)
{
    (void)state;
    begin(60);
    assert_int_equal(set("stop-token-ids", "200,201,10,202"), GR_OK);
    assert_int_equal(gr_stops_resolve(&o, &hf, tok, N_VOCAB, &stops), GR_OK);
    assert_int_equal(stops.n, 63);
    assert_int_equal(set("stop", "<bos>"), GR_OK);
    assert_int_equal(gr_stops_resolve(&o, &hf, tok, N_VOCAB, &stops), GR_OK);
    assert_int_equal(stops.n, 64);
    assert_int_equal(set("stop-token-ids", "203"), GR_OK);
    refused("more than 64 token ids");
    o.ignore_eos = true;
    assert_int_equal(gr_stops_resolve(&o, &hf, tok, N_VOCAB, &stops), GR_OK);
    begin(0);
    assert_int_equal(set("stop-token-ids", "511"), GR_OK);
    assert_int_equal(gr_stops_resolve(&o, &hf, tok, N_VOCAB, &stops), GR_OK);
    assert_int_equal(set("stop-token-ids", "512"), GR_OK);
    refused("the vocabulary has ids 0 to 511");
}

static void test_bad_lists(void **state)
{
    (void)state;
    static const char *const bad[] = {"", "x", "1,", ",1", "1,,2", "1 2", "-1", "1.5", "4194304", "1,2x", "+3", " 3"};
    for (size_t i = 0; i < GR_ARRAY_LEN(bad); i++) {
        struct log_capture cap;
        begin(0);
        log_capture_begin(&cap);
        const enum gr_status st = set("stop-token-ids", bad[i]);
        const char *log = log_capture_end(&cap);
        if (st != GR_EINVAL || log_capture_n_line(log) != 1 || strstr(log, "--stop-token-ids") == NULL) {
            fail_msg("`%s': status %d, log: %s", bad[i], (int)st, log);
        }
    }
    begin(0); /* a source that ranks higher replaces the whole list */
    assert_int_equal(set_from("stop-token-ids", "1,2", GR_FROM_YAML), GR_OK);
    assert_int_equal(set_from("stop-token-ids", "3", GR_FROM_YAML), GR_OK);
    assert_int_equal(o.stop_token_ids.n, 3);
    assert_int_equal(set_from("stop-token-ids", "4", GR_FROM_ENV), GR_OK);
    assert_true(o.stop_token_ids.n == 1 && o.stop_token_ids.id[0] == 4);
}

static int setup(void **state)
{
    (void)state;
    return mini_tokenizer_open(&tok) == GR_OK ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    gr_tokenizer_destroy(tok);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_list),
        cmocka_unit_test(test_mixed_strings),
        cmocka_unit_test(test_limit),
        cmocka_unit_test(test_bad_lists),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
