/* Bodies of requests: what each field becomes, and which field is named where one cannot be. */
#include "orchestrator/http/api_request.h"
#include "common/options/options.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static struct gr_api_request r;
static struct gr_api_error e;

static enum gr_status parse_as(enum gr_api_endpoint endpoint, const char *body, char unknown[GR_API_PARAM_MAX])
{
    return gr_api_request_parse(endpoint, body, strlen(body), unknown, &r, &e);
}

static void taken(enum gr_api_endpoint endpoint, const char *body)
{
    if (parse_as(endpoint, body, NULL) != GR_OK) {
        fail_msg("%s: %s", body, e.message);
    }
}

static void refused(enum gr_api_endpoint endpoint, const char *body, const char *param)
{
    const enum gr_status st = parse_as(endpoint, body, NULL);
    if (st != GR_EINVAL || e.http_status != 400 || strcmp(e.param, param) != 0 || e.message[0] == '\0') {
        fail_msg("%s: status %d, HTTP %d, param `%s', `%s'", body, (int)st, e.http_status, e.param, e.message);
    }
    gr_api_request_finish(&r);
}

static void test_what_is_not_given(void **state)
{
    (void)state;
    taken(GR_API_COMPLETIONS, "{\"prompt\": \"x\", \"n\": null, \"stop\": null, \"logit_bias\": null}");
    assert_int_equal(r.n, 1);
    assert_true(r.max_tokens == GR_API_NOT_GIVEN && r.seed == GR_API_NOT_GIVEN);
    assert_true(r.temperature == 1.0 && r.top_p == 1.0 && r.top_k == 0 && r.n_logprob == -1);
    assert_true(r.add_special && !r.stream && r.n_stop == 0 && r.biased.n == 0);
    gr_api_request_finish(&r);
    taken(GR_API_CHAT, "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}");
    assert_false(r.add_special);
    assert_true(r.max_tokens == GR_API_NOT_GIVEN);
    gr_api_request_finish(&r);
}

static void test_prompts_of_four_forms(void **state)
{
    (void)state;
    taken(GR_API_COMPLETIONS, "{\"prompt\": \"ab\"}");
    assert_int_equal(r.n_prompt, 1);
    assert_int_equal(r.prompt[0].len, 2);
    gr_api_request_finish(&r);
    taken(GR_API_COMPLETIONS, "{\"prompt\": [\"a\", \"\"]}");
    assert_int_equal(r.n_prompt, 2);
    assert_int_equal(r.prompt[1].len, 0);
    gr_api_request_finish(&r);
    taken(GR_API_COMPLETIONS, "{\"prompt\": [5, 6, 7]}");
    assert_int_equal(r.n_prompt, 1);
    assert_true(r.prompt[0].text == NULL && r.prompt[0].n_ids == 3 && r.prompt[0].ids[2] == 7);
    gr_api_request_finish(&r);
    taken(GR_API_COMPLETIONS, "{\"prompt\": [[5], [6, 7]]}");
    assert_int_equal(r.n_prompt, 2);
    assert_int_equal(r.prompt[1].n_ids, 2);
    gr_api_request_finish(&r);
    refused(GR_API_COMPLETIONS, "{}", "prompt");
    refused(GR_API_COMPLETIONS, "{\"prompt\": null}", "prompt");
    refused(GR_API_COMPLETIONS, "{\"prompt\": []}", "prompt");
    refused(GR_API_COMPLETIONS, "{\"prompt\": [[]]}", "prompt");
    refused(GR_API_COMPLETIONS, "{\"prompt\": [5, \"x\"]}", "prompt");
    refused(GR_API_COMPLETIONS, "{\"prompt\": [-1]}", "prompt");
    refused(GR_API_COMPLETIONS, "{\"prompt\": [2147483648]}", "prompt");
    refused(GR_API_COMPLETIONS, "{\"prompt\": {\"a\": 1}}", "prompt");
}

