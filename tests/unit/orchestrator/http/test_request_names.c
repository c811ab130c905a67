/* Headers that name a request: which are taken, and which are as good as none. */
#include "orchestrator/http/request_names.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#define TRACE "4bf92f3577b34da6a3ce929d0e0e4736"
#define PARENT "00f067aa0ba902b7"

static void test_trace_parents(void **state)
{
    static const char *const good[] = {"00-" TRACE "-" PARENT "-01", "00-" TRACE "-" PARENT "-00",
                                       "cc-" TRACE "-" PARENT "-01", "cc-" TRACE "-" PARENT "-01-what.the-future",
                                       "01-" TRACE "-" PARENT "-01-"};
    char id[GR_TRACE_ID_MAX];
    (void)state;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        memset(id, 'x', sizeof(id));
        assert_true(gr_trace_parent_read(good[i], id));
        assert_string_equal(id, TRACE);
    }
}

static void test_what_is_none(void **state)
{
    static const char *const bad[] = {"",
                                      "00",
                                      "00-" TRACE "-" PARENT,
                                      "00-" TRACE "-" PARENT "-0",
                                      "00-" TRACE "-" PARENT "-011",
                                      "00-" TRACE "-" PARENT "-01-more",
                                      "cc-" TRACE "-" PARENT "-01.more",
                                      "ff-" TRACE "-" PARENT "-01",
                                      "0-" TRACE "-" PARENT "-01x",
                                      "00-4BF92F3577B34DA6A3CE929D0E0E4736-" PARENT "-01",
                                      "00-00000000000000000000000000000000-" PARENT "-01",
                                      "00-" TRACE "-0000000000000000-01",
                                      "00-" TRACE "0-" PARENT "-01",
                                      "00_" TRACE "_" PARENT "_01",
                                      "00-" TRACE "-" PARENT "-0g",
                                      "00-4bf92f3577b34da6a3ce929d0e0e473\n-" PARENT "-01"};
    char id[GR_TRACE_ID_MAX] = "kept";
    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_false(gr_trace_parent_read(bad[i], id));
        assert_string_equal(id, "kept");
    }
}

static void test_request_ids(void **state)
{
    char longest[GR_REQUEST_ID_MAX + 1];
    (void)state;
    memset(longest, 'a', sizeof(longest));
    longest[GR_REQUEST_ID_MAX - 1] = '\0';
    assert_true(gr_request_id_is_good(longest));
    longest[GR_REQUEST_ID_MAX - 1] = 'a';
    longest[GR_REQUEST_ID_MAX] = '\0';
    assert_false(gr_request_id_is_good(longest));
    assert_true(gr_request_id_is_good("550e8400-e29b-41d4-a716-446655440000"));
    assert_true(gr_request_id_is_good("a/b:c~d+e=@._-"));
    for (const char *p = " \t\r\n\"\\<>{}%\x01\x7f\xc3"; *p != '\0'; p++) {
        const char text[] = {'a', *p, '\0'};
        assert_false(gr_request_id_is_good(text));
    }
    assert_false(gr_request_id_is_good(""));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_trace_parents),
        cmocka_unit_test(test_what_is_none),
        cmocka_unit_test(test_request_ids),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
