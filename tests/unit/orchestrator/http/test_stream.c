/* What waits to be read of a response: bounded in bytes, cut at a whole event, and its reader woken once for each wait.
 */
#include "orchestrator/http/stream.h"
#include "tests/quiet_log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static void on_wake(void *ctx)
{
    (*(int *)ctx)++;
}

static struct gr_stream *make(int *n_wake)
{
    struct gr_stream *s = NULL;
    *n_wake = 0;
    assert_int_equal(gr_stream_create(on_wake, n_wake, &s), GR_OK);
    return s;
}

/* Reads to the end. Returns how many bytes that were; they end with an event's end. */
static size_t read_out(struct gr_stream *s, bool *cut_out)
{
    static char bytes[1 << 16];
    bool ended = false;
    size_t all = 0;
    char tail[2] = {'\n', '\n'};
    while (!ended) {
        const size_t n = gr_stream_read(s, bytes, sizeof(bytes), &ended, cut_out);
        assert_true(n > 0 || ended);
        if (n >= 2) {
            memcpy(tail, bytes + n - 2, 2);
        }
        all += n;
    }
    assert_true(tail[0] == '\n' && tail[1] == '\n');
    return all;
}

static void test_nobody_reads(void **state)
{
    (void)state;
    static char text[1000];
    int n_wake;
    bool cut = false;
    size_t n_taken = 0;
    struct gr_stream *s = make(&n_wake);
    memset(text, 'x', sizeof(text) - 1);
    gr_stream_begin(s, 200, GR_STREAM_EVENTS);
    while (gr_stream_write_event(s, text) == GR_OK) {
        n_taken += sizeof(text) - 1 + 8;
        assert_true(n_taken <= GR_STREAM_BYTES_MAX + 2 * sizeof(text));
    }
    assert_true(n_taken >= GR_STREAM_BYTES_MAX - sizeof(text));
    assert_true(gr_stream_is_left(s)); /* who makes it stops */
    assert_int_equal(gr_stream_write_event(s, text), GR_ECLOSED);
    const size_t n_read = read_out(s, &cut);
    assert_true(cut && n_read >= n_taken && n_read <= GR_STREAM_BYTES_MAX + 2 * sizeof(text));
    gr_stream_drop(s);
}

static void test_who_reads_is_not_cut(void **state)
{
    (void)state;
    static char text[1000], bytes[4096];
    int n_wake;
    bool ended = false, cut = false;
    struct gr_stream *s = make(&n_wake);
    memset(text, 'x', sizeof(text) - 1);
    gr_stream_begin(s, 200, GR_STREAM_EVENTS);
    for (size_t n = 0; n < 3 * GR_STREAM_BYTES_MAX; n += sizeof(text)) {
        gr_stream_wait(s, false);
        assert_int_equal(gr_stream_write_event(s, text), GR_OK);
        assert_int_equal(gr_stream_read(s, bytes, sizeof(bytes), &ended, &cut), sizeof(text) - 1 + 8);
        assert_false(ended || cut);
    }
    assert_int_equal(n_wake, (3 * GR_STREAM_BYTES_MAX + sizeof(text) - 1) / sizeof(text));
    gr_stream_end(s);
    assert_int_equal(gr_stream_read(s, bytes, sizeof(bytes), &ended, &cut), 0);
    assert_true(ended && !cut);
    gr_stream_drop(s);
}

/* A whole answer is one piece, which may be larger than what may wait of a stream. */
static void test_one_large_piece(void **state)
{
    (void)state;
    int n_wake;
    bool cut = false;
    const size_t n = 2 * GR_STREAM_BYTES_MAX;
    char *text = malloc(n);
    struct gr_stream *s = make(&n_wake);
    assert_non_null(text);
    memset(text, '\n', n);
    gr_stream_begin(s, 200, "application/json");
    assert_int_equal(gr_stream_write(s, text, n), GR_OK);
    gr_stream_end(s);
    assert_int_equal(read_out(s, &cut), n);
    assert_false(cut);
    gr_stream_drop(s);
    free(text);
}

