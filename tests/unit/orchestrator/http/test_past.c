/* What is noted of an answer, and the job that is made of it: the same note, the same text from any token on, and no
 * job of what is no note. */
#include "orchestrator/http/past.h"
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

static struct gr_served served = {.name = "model", .fingerprint = 0xfedcba9876543210}; /* its tokenizer: id = byte */
static int32_t ids[] = {'a', 'b', 'x', 0xc3, 0xa9, 'y', 's', 't'};

#define OWNER "0100000000000000000000000000000000000000000000000000000000000000"
#define DIGEST "0200000000000000000000000000000000000000000000000000000000000000"
#define FINGERPRINT "-81985529216486896"
#define REST                                                                                                \
    "\"chat\":true,\"id\":\"chatcmpl-1\",\"created\":5,\"model\":\"model\",\"tokenizer\":" FINGERPRINT      \
    ",\"stream\":true,\"usage\":true,\"rounds\":false,\"resumes\":true,\"max_tokens\":40,\"min_tokens\":0," \
    "\"logprobs\":1,\"stop\":[\"stop\"],\"stop_ids\":[7],\"value_rows\":2,\"spec_tokens\":8,\"owner\":\"" OWNER "\""

static const char note[] = "{\"version\":1," REST ",\"key\":\"" DIGEST "\",\"body\":\"" DIGEST "\"}";

static struct gr_kept_answer past(const char *text, bool in_turn, enum gr_finish finish)
{
    return (struct gr_kept_answer){.session = SESSION,
                                   .note = text,
                                   .in_turn = in_turn,
                                   .epoch = 3,
                                   .turn = 1,
                                   .turn_len = 2,
                                   .finish = finish,
                                   .error = "why",
                                   .ids = ids,
                                   .n_ids = GR_ARRAY_LEN(ids)};
}

static void test_a_turn_that_goes_on(void **state)
{
    (void)state;
    bool stopped = true;
    const struct gr_kept_answer a = past(note, true, GR_FINISH_NONE);
    struct gr_job *j = gr_past_job(&a, &served, 1, &stopped);
    assert_non_null(j);
    assert_true(!stopped && !gr_job_is_over(j) && j->restored && j->resumes && !j->untended && j->request.stream);
    assert_true(j->ask.prompt[0].n_ids == 2 && j->ask.prompt[0].max_tokens == 40 && j->reply.created_s == 5);
    assert_true(j->answer[0].session == SESSION && j->answer[0].epoch == 3 && j->answer[0].turn_text.n_final == 6);
    assert_false(gr_logprobs_has(&j->answer[0].turn_text.logprobs, 5));
    assert_int_equal(gr_ask_spec_tokens(&j->ask), 8);
    char *again = gr_past_note(j);
    assert_string_equal(again, note);
    free(again);
    uint32_t end = 0;
    size_t len = 0;
    const char *text = gr_turn_text_piece(&j->answer[0].turn_text, 1, &end, &len);
    assert_true(end == 4 && len == 3 && memcmp(text, "\xc3\xa9y", 3) == 0); /* `st' may begin the stop string */
    gr_job_destroy(j);
}

static void test_an_answer_that_is_over(void **state)
{
    (void)state;
    bool stopped = true;
    struct gr_kept_answer a = past(note, false, GR_FINISH_LENGTH);
    struct gr_job *j = gr_past_job(&a, &served, 1, &stopped);
    assert_true(j != NULL && gr_job_is_over(j) && !j->failed && j->answer[0].finish == GR_FINISH_LENGTH);
    gr_job_trim(j);
    uint32_t end = 0;
    size_t len = 0;
    (void)gr_turn_text_piece(&j->answer[0].turn_text, 0, &end, &len);
    assert_true(end == 6 && len == 6);
    gr_job_destroy(j);
    static const struct {
        enum gr_finish finish;
        int http_status;
    } bad[] = {{GR_FINISH_ERROR, 500}, {GR_FINISH_TIMEOUT, 408}, {GR_FINISH_UNSERVED, 503}};
    for (size_t i = 0; i < GR_ARRAY_LEN(bad); i++) {
        a = past(note, false, bad[i].finish);
        j = gr_past_job(&a, &served, 1, &stopped);
        assert_true(j != NULL && j->failed);
        assert_int_equal(j->error.http_status, bad[i].http_status);
        assert_string_equal(j->error.message, "why");
        gr_job_destroy(j);
    }
}

static void test_whose_it_is(void **state)
{
    (void)state;
    struct gr_api_owner owner;
    struct gr_once once;
    struct gr_kept_answer a = past(note, true, GR_FINISH_NONE);
    assert_true(gr_past_whose(&a, &owner, &once) && owner.digest[0] == 1 && once.asked && once.key[0] == 2);
    a.note = "{\"version\":1," REST "}";
    assert_true(gr_past_whose(&a, &owner, &once) && !once.asked);
    a.note = "{\"version\":2," REST "}";
    assert_false(gr_past_whose(&a, &owner, &once));
}

/* Every note that is cut, or has a byte that is another, makes a job or none, and no harm. */
static void test_no_note(void **state)
{
    (void)state;
    char text[sizeof(note)];
    bool stopped;
    int n_job = 0;
    struct gr_kept_answer a = past(text, true, GR_FINISH_NONE);
    for (size_t i = 0; i < 2 * (sizeof(note) - 1); i++) {
        memcpy(text, note, sizeof(note));
        text[i / 2] = i % 2 == 0 ? '\0' : '9';
        struct gr_job *j = gr_past_job(&a, &served, 1, &stopped);
        n_job += j != NULL;
        gr_job_destroy(j);
    }
    assert_true(n_job > 0 && n_job < (int)sizeof(note));
    memcpy(text, note, sizeof(note));
    a.turn_len = a.n_ids + 1;
    assert_null(gr_past_job(&a, &served, 1, &stopped));
    a = past(note, true, GR_FINISH_NONE);
    struct gr_served other = served;
    other.fingerprint++;
    assert_null(gr_past_job(&a, &other, 1, &stopped));
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_a_turn_that_goes_on),
                                       cmocka_unit_test(test_an_answer_that_is_over),
                                       cmocka_unit_test(test_whose_it_is), cmocka_unit_test(test_no_note)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
