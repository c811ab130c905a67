/* For tests: model folders of a few kilobytes made in code: a Llama target of 8 layers and an EAGLE-3 head for it.
 * Random bf16 weights; a folder is changed tensor by tensor, then written. */
#ifndef GR_TESTS_TINY_MODEL_H
#define GR_TESTS_TINY_MODEL_H

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/kernels.h"
#include "model/files/safetensors_write.h"
#include "tests/unit/mini_tokenizer.h" /* json_patch_at */

#define TINY_N_TENSOR 96
#define TINY_HIDDEN 32
#ifndef TINY_FFN /* a test may want more */
#define TINY_FFN 48
#endif
#define TINY_N_VOCAB 64
#define TINY_N_DRAFT 24

struct tiny_folder {
    char dir[64];                           /* owned folder in /tmp */
    struct gr_tensor tensor[TINY_N_TENSOR]; /* names and data: owned, malloc */
    size_t n;
    json_t *config;
    uint64_t random;
};

static inline double tiny_random(struct tiny_folder *f) /* -1 .. 1 */
{
    f->random = f->random * 6364136223846793005u + 1442695040888963407u;
    return (double)(f->random >> 33) / (double)(1u << 30) - 1.0;
}

static inline struct gr_tensor *tiny_find(struct tiny_folder *f, const char *name)
{
    for (size_t i = 0; i < f->n; i++) {
        if (strcmp(f->tensor[i].name, name) == 0) {
            return &f->tensor[i];
        }
    }
    return NULL;
}

static inline void tiny_remove(struct tiny_folder *f, const char *name)
{
    struct gr_tensor *t = tiny_find(f, name);
    GR_ASSERT(t != NULL);
    free((void *)(uintptr_t)t->name);
    free((void *)(uintptr_t)t->data);
    *t = f->tensor[--f->n];
}

static inline void *tiny_add_raw(struct tiny_folder *f, const char *name, enum gr_format dtype, int64_t d0, int64_t d1)
{
    if (tiny_find(f, name) != NULL) {
        tiny_remove(f, name);
    }
    GR_ASSERT(f->n < TINY_N_TENSOR);
    const int n_dim = d1 > 0 ? 2 : 1;
    const size_t bytes = (size_t)(d0 * GR_MAX(d1, 1)) * gr_format_bytes(dtype);
    void *data = calloc(1, bytes);
    GR_ASSERT(data != NULL);
    f->tensor[f->n++] = (struct gr_tensor){
        .name = strdup(name), .dtype = dtype, .n_dim = n_dim, .shape = {d0, d1}, .data = data, .bytes = bytes};
    return data;
}

/* Random bf16; d1 = 0: a vector around 1 (a norm) or around 0 (its name ends in bias). */
static inline void tiny_add(struct tiny_folder *f, const char *name, int d0, int d1)
{
    uint16_t *w = tiny_add_raw(f, name, GR_FORMAT_BF16, d0, d1);
    const bool bias = strstr(name, ".bias") != NULL;
    for (int i = 0; i < d0 * GR_MAX(d1, 1); i++) {
        const float v = (float)(d1 > 0 ? 0.4 * tiny_random(f) : (bias ? 0.0 : 1.0) + 0.5 * tiny_random(f));
        uint32_t bits;
        memcpy(&bits, &v, sizeof(bits));
        w[i] = (uint16_t)(bits >> 16);
    }
}

/* The seven matrices and two norms of a layer; n_in: inputs of q, k and v. */
static inline void tiny_add_layer(struct tiny_folder *f, const char *prefix, int n_in, int n_q, int n_kv, int hidden,
                                  int ffn)
{
    const struct {
        const char *name;
        int d0, d1;
    } tensors[] = {
        {"self_attn.q_proj", n_q, n_in},   {"self_attn.k_proj", n_kv, n_in}, {"self_attn.v_proj", n_kv, n_in},
        {"self_attn.o_proj", hidden, n_q}, {"mlp.gate_proj", ffn, hidden},   {"mlp.up_proj", ffn, hidden},
        {"mlp.down_proj", hidden, ffn},    {"input_layernorm", hidden, 0},   {"post_attention_layernorm", hidden, 0},
    };
    for (size_t i = 0; i < GR_ARRAY_LEN(tensors); i++) {
        char name[128];
        snprintf(name, sizeof(name), "%s.%s.weight", prefix, tensors[i].name);
        tiny_add(f, name, tensors[i].d0, tensors[i].d1);
    }
}

