/* Where a folder says which chat template its model has. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "model/files/chat_file.h"
#include "tests/unit/log_capture.h"
#include "tests/unit/write_file.h"

static char dir[64];

static void put(const char *name, const char *text)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    if (text == NULL) {
        (void)remove(path);
        return;
    }
    write_file(path, text);
}

static int begin(void **state)
{
    (void)state;
    snprintf(dir, sizeof(dir), "/tmp/graft-chat-XXXXXX");
    if (mkdtemp(dir) == NULL) {
        return -1;
    }
    put("config.json", "{}");
    return 0;
}

static int end(void **state)
{
    (void)state;
    put("config.json", NULL);
    put("tokenizer_config.json", NULL);
    put("chat_template.jinja", NULL);
    return rmdir(dir);
}

static void check(const char *jinja, const char *where, const char *bos, const char *eos)
{
    const char *const want[] = {jinja, where, bos, eos};
    struct gr_chat_file f;
    assert_int_equal(gr_chat_file_read(dir, NULL, &f), GR_OK);
    const char *const got[] = {f.jinja, f.where, f.bos, f.eos};
    for (size_t i = 0; i < GR_ARRAY_LEN(want); i++) {
        if (want[i] == NULL) {
            assert_null(got[i]);
        } else {
            assert_string_equal(got[i], want[i]);
        }
    }
    assert_int_equal(f.len, jinja != NULL ? strlen(jinja) : 0);
    gr_chat_file_free(&f);
}

static void test_folders(void **state)
{
    (void)state;
    check(NULL, NULL, NULL, NULL);
    put("tokenizer_config.json", "{\"bos_token\":\"<s>\",\"eos_token\":{\"content\":\"</s>\",\"special\":true}}");
    check(NULL, NULL, "<s>", "</s>");
    put("tokenizer_config.json", "{\"bos_token\":null,\"chat_template\":\"{{x}}\\n\"}");
    check("{{x}}\n", "tokenizer_config.json", NULL, NULL);
    put("tokenizer_config.json", "{\"chat_template\":[{\"name\":\"tool_use\",\"template\":\"t\"},{\"name\":\"default\","
                                 "\"template\":\"d\"}]}");
    check("d", "tokenizer_config.json", NULL, NULL);
    put("tokenizer_config.json", "{\"chat_template\":[{\"name\":\"tool_use\",\"template\":\"t\"},7]}");
    check(NULL, NULL, NULL, NULL);
    put("tokenizer_config.json", "{\"chat_template\":\"old\",\"eos_token\":\"E\"}");
    put("chat_template.jinja", "new");
    check("new", "chat_template.jinja", NULL, "E");
    put("tokenizer_config.json", NULL);
    check("new", "chat_template.jinja", NULL, NULL);
}

static void test_bad(void **state)
{
    (void)state;
    struct gr_chat_file f;
    struct log_capture cap;
    static const char *const texts[] = {"{\"chat_template\":", "{\"chat_template\":7}", "{\"chat_template\":{}}"};
    for (size_t i = 0; i < GR_ARRAY_LEN(texts); i++) {
        put("tokenizer_config.json", texts[i]);
        log_capture_begin(&cap);
        assert_int_equal(gr_chat_file_read(dir, NULL, &f), GR_EFORMAT);
        const char *log = log_capture_end(&cap);
        assert_int_equal(log_capture_n_line(log), 1);
        assert_non_null(strstr(log, i == 0 ? "tokenizer_config.json" : "tokenizer_config.json: chat_template must be"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_folders, begin, end),
        cmocka_unit_test_setup_teardown(test_bad, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