static void test_messages(void **state)
{
    (void)state;
    taken(GR_API_CHAT,
          "{\"messages\": [{\"role\": \"developer\", \"content\": \"a\"}, {\"role\": \"user\", \"content\": "
          "[{\"type\": \"text\", \"text\": \"b\"}, {\"type\": \"text\", \"text\": \"cd\"}], \"name\": \"n\"}]}");
    assert_int_equal(r.n_message, 2);
    assert_int_equal(r.message[0].role, GR_API_SYSTEM);
    assert_string_equal(r.message[1].text, "bcd");
    gr_api_request_finish(&r);
    static const char *const wrong[] = {
        "[]",
        "{}",
        "\"x\"",
        "[7]",
        "[{\"role\": \"tool\", \"content\": \"x\"}]",
        "[{\"role\": \"user\"}]",
        "[{\"role\": \"user\", \"content\": null}]",
        "[{\"content\": \"x\"}]",
        "[{\"role\": \"user\", \"content\": [{\"type\": \"image_url\", \"image_url\": {}}]}]",
        "[{\"role\": \"user\", \"content\": [{\"type\": \"text\"}]}]",
        "[{\"role\": \"assistant\", \"content\": \"x\", \"tool_calls\": [{}]}]"};
    for (size_t i = 0; i < GR_ARRAY_LEN(wrong); i++) {
        char body[256];
        snprintf(body, sizeof(body), "{\"messages\": %s}", wrong[i]);
        refused(GR_API_CHAT, body, "messages");
    }
}

/* Of completions, with a prompt beside it. */
static const char *with(const char *field)
{
    static char body[512];
    snprintf(body, sizeof(body), "{\"prompt\": \"x\", %s}", field);
    return body;
}

static void test_values_out_of_range(void **state)
{
    (void)state;
    static const struct {
        const char *field, *param;
    } cases[] = {
        {"\"n\": 0", "n"},
        {"\"n\": 129", "n"},
        {"\"n\": \"2\"", "n"},
        {"\"n\": 1.0", "n"},
        {"\"max_tokens\": 0", "max_tokens"},
        {"\"max_tokens\": -1", "max_tokens"},
        {"\"max_tokens\": 4, \"min_tokens\": 5", "min_tokens"},
        {"\"temperature\": -0.1", "temperature"},
        {"\"temperature\": 101", "temperature"},
        {"\"temperature\": \"NaN\"", "temperature"},
        {"\"top_p\": 0", "top_p"},
        {"\"top_p\": 1.1", "top_p"},
        {"\"min_p\": 2", "min_p"},
        {"\"top_k\": -2", "top_k"},
        {"\"seed\": 1.5", "seed"},
        {"\"seed\": -9223372036854775808", "seed"},
        {"\"top_p\": 1e-320", "top_p"},
        {"\"frequency_penalty\": 2.1", "frequency_penalty"},
        {"\"presence_penalty\": -2.1", "presence_penalty"},
        {"\"repetition_penalty\": 0", "repetition_penalty"},
        {"\"logprobs\": 6", "logprobs"},
        {"\"logprobs\": true", "logprobs"},
        {"\"stop\": \"\"", "stop"},
        {"\"stop\": [\"a\", 1]", "stop"},
        {"\"stop\": [\"1\",\"2\",\"3\",\"4\",\"5\",\"6\",\"7\",\"8\",\"9\"]", "stop"},
        {"\"stop_token_ids\": [-1]", "stop_token_ids"},
        {"\"stop_token_ids\": 3", "stop_token_ids"},
        {"\"logit_bias\": {\"a\": 1}", "logit_bias"},
        {"\"logit_bias\": {\"-1\": 1}", "logit_bias"},
        {"\"logit_bias\": {\"1\": 101}", "logit_bias"},
        {"\"logit_bias\": {\"1\": \"x\"}", "logit_bias"},
        {"\"logit_bias\": {\"99999999999\": 1}", "logit_bias"},
        {"\"bad_words\": [\"\"]", "bad_words"},
        {"\"stream\": 1", "stream"},
        {"\"stream_options\": {}", "stream_options"},
        {"\"graft_rounds\": true", "graft_rounds"},
        {"\"stream\": true, \"graft_rounds\": 1", "graft_rounds"},
        {"\"stream\": true, \"stream_options\": {\"x\": true}", "stream_options"},
        {"\"best_of\": 2", "best_of"},
        {"\"echo\": true", "echo"},
        {"\"suffix\": \"x\"", "suffix"},
        {"\"num_speculative_tokens\": 64", "num_speculative_tokens"},
        {"\"specpv\": \"x\"", "specpv"},
        {"\"cache_salt\": \"\"", "cache_salt"},
        {"\"foo\": 1", "foo"},
        {"\"messages\": []", "messages"},
        {"\"model\": 3", "model"},
        {"\"prompt_logprobs\": 1", "prompt_logprobs"},
        {"\"max_repetition_pattern_size\": 3", "max_repetition_pattern_size"},
        {"\"min_repetition_pattern_size\": 1", "min_repetition_pattern_size"},
        {"\"repetition_min_count\": 2", "repetition_min_count"},
        {"\"moderation\": null", "moderation"}, /* of chats */
        {"\"response_format\": {\"type\": \"json_object\"}", "response_format"},
    };
    for (size_t i = 0; i < GR_ARRAY_LEN(cases); i++) {
        refused(GR_API_COMPLETIONS, with(cases[i].field), cases[i].param);
    }
}

