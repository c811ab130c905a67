/* Rendered conversations of our own; tests/chat holds the same templates against Jinja2. What the template did not
 * write stands between braces. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "model/chat/chat.h"
#include "tests/unit/log_capture.h"

#define M(role, text)                          \
    {                                          \
        GR_CHAT_##role, text, sizeof(text) - 1 \
    }

static void brace(const struct gr_chat_text *t, char *out, size_t cap)
{
    size_t at = 0, n = 0;
    for (size_t i = 0; i <= t->n_plain; i++) {
        const size_t begin = i < t->n_plain ? t->plain[i].begin : t->len;
        const size_t end = i < t->n_plain ? t->plain[i].end : t->len;
        n += (size_t)snprintf(out + n, cap - n, "%.*s", (int)(begin - at), t->text + at);
        if (i < t->n_plain) {
            n += (size_t)snprintf(out + n, cap - n, "{%.*s}", (int)(end - begin), t->text + begin);
        }
        at = end;
    }
}

static void check(const struct gr_chat *c, const struct gr_chat_message *m, size_t n, const char *want)
{
    struct gr_chat_text t;
    char got[4096];
    assert_int_equal(gr_chat_render(c, m, n, &t), GR_OK);
    brace(&t, got, sizeof(got));
    if (strcmp(got, want) != 0) {
        fail_msg("%s: got\n%s\nwant\n%s", gr_chat_name(c->form), got, want);
    }
    gr_chat_text_free(&t);
}

static struct gr_chat chat(const char *name)
{
    const struct gr_chat c = {.form = gr_chat_by_name(name)};
    assert_non_null(c.form);
    return c;
}

/* name; a conversation of four messages; a question alone (smollm3: without thinking) */
static const struct {
    const char *name, *full, *alone;
} rows[] = {
    {"chatml",
     "<|im_start|>system\n{ Be brief. }<|im_end|>\n<|im_start|>user\n{Is it"
     " </s>?}<|im_end|>\n<|im_start|>assistant\n{\n Yes."
     " }<|im_end|>\n<|im_start|>user\n{Zürich\n}<|im_end|>\n<|im_start|>assistant\n",
     "<|im_start|>user\n{Hi}<|im_end|>\n<|im_start|>assistant\n"},
    {"smollm2",
     "<|im_start|>system\n{ Be brief. }<|im_end|>\n<|im_start|>user\n{Is it"
     " </s>?}<|im_end|>\n<|im_start|>assistant\n{\n Yes."
     " }<|im_end|>\n<|im_start|>user\n{Zürich\n}<|im_end|>\n<|im_start|>assistant\n",
     "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging"
     " Face<|im_end|>\n<|im_start|>user\n{Hi}<|im_end|>\n<|im_start|>assistant\n"},
    {"qwen2",
     "<|im_start|>system\n{ Be brief. }<|im_end|>\n<|im_start|>user\n{Is it"
     " </s>?}<|im_end|>\n<|im_start|>assistant\n{\n Yes."
     " }<|im_end|>\n<|im_start|>user\n{Zürich\n}<|im_end|>\n<|im_start|>assistant\n",
     "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n{Hi}<|im_end|>"
     "\n<|im_start|>assistant\n"},
    {"qwen2.5",
     "<|im_start|>system\n{ Be brief. }<|im_end|>\n<|im_start|>user\n{Is it"
     " </s>?}<|im_end|>\n<|im_start|>assistant\n{\n Yes."
     " }<|im_end|>\n<|im_start|>user\n{Zürich\n}<|im_end|>\n<|im_start|>assistant\n",
     "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful"
     " assistant.<|im_end|>\n<|im_start|>user\n{Hi}<|im_end|>\n<|im_start|>assistant\n"},
    {"qwen3",
     "<|im_start|>system\n{ Be brief. }<|im_end|>\n<|im_start|>user\n{Is it"
     " </s>?}<|im_end|>\n<|im_start|>assistant\n{\n Yes."
     " }<|im_end|>\n<|im_start|>user\n{Zürich\n}<|im_end|>\n<|im_start|>assistant\n",
     "<|im_start|>user\n{Hi}<|im_end|>\n<|im_start|>assistant\n"},
    {"smollm3",
     "<|im_start|>system\n## Metadata\n\nKnowledge Cutoff Date: June 2025\nReasoning Mode: /think\n\n##"
     " Custom Instructions\n\n{ Be brief.}\n\n<|im_end|>\n<|im_start|>user\n{Is it"
     " </s>?}<|im_end|>\n<|im_start|>assistant\n{ Yes."
     " }<|im_end|>\n<|im_start|>user\n{Zürich\n}<|im_end|>\n<|im_start|>assistant\n",
     "<|im_start|>system\n## Metadata\n\nKnowledge Cutoff Date: June 2025\nReasoning Mode:"
     " /no_think\n\n## Custom Instructions\n\nYou are a helpful AI assistant named SmolLM, trained by"
     " Hugging Face.\n\n<|im_end|>\n<|im_start|>user\n{Hi}<|im_end|>\n<|im_start|>assistant\n<think>\n"
     "\n</think>\n"},
    {"llama2",
     "<s>[INST] <<SYS>>\n{ Be brief. }\n<</SYS>>\n\n{Is it </s>?} [/INST] {Yes.} </s><s>[INST] {Zürich}"
     " [/INST]",
     "<s>[INST] {Hi} [/INST]"},
    {"llama3",
     "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n{Be"
     " brief.}<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n{Is it"
     " </s>?}<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n"
     "\n{Yes.}<|eot_id|><|start_header_id|>user<|end_header_id|>\n"
     "\n{Zürich}<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
     "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n"
     "\n{Hi}<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"},
    {"llama3.1",
     "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December"
     " 2023\nToday Date: 26 Jul 2024\n\n{Be brief.}<|eot_id|><|start_header_id|>user<|end_header_id|>\n"
     "\n{Is it </s>?}<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n"
     "\n{Yes.}<|eot_id|><|start_header_id|>user<|end_header_id|>\n"
     "\n{Zürich}<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
     "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December"
     " 2023\nToday Date: 26 Jul 2024\n\n<|eot_id|><|start_header_id|>user<|end_header_id|>\n"
     "\n{Hi}<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"},
    {"mistral", "<s>[INST] {Is it </s>?} [/INST]{\n Yes. }</s>[INST] {Zürich\n} [/INST]", "<s>[INST] {Hi} [/INST]"},
    {"mistral-v1", "<s> [INST] { Be brief. }\n\n{Is it </s>?} [/INST] {\n Yes. }</s> [INST] {Zürich\n} [/INST]",
     "<s> [INST] {Hi} [/INST]"},
    {"mistral-v3", "<s>[INST] {Is it </s>?}[/INST] {Yes.}</s>[INST] { Be brief. }\n\n{Zürich\n}[/INST]",
     "<s>[INST] {Hi}[/INST]"},
    {"mistral-v3-tekken", "<s>[INST]{Is it </s>?}[/INST]{\n Yes. }</s>[INST]{ Be brief. }\n\n{Zürich\n}[/INST]",
     "<s>[INST]{Hi}[/INST]"},
    {"mistral-v7",
     "<s>[SYSTEM_PROMPT] { Be brief. }[/SYSTEM_PROMPT][INST] {Is it </s>?}[/INST] {\n Yes. }</s>[INST]"
     " {Zürich\n}[/INST]",
     "<s>[INST] {Hi}[/INST]"},
    {"gemma",
     "<bos><start_of_turn>user\n{Is it </s>?}<end_of_turn>\n<start_of_turn>model\n{Yes.}<end_of_turn>"
     "\n<start_of_turn>user\n{Zürich}<end_of_turn>\n<start_of_turn>model\n",
     "<bos><start_of_turn>user\n{Hi}<end_of_turn>\n<start_of_turn>model\n"},
    {"gemma3",
     "<bos><start_of_turn>user\n{ Be brief. }\n\n{Is it"
     " </s>?}<end_of_turn>\n<start_of_turn>model\n{Yes.}<end_of_turn>\n<start_of_turn>user"
     "\n{Zürich}<end_of_turn>\n<start_of_turn>model\n",
     "<bos><start_of_turn>user\n{Hi}<end_of_turn>\n<start_of_turn>model\n"},
    {"zephyr",
     "<|system|>\n{ Be brief. }</s>\n<|user|>\n{Is it </s>?}</s>\n<|assistant|>\n{\n Yes."
     " }</s>\n<|user|>\n{Zürich\n}</s>\n<|assistant|>\n",
     "<|user|>\n{Hi}</s>\n<|assistant|>\n"},
};

