/* The prompts of a benchmark: files of both forms, lengths, and texts that differ from plain decoding's. */
#include "bench/prompt_set.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#define MODEL GR_SOURCE_ROOT "/models/demo/target"
#define LONG_TEXT GR_SOURCE_ROOT "/tests/golden/long-prompt.txt"

static void write_file(char path[32], const char *text)
{
    strcpy(path, "/tmp/prompts-XXXXXX");
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    close(fd);
}

static enum gr_status load(const char *text, const char *kind, int n_prompt, struct gr_prompt_set *out)
{
    char path[32];
    write_file(path, text);
    const enum gr_status st = gr_prompt_set_load(
        &(struct gr_prompt_set_options){
            .model = MODEL, .prompts = path, .kind = kind, .n_prompt = n_prompt, .max_tokens = 4},
        out);
    unlink(path);
    return st;
}

static void test_both_forms_are_the_same(void **state)
{
    struct gr_prompt_set array = {0}, lines = {0};
    (void)state;
    assert_int_equal(load("[\"import os\", \"x = 1\", \"def f():\"]", NULL, 0, &array), GR_OK);
    assert_int_equal(load("{\"kind\": \"a\", \"text\": \"import os\"}\n{\"kind\": \"b\", \"text\": \"no\"}\n"
                          "{\"text\": \"no kind\"}\n{\"kind\": \"a\", \"text\": \"x = 1\"}\n\n",
                          "a", 0, &lines),
                     GR_OK);
    assert_int_equal(array.n, 3);
    assert_int_equal(lines.n, 2);
    for (int i = 0; i < lines.n; i++) {
        assert_int_equal(lines.prompt[i].n, array.prompt[i].n);
        assert_memory_equal(lines.prompt[i].id, array.prompt[i].id, lines.prompt[i].n * sizeof(int32_t));
    }
    gr_prompt_set_free(&array);
    gr_prompt_set_free(&lines);
    assert_int_equal(load("[\"import os\", \"x = 1\", \"def f():\"]", NULL, 2, &array), GR_OK);
    assert_int_equal(array.n, 2);
    gr_prompt_set_free(&array);
}

static void test_files_that_are_wrong(void **state)
{
    static const char *const wrong[] = {"", "[]", "[1]", "{}", "{\"text\": 1}", "\"a\"", "{\"text\": \"a\"} [\"b\"]"};
    struct gr_prompt_set s = {0};
    (void)state;
    for (size_t i = 0; i < GR_ARRAY_LEN(wrong); i++) {
        assert_int_equal(load(wrong[i], NULL, 0, &s), GR_EFORMAT);
        gr_prompt_set_free(&s);
    }
    assert_int_equal(load("[\"a\"]", "a", 0, &s), GR_EFORMAT); /* an array has no kinds */
    assert_int_equal(load("[\"a\"]", NULL, 2, &s), GR_EINVAL);
    gr_prompt_set_free(&s);
}

static void test_lengths(void **state)
{
    struct gr_prompt_set s = {0};
    struct gr_prompt_set_options o = {.model = MODEL, .text = LONG_TEXT, .prompt_tokens = 1024, .n_prompt = 3};
    (void)state;
    assert_int_equal(gr_prompt_set_load(&o, &s), GR_OK);
    assert_int_equal(s.n, 3);
    assert_int_equal(s.n_id_max, 1024);
    assert_true(s.prompt[0].n == 1024 && s.prompt[2].n == 1024);
    assert_memory_not_equal(s.prompt[0].id, s.prompt[2].id, 1024 * sizeof(int32_t));
    gr_prompt_set_free(&s);
}

static void test_texts_that_differ(void **state)
{
    static const int32_t text[] = {5, 6, 7, 8}, late[] = {5, 6, 7, 9};
    struct gr_prompt_set s = {0};
    (void)state;
    assert_int_equal(load("[\"a\", \"b\"]", NULL, 0, &s), GR_OK);
    assert_int_equal(gr_prompt_set_check(&s, 0, text, 3, "alone"), GR_EFORMAT); /* not all that was asked for */
    assert_int_equal(gr_prompt_set_check(&s, 0, text, 4, "alone"), GR_OK);
    assert_int_equal(gr_prompt_set_check(&s, 0, text, 4, "trees"), GR_OK);
    assert_int_equal(gr_prompt_set_check(&s, 0, late, 4, "trees"), GR_EMISMATCH);
    assert_int_equal(gr_prompt_set_check(&s, 0, text, 3, "trees"), GR_EMISMATCH);
    assert_int_equal(gr_prompt_set_check(&s, 1, late, 4, "alone"), GR_OK); /* another prompt has its own */
    gr_prompt_set_free(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_both_forms_are_the_same),
        cmocka_unit_test(test_files_that_are_wrong),
        cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_texts_that_differ),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
