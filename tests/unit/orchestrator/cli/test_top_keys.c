/* What keys do in `graft top`: the cursor follows its row, and nothing is done without a yes. */
#include "orchestrator/cli/top_keys.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

static struct gr_top_line lines[] = {
    {.kind = GR_TOP_TEXT},
    {.kind = GR_TOP_HEADING},
    {.kind = GR_TOP_WORKER, .subject = 1},
    {.kind = GR_TOP_WORKER, .subject = 2},
    {.kind = GR_TOP_HEADING},
    {.kind = GR_TOP_SESSION, .subject = 1},
    {.kind = GR_TOP_SESSION, .subject = 0xabc},
};
static const struct gr_top_view view = {.line = lines, .n = GR_ARRAY_LEN(lines)};
static const struct gr_top_view empty = {.line = lines, .n = 2};
static struct gr_top_ui ui;

static int begin(void **state)
{
    (void)state;
    ui = (struct gr_top_ui){0};
    return 0;
}

static enum gr_top_act press(const char *keys)
{
    enum gr_top_act act = GR_TOP_NOTHING;
    for (; *keys != '\0'; keys++) {
        act = gr_top_key(&ui, &view, *keys);
    }
    return act;
}

static void shows(const char *text)
{
    char foot[200];
    gr_top_foot(&ui, foot, sizeof(foot));
    if (strstr(foot, text) == NULL) {
        fail_msg("`%s' is not in `%s'", text, foot);
    }
}

static void test_cursor(void **state)
{
    (void)state;
    assert_int_equal(gr_top_chosen_line(&ui, &view), -1);
    (void)press("k");
    assert_int_equal(gr_top_chosen_line(&ui, &view), 2);
    (void)press("jj"); /* over the titles */
    assert_int_equal(gr_top_chosen_line(&ui, &view), 5);
    (void)press("jjj");
    assert_int_equal(gr_top_chosen_line(&ui, &view), 6);
    (void)gr_top_key(&ui, &view, GR_TOP_KEY_PAGE_UP);
    assert_int_equal(gr_top_chosen_line(&ui, &view), 2);
    assert_int_equal(gr_top_chosen_line(&ui, &empty), -1); /* its worker is gone */
    (void)gr_top_key(&ui, &empty, 'j');
    assert_int_equal(gr_top_chosen_line(&ui, &empty), -1);
}

static void test_asks_first(void **state)
{
    (void)state;
    assert_int_equal(press("jd"), GR_TOP_NOTHING);
    shows("drain worker 1? y");
    assert_int_equal(press("n"), GR_TOP_NOTHING);
    assert_int_equal(press("y"), GR_TOP_NOTHING); /* nothing is asked any more */
    assert_int_equal(press("dy"), GR_TOP_DRAIN);
    assert_int_equal(ui.asked_subject, 1);
    assert_int_equal(press("juy"), GR_TOP_UNDRAIN);
    assert_int_equal(ui.asked_subject, 2);
    assert_int_equal(press("jjc"), GR_TOP_NOTHING);
    shows("close session 0000000000000abc? y");
    assert_int_equal(press("y"), GR_TOP_CLOSE);
    assert_int_equal(ui.asked_subject, 0xabc);
    assert_int_equal(press("cq"), GR_TOP_NOTHING); /* an answer, not the end */
    assert_int_equal(press("q"), GR_TOP_QUIT);
}

static void test_wrong_row(void **state)
{
    (void)state;
    assert_int_equal(press("dy"), GR_TOP_NOTHING);
    assert_int_equal(press("jc"), GR_TOP_NOTHING);
    shows("move to a session first");
    assert_int_equal(press("y"), GR_TOP_NOTHING);
    assert_int_equal(press("jjd"), GR_TOP_NOTHING);
    shows("move to a worker first");
}

static void test_pattern(void **state)
{
    (void)state;
    assert_int_equal(press("/quit\x7f"), GR_TOP_NOTHING);
    assert_string_equal(ui.pattern, "qui");
    shows("show rows with: qui_");
    (void)press("\r");
    shows("rows with qui");
    assert_int_equal(press("/q\x1b"), GR_TOP_NOTHING);
    assert_string_equal(ui.pattern, "");
    (void)press("/");
    for (int i = 0; i < 200; i++) {
        (void)press("x");
    }
    assert_int_equal(strlen(ui.pattern), GR_TOP_PATTERN_BYTES - 1);
    assert_int_equal(gr_top_key(&ui, &view, 3), GR_TOP_QUIT);
}

static void test_the_rest(void **state)
{
    (void)state;
    (void)press("ssp");
    shows("by acceptance; paused");
    (void)press("sss ");
    shows("by speed");
    assert_false(ui.paused);
    (void)press("h");
    assert_true(ui.help);
    (void)press("?");
    assert_false(ui.help);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_cursor, begin),    cmocka_unit_test_setup(test_asks_first, begin),
        cmocka_unit_test_setup(test_wrong_row, begin), cmocka_unit_test_setup(test_pattern, begin),
        cmocka_unit_test_setup(test_the_rest, begin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
