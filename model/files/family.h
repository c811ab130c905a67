/* What makes one family of models another: one row each, in one table. Readers of config.json and of GGUF metadata go
 * by the row and put what it means into struct gr_hf_config, which is all that loaders and runtimes look at. So a
 * family is added by a row, or by a new field that the forward pass knows. */
#ifndef GR_MODEL_FILES_FAMILY_H
#define GR_MODEL_FILES_FAMILY_H

#include <stdbool.h>
#include <stddef.h>

/* Biases of q, k, v and o. By flag: all four if config.json's attention_bias says so. */
enum gr_family_bias { GR_BIAS_NONE, GR_BIAS_BY_FLAG, GR_BIAS_QKV };

/* Which layers look back over a window only, where config.json has no layer_types. */
enum gr_family_window {
    GR_WINDOW_NONE,    /* none may */
    GR_WINDOW_ALL,     /* all, unless sliding_window is null */
    GR_WINDOW_AFTER,   /* with use_sliding_window: those from max_window_layers on */
    GR_WINDOW_NO_ROPE, /* with use_sliding_window: those without rotary embedding */
    GR_WINDOW_PATTERN, /* all but each sliding_window_pattern-th */
    GR_WINDOW_EVEN,    /* layers 0, 2, 4, ... */
};

struct gr_family {
    const char *architecture; /* of config.json */
    const char *gguf;         /* general.architecture; NULL: not read from GGUF */
    bool gguf_pairs;          /* q and k rows lie as neighbours that are turned together; else as two halves */
    bool runs;                /* as a model; an EAGLE-3 head is none */
    enum gr_family_bias bias;
    bool mlp_bias;     /* config.json's mlp_bias is looked at */
    bool qk_norm;      /* an RMSNorm over each head of q and k, before rotary embedding */
    bool tied;         /* where config.json is silent about tie_word_embeddings */
    int head_dim;      /* where it is silent; 0: hidden size / heads */
    double rope_theta; /* where it is silent; 0: none */
    enum gr_family_window window;
    bool no_rope; /* some layers have no rotary embedding: no_rope_layers, no_rope_layer_interval */
    bool gemma;   /* norms of 1 + w, two more of them a layer, scaled embedding, GeGLU, rope of its own where a layer
                   * has a window, query_pre_attn_scalar */
};

/* NULL: not known. The alias Eagle3LlamaForCausalLM finds LlamaForCausalLMEagle3. */
const struct gr_family *gr_family_find(const char *architecture);
/* By general.architecture of len bytes; NULL: not known. */
const struct gr_family *gr_family_of_gguf(const char *architecture, size_t len);

/* Static texts for messages: what config.json may name, what runs as a model, what GGUF files may name. */
#define GR_FAMILIES_RUN \
    "LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, SmolLM3ForCausalLM, Gemma3ForCausalLM"
#define GR_FAMILIES_KNOWN GR_FAMILIES_RUN ", GptOssForCausalLM, LlamaForCausalLMEagle3, Eagle3LlamaForCausalLM"
#define GR_FAMILIES_GGUF "llama, qwen2, qwen3, smollm3, gemma3"

#endif
