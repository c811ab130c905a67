/* The pure parts of graft-bench serve: times of requests, events of a stream, one answer, the figures of many. */
#include "bench/serve/answer.h"
#include "bench/serve/arrivals.h"
#include "bench/serve/scrape.h"
#include "bench/serve/tally.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define N 4000

/* ---- times of requests ---- */

static double gap(const double *at_s, int i)
{
    return at_s[i] - (i > 0 ? at_s[i - 1] : 0.0);
}

/* Standard deviation of the gaps over their mean: 1 / sqrt(shape) of a gamma distribution. */
static double spread_of_gaps(double burstiness, uint64_t seed)
{
    static double at_s[N];
    double squares = 0.0;
    gr_arrivals_draw(&(struct gr_arrivals){.rate = 10.0, .burstiness = burstiness, .seed = seed}, N, at_s);
    assert_true(fabs(at_s[N - 1] - N / 10.0) < 1e-6); /* whatever was drawn */
    for (int i = 0; i < N; i++) {
        assert_true(gap(at_s, i) >= 0.0);
        squares += (gap(at_s, i) - 0.1) * (gap(at_s, i) - 0.1);
    }
    return sqrt(squares / N) / 0.1;
}

static void test_arrivals(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 5; seed++) {
        assert_true(fabs(spread_of_gaps(1.0, seed) - 1.0) < 0.1);
        assert_true(fabs(spread_of_gaps(4.0, seed) - 0.5) < 0.05);
        assert_true(fabs(spread_of_gaps(0.25, seed) - 2.0) < 0.3);
    }
}

static void test_poisson_shape(void **state)
{
    (void)state;
    static double at_s[N];
    int n_short = 0;
    gr_arrivals_draw(&(struct gr_arrivals){.rate = 1.0, .burstiness = 1.0, .seed = 7}, N, at_s);
    for (int i = 0; i < N; i++) {
        n_short += gap(at_s, i) < M_LN2; /* the median of an exponential distribution of mean 1 */
    }
    assert_true(abs(n_short - N / 2) < N / 20);
}

static void test_arrivals_repeat(void **state)
{
    (void)state;
    double a[20], b[20], c[20];
    gr_arrivals_draw(&(struct gr_arrivals){.rate = 5.0, .burstiness = 1.0, .seed = 3}, 20, a);
    gr_arrivals_draw(&(struct gr_arrivals){.rate = 5.0, .burstiness = 1.0, .seed = 3}, 20, b);
    gr_arrivals_draw(&(struct gr_arrivals){.rate = INFINITY, .burstiness = 1.0, .seed = 3}, 20, c);
    assert_memory_equal(a, b, sizeof(a));
    gr_arrivals_draw(&(struct gr_arrivals){.rate = 5.0, .burstiness = 1.0, .seed = 4}, 20, b);
    assert_memory_not_equal(a, b, sizeof(a));
    for (int i = 0; i < 20; i++) {
        assert_true(c[i] == 0.0);
    }
}

/* ---- events of a stream ---- */

static void join_event(void *ctx, const char *data, size_t n)
{
    assert_int_equal(strlen(data), n);
    strcat(strcat(ctx, data), "|");
}

/* Events of the text, which comes in pieces of that length. */
static void events_are(const char *text, size_t piece, const char *wanted)
{
    char got[200] = "";
    struct gr_events e = {0};
    for (size_t at = 0; at < strlen(text); at += piece) {
        assert_int_equal(gr_events_feed(&e, text + at, GR_MIN(piece, strlen(text) - at), join_event, got), GR_OK);
    }
    assert_string_equal(got, wanted);
    gr_events_finish(&e);
}

static void test_events(void **state)
{
    (void)state;
    static const char text[] = ": a comment\nid: 5\ndata: one\n\ndata:two\r\ndata:  three\r\n\r\nevent: x\n\n\ndata\n\n"
                               "data: \n\ndata: not whole";
    for (size_t piece = 1; piece < sizeof(text); piece++) {
        events_are(text, piece, "one|two\n three||");
    }
}

static void test_events_rewind(void **state)
{
    (void)state;
    char got[100] = "";
    struct gr_events e = {0};
    assert_int_equal(gr_events_feed(&e, "data: cut\nda", 12, join_event, got), GR_OK);
    gr_events_rewind(&e);
    assert_int_equal(gr_events_feed(&e, "data: next\n\n", 12, join_event, got), GR_OK);
    assert_string_equal(got, "next|");
    gr_events_finish(&e);
}

static void test_event_too_long(void **state)
{
    (void)state;
    char got[10] = "";
    struct gr_events e = {0};
    char *long_line = malloc(GR_EVENT_BYTES_MAX);
    memset(long_line, 'x', GR_EVENT_BYTES_MAX);
    assert_int_equal(gr_events_feed(&e, long_line, GR_EVENT_BYTES_MAX, join_event, got), GR_OK);
    assert_int_equal(gr_events_feed(&e, long_line, 1, join_event, got), GR_ELIMIT);
    free(long_line);
    gr_events_finish(&e);
}

