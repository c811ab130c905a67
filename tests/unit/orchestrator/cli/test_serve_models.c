/* --model [NAME=]PATH of `graft serve': which models are served, under which names, and what is refused. */
#include "orchestrator/cli/serve_models.h"
#include "tests/unit/log_capture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

static char longest[128 + 2]; /* a name as long as one may be, then "=b" */

static struct gr_options o;
static struct gr_serve_models m;

static enum gr_status set(const char *name, const char *value)
{
    char what[64];
    snprintf(what, sizeof(what), "--%s", name);
    return gr_option_set(&o.values, gr_option_find(&gr_option_table, GR_CMD_SERVE, name, strlen(name)), what, value,
                         GR_FROM_CLI);
}

static void begin(const char *const words[])
{
    gr_options_default(&o, GR_CMD_SERVE);
    for (int i = 0; words[i] != NULL; i++) {
        assert_int_equal(set("model", words[i]), GR_OK);
    }
}

static void refused_now(const char *word)
{
    struct log_capture cap;
    log_capture_begin(&cap);
    const enum gr_status st = gr_serve_models_read(&o, &m);
    const char *log = log_capture_end(&cap);
    if (st != GR_EINVAL || log_capture_n_line(log) != 1 || strstr(log, word) == NULL) {
        fail_msg("`%s' is wanted: status %d, %s", word, st, log);
    }
}

#define BEGIN(...) begin((const char *const[]){__VA_ARGS__, NULL})

static void test_one(void **state)
{
    (void)state;
    static const struct {
        const char *word, *name, *path;
    } all[] = {
        {"/a/b", "", "/a/b"},
        {"b", "", "b"},
        {"large=/a/b", "large", "/a/b"},
        {"org/large=b", "org/large", "b"},
        {"large=b=c", "large", "b=c"},
        {"/a/b=c", "", "/a/b=c"}, /* a path by its beginning */
        {"./a=b", "", "./a=b"},
        {"../a=b", "", "../a=b"},
    };
    for (size_t i = 0; i < GR_ARRAY_LEN(all); i++) {
        BEGIN(all[i].word);
        assert_int_equal(gr_serve_models_read(&o, &m), GR_OK);
        assert_int_equal(m.n, 1);
        assert_string_equal(m.model[0].name, all[i].name);
        assert_string_equal(m.model[0].path, all[i].path);
        assert_string_equal(o.model, all[i].path); /* what workers are started with */
        assert_true(gr_option_from_cli(&o, GR_OPTION_model));
        assert_string_equal(o.served_model_name != NULL ? o.served_model_name : "", all[i].name);
    }
    memset(longest, 'a', 127);
    memcpy(longest + 127, "=b", 3);
    BEGIN(longest);
    assert_int_equal(gr_serve_models_read(&o, &m), GR_OK);
    assert_int_equal(strlen(m.model[0].name), 127);
    BEGIN("b");
    assert_int_equal(set("served-model-name", "large"), GR_OK);
    assert_int_equal(gr_serve_models_read(&o, &m), GR_OK);
    assert_string_equal(m.model[0].name, "large");
    gr_options_default(&o, GR_CMD_SERVE);
    assert_int_equal(gr_serve_models_read(&o, &m), GR_OK);
    assert_int_equal(m.n, 0);
    assert_null(o.model);
}

/* Each has a name, and none of them is the workers'. */
static void test_several(void **state)
{
    (void)state;
    BEGIN("/x/large", "small=/x/other", "/x/last");
    assert_int_equal(gr_serve_models_read(&o, &m), GR_OK);
    assert_int_equal(m.n, 3);
    assert_string_equal(m.model[0].name, "large");
    assert_string_equal(m.model[1].name, "small");
    assert_string_equal(m.model[1].path, "/x/other");
    assert_string_equal(m.model[2].name, "last");
    assert_null(o.model);
    assert_null(o.served_model_name);
}

static void test_what_is_refused(void **state)
{
    (void)state;
    BEGIN("=/x");
    refused_now("NAME is empty");
    BEGIN("large=");
    refused_now("PATH is empty");
    memset(longest, 'a', 128);
    memcpy(longest + 128, "=", 2);
    BEGIN(longest);
    refused_now("1 to 127 bytes");
    BEGIN("\xff=b");
    refused_now("UTF-8");
    BEGIN("a=/x", "a=/y");
    refused_now("--model /x and --model /y are both called `a'");
    BEGIN("/x/a", "/y/a");
    refused_now("--model NAME=PATH");
    BEGIN("a=/x");
    assert_int_equal(set("served-model-name", "b"), GR_OK);
    refused_now("--model a=/x has a name, and --served-model-name b");
    BEGIN("a=/x", "/y");
    assert_int_equal(set("served-model-name", "b"), GR_OK);
    refused_now("--served-model-name b names one model, and there are 2");
    BEGIN("a=/x", "/y");
    assert_int_equal(set("chat-template", "chatml"), GR_OK);
    refused_now("--chat-template chatml is for one model");
    BEGIN("a=/x", "/y");
    assert_int_equal(set("spawn", "true"), GR_OK);
    refused_now("start a graft-target --served-model-name NAME for each");
}

static void test_how_many(void **state)
{
    (void)state;
    struct log_capture cap;
    gr_options_default(&o, GR_CMD_SERVE);
    for (int i = 0; i < GR_SERVED_MODEL_MAX; i++) {
        assert_int_equal(set("model", "x"), GR_OK);
    }
    log_capture_begin(&cap);
    assert_int_equal(set("model", "x"), GR_EINVAL);
    const char *log = log_capture_end(&cap);
    assert_int_equal(log_capture_n_line(log), 1);
    assert_non_null(strstr(log, "--model"));
    assert_non_null(strstr(log, "16"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one),
        cmocka_unit_test(test_several),
        cmocka_unit_test(test_what_is_refused),
        cmocka_unit_test(test_how_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
