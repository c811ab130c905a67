/* Bans, biases and penalties by their options: what they become, and the line about each that cannot be. */
#include "orchestrator/cli/adjust_resolve.h"
#include "tests/unit/log_capture.h"
#include "tests/unit/mini_tokenizer_open.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <cmocka.h>

#define N_VOCAB 302

static struct gr_tokenizer *tok;
static struct gr_options o;
static struct gr_adjust a;

static void begin(void)
{
    gr_options_default(&o, GR_CMD_RUN);
}

static enum gr_status set(const char *name, const char *value)
{
    char what[64];
    snprintf(what, sizeof(what), "--%s", name);
    return gr_option_set(&o.values, gr_option_find(&gr_option_table, GR_CMD_RUN, name, strlen(name)), what, value,
                         GR_FROM_CLI);
}

static void resolved(void)
{
    assert_int_equal(gr_adjust_resolve(&o, tok, N_VOCAB, &a), GR_OK);
    assert_null(gr_adjust_wrong(&a, 0, N_VOCAB));
}

static void refused_with(const struct gr_tokenizer *t, const char *word)
{
    struct log_capture cap;
    log_capture_begin(&cap);
    const enum gr_status st = gr_adjust_resolve(&o, t, N_VOCAB, &a);
    const char *log = log_capture_end(&cap);
    if (st != GR_EINVAL || log_capture_n_line(log) != 1 || strstr(log, word) == NULL) {
        fail_msg("status %d, `%s' is not in: %s", (int)st, word, log);
    }
}

static void refused(const char *word)
{
    refused_with(tok, word);
}

static void test_nothing_is_asked_for(void **state)
{
    (void)state;
    begin();
    resolved();
    assert_true(gr_adjust_is_off(&a));
    assert_int_equal(set("repetition-penalty", "1"), GR_OK);
    resolved();
    assert_true(a.repetition == 0.0f); /* it is off, and takes nothing on the wire */
}

static void test_numbers(void **state)
{
    (void)state;
    static const struct {
        const char *name, *good, *bad[4];
    } cases[] = {
        {"repetition-penalty", "1.3", {"0", "10.1", "nan", "-1"}},
        {"frequency-penalty", "-2", {"2.1", "-2.1", "inf", "x"}},
        {"presence-penalty", "2", {"2.1", "-2.1", "nan", ""}},
        {"min-tokens", "7", {"-1", "1.5", "x", ""}},
        {"logit-bias", "7=-1.5,9=100", {"7", "7=101", "7=nan", "x=1"}},
        {"logit-bias", "7=ban", {"7=bans", "=1", "7=", "-1=1"}},
        {"logit-bias", "7=-100", {"7=-inf", "7= 1", " 7=1", "7=inf"}},
        {"min-tokens", "8", {" 8", "8 ", "\t8", ""}},
    };
    for (size_t i = 0; i < GR_ARRAY_LEN(cases); i++) {
        begin();
        assert_int_equal(set(cases[i].name, cases[i].good), GR_OK);
        for (size_t k = 0; k < GR_ARRAY_LEN(cases[i].bad); k++) {
            struct log_capture cap;
            log_capture_begin(&cap);
            const enum gr_status st = set(cases[i].name, cases[i].bad[k]);
            const char *log = log_capture_end(&cap);
            if (st != GR_EINVAL || log_capture_n_line(log) != 1 || strstr(log, cases[i].name) == NULL) {
                fail_msg("--%s %s: status %d, log: %s", cases[i].name, cases[i].bad[k], (int)st, log);
            }
        }
    }
}

static void test_biases(void **state)
{
    (void)state;
    begin();
    assert_int_equal(set("logit-bias", "7=-1.5,9=ban,301=0.1,11=ban"), GR_OK);
    resolved();
    assert_true(a.biased.n == 2 && a.biased.id[0] == 7 && a.biased.id[1] == 301);
    assert_true(a.bias.n == 2 && a.bias.value[0] == -1.5f && a.bias.value[1] == 0.1f);
    assert_true(a.banned.n == 2 && a.banned.id[0] == 9 && a.banned.id[1] == 11);
    assert_int_equal(set("logit-bias", "302=1"), GR_OK);
    refused("--logit-bias: 302 is no token id");
    assert_int_equal(set("logit-bias", "7=1,7=2"), GR_OK);
    refused("id 7 is given twice");
    assert_int_equal(set("logit-bias", "7=ban,7=2"), GR_OK);
    refused("id 7 is given twice");
}