/* ---- an answer ---- */

static void take(struct gr_answer *a, struct gr_gaps *g, uint64_t at_ns, const char *data)
{
    gr_answer_take(a, data, strlen(data), at_ns, g);
}

static void test_answer(void **state)
{
    (void)state;
    struct gr_answer a = {.sent_ns = 100, .status = 200};
    struct gr_gaps g = {0};
    take(&a, &g, 150, "{\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}"); /* no text */
    take(&a, &g, 200, "{\"choices\":[{\"delta\":{\"content\":\"ab\"}}],\"usage\":null}");
    take(&a, &g, 700, "{\"choices\":[{\"text\":\"c\"}]}");
    take(&a, &g, 900, "{\"choices\":[{\"text\":\"\\u00e9\\u0000\"}]}");
    take(&a, &g, 950, "{\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":7}}");
    take(&a, &g, 960, "[DONE]");
    gr_answer_finish(&a, 1000);
    assert_int_equal(a.end, GR_ANSWER_DONE);
    assert_int_equal(a.first_ns, 200);
    assert_int_equal(a.longest_gap_ns, 500);
    assert_int_equal(a.n_piece, 3);
    assert_int_equal(a.n_in, 3);
    assert_int_equal(a.n_out, 7);
    assert_int_equal(g.n, 2);
    assert_true(fabs(g.s[0] - 500e-9) < 1e-15 && fabs(g.s[1] - 200e-9) < 1e-15);
    assert_int_equal(a.n_text, 6);
    assert_memory_equal(a.text, "abc\xc3\xa9\0", 7);
    free(g.s);
    gr_answer_free(&a);
}

static enum gr_answer_end end_of(int status, const char *const *event, const char *body, const char *words)
{
    struct gr_answer a = {.sent_ns = 1, .status = status};
    struct gr_gaps g = {0};
    for (; event != NULL && *event != NULL; event++) {
        take(&a, &g, 2, *event);
    }
    gr_answer_take_error(&a, body, strlen(body) / 2); /* it may come in parts */
    gr_answer_take_error(&a, body + strlen(body) / 2, strlen(body) - strlen(body) / 2);
    gr_answer_finish(&a, 3);
    assert_non_null(strstr(a.said, words));
    free(g.s);
    gr_answer_free(&a);
    return a.end;
}

static void test_failures(void **state)
{
    (void)state;
    static const char *const text = "{\"choices\":[{\"text\":\"c\"}]}";
    assert_int_equal(end_of(200, (const char *const[]){text, NULL}, "", "without [DONE]"), GR_ANSWER_CUT);
    assert_int_equal(end_of(200, (const char *const[]){text, "[DONE]", NULL}, "", "usage"), GR_ANSWER_FORM);
    assert_int_equal(end_of(200, (const char *const[]){"{", "[DONE]", NULL}, "", "not JSON"), GR_ANSWER_FORM);
    assert_int_equal(end_of(200,
                            (const char *const[]){text, "{\"error\":{\"message\":\"a drained one\"}}", "[DONE]", NULL},
                            "", "a drained"),
                     GR_ANSWER_EVENT);
    assert_int_equal(end_of(429, NULL, "{\"error\":{\"message\":\"full\"}}", "status 429: full"), GR_ANSWER_STATUS);
    assert_int_equal(end_of(502, NULL, "<html>\n", "status 502: <html>"), GR_ANSWER_STATUS);
}

static void test_long_error(void **state)
{
    (void)state;
    char body[2 * GR_ANSWER_SAID_MAX];
    memset(body, 'x', sizeof(body) - 1);
    body[sizeof(body) - 1] = '\0';
    assert_int_equal(end_of(500, NULL, body, "status 500: xxx"), GR_ANSWER_STATUS);
}

/* ---- figures ---- */

/* numpy: mean, median, std and percentile(99) of 1, 2, 3, 4, 100. */
static void test_spread(void **state)
{
    (void)state;
    double s[] = {4.0, 1.0, 100.0, 2.0, 3.0};
    const struct gr_spread t = gr_spread_of(s, 5);
    assert_true(fabs(t.mean - 22000.0) < 1e-6);
    assert_true(fabs(t.median - 3000.0) < 1e-6);
    assert_true(fabs(t.std - 39012.8184) < 1e-3);
    assert_true(fabs(t.p99 - 96160.0) < 1e-6);
    assert_true(gr_spread_of(s, 0).p99 == 0.0);
    assert_true(gr_spread_of(s, 1).p99 == 1000.0);
}

#define S 1000000000ull

