/* What is UTF-8, what becomes of bytes that are not, and that nothing prints half a character. */
#include "common/base/utf8.h"

#include "common/base/log.h"
#include "tests/unit/log_capture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#define EURO "\xe2\x82\xac"
#define SMILE "\xf0\x9f\x98\x80"

static void test_valid(void **state)
{
    (void)state;
    static const char *const good[] = {
        "", "a", "caf\xc3\xa9", EURO SMILE, "\xef\xbf\xbf", "\xf4\x8f\xbf\xbf", "\xed\x9f\xbf"};
    static const char *const bad[] = {"\xff",
                                      "\x80",
                                      "a\xc3",
                                      "\xc3"
                                      "b",
                                      "\xe2\x82",
                                      "\xf0\x9f\x98",
                                      "\xc0\xaf" /* long form */,
                                      "\xe0\x80\x80",
                                      "\xed\xa0\x80" /* surrogate */,
                                      "\xf4\x90\x80\x80",
                                      EURO "\xac"};
    for (size_t i = 0; i < GR_ARRAY_LEN(good); i++) {
        assert_true(gr_utf8_valid(good[i], strlen(good[i])));
    }
    for (size_t i = 0; i < GR_ARRAY_LEN(bad); i++) {
        assert_false(gr_utf8_valid(bad[i], strlen(bad[i])));
    }
}

static void mends(const char *text, const char *want)
{
    char copy[64];
    snprintf(copy, sizeof(copy), "%s", text);
    gr_utf8_mend(copy, strlen(copy));
    assert_string_equal(copy, want);
}

static void test_mend(void **state)
{
    (void)state;
    mends("", "");
    mends("a" EURO "b", "a" EURO "b");
    mends("a\xe2\x82"
          "b",
          "a??b");
    mends("a" EURO "\xf0\x9f\x98", "a" EURO "???");
    mends("\xff\xfe" SMILE, "??" SMILE);
}

static void shows(const char *text, size_t cap, const char *want)
{
    char out[64];
    memset(out, '#', sizeof(out));
    assert_int_equal(gr_utf8_show(text, strlen(text), out, cap), strlen(want));
    assert_string_equal(out, want);
    assert_int_equal(out[cap], '#');
}

static void test_show(void **state)
{
    (void)state;
    shows("a" EURO "\n\tb\x1b[1m\x7f", 60, "a" EURO "\\n\\tb\\x1b[1m\\x7f");
    shows("\xe2\x82", 60, "\\xe2\\x82");
    shows("\xac"
          "b",
          60, "\\xacb");
    shows("ab" EURO, 5, "ab"); /* whole or not at all */
    shows("ab" EURO, 6, "ab" EURO);
    shows("ab\xff", 6, "ab");
    shows("ab\xff", 7, "ab\\xff");
    shows("abc", 1, "");
    shows("\xc2\x9b"
          "1m\xc2\xa0",
          60, "\\xc2\\x9b1m\xc2\xa0"); /* another way to write ESC [ */
}

static void test_plain(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t n;
    } all[] = {{"", 0},          {"a\n\tb" EURO, 7}, {"ab\x1b[1m", 2}, {"a\r", 1},          {"\x7f", 0},
               {"a\xc2\x9b", 1}, {"\xc2\xa0", 2},    {"a\xff", 1},     {EURO "\xe2\x82", 3}};
    for (size_t i = 0; i < GR_ARRAY_LEN(all); i++) {
        assert_int_equal(gr_utf8_n_plain(all[i].text, strlen(all[i].text)), all[i].n);
    }
    assert_int_equal(gr_utf8_n_plain("a\0b", 3), 1);
}

/* Whatever a user has given: a message is one line of UTF-8. */
static void test_log_lines(void **state)
{
    (void)state;
    struct log_capture cap;
    char longest[2048];
    memset(longest, 'x', 1500);
    strcpy(longest + 1500, EURO);
    static const char *const text[] = {"a\nb", "\xff\xfe", "caf\xc3\xa9\xc3", "\x1b[31mred", NULL};
    for (size_t i = 0; i < GR_ARRAY_LEN(text); i++) {
        log_capture_begin(&cap);
        log_error("--stop: `%s'", text[i] != NULL ? text[i] : longest);
        const char *log = log_capture_end(&cap);
        assert_int_equal(log_capture_n_line(log), 1);
        assert_true(gr_utf8_valid(log, strlen(log)));
        assert_null(strchr(log, '\x1b'));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_valid), cmocka_unit_test(test_mend),      cmocka_unit_test(test_show),
        cmocka_unit_test(test_plain), cmocka_unit_test(test_log_lines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