/* Who is refused is told what would be taken. */
static void test_what_is_done_is_told(void **state)
{
    (void)state;
    static const struct {
        const char *field, *param, *words;
    } cases[] = {
        {"\"n\": 129", "n", "1 to 128"},
        {"\"temperature\": 1e9", "temperature", "0 to 100"},
        {"\"logprobs\": 6", "logprobs", "0 to 5"},
        {"\"num_speculative_tokens\": 64", "num_speculative_tokens", "0 to 63"},
        {"\"specpv\": \"x\"", "specpv", "off, lossy, exact or auto"},
        {"\"echo\": true", "echo", "echo is done as false alone"},
        {"\"suffix\": \"x\"", "suffix", "done as \"\" alone"},
        {"\"length_penalty\": 2", "length_penalty", "1 or 1.0"},
        {"\"response_format\": {\"type\": \"json_object\"}", "response_format", "{\"type\":\"text\"}"},
        {"\"prompt_logprobs\": 1", "prompt_logprobs", "prompt_logprobs is not done: leave it out"},
    };
    for (size_t i = 0; i < GR_ARRAY_LEN(cases); i++) {
        refused(GR_API_COMPLETIONS, with(cases[i].field), cases[i].param);
        if (strstr(e.message, cases[i].words) == NULL) {
            fail_msg("`%s' is not in: %s", cases[i].words, e.message);
        }
    }
    refused(GR_API_CHAT, "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"tool_choice\": \"required\"}",
            "tool_choice");
    assert_non_null(strstr(e.message, "\"none\" or \"auto\""));
}

