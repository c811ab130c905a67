/* The templates, a row each. Texts and rules are those of the models' own Jinja files; tests/chat holds them together.
 */
#include <string.h>

#include "model/chat/chat_internal.h"

#define LLAMA_TOKENS .bos = "<s>", .eos = "</s>"
#define CHATML                                                                   \
    .turn = {[GR_CHAT_SYSTEM] = {"<|im_start|>system\n", "<|im_end|>\n"},        \
             [GR_CHAT_USER] = {"<|im_start|>user\n", "<|im_end|>\n"},            \
             [GR_CHAT_ASSISTANT] = {"<|im_start|>assistant\n", "<|im_end|>\n"}}, \
    .answer = "<|im_start|>assistant\n", .end = {"<|im_end|>"}, .begin = "", .bos = "", .eos = "<|im_end|>"
#define HEADER(role) "<|start_header_id|>" role "<|end_header_id|>\n\n"
#define LLAMA3                                                           \
    .begin = BOS, .bos = "<|begin_of_text|>", .eos = "<|eot_id|>",       \
    .turn = {[GR_CHAT_SYSTEM] = {HEADER("system"), "<|eot_id|>"},        \
             [GR_CHAT_USER] = {HEADER("user"), "<|eot_id|>"},            \
             [GR_CHAT_ASSISTANT] = {HEADER("assistant"), "<|eot_id|>"}}, \
    .answer = HEADER("assistant"), .strip = GR_CHAT_STRIP
#define GEMMA                                                                      \
    .begin = BOS, .bos = "<bos>", .eos = "<eos>",                                  \
    .turn = {[GR_CHAT_SYSTEM] = {"", "\n\n"},                                      \
             [GR_CHAT_USER] = {"<start_of_turn>user\n", "<end_of_turn>\n"},        \
             [GR_CHAT_ASSISTANT] = {"<start_of_turn>model\n", "<end_of_turn>\n"}}, \
    .answer = "<start_of_turn>model\n", .end = {"<end_of_turn>"}, .strip = GR_CHAT_STRIP, .alternates = true