static void test_a_reader_that_left(void **state)
{
    (void)state;
    int n_wake;
    struct gr_stream *s = make(&n_wake);
    gr_stream_wait(s, true);
    gr_stream_leave(s);
    gr_stream_begin(s, 200, GR_STREAM_EVENTS);
    assert_int_equal(gr_stream_write_event(s, "x"), GR_ECLOSED);
    gr_stream_end(s);
    assert_int_equal(n_wake, 0); /* its connection is another's by now */
    gr_stream_drop(s);
}

/* A comment goes between events; in a body that is no stream of events it would be damage. */
static void test_pings(void **state)
{
    (void)state;
    int n_wake;
    char got[64] = "";
    bool ended, cut;
    struct gr_stream *events = make(&n_wake), *body = make(&n_wake);
    assert_false(gr_stream_has_begun(events));
    assert_int_equal(gr_stream_ping(events), GR_OK);
    assert_int_equal(gr_stream_read(events, got, sizeof(got), &ended, &cut), 0);
    gr_stream_begin(events, 200, GR_STREAM_EVENTS);
    assert_int_equal(gr_stream_ping(events), GR_OK);
    assert_int_equal(gr_stream_write_event(events, "x"), GR_OK);
    assert_int_equal(gr_stream_read(events, got, sizeof(got), &ended, &cut), 16);
    assert_memory_equal(got, ": ping\ndata: x\n\n", 16);
    gr_stream_begin(body, 200, "application/json");
    assert_int_equal(gr_stream_ping(body), GR_OK);
    assert_int_equal(gr_stream_read(body, got, sizeof(got), &ended, &cut), 0);
    gr_stream_end(events);
    assert_int_equal(gr_stream_ping(events), GR_ECLOSED);
    assert_int_equal(gr_stream_read(events, got, sizeof(got), &ended, &cut), 0);
    assert_true(ended && !cut);
    gr_stream_drop(events);
    gr_stream_drop(body);
}

/* When to come back stands in the first event, whichever that is, and nowhere else. */
static void test_retry(void **state)
{
    (void)state;
    int n_wake;
    bool ended, cut;
    char got[256] = "";
    struct gr_stream *s = make(&n_wake);
    gr_stream_begin(s, 200, GR_STREAM_EVENTS);
    gr_stream_retry(s, 1234);
    assert_int_equal(gr_stream_ping(s), GR_OK);
    assert_int_equal(gr_stream_write_named_event(s, "a-1-1", "x"), GR_OK);
    assert_int_equal(gr_stream_write_event(s, "y"), GR_OK);
    (void)gr_stream_read(s, got, sizeof(got) - 1, &ended, &cut);
    assert_string_equal(got, ": ping\nretry: 1234\nid: a-1-1\ndata: x\n\ndata: y\n\n");
    gr_stream_drop(s);
    s = make(&n_wake);
    gr_stream_begin(s, 200, GR_STREAM_EVENTS);
    gr_stream_retry(s, UINT32_MAX);
    gr_stream_refuse(s, 500, "why");
    memset(got, 0, sizeof(got));
    (void)gr_stream_read(s, got, sizeof(got) - 1, &ended, &cut);
    assert_ptr_equal(strstr(got, "retry: 4294967295\ndata: {\"error\""), got);
    gr_stream_drop(s);
}

/* An error is the whole response where none has begun, and its head tells whether to ask again is of use. */
static void test_errors(void **state)
{
    (void)state;
    int n_wake;
    struct gr_api_error e = gr_api_error_of(408, "why");
    for (int i = 0; i < 2; i++) {
        struct gr_stream *s = make(&n_wake);
        struct gr_stream_head head = {.session = 1};
        assert_int_equal(gr_stream_head(s, &head), 0);
        e.is_final = i > 0;
        gr_stream_name(s, 7);
        gr_stream_fail(s, &e);
        assert_int_equal(gr_stream_head(s, &head), 408);
        assert_string_equal(head.type, "application/json");
        assert_true(head.session == 7 && head.is_final == e.is_final);
        gr_stream_drop(s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nobody_reads),    cmocka_unit_test(test_who_reads_is_not_cut),
        cmocka_unit_test(test_one_large_piece), cmocka_unit_test(test_a_reader_that_left),
        cmocka_unit_test(test_pings),           cmocka_unit_test(test_errors),
        cmocka_unit_test(test_retry),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
