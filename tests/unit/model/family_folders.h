/* For tests: model folders of each family and its variants, made from a seed, and what they are to the reference. */
#ifndef GR_TESTS_FAMILY_FOLDERS_H
#define GR_TESTS_FAMILY_FOLDERS_H

#include "tests/unit/model/family_reference.h"

#define TEXT_OF(n) #n
#define NUMBER(n) TEXT_OF(n)
#define BASE                                                                                                     \
    "\"hidden_size\":32,\"intermediate_size\":" NUMBER(                                                          \
        TINY_FFN) ",\"num_hidden_layers\":4,"                                                                    \
                  "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"vocab_size\":64,\"rms_norm_eps\":1e-5," \
                  "\"max_position_embeddings\":128,\"head_dim\":16"

static const struct family {
    const char *name, *config;
    struct ref_family is;
} families[] = {
    {"llama, default",
     "{\"architectures\":[\"LlamaForCausalLM\"],\"rope_theta\":5000.0," BASE "}",
     {.rope = {.theta = 5000}}},
    {"llama, linear, biases, tied",
     "{\"architectures\":[\"LlamaForCausalLM\"],\"tie_word_embeddings\":true,\"attention_bias\":true,\"mlp_bias\":true,"
     "\"rope_scaling\":{\"type\":\"linear\",\"factor\":4.0}," BASE "}",
     {.rope = {REF_LINEAR, 10000, 4, 0, 0}, .qkv_bias = true, .o_bias = true, .mlp_bias = true, .tied = true}},
    {"llama, linear, tied",
     "{\"architectures\":[\"LlamaForCausalLM\"],\"tie_word_embeddings\":true,\"rope_scaling\":{\"rope_type\":"
     "\"linear\","
     "\"factor\":2.0}," BASE "}",
     {.rope = {REF_LINEAR, 10000, 2, 0, 0}, .tied = true}},
    {"llama, llama3",
     "{\"architectures\":[\"LlamaForCausalLM\"],\"rope_parameters\":{\"rope_type\":\"llama3\",\"rope_theta\":500000.0,"
     "\"factor\":8.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,\"original_max_position_embeddings\":32}," BASE
     "}",
     {.rope = {REF_LLAMA3, 500000, 8, 32, 0}}},
    {"mistral",
     "{\"architectures\":[\"MistralForCausalLM\"],\"sliding_window\":7," BASE "}",
     {.rope = {.theta = 10000}, .window = 7, .windows = 15}},
    {"mistral, window null",
     "{\"architectures\":[\"MistralForCausalLM\"],\"sliding_window\":null," BASE "}",
     {.rope = {.theta = 10000}}},
    {"qwen2",
     "{\"architectures\":[\"Qwen2ForCausalLM\"],\"rope_theta\":1000000.0,\"use_sliding_window\":false,"
     "\"sliding_window\":4,\"max_window_layers\":1,\"tie_word_embeddings\":true," BASE "}",
     {.rope = {.theta = 1e6}, .qkv_bias = true, .tied = true}},
    {"qwen2, windows",
     "{\"architectures\":[\"Qwen2ForCausalLM\"],\"use_sliding_window\":true,\"sliding_window\":16,"
     "\"max_window_layers\":2," BASE "}",
     {.rope = {.theta = 10000}, .qkv_bias = true, .window = 16, .windows = 12}},
    {"qwen3, yarn",
     "{\"architectures\":[\"Qwen3ForCausalLM\"],\"rope_parameters\":{\"rope_type\":\"yarn\",\"factor\":4.0,"
     "\"original_max_position_embeddings\":32,\"rope_theta\":1000000.0}," BASE "}",
     {.rope = {REF_YARN, 1e6, 4, 32, 1.138629436111989}, .qk_norm = true}},
    {"qwen3, biases, yarn with a factor of its own",
     "{\"architectures\":[\"Qwen3ForCausalLM\"],\"attention_bias\":true,\"rope_theta\":10000.0,\"rope_scaling\":{"
     "\"rope_type\":\"yarn\",\"factor\":4.0,\"original_max_position_embeddings\":32,\"attention_factor\":0.75}," BASE
     "}",
     {.rope = {REF_YARN, 10000, 4, 32, 0.75}, .qk_norm = true, .qkv_bias = true, .o_bias = true}},
    {"smollm3",
     "{\"architectures\":[\"SmolLM3ForCausalLM\"],\"no_rope_layer_interval\":4," BASE "}",
     {.rope = {.theta = 2e6}, .no_rope = 8, .tied = true}},
    {"smollm3, list",
     "{\"architectures\":[\"SmolLM3ForCausalLM\"],\"no_rope_layers\":[1,0,0,1],\"rope_theta\":10000.0,"
     "\"tie_word_embeddings\":false,\"use_sliding_window\":true,\"sliding_window\":5," BASE "}",
     {.rope = {.theta = 10000}, .no_rope = 6, .window = 5, .windows = 6}},
    {"gemma3, a scalar of its own",
     "{\"architectures\":[\"Gemma3ForCausalLM\"],\"query_pre_attn_scalar\":24,\"sliding_window\":5,\"layer_types\":["
     "\"sliding_attention\",\"full_attention\",\"full_attention\",\"sliding_attention\"],\"rope_parameters\":{"
     "\"full_attention\":{\"rope_type\":\"default\",\"rope_theta\":50000.0},"
     "\"sliding_attention\":{\"rope_type\":\"default\",\"rope_theta\":3000.0}}," BASE "}",
     {.rope = {.theta = 50000},
      .local = {.theta = 3000},
      .qk_norm = true,
      .gemma = true,
      .tied = true,
      .window = 5,
      .windows = 9,
      .scale_dim = 24,
      .embed_scale = 5.656854152679443359375}},
    {"gemma3",
     "{\"architectures\":[\"Gemma3ForCausalLM\"],\"query_pre_attn_scalar\":16,\"sliding_window\":9,"
     "\"hidden_activation\":\"gelu_pytorch_tanh\",\"sliding_window_pattern\":3,\"rope_theta\":1000000.0,"
     "\"rope_local_base_freq\":10000.0,\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":8.0}," BASE "}",
     {.rope = {REF_LINEAR, 1e6, 8, 0, 0},
      .local = {.theta = 10000},
      .qk_norm = true,
      .gemma = true,
      .tied = true,
      .window = 9,
      .windows = 11,
      .scale_dim = 16,
      .embed_scale = 5.656854152679443359375}},
};