static bool refuses_system(const char *name)
{
    return strcmp(name, "mistral") == 0 || strcmp(name, "gemma") == 0;
}

static void test_every_template(void **state)
{
    (void)state;
    static const struct gr_chat_message full[] = {M(SYSTEM, " Be brief. "), M(USER, "Is it </s>?"),
                                                  M(ASSISTANT, "\n Yes. "), M(USER, "Z\u00fcrich\n")};
    static const struct gr_chat_message alone[] = {M(USER, "Hi")};
    for (size_t i = 0; i < GR_ARRAY_LEN(rows); i++) {
        struct gr_chat c = chat(rows[i].name);
        const size_t first = refuses_system(rows[i].name);
        check(&c, full + first, 4 - first, rows[i].full);
        c.no_thinking = strcmp(rows[i].name, "smollm3") == 0;
        check(&c, alone, 1, rows[i].alone);
        assert_string_equal(gr_chat_name_at((int)i), rows[i].name);
    }
    assert_null(gr_chat_name_at(GR_ARRAY_LEN(rows)));
    assert_null(gr_chat_by_name("vicuna"));
}

static void test_what_is_given(void **state)
{
    (void)state;
    static const struct gr_chat_message m[] = {M(USER, "Hi"), M(ASSISTANT, "")};
    struct gr_chat c = chat("llama3.1");
    c.bos = "<B>";
    c.date = "01 Jan 2030";
    check(&c, m, 1,
          "<B><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\nToday Date: 01 Jan "
          "2030\n\n<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n{Hi}<|eot_id|><|start_header_id|>assistant"
          "<|end_header_id|>\n\n");
    c = chat("zephyr");
    c.eos = "<|end|>";
    check(&c, m, 2, "<|user|>\n{Hi}<|end|>\n<|assistant|>\n<|end|>\n<|assistant|>\n");
}

