/* Numbers as users write them: the whole text, in range, or nothing. */
#include "common/base/parse.h"
#include "common/base/session_id.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

static bool number(const char *text, double want)
{
    double v = -1.0;
    return gr_parse_number(text, 0.0, 100.0, &v) && v == want;
}

static void test_numbers(void **state)
{
    (void)state;
    assert_true(number("0", 0.0) && number("100", 100.0) && number("1e-5", 1e-5) && number("0x10", 16.0));
    assert_true(number("1e-400", 0.0) && number("1e-300", 1e-300)); /* in range, if too small for a double */
    double v = -1.0;
    assert_true(gr_parse_number("1e-310", 0.0, 100.0, &v) && v > 0.0 && v < 1e-300);
    static const char *const bad[] = {"", " ", "x", "1x", "1 ", "100.1", "-1", "1e400", "-1e400", "inf", "nan", "1,5"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        v = -1.0;
        assert_false(gr_parse_number(bad[i], 0.0, 100.0, &v));
        assert_true(v == -1.0);
    }
}

static void test_integers(void **state)
{
    (void)state;
    int64_t v = -1;
    assert_true(gr_parse_int("2", 2, 9, &v) && v == 2);
    assert_true(gr_parse_int("9", 2, 9, &v) && v == 9);
    static const char *const bad[] = {"", "1", "10", "2x", "2.0", "0x3", "99999999999999999999", "-3"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        v = -1;
        assert_false(gr_parse_int(bad[i], 2, 9, &v));
        assert_int_equal(v, -1);
    }
    assert_true(gr_parse_int_or_0("0", 2, 9, &v) && v == 0);
    assert_false(gr_parse_int_or_0("1", 2, 9, &v));
}

static void test_session_ids(void **state)
{
    (void)state;
    char text[GR_SESSION_ID_DIGITS + 1];
    uint64_t id = 0;
    assert_true(gr_session_id_read("00000000000000a1", &id) && id == 0xa1);
    assert_true(gr_session_id_read("FEDCBA9876543210", &id) && id == 0xfedcba9876543210u);
    gr_session_id_spell(id, text);
    assert_string_equal(text, "fedcba9876543210");
    static const char *const bad[] = {"",
                                      "1",
                                      "0000000000000000",
                                      "fedcba987654321",
                                      "fedcba98765432100",
                                      "0xdcba9876543210",
                                      "-edcba9876543210",
                                      "fedcba987654321g",
                                      "fedcba9876543210\n",
                                      " edcba9876543210"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        id = 7;
        assert_false(gr_session_id_read(bad[i], &id));
        assert_int_equal(id, 7);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_numbers), cmocka_unit_test(test_integers),
                                       cmocka_unit_test(test_session_ids)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