static inline void add(struct tiny_folder *f, const char *prefix, const char *what, int n)
{
    char name[128];
    snprintf(name, sizeof(name), "%s.%s", prefix, what);
    tiny_add(f, name, n, 0);
}

static inline void make_layer(struct tiny_folder *f, const struct ref_family *is, int layer)
{
    static const char *const qkv[] = {"q", "k", "v"};
    char prefix[64], what[64];
    snprintf(prefix, sizeof(prefix), "model.layers.%d", layer);
    tiny_add_layer(f, prefix, TINY_HIDDEN, REF_HEADS * REF_D, REF_KV * REF_D, TINY_HIDDEN, TINY_FFN);
    for (int i = 0; is->qkv_bias && i < 3; i++) {
        snprintf(what, sizeof(what), "self_attn.%s_proj.bias", qkv[i]);
        add(f, prefix, what, i == 0 ? REF_HEADS * REF_D : REF_KV * REF_D);
    }
    if (is->o_bias) {
        add(f, prefix, "self_attn.o_proj.bias", TINY_HIDDEN);
    }
    if (is->mlp_bias) {
        add(f, prefix, "mlp.gate_proj.bias", TINY_FFN);
        add(f, prefix, "mlp.up_proj.bias", TINY_FFN);
        add(f, prefix, "mlp.down_proj.bias", TINY_HIDDEN);
    }
    if (is->qk_norm) {
        add(f, prefix, "self_attn.q_norm.weight", REF_D);
        add(f, prefix, "self_attn.k_norm.weight", REF_D);
    }
    if (is->gemma) {
        add(f, prefix, "pre_feedforward_layernorm.weight", TINY_HIDDEN);
        add(f, prefix, "post_feedforward_layernorm.weight", TINY_HIDDEN);
    }
}

/* A folder of the family; its defaults are filled in in *is. */
static inline void make(struct tiny_folder *f, const struct family *family, struct ref_family *is)
{
    *is = family->is;
    is->eps = 1e-5;
    is->scale_dim = is->scale_dim > 0 ? is->scale_dim : REF_D;
    tiny_begin(f, family->config, 29);
    tiny_add(f, "model.embed_tokens.weight", TINY_N_VOCAB, TINY_HIDDEN);
    tiny_add(f, "model.norm.weight", TINY_HIDDEN, 0);
    if (!is->tied) {
        tiny_add(f, "lm_head.weight", TINY_N_VOCAB, TINY_HIDDEN);
    }
    for (int i = 0; i < REF_LAYERS; i++) {
        make_layer(f, is, i);
    }
    tiny_write(f);
}

static inline const struct family *family_of(const char *name)
{
    for (size_t i = 0; i < GR_ARRAY_LEN(families); i++) {
        if (strcmp(families[i].name, name) == 0) {
            return &families[i];
        }
    }
    GR_ASSERT(false);
    return NULL;
}

#endif