/* Pitfall H5: both spellings of a word are banned, though they have not as many tokens. */
static void test_bad_words(void **state)
{
    (void)state;
    begin();
    assert_int_equal(set("bad-words", "abc"), GR_OK);
    assert_int_equal(set("bad-words", " ba"), GR_OK);
    resolved();
    static const int32_t entry[] = {2, ' ', 257, 2, 'b', 'a', 3, ' ', 'b', 'a'};
    assert_true(a.banned.n == 1 && a.banned.id[0] == 257);
    assert_int_equal(a.bad.n, GR_ARRAY_LEN(entry));
    assert_memory_equal(a.bad.entry, entry, sizeof(entry));
}

static void test_bad_words_that_cannot_be(void **state)
{
    (void)state;
    char word[400];
    begin();
    assert_int_equal(set("bad-words", ""), GR_OK);
    refused("0 bytes");
    begin();
    assert_int_equal(set("bad-words", "   "), GR_OK);
    refused("0 bytes");
    begin();
    memset(word, 'x', sizeof(word) - 1);
    word[sizeof(word) - 1] = '\0';
    assert_int_equal(set("bad-words", word), GR_OK);
    refused("399 bytes");
    begin();
    assert_int_equal(set("bad-words", word + sizeof(word) - 1 - 33), GR_OK);
    refused("33 tokens");
    begin();
    assert_int_equal(set("bad-words", word + sizeof(word) - 1 - 32), GR_OK);
    refused("33 tokens"); /* with its blank */
    begin();
    assert_int_equal(set("bad-words", "x"), GR_OK);
    refused_with(NULL, "no tokenizer");
    begin();
    for (int i = 0; i < 63; i++) { /* 2 * 31 entries with the lengths, each its own */
        static char many[63][32];
        snprintf(many[i], sizeof(many[i]), "%c%c%.*s", 'A' + i / 26, 'A' + i % 26, 13, word);
        assert_int_equal(set("bad-words", many[i]), GR_OK);
    }
    refused("more than 1024 ids");
}

/* Values of a file are told by its line, and a file that does not fit is no bad value. */
static void test_where_it_is_wrong(void **state)
{
    (void)state;
    struct log_capture cap;
    begin();
    assert_int_equal(set("bad-words", "a\xff"), GR_OK);
    refused("' is not UTF-8");
    o.config = "graft.yaml";
    o.values.source[GR_OPTION_bad_words] = GR_FROM_YAML;
    o.values.line[GR_OPTION_bad_words] = 7;
    refused("graft.yaml:7: session.bad_words: `a");
    o.values.source[GR_OPTION_bad_words] = GR_FROM_ENV;
    refused("GRAFT_BAD_WORDS: `a");
    begin();
    assert_int_equal(set("bad-words", "abc"), GR_OK);
    o.model = "models/small";
    log_capture_begin(&cap);
    assert_int_equal(gr_adjust_resolve(&o, tok, 257, &a), GR_EMISMATCH);
    assert_non_null(
        strstr(log_capture_end(&cap), "models/small: the tokenizer spells `abc' with id 257, and the model"));
}

static void test_least_length(void **state)
{
    (void)state;
    begin();
    assert_int_equal(set("max-tokens", "5"), GR_OK);
    assert_int_equal(set("min-tokens", "5"), GR_OK);
    resolved();
    assert_int_equal(set("min-tokens", "6"), GR_OK);
    refused("--min-tokens 6 is more than --max-tokens 5");
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
        cmocka_unit_test(test_nothing_is_asked_for),
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_biases),
        cmocka_unit_test(test_bad_words),
        cmocka_unit_test(test_bad_words_that_cannot_be),
        cmocka_unit_test(test_where_it_is_wrong),
        cmocka_unit_test(test_least_length),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
