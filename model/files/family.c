#include "model/files/family.h"

#include <stddef.h>
#include <string.h>

#include "common/base/status.h"

/* The defaults are those of the classes of Hugging Face transformers, which leaves a key out of config.json where it
 * has its default. */
static const struct gr_family families[] = {
    {.architecture = "LlamaForCausalLM",
     .gguf = "llama", /* Mistral's files say so as well */
     .gguf_pairs = true,
     .runs = true,
     .bias = GR_BIAS_BY_FLAG,
     .mlp_bias = true,
     .rope_theta = 1e4},
    {.architecture = "MistralForCausalLM", .runs = true, .rope_theta = 1e4, .window = GR_WINDOW_ALL},
    {.architecture = "Qwen2ForCausalLM",
     .gguf = "qwen2",
     .runs = true,
     .bias = GR_BIAS_QKV,
     .rope_theta = 1e4,
     .window = GR_WINDOW_AFTER},
    {.architecture = "Qwen3ForCausalLM",
     .gguf = "qwen3",
     .runs = true,
     .bias = GR_BIAS_BY_FLAG,
     .qk_norm = true,
     .head_dim = 128,
     .rope_theta = 1e4,
     .window = GR_WINDOW_AFTER},
    {.architecture = "SmolLM3ForCausalLM",
     .gguf = "smollm3",
     .gguf_pairs = true,
     .runs = true,
     .bias = GR_BIAS_BY_FLAG,
     .mlp_bias = true,
     .tied = true,
     .rope_theta = 2e6,
     .window = GR_WINDOW_NO_ROPE,
     .no_rope = true},
    {.architecture = "Gemma3ForCausalLM",
     .gguf = "gemma3",
     .runs = true,
     .bias = GR_BIAS_BY_FLAG,
     .qk_norm = true,
     .tied = true,
     .head_dim = 256,
     .rope_theta = 1e6,
     .window = GR_WINDOW_PATTERN,
     .gemma = true},
    {.architecture = "GptOssForCausalLM", .bias = GR_BIAS_BY_FLAG, .rope_theta = 1e4, .window = GR_WINDOW_EVEN},
    /* A head without a rope_theta takes its target's. */
    {.architecture = "LlamaForCausalLMEagle3", .bias = GR_BIAS_BY_FLAG, .mlp_bias = true},
};

const struct gr_family *gr_family_find(const char *architecture)
{
    if (strcmp(architecture, "Eagle3LlamaForCausalLM") == 0) {
        architecture = "LlamaForCausalLMEagle3";
    }
    for (size_t i = 0; i < GR_ARRAY_LEN(families); i++) {
        if (strcmp(architecture, families[i].architecture) == 0) {
            return &families[i];
        }
    }
    return NULL;
}

const struct gr_family *gr_family_of_gguf(const char *architecture, size_t len)
{
    for (size_t i = 0; i < GR_ARRAY_LEN(families); i++) {
        const char *name = families[i].gguf;
        if (name != NULL && strlen(name) == len && memcmp(name, architecture, len) == 0) {
            return &families[i];
        }
    }
    return NULL;
}
