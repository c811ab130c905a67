/* Which chat template is taken, and what is refused in one line. */
#include "orchestrator/cli/chat_setup.h"
#include "orchestrator/cli/stops.h"
#include "tests/unit/log_capture.h"
#include "tests/unit/mini_tokenizer_open.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <cmocka.h>

static char dir[64], file[96];
static struct gr_options o;
static struct gr_tokenizer *tok;

static int begin(void **state)
{
    (void)state;
    snprintf(dir, sizeof(dir), "/tmp/graft-setup-XXXXXX");
    return mini_tokenizer_open(&tok) == GR_OK && mkdtemp(dir) != NULL ? 0 : -1;
}

static int end(void **state)
{
    (void)state;
    gr_tokenizer_destroy(tok);
    return remove(file) == 0 ? rmdir(dir) : -1;
}

static void say(const char *json)
{
    snprintf(file, sizeof(file), "%s/tokenizer_config.json", dir);
    FILE *f = fopen(file, "we");
    assert_non_null(f);
    assert_true(fputs(json, f) >= 0 && fclose(f) == 0);
    gr_options_default(&o, GR_CMD_RUN);
    o.model = dir;
}

static void set(const char *name, const char *value)
{
    char what[64];
    snprintf(what, sizeof(what), "--%s", name);
    assert_int_equal(gr_option_set(&o.values, gr_option_find(&gr_option_table, GR_CMD_RUN, name, strlen(name)), what,
                                   value, GR_FROM_CLI),
                     GR_OK);
}

static void refused(enum gr_status status, const char *word, const char *other)
{
    struct gr_chat_setup s;
    struct log_capture cap;
    log_capture_begin(&cap);
    assert_int_equal(gr_chat_setup_open(&o, NULL, tok, &s), status);
    const char *log = log_capture_end(&cap);
    if (log_capture_n_line(log) != 1 || strstr(log, word) == NULL || strstr(log, other) == NULL) {
        fail_msg("`%s', `%s': %s", word, other, log);
    }
}

static void test_refused(void **state)
{
    (void)state;
    say("{}");
    refused(GR_ENOTFOUND, "has no chat template", "--chat-template NAME");
    say("{\"chat_template\":\"{{ mine }}\"}");
    refused(GR_EUNSUPPORTED, "tokenizer_config.json, fingerprint", "--chat-template NAME overrides");
    refused(GR_EUNSUPPORTED, "chatml, ", "zephyr");
    set("chat-template", "vicuna");
    refused(GR_EINVAL, "--chat-template vicuna", "mistral-v3-tekken, ");
    set("chat-template", "zephyr");
    set("chat-date", "today");
    refused(GR_EINVAL, "--chat-date", "zephyr tells no date");
    say("{}");
    set("chat-template", "llama3");
    set("chat-thinking", "off");
    refused(GR_EINVAL, "--chat-thinking", "llama3");
}

static void test_taken(void **state)
{
    (void)state;
    struct gr_chat_setup s;
    struct gr_stop_ids stops = {.n = 1, .id = {7}};
    struct log_capture cap;
    say("{\"chat_template\":\"{{ mine }}\",\"bos_token\":\"<b>\",\"eos_token\":\"<bos>\"}");
    set("chat-template", "llama2");
    assert_int_equal(gr_chat_setup_open(&o, NULL, tok, &s), GR_OK);
    assert_string_equal(gr_chat_name(s.chat.form), "llama2");
    assert_string_equal(s.chat.bos, "<b>");
    assert_int_equal(gr_stops_add_chat(&s.chat, tok, &stops), GR_OK);
    assert_int_equal(stops.n, 2);
    assert_int_equal(stops.id[1], 300);
    gr_chat_setup_close(&s);

    set("chat-template", "llama3.1");
    set("chat-date", "01 Jan 2030");
    log_capture_begin(&cap);
    assert_int_equal(gr_chat_setup_open(&o, NULL, tok, &s), GR_OK);
    assert_non_null(strstr(log_capture_end(&cap), "no token <|eot_id|>"));
    assert_string_equal(s.chat.date, "01 Jan 2030");
    assert_int_equal(gr_stops_add_chat(&s.chat, tok, &stops), GR_OK);
    assert_int_equal(stops.n, 2);
    gr_chat_setup_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_refused, begin, end),
        cmocka_unit_test_setup_teardown(test_taken, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
