/* An answer of an earlier process that goes on here, a client that follows it, and one that stops it: what is told is
 * what the journal has. Of a new one: what its client hears when the desk refuses it. */
#include "orchestrator/http/front.h"
#include "orchestrator/http/job.h"
#include "orchestrator/http/tell.h"
#include "tests/quiet_log.h"
#include "tests/unit/mini_tokenizer_open.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define SESSION 0xa1
#define CLIENT 7

static struct gr_served served = {.name = "model", .fingerprint = 1}; /* its tokenizer: id = byte */
static int32_t ids[] = {'a', 'b', 'x', 'y', 'z'};

static const char note[] = "{\"version\":1,\"chat\":false,\"id\":\"cmpl-1\",\"created\":5,\"model\":\"model\","
                           "\"tokenizer\":1,\"stream\":true,\"usage\":false,\"rounds\":false,\"resumes\":true,"
                           "\"max_tokens\":40,\"min_tokens\":0,\"logprobs\":-1,\"stop\":[],\"stop_ids\":[],"
                           "\"value_rows\":0,\"spec_tokens\":0,\"owner\":"
                           "\"0100000000000000000000000000000000000000000000000000000000000000\"}";

static const struct gr_kept_answer past = {.session = SESSION,
                                           .note = note,
                                           .in_turn = true,
                                           .epoch = 3,
                                           .turn = 1,
                                           .turn_len = 2,
                                           .ids = ids,
                                           .n_ids = GR_ARRAY_LEN(ids)};

/* What the front has said to the desk. */
static struct {
    int n;
    struct gr_msg last;
} said;

static enum gr_status say(void *ctx, uint32_t client, const struct gr_msg *m, uint64_t now_ns)
{
    (void)ctx, (void)now_ns;
    assert_int_equal(client, CLIENT);
    said.n++;
    said.last = *m;
    return GR_OK;
}

static void leave(void *ctx, uint32_t client)
{
    (void)ctx, (void)client;
    fail();
}

static const char *fleet_name_is = "the fleet's";

static const char *fleet_name(void *ctx, const struct gr_served *m)
{
    (void)ctx;
    assert_ptr_equal(m, &served);
    return fleet_name_is;
}

static bool adopt(void *ctx, uint32_t client, uint64_t session)
{
    (void)ctx;
    return client == CLIENT && session == SESSION;
}

/* The same, over: without a token. */
static bool find_past(void *ctx, uint64_t session, struct gr_kept_answer *out)
{
    *out = past;
    out->in_turn = false;
    out->n_ids = out->turn_len;
    out->finish = *(const enum gr_finish *)ctx;
    out->error = "why";
    return session == SESSION;
}

static struct gr_front *make_over(const enum gr_finish *how)
{
    struct gr_front_config c = {.ctx = (void *)(uintptr_t)how, .find_past = find_past, .first_client = CLIENT};
    struct gr_kept_answer a;
    struct gr_front *f = NULL;
    c.grace_ns = 1000;
    c.served = &served;
    c.n_served = 1;
    assert_true(find_past(c.ctx, SESSION, &a));
    assert_int_equal(gr_front_create(&c, &f), GR_OK);
    gr_front_restore(f, &a, 1);
    return f;
}

static struct gr_front *make(void)
{
    const struct gr_front_config c = {.say = say,
                                      .leave = leave,
                                      .adopt = adopt,
                                      .first_client = CLIENT,
                                      .grace_ns = 1000,
                                      .served = &served,
                                      .n_served = 1,
                                      .fleet_name = fleet_name};
    struct gr_front *f = NULL;
    said.n = 0;
    assert_int_equal(gr_front_create(&c, &f), GR_OK);
    gr_front_restore(f, &past, 1);
    assert_int_equal(gr_front_n_job(f), 1);
    return f;
}

static void nobody(void *ctx)
{
    (void)ctx;
}

