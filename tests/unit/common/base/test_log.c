/* Lines of the log, as text and as JSON objects. */
#include "common/base/log.h"
#include "tests/unit/log_capture.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

static struct log_capture capture;

/* The one line that was written meanwhile, parsed; the caller drops it. */
static json_t *line_of(const char *text)
{
    json_error_t error;
    assert_int_equal(log_capture_n_line(text), 1);
    json_t *o = json_loads(text, JSON_REJECT_DUPLICATES, &error);
    if (o == NULL) {
        fail_msg("%s: %s", error.text, text);
    }
    return o;
}

static const char *text_at(const json_t *o, const char *key)
{
    const char *value = json_string_value(json_object_get(o, key));
    return value != NULL ? value : "";
}

static void expect_message(const char *message, const char *want)
{
    log_capture_begin(&capture);
    log_error("%s", message);
    json_t *o = line_of(log_capture_end(&capture));
    assert_string_equal(text_at(o, "message"), want);
    assert_string_equal(text_at(o, "level"), "error");
    assert_string_equal(text_at(o, "process"), "test_log");
    assert_int_equal(json_integer_value(json_object_get(o, "pid")), getpid());
    assert_int_equal(strlen(text_at(o, "time")), strlen("2026-01-31T12:34:56.789Z"));
    assert_int_equal(text_at(o, "time")[23], 'Z');
    assert_true(text_at(o, "host")[0] != '\0');
    json_decref(o);
}

static int set_up(void **state)
{
    (void)state;
    assert_true(gr_log_set_format_by_name("json"));
    gr_log_set_level(GR_LOG_WARN);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    gr_log_about(NULL);
    return gr_log_set_format_by_name("text") ? 0 : -1;
}

static void test_messages(void **state)
{
    (void)state;
    expect_message("a line", "a line");
    expect_message("a \"quoted\" back\\slash", "a \"quoted\" back\\slash");
    expect_message("gr\xc3\xbc\xc3\x9f", "gr\xc3\xbc\xc3\x9f");
    char longest[4000];
    memset(longest, '"', sizeof(longest)); /* each takes two bytes in the object */
    longest[sizeof(longest) - 1] = '\0';
    log_capture_begin(&capture);
    log_error("%s", longest);
    json_t *o = line_of(log_capture_end(&capture));
    assert_in_range(strlen(text_at(o, "message")), 900, 1000);
    json_decref(o);
}

/* Whatever bytes a user has given: an object, on one line. */
static void test_any_bytes(void **state)
{
    (void)state;
    for (int c = 1; c < 256; c++) {
        const char text[] = {'<', (char)c, '\n', '>', '\0'};
        log_capture_begin(&capture);
        log_warn("%s", text);
        json_t *o = line_of(log_capture_end(&capture));
        assert_int_equal(text_at(o, "message")[0], '<');
        json_decref(o);
    }
}

static void test_about(void **state)
{
    (void)state;
    gr_log_about(&(struct gr_log_subject){.worker = 3, .session = 77, .epoch = 2, .round = 9, .trace_id = "4bf9"});
    log_capture_begin(&capture);
    log_warn("it is slow");
    json_t *o = line_of(log_capture_end(&capture));
    assert_int_equal(json_integer_value(json_object_get(o, "worker")), 3);
    assert_string_equal(json_string_value(json_object_get(o, "session")), "000000000000004d");
    assert_int_equal(json_integer_value(json_object_get(o, "epoch")), 2);
    assert_int_equal(json_integer_value(json_object_get(o, "round")), 9);
    assert_string_equal(text_at(o, "trace_id"), "4bf9");
    assert_string_equal(text_at(o, "message"), "it is slow");
    json_decref(o);
    const struct gr_log_subject before = gr_log_subject_now();
    gr_log_about(NULL);
    assert_int_equal(gr_log_subject_now().session, 0);
    gr_log_about(&before);
    assert_int_equal(gr_log_subject_now().round, 9);
    gr_log_about(NULL);
    log_capture_begin(&capture);
    gr_log_notice("it has joined");
    o = line_of(log_capture_end(&capture));
    assert_null(json_object_get(o, "worker"));
    assert_null(json_object_get(o, "session"));
    assert_null(json_object_get(o, "trace_id"));
    assert_string_equal(text_at(o, "level"), "notice");
    json_decref(o);
}

static void test_text(void **state)
{
    (void)state;
    assert_true(gr_log_set_format_by_name("text"));
    assert_false(gr_log_set_format_by_name("xml"));
    gr_log_about(&(struct gr_log_subject){.worker = 3, .session = 77});
    log_capture_begin(&capture);
    log_warn("it is slow");
    assert_string_equal(log_capture_end(&capture), "test_log: warning: it is slow\n");
    gr_log_about(&(struct gr_log_subject){.session = 77, .trace_id = "4bf9"});
    log_capture_begin(&capture);
    log_warn("it is slow");
    assert_string_equal(log_capture_end(&capture), "test_log: warning: it is slow (trace 4bf9)\n");
    gr_log_about(NULL);
    gr_log_place();
    log_capture_begin(&capture);
    log_warn("it is slow");
    const char *line = log_capture_end(&capture);
    assert_true(strlen(line) > strlen("12:34:56.789 h test_log: warning: it is slow\n") - 1);
    assert_int_equal(line[12], ' ');
    assert_non_null(strstr(line, " test_log: warning: it is slow\n"));
}

static void test_holds(void **state)
{
    (void)state;
    char outer[64] = "", inner[64] = "";
    log_capture_begin(&capture);
    gr_log_hold(outer, sizeof(outer));
    gr_log_hold(inner, sizeof(inner));
    log_error("the inner one's");
    log_error("after it");
    gr_log_hold(NULL, 0);
    log_warn("the outer one's");
    gr_log_hold(NULL, 0);
    assert_string_equal(inner, "the inner one's");
    assert_string_equal(outer, "the outer one's");
    assert_string_equal(log_capture_end(&capture), "");
    gr_log_hold(NULL, 0); /* one too many */
    log_capture_begin(&capture);
    log_warn("everybody's");
    assert_non_null(strstr(log_capture_end(&capture), "everybody's"));
}

int main(void)
{
    gr_log_init("test_log");
#define CASE(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {CASE(test_messages), CASE(test_any_bytes), CASE(test_about), CASE(test_text),
                                       CASE(test_holds)};
    return cmocka_run_group_tests_name("log", tests, NULL, NULL);
}