/* An empty system message is one. */
static void test_empty_system(void **state)
{
    (void)state;
    static const struct gr_chat_message m[] = {M(SYSTEM, ""), M(USER, " ")};
    struct gr_chat c = chat("smollm2");
    check(&c, m, 2, "<|im_start|>system\n<|im_end|>\n<|im_start|>user\n{ }<|im_end|>\n<|im_start|>assistant\n");
    c = chat("llama2");
    check(&c, m, 2, "<s>[INST] <<SYS>>\n\n<</SYS>> [/INST]");
    c = chat("gemma3");
    check(&c, m, 2, "<bos><start_of_turn>user\n\n\n<end_of_turn>\n<start_of_turn>model\n");
}

static void test_thoughts(void **state)
{
    (void)state;
    static const struct gr_chat_message m[] = {M(USER, "a"), M(ASSISTANT, "<think>\nhm\n</think>\n\nb"), M(USER, "c"),
                                               M(ASSISTANT, "<think>\nso\n</think>\nd")};
    struct gr_chat c = chat("qwen3");
    check(&c, m, 3,
          "<|im_start|>user\n{a}<|im_end|>\n<|im_start|>assistant\n{b}<|im_end|>\n<|im_start|>user\n{c}<|im_end|>\n"
          "<|im_start|>assistant\n");
    c.no_thinking = true;
    check(&c, m, 1, "<|im_start|>user\n{a}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n");
    c.no_thinking = false;
    check(&c, m + 2, 2,
          "<|im_start|>user\n{c}<|im_end|>\n<|im_start|>assistant\n<think>\n{so}\n</think>\n\n{d}<|im_end|>\n"
          "<|im_start|>assistant\n");
    c = chat("smollm3");
    static const struct gr_chat_message told[] = {M(SYSTEM, "/no_think Be /thinkkind. "), M(USER, "a"),
                                                  M(ASSISTANT, "\nb"), M(SYSTEM, "no"), M(USER, "c")};
    check(&c, told, 5,
          "<|im_start|>system\n## Metadata\n\nKnowledge Cutoff Date: June 2025\nReasoning Mode: /no_think\n\n## Custom "
          "Instructions\n\n{ Be kind.}\n\n<|im_end|>\n<|im_start|>user\n{a}<|im_end|>\n<|im_start|>assistant\n<think>\n"
          "\n</think>\n{b}<|im_end|>\n<|im_start|>user\n{c}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n");
    assert_true(gr_chat_thinks(c.form));
    assert_false(gr_chat_thinks(chat("smollm2").form));
}