static void test_values_that_are_taken(void **state)
{
    (void)state;
    static const char *const fields[] = {"\"user\": \"u\", \"service_tier\": {\"any\": 1}",
                                         "\"echo\": false, \"suffix\": \"\", \"best_of\": 1",
                                         "\"n\": 2, \"best_of\": 2",
                                         "\"length_penalty\": 1.0, \"use_beam_search\": false",
                                         "\"max_repetition_pattern_size\": 0, \"repetition_min_count\": 0",
                                         "\"seed\": -9223372036854775807",
                                         "\"response_format\": {\"type\": \"text\"}",
                                         "\"stop\": []",
                                         "\"top_k\": -1",
                                         "\"foo\": 1e-5"};
    for (size_t i = 0; i + 1 < GR_ARRAY_LEN(fields); i++) {
        taken(GR_API_COMPLETIONS, with(fields[i]));
        gr_api_request_finish(&r);
    }
    char unknown[GR_API_PARAM_MAX];
    assert_int_equal(parse_as(GR_API_COMPLETIONS, with(fields[GR_ARRAY_LEN(fields) - 1]), unknown), GR_OK);
    assert_string_equal(unknown, "foo");
    gr_api_request_finish(&r);
    assert_int_equal(parse_as(GR_API_COMPLETIONS, with("\"a\\nb\\u001b[2J\": 1"), unknown), GR_OK);
    assert_string_equal(unknown, "a\\nb\\x1b[2J"); /* no line of its own in the log */
    gr_api_request_finish(&r);
    taken(GR_API_COMPLETIONS,
          with("\"stop\": [\"a\", \"b\"], \"logit_bias\": {\"7\": -100, \"8\": 0.5}, \"logprobs\": 0"));
    assert_true(r.n_stop == 2 && r.biased.n == 2 && r.biased.id[0] == 7 && r.bias.value[0] == -100.0f);
    assert_int_equal(r.n_logprob, 0);
    gr_api_request_finish(&r);
}

static const char *with_number(const char *name, double value)
{
    static char fields[96];
    snprintf(fields, sizeof(fields), "\"max_tokens\": 16777216, \"%s\": %.17g", name, value);
    return strcmp(name, "max_tokens") == 0 ? strstr(fields, ", ") + 2 : fields;
}

/* What the command line takes of a request the endpoint takes, and no more. */
static void test_ranges_of_options(void **state)
{
    (void)state;
    static const char *const others[] = {"seed", "n", "logprobs", "top_k"}; /* have a range of the API's own */
    int n = 0;
    for (int i = 0; i < GR_N_OPTION; i++) {
        const struct gr_option *o = &gr_option_rows[i];
        bool own = o->http == NULL || (o->kind != GR_KIND_INT && o->kind != GR_KIND_NUMBER);
        for (size_t k = 0; !own && k < GR_ARRAY_LEN(others); k++) {
            own = strcmp(o->http, others[k]) == 0;
        }
        if (own) {
            continue;
        }
        const double step = o->kind == GR_KIND_INT ? 1.0 : 0.001;
        taken(GR_API_COMPLETIONS, with(with_number(o->http, o->min)));
        gr_api_request_finish(&r);
        taken(GR_API_COMPLETIONS, with(with_number(o->http, o->max)));
        gr_api_request_finish(&r);
        refused(GR_API_COMPLETIONS, with(with_number(o->http, o->min - step)), o->http);
        refused(GR_API_COMPLETIONS, with(with_number(o->http, o->max + step)), o->http);
        n++;
    }
    assert_true(n >= 8);
}

static void chat_refused(const char *fields, const char *param)
{
    char body[512];
    snprintf(body, sizeof(body), "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], %s}", fields);
    refused(GR_API_CHAT, body, param);
}

static void test_what_makes_sense_together(void **state)
{
    (void)state;
    chat_refused("\"top_logprobs\": 2", "top_logprobs");
    chat_refused("\"continue_final_message\": true", "continue_final_message");
    chat_refused("\"add_generation_prompt\": false", "add_generation_prompt");
    chat_refused("\"add_generation_prompt\": true, \"continue_final_message\": true", "continue_final_message");
    static const char *const either_way[] = {"\"continue_final_message\": true, \"add_generation_prompt\": false",
                                             "\"add_generation_prompt\": false, \"continue_final_message\": true"};
    for (size_t i = 0; i < GR_ARRAY_LEN(either_way); i++) {
        char body[512];
        snprintf(body, sizeof(body), "{\"messages\": [{\"role\": \"assistant\", \"content\": \"x\"}], %s}",
                 either_way[i]);
        taken(GR_API_CHAT, body);
        assert_true(r.go_on);
        gr_api_request_finish(&r);
    }
    chat_refused("\"tools\": [{}]", "tools");
    chat_refused("\"moderation\": {}", "moderation");
    chat_refused("\"chat_template_kwargs\": {\"x\": 1}", "chat_template_kwargs");
    taken(GR_API_CHAT, "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"max_tokens\": 5, "
                       "\"max_completion_tokens\": 6, \"logprobs\": true, \"tools\": [], \"tool_choice\": \"none\", "
                       "\"moderation\": null, \"prompt_cache_options\": {\"any\": 1}}");
    assert_int_equal(r.max_tokens, 6);
    assert_int_equal(r.n_logprob, 0);
    gr_api_request_finish(&r);
    taken(GR_API_CHAT, "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"max_tokens\": 5}");
    assert_int_equal(r.max_tokens, 5);
    gr_api_request_finish(&r);
    refused(GR_API_COMPLETIONS, "{\"prompt\": [\"a\", \"b\"], \"n\": 65}", "n");
}