static const struct gr_chat_template templates[] = {
    {.name = "chatml", CHATML},
    {.name = "smollm2", CHATML, .system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"},
    {.name = "qwen2", CHATML, .system = "You are a helpful assistant."},
    {.name = "qwen2.5", CHATML, .system = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."},
    {.name = "qwen3", CHATML, .no_thinking = "<think>\n\n</think>\n\n", .old_answer = gr_chat_qwen3_answer},
    {.name = "smollm3",
     CHATML,
     .no_thinking = "<think>\n\n</think>\n",
     .one_system = true,
     .head = gr_chat_smollm3_head,
     .old_answer = gr_chat_smollm3_answer,
     .silent = gr_chat_smollm3_silent},
    {.name = "llama2",
     LLAMA_TOKENS,
     .begin = "",
     .turn = {[GR_CHAT_SYSTEM] = {"<<SYS>>\n", "\n<</SYS>>\n\n"},
              [GR_CHAT_USER] = {BOS "[INST] ", " [/INST]"},
              [GR_CHAT_ASSISTANT] = {" ", " " EOS}},
     .answer = "",
     .end = {EOS},
     .place = GR_CHAT_FIRST_USER,
     .strip = GR_CHAT_STRIP_JOINED,
     .alternates = true},
    {.name = "llama3", LLAMA3, .end = {"<|eot_id|>"}},
    {.name = "llama3.1",
     LLAMA3,
     .end = {"<|eot_id|>", "<|eom_id|>"},
     .date = "26 Jul 2024",
     .system = "",
     .lead = "Cutting Knowledge Date: December 2023\nToday Date: " DATE "\n\n"},
    {.name = "mistral",
     LLAMA_TOKENS,
     .begin = BOS,
     .turn = {[GR_CHAT_USER] = {"[INST] ", " [/INST]"}, [GR_CHAT_ASSISTANT] = {"", EOS}},
     .answer = "",
     .end = {EOS},
     .place = GR_CHAT_NOWHERE,
     .alternates = true},
    {.name = "mistral-v1",
     LLAMA_TOKENS,
     .begin = BOS,
     .turn =
         {[GR_CHAT_SYSTEM] = {"", "\n\n"}, [GR_CHAT_USER] = {" [INST] ", " [/INST]"}, [GR_CHAT_ASSISTANT] = {" ", EOS}},
     .answer = "",
     .end = {EOS},
     .place = GR_CHAT_FIRST_USER,
     .alternates = true},
    {.name = "mistral-v3",
     LLAMA_TOKENS,
     .begin = BOS,
     .turn =
         {[GR_CHAT_SYSTEM] = {"", "\n\n"}, [GR_CHAT_USER] = {"[INST] ", "[/INST]"}, [GR_CHAT_ASSISTANT] = {" ", EOS}},
     .answer = "",
     .end = {EOS},
     .place = GR_CHAT_LAST_USER,
     .strip = GR_CHAT_STRIP_ANSWERS,
     .alternates = true},
    {.name = "mistral-v3-tekken",
     LLAMA_TOKENS,
     .begin = BOS,
     .turn = {[GR_CHAT_SYSTEM] = {"", "\n\n"}, [GR_CHAT_USER] = {"[INST]", "[/INST]"}, [GR_CHAT_ASSISTANT] = {"", EOS}},
     .answer = "",
     .end = {EOS},
     .place = GR_CHAT_LAST_USER,
     .alternates = true},
    {.name = "mistral-v7",
     LLAMA_TOKENS,
     .begin = BOS,
     .turn = {[GR_CHAT_SYSTEM] = {"[SYSTEM_PROMPT] ", "[/SYSTEM_PROMPT]"},
              [GR_CHAT_USER] = {"[INST] ", "[/INST]"},
              [GR_CHAT_ASSISTANT] = {" ", EOS}},
     .answer = "",
     .end = {EOS}},
    {.name = "gemma", GEMMA, .place = GR_CHAT_NOWHERE},
    {.name = "gemma3", GEMMA, .place = GR_CHAT_FIRST_USER},
    {.name = "zephyr",
     LLAMA_TOKENS,
     .begin = "",
     .turn = {[GR_CHAT_SYSTEM] = {"<|system|>\n", EOS "\n"},
              [GR_CHAT_USER] = {"<|user|>\n", EOS "\n"},
              [GR_CHAT_ASSISTANT] = {"<|assistant|>\n", EOS "\n"}},
     .answer = "<|assistant|>\n",
     .end = {EOS}},
};
#define N_TEMPLATE ((int)GR_ARRAY_LEN(templates))

const struct gr_chat_template *gr_chat_by_name(const char *name)
{
    for (int i = 0; i < N_TEMPLATE; i++) {
        if (strcmp(templates[i].name, name) == 0) {
            return &templates[i];
        }
    }
    return NULL;
}

const char *gr_chat_name_at(int i)
{
    return i < N_TEMPLATE ? templates[i].name : NULL;
}

const char *gr_chat_name(const struct gr_chat_template *form)
{
    return form->name;
}

bool gr_chat_thinks(const struct gr_chat_template *form)
{
    return form->no_thinking != NULL;
}

bool gr_chat_has_date(const struct gr_chat_template *form)
{
    return form->date != NULL;
}

int gr_chat_ends(const struct gr_chat *c, const char *end_out[GR_CHAT_N_END_MAX])
{
    int n = 0;
    for (int i = 0; i < GR_CHAT_N_END_MAX && c->form->end[i] != NULL; i++) {
        const char *end = c->form->end[i];
        end_out[n++] = strcmp(end, EOS) != 0 ? end : c->eos != NULL ? c->eos : c->form->eos;
    }
    return n;
}