/* Somebody comes back to it; stops: to end it. */
static struct gr_stream *come_back(struct gr_front *f, bool stops)
{
    struct gr_return r = {.owner = {{1}}, .session = SESSION, .stops = stops};
    assert_int_equal(gr_stream_create(nobody, NULL, &r.stream), GR_OK);
    gr_front_post_return(f, &r);
    (void)gr_front_run(f, 2);
    return r.stream;
}

/* What has come since. Returns whether the response has ended. */
static bool read_more(struct gr_stream *s, char out[4096])
{
    bool ended = false, cut = false;
    const size_t n = gr_stream_read(s, out, 4095, &ended, &cut);
    out[n] = '\0';
    assert_false(cut);
    if (n > 0) {
        char none[1];
        assert_int_equal(gr_stream_read(s, none, sizeof(none), &ended, &cut), 0);
    }
    return ended;
}

static void finish(struct gr_front *f, enum gr_finish how, bool cut)
{
    const struct gr_msg m = {.type = GR_MSG_FINISHED,
                             .session = SESSION,
                             .finished = {.epoch = 3, .finish = how, .n_token = 5, .cut = cut, .text = "why"}};
    gr_front_on_msg(f, CLIENT, &m, 3);
    (void)gr_front_run(f, 3);
}

static void test_a_stop_is_told_when_it_is_durable(void **state)
{
    (void)state;
    char text[4096];
    struct gr_front *f = make();
    struct gr_stream *reader = come_back(f, false);
    assert_false(read_more(reader, text));
    assert_non_null(strstr(text, "\"xyz\""));
    struct gr_stream *who = come_back(f, true);
    assert_true(read_more(who, text));
    assert_non_null(strstr(text, "\"stopped\":true"));
    assert_true(said.n == 1 && said.last.type == GR_MSG_TRUNCATE && said.last.truncate.keep_len == 5);
    finish(f, GR_FINISH_LENGTH, false); /* which the turn had come to meanwhile: the stop is not written yet */
    assert_false(read_more(reader, text));
    assert_string_equal(text, "");
    finish(f, GR_FINISH_STOP, true);
    assert_true(read_more(reader, text));
    assert_non_null(strstr(text, "\"finish_reason\":\"stop\""));
    assert_non_null(strstr(text, "data: [DONE]"));
    gr_stream_drop(reader);
    gr_stream_drop(who);
    gr_front_destroy(f);
}

static void test_a_stop_that_was_not_written(void **state)
{
    (void)state;
    char text[4096];
    struct gr_front *f = make();
    struct gr_stream *reader = come_back(f, false);
    struct gr_stream *who = come_back(f, true);
    (void)read_more(reader, text);
    finish(f, GR_FINISH_ERROR, true);
    assert_true(read_more(reader, text));
    assert_null(strstr(text, "stop"));
    assert_non_null(strstr(text, "\"error\":{\"message\":\"why\""));
    gr_stream_drop(reader);
    gr_stream_drop(who);
    gr_front_destroy(f);
}

/* Without a stop the first end is the end. */
static void test_an_end(void **state)
{
    (void)state;
    char text[4096];
    struct gr_front *f = make();
    struct gr_stream *reader = come_back(f, false);
    finish(f, GR_FINISH_LENGTH, false);
    assert_true(read_more(reader, text));
    assert_non_null(strstr(text, "\"finish_reason\":\"length\""));
    gr_stream_drop(reader);
    gr_front_destroy(f);
}

