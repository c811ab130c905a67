/* Which Jinja texts are which template. Some texts are in use with their newlines spelled \n and with real ones, which
 * is the same to Jinja: both are here. tests/chat takes what it can get of them from the models' own files. */
#include <xxhash.h>

#include "model/chat/chat_internal.h"

static const struct {
    uint64_t fingerprint;
    const char *name;
} known[] = {
    /* OpenHermes 2.5, and many more */
    {0x4c6e807ee5fe9f4a, "chatml"},
    {0xa04f41d813a07b13, "chatml"},
    /* SmolLM2 Instruct */
    {0x99ab995e9629dacd, "smollm2"},
    {0x83059ddcb62b07a0, "smollm2"},
    /* SmolLM3 3B, as its GGUF files have it */
    {0xa5970aa085999fac, "smollm3"},
    /* Qwen2 Instruct */
    {0xd5d943bd0bd9082f, "qwen2"},
    {0xc79034a9d5f0ae58, "qwen2"},
    /* Qwen2.5 and Qwen2.5-Coder Instruct */
    {0x2469c9508f79506e, "qwen2.5"},
    /* Qwen3 */
    {0x0283f874ff58d644, "qwen3"},
    /* Llama 2 Chat */
    {0x24f6d97f87d647f5, "llama2"},
    /* Llama 3 Instruct; the second as llama.cpp has it */
    {0x9799ad6e2dea0594, "llama3"},
    {0xb97891b7adc1beb8, "llama3"},
    {0x866fc8fa50da12fe, "llama3"},
    /* Llama 3.1 and 3.3, then 3.2 Instruct */
    {0x6ca7779b7730196a, "llama3.1"},
    {0xc3d57e38f5ff0756, "llama3.1"},
    /* Mistral 7B Instruct v0.1 and v0.2, first form */
    {0xa5d004210ebce758, "mistral"},
    /* Mistral 7B Instruct v0.2 */
    {0xf89cfc57f651ff3d, "mistral-v1"},
    /* Mistral Large 2407 */
    {0xc6614466504d495b, "mistral-v3"},
    /* Mistral Nemo 2407 */
    {0xcae647ce0048756b, "mistral-v3-tekken"},
    /* Mistral Large 2411 */
    {0x11381d1c62000f60, "mistral-v7"},
    /* Gemma 2 it */
    {0x2c2e86beabccd2a4, "gemma"},
    {0x344edb205734f341, "gemma"},
    /* Gemma 3 it */
    {0xd9c620dcaf86f38d, "gemma3"},
    {0xd927416abefac232, "gemma3"},
    /* Zephyr 7B, TinyLlama Chat */
    {0x1db34e9fc60441d8, "zephyr"},
    {0xd9fe74edcb57aa82, "zephyr"},
};

uint64_t gr_chat_fingerprint(const char *jinja, size_t len)
{
    return XXH3_64bits(jinja, len > 0 && jinja[len - 1] == '\n' ? len - 1 : len);
}

const struct gr_chat_template *gr_chat_by_text(const char *jinja, size_t len)
{
    const uint64_t fingerprint = gr_chat_fingerprint(jinja, len);
    for (size_t i = 0; i < GR_ARRAY_LEN(known); i++) {
        if (known[i].fingerprint == fingerprint) {
            return gr_chat_by_name(known[i].name);
        }
    }
    return NULL;
}