static void test_tally(void **state)
{
    (void)state;
    const struct gr_answer answer[] = {
        {.end = GR_ANSWER_DONE,
         .due_ns = 1 * S,
         .sent_ns = 1 * S,
         .first_ns = 2 * S,
         .end_ns = 4 * S,
         .n_in = 5,
         .n_out = 5,
         .longest_gap_ns = S / 2},
        {.end = GR_ANSWER_DONE,
         .due_ns = 1 * S,
         .sent_ns = 2 * S,
         .first_ns = 5 * S,
         .end_ns = 6 * S,
         .n_in = 6,
         .n_out = 1,
         .longest_gap_ns = S / 4},
        {.end = GR_ANSWER_DONE,
         .due_ns = 4 * S,
         .sent_ns = 4 * S,
         .first_ns = 5 * S,
         .last_ns = 6 * S,
         .end_ns = 7 * S,
         .n_in = 7,
         .n_out = 3},
        {.end = GR_ANSWER_CUT,
         .due_ns = 2 * S,
         .sent_ns = 2 * S,
         .first_ns = 3 * S,
         .end_ns = 9 * S,
         .n_out = 9,
         .longest_gap_ns = 6 * S},
        {.end = GR_ANSWER_STATUS, .due_ns = 2 * S, .sent_ns = 2 * S, .end_ns = 3 * S},
        {.end = GR_ANSWER_NONE},
    };
    struct gr_gaps g = {0};
    struct gr_tally t;
    assert_int_equal(gr_tally_make(answer, 6, &g, 10 * S, &t), GR_OK);
    assert_int_equal(t.completed, 3);
    assert_int_equal(t.failed, 2);
    assert_int_equal(t.n_end[GR_ANSWER_CUT], 1);
    assert_int_equal(t.total_input_tokens, 18);
    assert_int_equal(t.total_output_tokens, 9);
    assert_true(fabs(t.request_throughput - 0.3) < 1e-9);
    assert_true(fabs(t.output_throughput - 0.9) < 1e-9);
    assert_true(fabs(t.total_token_throughput - 2.7) < 1e-9);
    assert_true(fabs(t.ttft.median - 1000.0) < 1e-6);
    assert_true(fabs(t.tpot.mean - 750.0) < 1e-6);              /* 2 s / 4, 2 s / 2; one token has none */
    assert_true(fabs(t.decode_tokens_per_second - 2.0) < 1e-9); /* 2 tokens in a second; one piece has no rate */
    assert_true(fabs(t.e2el.mean - 10000.0 / 3.0) < 1e-6);
    assert_true(fabs(t.client_queue_time.mean - 1000.0 / 3.0) < 1e-6);
    assert_true(fabs(t.longest_gap_ms - 500.0) < 1e-6);        /* of whole answers */
    assert_true(fabs(t.median_longest_gap_ms - 375.0) < 1e-6); /* of two: one piece has no gap */
    assert_true(fabs(t.max_ttft_ms - 3000.0) < 1e-6);
    assert_int_equal(t.max_concurrent_requests, 2); /* the third begins as the first ends */
}

/* ---- counters ---- */

static void test_scrape(void **state)
{
    (void)state;
    const struct gr_spec_counts c = gr_spec_counts_read("# TYPE graft_spec_decode_num_drafts_total counter\n"
                                                        "graft_spec_decode_num_drafts_total 7\n"
                                                        "graft_spec_decode_num_draft_tokens_total 21\n"
                                                        "num_drafts_total 1000\ndrafts_total 1\n"
                                                        "graft_spec_decode_num_accepted_tokens_total 9");
    assert_true(c.known && c.drafts == 7.0 && c.draft_tokens == 21.0 && c.accepted_tokens == 9.0);
    const struct gr_spec_counts v = gr_spec_counts_read(
        "vllm:spec_decode_num_drafts_total{engine=\"0\",model_name=\"a b\"} 7.0\n"
        "vllm:spec_decode_num_drafts_total{engine=\"1\",model_name=\"a b\"} 5.0\n"
        "vllm:spec_decode_num_accepted_tokens_per_pos_total{position=\"0\"} 4.0\n"
        "vllm:spec_decode_num_accepted_tokens_per_pos_total{engine=\"1\",position=\"0\"} 2.0\n"
        "vllm:spec_decode_num_accepted_tokens_per_pos_total{position=\"2\",model_name=\"a b\"} 1.0\n"
        "vllm:spec_decode_num_accepted_tokens_per_pos_total{position=\"64\"} 9\n"
        "vllm:spec_decode_num_accepted_tokens_per_pos_total{position=\"1x\"} 9\n"
        "vllm:spec_decode_num_accepted_tokens_per_pos_total 9\n"
        "other_per_pos_total{position=\"1\"} 9\n");
    assert_true(v.known && v.drafts == 12.0 && v.accepted_tokens == 0.0);
    assert_true(v.n_position == 3 && v.accepted_per_position[0] == 6.0);
    assert_true(v.accepted_per_position[1] == 0.0 && v.accepted_per_position[2] == 1.0);
    assert_false(gr_spec_counts_read("").known);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_arrivals), cmocka_unit_test(test_poisson_shape), cmocka_unit_test(test_arrivals_repeat),
        cmocka_unit_test(test_events),   cmocka_unit_test(test_events_rewind), cmocka_unit_test(test_event_too_long),
        cmocka_unit_test(test_answer),   cmocka_unit_test(test_failures),      cmocka_unit_test(test_long_error),
        cmocka_unit_test(test_spread),   cmocka_unit_test(test_tally),         cmocka_unit_test(test_scrape),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