/* Who comes back to what has failed hears the same whenever he asks, and that he need not ask again. */
static void test_a_failure_is_final(void **state)
{
    (void)state;
    static const struct {
        enum gr_finish how;
        int http_status;
    } failures[] = {{GR_FINISH_ERROR, 500}, {GR_FINISH_TIMEOUT, 408}, {GR_FINISH_UNSERVED, 503}};
    for (size_t i = 0; i < GR_ARRAY_LEN(failures); i++) {
        char text[4096];
        struct gr_stream_head head;
        struct gr_front *f = make_over(&failures[i].how);
        struct gr_stream *reader = come_back(f, false);
        assert_int_equal(gr_stream_head(reader, &head), failures[i].http_status);
        assert_true(head.is_final);
        (void)read_more(reader, text);
        assert_non_null(strstr(text, "\"message\":\"why\""));
        gr_stream_drop(reader);
        gr_front_destroy(f);
    }
}

/* The desk refuses a turn: whose fault that is shows in the status. */
static struct {
    struct gr_front *f;
    enum gr_status why;
} refusing;

static enum gr_status refuse(void *ctx, uint32_t client, const struct gr_msg *m, uint64_t now_ns)
{
    (void)ctx;
    const struct gr_msg error = {.type = GR_MSG_ERROR, .error = {.code = (uint32_t)-refusing.why, .text = "why"}};
    assert_int_equal(m->type, GR_MSG_OPEN);
    assert_string_equal(m->open.model, fleet_name_is);
    gr_front_on_msg(refusing.f, client, &error, now_ns);
    return GR_OK;
}

static struct gr_stream *ask(struct gr_front *f)
{
    struct gr_stream *s = NULL;
    assert_int_equal(gr_stream_create(nobody, NULL, &s), GR_OK);
    struct gr_job *j = gr_job_create(s);
    assert_non_null(j);
    j->model = &served;
    j->ask = (struct gr_ask){.prompt = calloc(1, sizeof(*j->ask.prompt)), .n_prompt = 1, .n_each = 1};
    assert_non_null(j->ask.prompt);
    gr_front_post(f, j);
    (void)gr_front_run(f, 2);
    return s;
}

static void test_a_refusal(void **state)
{
    (void)state;
    static const struct {
        enum gr_status why;
        int http_status;
    } refusals[] = {{GR_EINVAL, 400}, {GR_AGAIN, 429},  {GR_EDRAINING, 503},
                    {GR_EIO, 503},    {GR_ENOMEM, 503}, {GR_ENOTFOUND, 503}};
    const struct gr_front_config c = {
        .say = refuse, .fleet_name = fleet_name, .first_client = CLIENT, .grace_ns = 1000};
    assert_int_equal(gr_front_create(&c, &refusing.f), GR_OK);
    for (size_t i = 0; i < GR_ARRAY_LEN(refusals); i++) {
        char text[4096];
        struct gr_stream_head head;
        refusing.why = refusals[i].why;
        struct gr_stream *reader = ask(refusing.f);
        assert_int_equal(gr_stream_head(reader, &head), refusals[i].http_status);
        (void)read_more(reader, text);
        assert_non_null(strstr(text, refusing.why == GR_ENOTFOUND ? "has joined yet" : "\"message\":\"why\""));
        gr_stream_drop(reader);
    }
    gr_front_destroy(refusing.f);
}

/* Targets are there, and none has its tokenizer: the desk is not asked. */
static void test_foreign_targets(void **state)
{
    (void)state;
    char text[4096];
    struct gr_stream_head head;
    const struct gr_front_config c = {.fleet_name = fleet_name, .first_client = CLIENT, .grace_ns = 1000};
    assert_int_equal(gr_front_create(&c, &refusing.f), GR_OK);
    fleet_name_is = NULL;
    struct gr_stream *reader = ask(refusing.f);
    fleet_name_is = "the fleet's";
    assert_int_equal(gr_stream_head(reader, &head), 503);
    (void)read_more(reader, text);
    assert_non_null(strstr(text, "tokenizer"));
    gr_stream_drop(reader);
    gr_front_destroy(refusing.f);
}