/* An answer that goes on with the last message: no end of turn, no new one. */
static void test_open_message(void **state)
{
    (void)state;
    static const struct gr_chat_message m[] = {M(USER, "Hi"), M(ASSISTANT, "It is "), M(USER, "?"),
                                               M(ASSISTANT, " \u3000")};
    struct gr_chat c = chat("chatml");
    c.goes_on = true;
    check(&c, m, 2, "<|im_start|>user\n{Hi}<|im_end|>\n<|im_start|>assistant\n{It is }");
    c.form = gr_chat_by_name("qwen3");
    c.no_thinking = true;
    check(&c, m, 2, "<|im_start|>user\n{Hi}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n{It is }");
    c.form = gr_chat_by_name("mistral-v7");
    check(&c, m, 4, "<s>[INST] {Hi}[/INST] {It is }</s>[INST] {?}[/INST] { \u3000}");
    c.form = gr_chat_by_name("gemma");
    check(&c, m, 2, "<bos><start_of_turn>user\n{Hi}<end_of_turn>\n<start_of_turn>model\n{It is}");
    check(&c, m, 4,
          "<bos><start_of_turn>user\n{Hi}<end_of_turn>\n<start_of_turn>model\n{It is}<end_of_turn>\n<start_of_turn>user"
          "\n{?}<end_of_turn>\n<start_of_turn>model");
}

static void check_refused_by(const struct gr_chat *c, const struct gr_chat_message *m, size_t n, const char *word)
{
    struct gr_chat_text t;
    struct log_capture cap;
    log_capture_begin(&cap);
    assert_int_equal(gr_chat_render(c, m, n, &t), GR_EINVAL);
    const char *text = log_capture_end(&cap), *name = gr_chat_name(c->form);
    if (log_capture_n_line(text) != 1 || strstr(text, word) == NULL || strstr(text, name) == NULL) {
        fail_msg("%s: %s", name, text);
    }
}

static void check_refused(const char *name, const struct gr_chat_message *m, size_t n, const char *word)
{
    const struct gr_chat c = chat(name);
    check_refused_by(&c, m, n, word);
}

static void test_refused(void **state)
{
    (void)state;
    static const struct gr_chat_message system[] = {M(SYSTEM, "s"), M(USER, "u")};
    static const struct gr_chat_message two[] = {M(USER, "u"), M(USER, "u")};
    static const struct gr_chat_message late[] = {M(USER, "u"), M(SYSTEM, "s"), M(USER, "u")};
    check_refused("gemma", system, 2, "no system message");
    check_refused("mistral", system, 2, "no system message");
    check_refused("llama2", two, 2, "take turns");
    check_refused("gemma3", system + 1, 0, "no message");
    check_refused("mistral-v1", late, 3, "come first");
    struct gr_chat open = chat("chatml");
    open.goes_on = true;
    check_refused_by(&open, two, 2, "a message of the assistant");
}

static void test_ends(void **state)
{
    (void)state;
    const char *end[GR_CHAT_N_END_MAX];
    struct gr_chat c = chat("llama3.1");
    assert_int_equal(gr_chat_ends(&c, end), 2);
    assert_string_equal(end[0], "<|eot_id|>");
    assert_string_equal(end[1], "<|eom_id|>");
    c = chat("mistral-v7");
    assert_int_equal(gr_chat_ends(&c, end), 1);
    assert_string_equal(end[0], "</s>");
    c.eos = "<E>";
    assert_int_equal(gr_chat_ends(&c, end), 1);
    assert_string_equal(end[0], "<E>");
}

/* A text of our own is none that is known; a newline at its end means nothing to Jinja. */
static void test_fingerprints(void **state)
{
    (void)state;
    static const char chatml[] =
        "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + "
        "'\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}\n";
    const size_t n = sizeof(chatml) - 1;
    assert_non_null(gr_chat_by_text(chatml, n));
    assert_string_equal(gr_chat_name(gr_chat_by_text(chatml, n)), "chatml");
    assert_ptr_equal(gr_chat_by_text(chatml, n - 1), gr_chat_by_text(chatml, n));
    assert_null(gr_chat_by_text(chatml, n - 2));
    assert_null(gr_chat_by_text("", 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_template), cmocka_unit_test(test_what_is_given),
        cmocka_unit_test(test_empty_system),   cmocka_unit_test(test_thoughts),
        cmocka_unit_test(test_refused),        cmocka_unit_test(test_ends),
        cmocka_unit_test(test_fingerprints),   cmocka_unit_test(test_open_message),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