static inline void tiny_begin(struct tiny_folder *f, const char *config, uint64_t seed)
{
    memset(f, 0, sizeof(*f));
    f->random = seed;
    f->config = json_loads(config, 0, NULL);
    snprintf(f->dir, sizeof(f->dir), "/tmp/graft-test-XXXXXX");
    GR_ASSERT(f->config != NULL && mkdtemp(f->dir) != NULL);
}

static inline void tiny_write(struct tiny_folder *f)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/config.json", f->dir);
    GR_ASSERT(json_dump_file(f->config, path, 0) == 0);
    snprintf(path, sizeof(path), "%s/model.safetensors", f->dir);
    const enum gr_status st = gr_safetensors_write(path, f->tensor, f->n);
    GR_ASSERT(st == GR_OK);
}

static inline void tiny_finish(struct tiny_folder *f)
{
    static const char *const names[] = {"config.json", "model.safetensors"};
    char path[128];
    for (size_t i = 0; i < GR_ARRAY_LEN(names); i++) {
        snprintf(path, sizeof(path), "%s/%s", f->dir, names[i]);
        (void)unlink(path);
    }
    (void)rmdir(f->dir);
    while (f->n > 0) {
        tiny_remove(f, f->tensor[0].name);
    }
    json_decref(f->config);
}

/* 2 heads of 16, 1 KV head, an lm_head of its own. */
static inline void tiny_target(struct tiny_folder *f, int n_layer)
{
    tiny_begin(f,
               "{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":32,\"intermediate_size\":48,"
               "\"num_hidden_layers\":8,\"num_attention_heads\":2,\"num_key_value_heads\":1,\"head_dim\":16,"
               "\"vocab_size\":64,\"rms_norm_eps\":1e-5,\"rope_theta\":5000.0,\"max_position_embeddings\":128}",
               17);
    json_object_set_new(f->config, "num_hidden_layers", json_integer(n_layer));
    tiny_add(f, "model.embed_tokens.weight", TINY_N_VOCAB, TINY_HIDDEN);
    tiny_add(f, "lm_head.weight", TINY_N_VOCAB, TINY_HIDDEN);
    tiny_add(f, "model.norm.weight", TINY_HIDDEN, 0);
    for (int i = 0; i < n_layer; i++) {
        char prefix[64];
        snprintf(prefix, sizeof(prefix), "model.layers.%d", i);
        tiny_add_layer(f, prefix, TINY_HIDDEN, 32, 16, TINY_HIDDEN, TINY_FFN);
    }
}

/* d2t of n_draft ids: 1, 3, 5, ... with t2d. */
static inline void tiny_add_map(struct tiny_folder *f, int n_draft)
{
    int64_t *d2t = tiny_add_raw(f, "d2t", GR_FORMAT_I64, n_draft, 0);
    uint8_t *t2d = tiny_add_raw(f, "t2d", GR_FORMAT_BOOL, TINY_N_VOCAB, 0);
    for (int i = 0; i < n_draft; i++) {
        d2t[i] = i + 1;
        t2d[2 * i + 1] = 1;
    }
}

/* 4 heads of 16, 2 KV heads, ffn 40; layers named prefix. */
static inline void tiny_head(struct tiny_folder *f, const char *prefix)
{
    char name[64];
    tiny_begin(f,
               "{\"architectures\":[\"LlamaForCausalLMEagle3\"],\"hidden_size\":32,\"intermediate_size\":40,"
               "\"num_hidden_layers\":1,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":16,"
               "\"vocab_size\":64,\"rms_norm_eps\":1e-5,\"rope_theta\":3000.0,\"max_position_embeddings\":128,"
               "\"draft_vocab_size\":24,\"eagle_config\":{\"eagle_aux_hidden_state_layer_ids\":[1,3,4]}}",
               23);
    tiny_add(f, "fc.weight", TINY_HIDDEN, 3 * TINY_HIDDEN);
    tiny_add_layer(f, prefix, 2 * TINY_HIDDEN, 64, 32, TINY_HIDDEN, 40);
    snprintf(name, sizeof(name), "%s.hidden_norm.weight", prefix);
    tiny_add(f, name, TINY_HIDDEN, 0);
    tiny_add(f, "norm.weight", TINY_HIDDEN, 0);
    tiny_add(f, "lm_head.weight", TINY_N_DRAFT, TINY_HIDDEN);
    tiny_add_map(f, TINY_N_DRAFT);
}

#endif
