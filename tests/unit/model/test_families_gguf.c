/* Model families from GGUF files: a file that is made of a folder's values, as llama.cpp's converters make it, gives
 * the folder's bits and its fingerprint. Keys, tensor names, the order of q's and k's rows, norms of 1 + w. */
#include "model/files/gguf_model.h"
#include "model/llama.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "tests/unit/gguf_image.h"
#include "tests/unit/golden.h"
#include "tests/unit/log_capture.h"
#include "tests/unit/model/family_folders.h"

static struct gguf_image head, data;

/* ---- a folder as a GGUF file ---- */

static const struct {
    const char *hf, *gguf, *gemma; /* gemma NULL: the same */
} names[] = {
    {"model.embed_tokens", "token_embd", NULL},
    {"model.norm", "output_norm", NULL},
    {"lm_head", "output", NULL},
    {"input_layernorm", "attn_norm", NULL},
    {"post_attention_layernorm", "ffn_norm", "post_attention_norm"},
    {"pre_feedforward_layernorm", "ffn_norm", NULL},
    {"post_feedforward_layernorm", "post_ffw_norm", NULL},
    {"self_attn.q_proj", "attn_q", NULL},
    {"self_attn.k_proj", "attn_k", NULL},
    {"self_attn.v_proj", "attn_v", NULL},
    {"self_attn.o_proj", "attn_output", NULL},
    {"self_attn.q_norm", "attn_q_norm", NULL},
    {"self_attn.k_norm", "attn_k_norm", NULL},
    {"mlp.gate_proj", "ffn_gate", NULL},
    {"mlp.up_proj", "ffn_up", NULL},
    {"mlp.down_proj", "ffn_down", NULL},
};

static void gguf_name(const char *hf, bool gemma, char *out, size_t cap)
{
    int layer = -1, at = 0;
    if (sscanf(hf, "model.layers.%d.%n", &layer, &at) == 1) {
        hf += at;
    }
    const char *suffix = strrchr(hf, '.');
    for (size_t i = 0; i < GR_ARRAY_LEN(names); i++) {
        if (strlen(names[i].hf) == (size_t)(suffix - hf) && strncmp(hf, names[i].hf, strlen(names[i].hf)) == 0) {
            const char *name = gemma && names[i].gemma != NULL ? names[i].gemma : names[i].gguf;
            if (layer >= 0) {
                snprintf(out, cap, "blk.%d.%s%s", layer, name, suffix);
            } else {
                snprintf(out, cap, "%s%s", name, suffix);
            }
            return;
        }
    }
    fail_msg("no name for %s", hf);
}

/* Row `row` of the file's q or k is this row of the folder's: partners of a head lie beside each other. */
static size_t paired_row(size_t row)
{
    const size_t first = row / REF_D * REF_D, i = row % REF_D;
    return first + i / 2 + i % 2 * (REF_D / 2);
}

/* Matrices stay bf16, vectors become F32. */
static void add_tensor(const struct gr_tensor *t, const char *name, bool pairs, bool plus_one)
{
    const uint64_t dim[2] = {(uint64_t)t->shape[t->n_dim - 1], (uint64_t)t->shape[0]};
    const uint16_t *w = t->data;
    const size_t n_col = (size_t)dim[0], n_row = t->n_dim == 2 ? (size_t)dim[1] : 1;
    gguf_tensor(&head, name, (uint32_t)t->n_dim, dim, t->n_dim == 2 ? 30 : 0, data.len);
    for (size_t r = 0; r < n_row; r++) {
        const uint16_t *row = w + (pairs ? paired_row(r) : r) * n_col;
        for (size_t i = 0; i < n_col; i++) {
            const float v = gr_bf16_to_f32(row[i]) + (plus_one ? 1.0f : 0.0f);
            gguf_bytes(&data, t->n_dim == 2 ? (const void *)&row[i] : (const void *)&v, t->n_dim == 2 ? 2 : 4);
        }
    }
    gguf_pad(&data, 32);
}

static int n_field;
static char key_text[128];

static const char *key(const char *arch, const char *what)
{
    snprintf(key_text, sizeof(key_text), "%s.%s", arch, what);
    n_field++;
    return key_text;
}