/* One line that quotes nothing, whatever the body is. */
static void test_bodies_that_are_none(void **state)
{
    (void)state;
    static const char *const bodies[] = {"",
                                         "{",
                                         "[]",
                                         "7",
                                         "null",
                                         "{\"prompt\": \"\xff\"}",
                                         "{\"prompt\": \"\\ud83d\"}",
                                         "{\"prompt\": 1e999}",
                                         "{\"prompt\": \"x\"} x"};
    for (size_t i = 0; i < GR_ARRAY_LEN(bodies); i++) {
        refused(GR_API_COMPLETIONS, bodies[i], "");
    }
    refused(GR_API_COMPLETIONS, " \n", "");
    assert_non_null(strstr(e.message, "empty"));
    char *deep = malloc(200001);
    memset(deep, '[', 200000);
    deep[200000] = '\0';
    refused(GR_API_COMPLETIONS, deep, "");
    free(deep);
}

/* Bodies that are JSON, and would be taken for something else than they say. */
static void test_bodies_that_mislead(void **state)
{
    (void)state;
    static const struct {
        const char *body, *param, *words;
    } bodies[] = {
        {"{\"prompt\": \"a\\u0000\"}", "prompt", "NUL"},
        {"{\"prompt\": \"x\", \"metadata\": {\"a\": [\"\\u0000\"]}}", "metadata", "NUL"},
        {"{\"a\\u0000\": 1}", "", "NUL"},
        {"{\"prompt\": \"x\", \"temperature\": 1.5, \"seed\": 9223372036854775808}", "seed", "2^63 - 1"},
        {"{\"prompt\": \"x\", \"max_tokens\": -99999999999999999999}", "max_tokens", "2^63 - 1"},
        {"{\"prompt\": [18446744073709551616]}", "prompt", "2^63 - 1"},
        {"{\"prompt\": \"x\", \"n\": 1, \"n\": 2}", "n", "twice"},
        {"{\"prompt\": \"x\", \"prompt\" : \"y\"}", "prompt", "twice"},
        {"{\"logit_bias\": {\"5\": 1, \"5\": 2}}", "5", "twice"},
        {"{\"\": 1, \"\": 2}", "", "twice"},
    };
    for (size_t i = 0; i < GR_ARRAY_LEN(bodies); i++) {
        refused(GR_API_COMPLETIONS, bodies[i].body, bodies[i].param);
        if (strstr(e.message, bodies[i].words) == NULL) {
            fail_msg("%s: %s", bodies[i].body, e.message);
        }
    }
}

/* Brackets of a text are none of the body's, also after quotes within it. */
static void test_brackets_in_texts(void **state)
{
    (void)state;
    char body[4096] = "{\"prompt\": \"";
    for (int i = 0; i < 40; i++) {
        strcat(body, "printf(\\\"\\\\033[1m[[{\\\");");
    }
    strcat(body, "\"}");
    assert_int_equal(gr_api_request_parse(GR_API_COMPLETIONS, body, strlen(body), NULL, &r, &e), GR_OK);
    gr_api_request_finish(&r);
    strcpy(body, "{\"user\": \"\\\"\", \"metadata\": ");
    memset(body + strlen(body), '[', 100);
    refused(GR_API_COMPLETIONS, body, "");
    assert_non_null(strstr(e.message, "nested deeper than 32"));
}

