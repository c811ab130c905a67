/* Words as a shell reads them: by their bytes, and by what a shell makes of them. */
#include "common/process/shell_words.h"

#include "common/base/status.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* Owned by the caller. */
static char *printed(const char *const *word)
{
    char *text = NULL;
    size_t len = 0;
    FILE *f = open_memstream(&text, &len);
    assert_non_null(f);
    gr_shell_words_print(word, f);
    assert_int_equal(fclose(f), 0);
    return text;
}

static void test_bytes(void **state)
{
    static const struct {
        const char *word, *text;
    } cases[] = {
        {"plain", "plain"}, {"--connect", "--connect"},   {"/a/b-c_d.e:1,2=3@4%5+6", "/a/b-c_d.e:1,2=3@4%5+6"},
        {"", "''"},         {"two words", "'two words'"}, {"it's", "'it'\\''s'"},
        {"'", "''\\'''"},   {"a\nb", "'a\nb'"},           {"$HOME", "'$HOME'"},
        {"!1", "'!1'"},
    };
    (void)state;
    for (size_t i = 0; i < GR_ARRAY_LEN(cases); i++) {
        char *text = printed((const char *const[]){cases[i].word, NULL});
        assert_string_equal(text, cases[i].text);
        free(text);
    }
    char *text = printed((const char *const[]){"graft", "run", "--prompt", "it's \"so\"", NULL});
    assert_string_equal(text, "graft run --prompt 'it'\\''s \"so\"'");
    free(text);
    text = printed((const char *const[]){NULL});
    assert_string_equal(text, "");
    free(text);
}

/* Every byte that a word may have, alone and between others. */
static void test_shell(void **state)
{
    (void)state;
    for (int byte = 1; byte < 256; byte++) {
        const char c = (char)byte;
        const char alone[] = {c, '\0'}, between[] = {'a', c, c, ' ', c, 'b', '\0'};
        char expected[32], got[32] = "", command[128];
        char *text = printed((const char *const[]){"printf", "%s|%s|", alone, between, NULL});
        snprintf(command, sizeof(command), "%s", text);
        free(text);
        snprintf(expected, sizeof(expected), "%s|%s|", alone, between);
        FILE *shell = popen(command, "r");
        assert_non_null(shell);
        const size_t n = fread(got, 1, sizeof(got) - 1, shell);
        assert_int_equal(pclose(shell), 0);
        got[n] = '\0';
        assert_string_equal(got, expected);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_shell),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