static void add_fields(const char *arch, const struct gr_hf_config *hf)
{
    n_field = 1;
    gguf_field_text(&head, "general.architecture", arch);
    gguf_field_u32(&head, key(arch, "embedding_length"), (uint32_t)hf->hidden);
    gguf_field_u32(&head, key(arch, "block_count"), (uint32_t)hf->n_layer);
    gguf_field_u32(&head, key(arch, "feed_forward_length"), (uint32_t)hf->ffn);
    gguf_field_u32(&head, key(arch, "context_length"), (uint32_t)hf->max_pos);
    gguf_field_u32(&head, key(arch, "attention.head_count"), (uint32_t)hf->n_head);
    gguf_field_u32(&head, key(arch, "attention.head_count_kv"), (uint32_t)hf->n_kv_head);
    gguf_field_u32(&head, key(arch, "attention.key_length"), (uint32_t)hf->head_dim);
    gguf_field_f32(&head, key(arch, "attention.layer_norm_rms_epsilon"), hf->rms_eps);
    gguf_field_f32(&head, key(arch, "rope.freq_base"), (float)hf->rope_theta);
    if (hf->rope_kind == GR_ROPE_LINEAR || hf->rope_kind == GR_ROPE_YARN) {
        gguf_field_text(&head, key(arch, "rope.scaling.type"), hf->rope_kind == GR_ROPE_YARN ? "yarn" : "linear");
        gguf_field_f32(&head, key(arch, "rope.scaling.factor"), (float)hf->rope.factor);
    }
    if (hf->rope_kind == GR_ROPE_YARN) {
        gguf_field_u32(&head, key(arch, "rope.scaling.original_context_length"), (uint32_t)hf->rope.original_max_pos);
    }
    if (hf->sliding_window > 0) {
        gguf_field_u32(&head, key(arch, "attention.sliding_window"), (uint32_t)hf->sliding_window);
    }
}

enum pattern { PATTERN_NUMBER, PATTERN_LIST };

static void add_gemma_fields(const char *arch, const struct gr_hf_config *hf, enum pattern pattern)
{
    gguf_field_f32(&head, key(arch, "rope.freq_base_swa"), (float)hf->rope_local_theta);
    if (pattern == PATTERN_NUMBER) {
        gguf_field_u32(&head, key(arch, "attention.sliding_window_pattern"), 3);
        return;
    }
    gguf_field_array(&head, key(arch, "attention.sliding_window_pattern"), 7, (uint64_t)hf->n_layer);
    for (int l = 0; l < hf->n_layer; l++) {
        gguf_number(&head, hf->layer_sliding[l], 1);
    }
}

static bool ends(const char *text, const char *tail)
{
    return strlen(text) >= strlen(tail) && strcmp(text + strlen(text) - strlen(tail), tail) == 0;
}

static void write_image(const char *path, uint64_t n_tensor)
{
    gguf_pad(&head, 32);
    for (int i = 0; i < 8; i++) { /* counts, after magic and version */
        head.bytes[8 + i] = (uint8_t)(n_tensor >> (8 * i));
        head.bytes[16 + i] = (uint8_t)((uint64_t)n_field >> (8 * i));
    }
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(head.bytes, 1, head.len, f), head.len);
    assert_int_equal(fwrite(data.bytes, 1, data.len, f), data.len);
    assert_int_equal(fclose(f), 0);
}

static void convert(const struct tiny_folder *f, const char *arch, enum pattern pattern, const char *path)
{
    struct gr_hf_config hf;
    assert_int_equal(gr_hf_config_load(f->dir, &hf), GR_OK);
    const bool gemma = strcmp(arch, "gemma3") == 0;
    const bool pairs = strcmp(arch, "llama") == 0 || strcmp(arch, "smollm3") == 0;
    gguf_begin(&head, 3, 0, 0);
    data.len = 0;
    add_fields(arch, &hf);
    if (gemma) {
        add_gemma_fields(arch, &hf, pattern);
    }
    for (size_t i = 0; i < f->n; i++) {
        const struct gr_tensor *t = &f->tensor[i];
        char name[128];
        gguf_name(t->name, gemma, name, sizeof(name));
        add_tensor(t, name, pairs && (ends(name, "attn_q.weight") || ends(name, "attn_k.weight")),
                   gemma && ends(name, "norm.weight"));
    }
    write_image(path, f->n);
}