/* Those who lost a server come back one by one: each is told a time of its own. */
static void test_when_to_come_back(void **state)
{
    (void)state;
    enum { N = 12 };
    char text[4096];
    unsigned ms[N], least = UINT32_MAX, most = 0;
    struct gr_front *f = make();
    for (int i = 0; i < N; i++) {
        struct gr_stream *reader = come_back(f, false);
        (void)read_more(reader, text);
        assert_int_equal(sscanf(text, "retry: %u\nid: 00000000000000a1-3-3\ndata: {", &ms[i]), 1);
        assert_null(strstr(text + 1, "retry"));
        assert_true(ms[i] >= GR_TELL_RETRY_MS && ms[i] <= GR_TELL_RETRY_MS + GR_TELL_RETRY_MS / 2);
        least = GR_MIN(least, ms[i]);
        most = GR_MAX(most, ms[i]);
        gr_stream_drop(reader);
    }
    assert_true(least < most);
    gr_front_destroy(f);
}

static void left(void *ctx, uint32_t client)
{
    (void)ctx, (void)client;
}

/* The desk looks at the clock later than the step that asks it. */
static enum gr_status open_at_once(void *ctx, uint32_t client, const struct gr_msg *m, uint64_t now_ns)
{
    (void)ctx;
    const struct gr_msg opened = {.type = GR_MSG_OPENED, .session = SESSION, .opened = {.epoch = 1, .turn = 1}};
    assert_int_equal(m->type, GR_MSG_OPEN);
    gr_front_on_msg(refusing.f, client, &opened, now_ns + 1);
    return GR_OK;
}

static struct gr_job *chat_of(struct gr_stream *s)
{
    struct gr_job *j = gr_job_create(s);
    assert_non_null(j);
    j->model = &served;
    j->request.endpoint = GR_API_CHAT;
    j->request.stream = true;
    j->ask = (struct gr_ask){.prompt = calloc(1, sizeof(*j->ask.prompt)), .n_prompt = 1, .n_each = 1};
    assert_non_null(j->ask.prompt);
    j->ask.prompt[0].max_tokens = 4;
    j->reply = (struct gr_reply){.endpoint = GR_API_CHAT, .model = served.name, .tok = served.tok};
    return j;
}

/* A comment keeps a stream alive that is silent, and none comes before. */
static void test_pings_after_silence(void **state)
{
    (void)state;
    char text[4096];
    struct gr_stream *reader = NULL;
    const struct gr_front_config c = {
        .say = open_at_once, .leave = left, .fleet_name = fleet_name, .first_client = CLIENT, .grace_ns = 1000};
    assert_int_equal(gr_front_create(&c, &refusing.f), GR_OK);
    assert_int_equal(gr_stream_create(nobody, NULL, &reader), GR_OK);
    gr_front_post(refusing.f, chat_of(reader));
    (void)gr_front_run(refusing.f, 2);
    assert_false(read_more(reader, text));
    assert_non_null(strstr(text, "\"role\":\"assistant\""));
    assert_null(strstr(text, ": ping"));
    (void)gr_front_run(refusing.f, 2 + GR_TELL_PING_NS);
    assert_false(read_more(reader, text));
    assert_string_equal(text, "");
    (void)gr_front_run(refusing.f, 3 + GR_TELL_PING_NS);
    assert_false(read_more(reader, text));
    assert_string_equal(text, ": ping\n");
    gr_stream_drop(reader);
    gr_front_destroy(refusing.f);
}

static int setup(void **state)
{
    (void)state;
    return mini_tokenizer_open(&served.tok) == GR_OK ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    gr_tokenizer_destroy(served.tok);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_a_stop_is_told_when_it_is_durable),
                                       cmocka_unit_test(test_a_stop_that_was_not_written),
                                       cmocka_unit_test(test_an_end),
                                       cmocka_unit_test(test_a_failure_is_final),
                                       cmocka_unit_test(test_a_refusal),
                                       cmocka_unit_test(test_foreign_targets),
                                       cmocka_unit_test(test_when_to_come_back),
                                       cmocka_unit_test(test_pings_after_silence)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