static void test_the_error_is_json(void **state)
{
    (void)state;
    gr_api_refuse(&e, 404, "model", "%s", "a \"quote\", \xc3\xa4 and half a character: \xc3");
    e.code = "model_not_found";
    char *text = gr_api_error_json(&e);
    assert_string_equal(text,
                        "{\"error\":{\"message\":\"a \\\"quote\\\", \xc3\xa4 and half a character: \\\\xc3\",\"type\":"
                        "\"not_found_error\",\"param\":\"model\",\"code\":\"model_not_found\"}}");
    free(text);
    /* A name of 63 bytes and more that ends within a character, and one with a line end. */
    const char *const names[] = {
        "a\xf0\x9f\x98\x80\xf0\x9f\x98\x80\xf0\x9f\x98\x80\xf0\x9f\x98\x80\xf0\x9f\x98\x80\xf0\x9f\x98\x80"
        "\xf0\x9f\x98\x80\xf0\x9f\x98\x80\xf0\x9f\x98\x80\xf0\x9f\x98\x80\xf0\x9f\x98\x80\xf0\x9f\x98\x80"
        "\xf0\x9f\x98\x80\xf0\x9f\x98\x80\xf0\x9f\x98\x80\xf0\x9f\x98\x80",
        "a\nb\x1b[2J"};
    for (size_t i = 0; i < GR_ARRAY_LEN(names); i++) {
        gr_api_refuse(&e, 400, names[i], "%.60s", names[i]);
        text = gr_api_error_json(&e);
        assert_non_null(text);
        assert_null(strpbrk(text, "\n\x1b"));
        free(text);
    }
    gr_api_refuse(&e, 500, NULL, "x");
    text = gr_api_error_json(&e);
    assert_string_equal(text, "{\"error\":{\"message\":\"x\",\"type\":\"server_error\",\"param\":null,\"code\":null}}");
    free(text);
}

/* Texts that are borrowed of what is let go would be seen by the sanitizer. */
static void test_what_stays_of_it(void **state)
{
    (void)state;
    taken(GR_API_CHAT,
          "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"x\"}]}],"
          "\"metadata\": {\"a\": \"b\"}, \"stop\": [\"one\", \"two\"], \"cache_salt\": \"salt\", \"model\": \"m\","
          "\"bad_words\": [\"w\"], \"stream\": true}");
    gr_api_request_trim(&r);
    assert_true(r.n_message == 0 && r.message == NULL && r.n_bad_word == 0 && r.model == NULL && r.stream);
    assert_int_equal(json_object_size(r.body), 2);
    assert_int_equal(r.n_stop, 2);
    assert_string_equal(r.stop[0], "one");
    assert_string_equal(r.stop[1], "two");
    assert_string_equal(r.cache_salt, "salt");
    gr_api_request_finish(&r);
    taken(GR_API_COMPLETIONS, "{\"prompt\": [[1, 2], [3]]}");
    gr_api_request_trim(&r);
    assert_true(r.n_prompt == 0 && r.n_stop == 0 && json_object_size(r.body) == 0);
    gr_api_request_finish(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_not_given),
        cmocka_unit_test(test_prompts_of_four_forms),
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_values_out_of_range),
        cmocka_unit_test(test_what_is_done_is_told),
        cmocka_unit_test(test_values_that_are_taken),
        cmocka_unit_test(test_ranges_of_options),
        cmocka_unit_test(test_what_makes_sense_together),
        cmocka_unit_test(test_bodies_that_are_none),
        cmocka_unit_test(test_bodies_that_mislead),
        cmocka_unit_test(test_brackets_in_texts),
        cmocka_unit_test(test_what_stays_of_it),
        cmocka_unit_test(test_the_error_is_json),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