/* ---- the same model ---- */

static void logits_of(const char *path, const int32_t *token, int n, float *out, uint64_t *fingerprint)
{
    struct gr_lm *lm = NULL;
    const struct gr_llama_config c = {.dir = path,
                                      .as = GR_WEIGHTS_F32,
                                      .n_thread = 1,
                                      .n_row_max = n,
                                      .n_out_max = n,
                                      .n_pool_block = GOLDEN_N_POOL};
    assert_int_equal(gr_llama_create(&c, NULL, fingerprint, &lm), GR_OK);
    golden_run(lm, token, 0, n, n, NULL);
    memcpy(out, lm->logits, (size_t)(n * TINY_N_VOCAB) * sizeof(*out));
    gr_lm_destroy(lm);
}

static const struct {
    const char *family, *arch;
    enum pattern pattern;
} same[] = {
    {"llama, default", "llama", PATTERN_NUMBER}, {"llama, linear, tied", "llama", PATTERN_NUMBER},
    {"mistral", "llama", PATTERN_NUMBER},        {"mistral, window null", "llama", PATTERN_NUMBER},
    {"qwen2", "qwen2", PATTERN_NUMBER},          {"qwen3, yarn", "qwen3", PATTERN_NUMBER},
    {"smollm3", "smollm3", PATTERN_NUMBER},      {"gemma3", "gemma3", PATTERN_NUMBER},
    {"gemma3", "gemma3", PATTERN_LIST},
};

static void test_same_model(void **state)
{
    (void)state;
    enum { N = 48 };
    int32_t token[N];
    for (int i = 0; i < N; i++) {
        token[i] = (i * 29 + 7) % TINY_N_VOCAB;
    }
    for (size_t i = 0; i < GR_ARRAY_LEN(same); i++) {
        struct tiny_folder f;
        struct ref_family is;
        char path[128];
        float folder[N * TINY_N_VOCAB], file[N * TINY_N_VOCAB];
        uint64_t fingerprint[2];
        make(&f, family_of(same[i].family), &is);
        snprintf(path, sizeof(path), "%s/m.gguf", f.dir);
        convert(&f, same[i].arch, same[i].pattern, path);
        logits_of(f.dir, token, N, folder, &fingerprint[0]);
        logits_of(path, token, N, file, &fingerprint[1]);
        print_message("# %s\n", same[i].family);
        assert_memory_equal(folder, file, sizeof(folder));
        assert_true(fingerprint[0] == fingerprint[1]);
        (void)unlink(path);
        tiny_finish(&f);
    }
}

/* ---- rotary embedding ---- */

/* A file of the embedding alone, by which the vocabulary is counted, and of one more field. */
static void write_embedding(const struct tiny_folder *f, const char *arch, void (*field)(const char *arch),
                            const char *path)
{
    struct gr_hf_config hf;
    assert_int_equal(gr_hf_config_load(f->dir, &hf), GR_OK);
    gguf_begin(&head, 3, 0, 0);
    data.len = 0;
    add_fields(arch, &hf);
    field(arch);
    uint64_t n_tensor = 0;
    for (size_t i = 0; i < f->n; i++) {
        char name[128];
        gguf_name(f->tensor[i].name, false, name, sizeof(name));
        if (strcmp(name, "token_embd.weight") == 0) {
            add_tensor(&f->tensor[i], name, false, false);
            n_tensor++;
        }
    }
    write_image(path, n_tensor);
}

static void config_of(const struct tiny_folder *f, void (*field)(const char *arch), struct gr_hf_config *out)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/m.gguf", f->dir);
    write_embedding(f, "qwen2", field, path);
    assert_int_equal(gr_gguf_model_open(path, out, NULL), GR_OK);
    (void)unlink(path);
}

static void add_old_linear(const char *arch)
{
    gguf_field_f32(&head, key(arch, "rope.scale_linear"), 8.0f);
}

static void add_factor_alone(const char *arch)
{
    gguf_field_f32(&head, key(arch, "rope.scaling.factor"), 8.0f);
}

static void add_none(const char *arch)
{
    gguf_field_text(&head, key(arch, "rope.scaling.type"), "none");
    gguf_field_f32(&head, key(arch, "rope.scaling.factor"), 8.0f);
}

static void add_yarn_betas(const char *arch)
{
    gguf_field_text(&head, key(arch, "rope.scaling.type"), "yarn");
    gguf_field_f32(&head, key(arch, "rope.scaling.factor"), 4.0f);
    gguf_field_u32(&head, key(arch, "rope.scaling.original_context_length"), 64);
    gguf_field_f32(&head, key(arch, "rope.scaling.yarn_beta_fast"), 16.0f);
    gguf_field_f32(&head, key(arch, "rope.scaling.yarn_beta_slow"), 2.0f);
}

static void add_dimensions(const char *arch)
{
    gguf_field_u32(&head, key(arch, "rope.dimension_count"), REF_D);
}

static void test_rope_rules(void **state)
{
    (void)state;
    struct tiny_folder f;
    struct ref_family is;
    struct gr_hf_config hf;
    make(&f, family_of("qwen2"), &is);
    config_of(&f, add_old_linear, &hf); /* as files before rope.scaling.type have it */
    assert_int_equal(hf.rope_kind, GR_ROPE_LINEAR);
    assert_true(hf.rope.factor == 8.0);
    config_of(&f, add_factor_alone, &hf); /* as llama.cpp reads it */
    assert_int_equal(hf.rope_kind, GR_ROPE_LINEAR);
    config_of(&f, add_none, &hf); /* a factor that none of the kinds has means nothing */
    assert_int_equal(hf.rope_kind, GR_ROPE_PLAIN);
    config_of(&f, add_yarn_betas, &hf);
    assert_int_equal(hf.rope_kind, GR_ROPE_YARN);
    assert_true(hf.rope.factor == 4.0 && hf.rope.original_max_pos == 64);
    assert_true(hf.rope.beta_fast == 16.0 && hf.rope.beta_slow == 2.0);
    config_of(&f, add_dimensions, &hf); /* all of a head is turned */
    assert_int_equal(hf.rope_kind, GR_ROPE_PLAIN);
    tiny_finish(&f);
}

/* ---- what is refused ---- */

static void refused(const char *family, const char *arch, void (*field)(const char *arch), const char *in_log)
{
    struct tiny_folder f;
    struct ref_family is;
    struct gr_hf_config hf;
    struct log_capture cap;
    char path[128];
    make(&f, family_of(family), &is);
    snprintf(path, sizeof(path), "%s/m.gguf", f.dir);
    assert_int_equal(gr_hf_config_load(f.dir, &hf), GR_OK);
    gguf_begin(&head, 3, 0, 0);
    data.len = 0;
    add_fields(arch, &hf);
    field(arch);
    write_image(path, 0);
    log_capture_begin(&cap);
    const enum gr_status st = gr_gguf_model_open(path, &hf, NULL);
    const char *log = log_capture_end(&cap);
    if (st == GR_OK || strstr(log, in_log) == NULL || log_capture_n_line(log) != 1) {
        fail_msg("%s: status %d, log: %s", in_log, (int)st, log);
    }
    (void)unlink(path);
    tiny_finish(&f);
}

static void add_longrope(const char *arch)
{
    gguf_field_text(&head, key(arch, "rope.scaling.type"), "longrope");
}

static void add_window(const char *arch)
{
    gguf_field_u32(&head, key(arch, "attention.sliding_window"), 64);
}

static void add_softcap(const char *arch)
{
    gguf_field_f32(&head, key(arch, "final_logit_softcapping"), 30.0f);
}

static void add_factor(const char *arch)
{
    gguf_field_f32(&head, key(arch, "rope.scaling.yarn_attn_factor"), 1.5f);
}

static void add_no_length(const char *arch)
{
    gguf_field_text(&head, key(arch, "rope.scaling.type"), "yarn");
    gguf_field_f32(&head, key(arch, "rope.scaling.factor"), 4.0f);
}

static void add_no_factor(const char *arch)
{
    gguf_field_text(&head, key(arch, "rope.scaling.type"), "linear");
}

static void add_half_turned(const char *arch)
{
    gguf_field_u32(&head, key(arch, "rope.dimension_count"), REF_D / 2);
}

static void add_other_values(const char *arch)
{
    gguf_field_u32(&head, key(arch, "attention.value_length"), 2 * REF_D);
}

static void add_nan(const char *arch)
{
    gguf_field_f32(&head, key(arch, "rope.scaling.factor"), NAN);
}

static void add_nothing(const char *arch)
{
    (void)arch;
}

/* Messages have the names of the file at hand, not those of a folder. */
static void missing(const char *family, const char *arch, const char *hf_name, const char *in_log)
{
    struct tiny_folder f;
    struct ref_family is;
    struct gr_hf_config hf;
    struct gr_tensors *ts = NULL;
    struct log_capture cap;
    const struct gr_tensor *t = NULL;
    const int64_t shape[2] = {3, 5};
    char path[128];
    make(&f, family_of(family), &is);
    snprintf(path, sizeof(path), "%s/m.gguf", f.dir);
    write_embedding(&f, arch, add_nothing, path);
    assert_int_equal(gr_gguf_model_open(path, &hf, &ts), GR_OK);
    log_capture_begin(&cap);
    const enum gr_status st = gr_tensors_take_weight(ts, hf_name, 2, shape, &t);
    const char *log = log_capture_end(&cap);
    if (st == GR_OK || strstr(log, in_log) == NULL || strstr(log, "model.") != NULL) {
        fail_msg("%s: status %d, log: %s", in_log, (int)st, log);
    }
    gr_tensors_close(ts);
    (void)unlink(path);
    tiny_finish(&f);
}

static void test_names_of_the_file(void **state)
{
    (void)state;
    missing("qwen2", "qwen2", "model.layers.1.mlp.gate_proj.weight", "tensor blk.1.ffn_gate.weight is missing");
    missing("qwen2", "qwen2", "model.layers.0.self_attn.q_proj.bias", "tensor blk.0.attn_q.bias is missing");
    missing("qwen2", "qwen2", "model.norm.weight", "tensor output_norm.weight is missing");
    missing("qwen2", "qwen2", "model.embed_tokens.weight", "tensor token_embd.weight: expected");
    missing("gemma3", "gemma3", "model.layers.0.post_attention_layernorm.weight",
            "tensor blk.0.post_attention_norm.weight");
    missing("gemma3", "gemma3", "model.layers.0.pre_feedforward_layernorm.weight", "tensor blk.0.ffn_norm.weight");
}

static void test_refused(void **state)
{
    (void)state;
    refused("qwen2", "qwen2", add_no_length, "qwen2.rope.scaling.original_context_length is missing");
    refused("qwen2", "qwen2", add_no_factor, "qwen2.rope.scale_linear is missing");
    refused("qwen2", "qwen2", add_half_turned, "qwen2.rope.dimension_count = 8: must be equal");
    refused("qwen2", "qwen2", add_other_values, "qwen2.attention.value_length = 32");
    refused("qwen2", "qwen2", add_longrope, "qwen2.rope.scaling.type longrope is not read; known: none, linear, yarn");
    refused("qwen2", "qwen2", add_window, "qwen2.attention.sliding_window = 64 is not supported");
    refused("gemma3", "gemma3", add_softcap, "gemma3.final_logit_softcapping = 30 is not supported");
    refused("qwen3, yarn", "qwen3", add_factor, "qwen3.rope.scaling.yarn_attn_factor is not read");
    refused("qwen2", "qwen2", add_nan, "field qwen2.rope.scaling.factor is NaN");
    refused("qwen2", "mamba2", add_longrope, "general.architecture mamba2 is not read; known: llama, qwen2, qwen3");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_model),
        cmocka_unit_test(test_rope_rules),
        cmocka_unit_test(test_names_of_the_file),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
