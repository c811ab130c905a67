/* Model families on a GPU against the CPU: the logits within bf16's reach, the rows of a tree with the bits of the
 * sequences of their paths. Checkpoints in shapes that a GPU takes are made from a seed. */
#include "model/cuda/device.h"
#include "model/cuda/llama.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "tests/unit/golden.h"
#include "tests/unit/log_capture.h"
#include "tests/unit/model/cuda/rank_gpus.h"
#include "tests/unit/model/tree_pass.h"
#include "tests/unit/tiny_model.h"

enum { HIDDEN = 128, FFN = 128, D = 64, HEADS = 4, KV = 2, N_TOKEN = 70, N_LONG = 180 };

#define BASE_OF(n_layer)                                                                            \
    "\"hidden_size\":128,\"intermediate_size\":128,\"num_hidden_layers\":" n_layer                  \
    ",\"num_attention_heads\":4,\"num_key_value_heads\":2,\"vocab_size\":64,\"rms_norm_eps\":1e-5," \
    "\"max_position_embeddings\":256,\"head_dim\":64"
#define BASE BASE_OF("4")

enum { QKV_BIAS = 1, QK_NORM = 2, O_BIAS = 4, MLP_BIAS = 8 };

struct family {
    const char *name, *config;
    unsigned has;
    int n_ctx;
};

static const struct family families[] = {
    {"llama", "{\"architectures\":[\"LlamaForCausalLM\"]," BASE "}", 0, 0},
    {"linear",
     "{\"architectures\":[\"LlamaForCausalLM\"],\"rope_scaling\":{\"type\":\"linear\",\"factor\":4.0}," BASE "}", 0, 0},
    {"mistral, as long as its window", "{\"architectures\":[\"MistralForCausalLM\"],\"sliding_window\":192," BASE "}",
     0, 192},
    {"qwen2", "{\"architectures\":[\"Qwen2ForCausalLM\"]," BASE "}", QKV_BIAS, 0},
    {"qwen3, yarn",
     "{\"architectures\":[\"Qwen3ForCausalLM\"],\"rope_parameters\":{\"rope_type\":\"yarn\",\"factor\":4.0,"
     "\"original_max_position_embeddings\":64,\"rope_theta\":10000.0}," BASE "}",
     QK_NORM, 0},
    {"smollm3",
     "{\"architectures\":[\"SmolLM3ForCausalLM\"],\"tie_word_embeddings\":false,\"no_rope_layer_interval\":2," BASE "}",
     0, 0},
    {"llama, biases of all",
     "{\"architectures\":[\"LlamaForCausalLM\"],\"attention_bias\":true,\"mlp_bias\":true," BASE "}",
     QKV_BIAS | O_BIAS | MLP_BIAS, 0},
    {"llama, biases of the mlp", "{\"architectures\":[\"LlamaForCausalLM\"],\"mlp_bias\":true," BASE "}", MLP_BIAS, 0},
    {"qwen3, biases of attention", "{\"architectures\":[\"Qwen3ForCausalLM\"],\"attention_bias\":true," BASE "}",
     QKV_BIAS | QK_NORM | O_BIAS, 0},
    {"smollm3, biases of all",
     "{\"architectures\":[\"SmolLM3ForCausalLM\"],\"tie_word_embeddings\":false,\"attention_bias\":true,"
     "\"mlp_bias\":true,\"no_rope_layer_interval\":2," BASE "}",
     QKV_BIAS | O_BIAS | MLP_BIAS, 0},
};

static void add_bias(struct tiny_folder *f, const char *prefix, const char *what, int n)
{
    char name[128];
    snprintf(name, sizeof(name), "%s.%s.bias", prefix, what);
    tiny_add(f, name, n, 0);
}

static void make_layer(struct tiny_folder *f, const struct family *family, int layer)
{
    static const char *const qkv[] = {"q", "k", "v"};
    char prefix[64], name[128];
    snprintf(prefix, sizeof(prefix), "model.layers.%d", layer);
    tiny_add_layer(f, prefix, HIDDEN, HEADS * D, KV * D, HIDDEN, FFN);
    for (int i = 0; i < 3; i++) {
        if ((family->has & QKV_BIAS) != 0) {
            snprintf(name, sizeof(name), "%s.self_attn.%s_proj.bias", prefix, qkv[i]);
            tiny_add(f, name, (i == 0 ? HEADS : KV) * D, 0);
        }
        if ((family->has & QK_NORM) != 0 && i < 2) {
            snprintf(name, sizeof(name), "%s.self_attn.%s_norm.weight", prefix, qkv[i]);
            tiny_add(f, name, D, 0);
        }
    }
    if ((family->has & O_BIAS) != 0) {
        add_bias(f, prefix, "self_attn.o_proj", HIDDEN);
    }
    if ((family->has & MLP_BIAS) != 0) {
        add_bias(f, prefix, "mlp.gate_proj", FFN);
        add_bias(f, prefix, "mlp.up_proj", FFN);
        add_bias(f, prefix, "mlp.down_proj", HIDDEN);
    }
}

/* A quarter of what tiny_add draws: else attention is so sharp that the roundings of bf16 choose its keys. */
static void soften(struct tiny_folder *f)
{
    for (size_t i = 0; i < f->n; i++) {
        const struct gr_tensor *t = &f->tensor[i];
        uint16_t *w = (uint16_t *)(uintptr_t)t->data;
        for (int64_t k = 0; t->n_dim == 2 && k < t->shape[0] * t->shape[1]; k++) {
            w[k] = gr_bf16_from_f32(0.25f * gr_bf16_to_f32(w[k]));
        }
    }
}

static void make(struct tiny_folder *f, const struct family *family)
{
    tiny_begin(f, family->config, 41);
    tiny_add(f, "model.embed_tokens.weight", TINY_N_VOCAB, HIDDEN);
    tiny_add(f, "model.norm.weight", HIDDEN, 0);
    tiny_add(f, "lm_head.weight", TINY_N_VOCAB, HIDDEN);
    const json_int_t n_layer = json_integer_value(json_object_get(f->config, "num_hidden_layers"));
    for (int i = 0; i < n_layer; i++) {
        make_layer(f, family, i);
    }
    soften(f);
    tiny_write(f);
}

static struct gr_llama_config config_of(const struct tiny_folder *f, const struct family *family)
{
    return (struct gr_llama_config){.dir = f->dir,
                                    .n_thread = 1,
                                    .n_ctx_max = family->n_ctx,
                                    .n_row_max = 256,
                                    .n_out_max = 96,
                                    .n_pool_block = GOLDEN_N_POOL,
                                    .n_scratch_block = 4,
                                    .n_seq_max = 1};
}

static void test_families(void **state)
{
    (void)state;
    static float llama[N_TOKEN * TINY_N_VOCAB] = {1.0f};
    int32_t token[N_TOKEN];
    for (int i = 0; i < N_TOKEN; i++) {
        token[i] = (i * 37 + 11) % TINY_N_VOCAB;
    }
    for (size_t i = 0; i < GR_ARRAY_LEN(families); i++) {
        struct tiny_folder f;
        struct gr_lm *cpu = NULL, *gpu = NULL;
        make(&f, &families[i]);
        const struct gr_llama_config c = config_of(&f, &families[i]);
        assert_int_equal(gr_llama_create(&c, NULL, NULL, &cpu), GR_OK);
        assert_int_equal(gr_cuda_llama_create(&c, 0, NULL, NULL, &gpu), GR_OK);
        golden_run(cpu, token, 0, N_TOKEN, N_TOKEN, NULL);
        golden_run(gpu, token, 0, N_TOKEN, N_TOKEN, NULL);
        const double worst = relative_norm(gpu->logits, cpu->logits, N_TOKEN * TINY_N_VOCAB);
        const double other = relative_norm(cpu->logits, llama, N_TOKEN * TINY_N_VOCAB);
        print_message("# %s: relative norm %.2e, from a plain Llama %.2e\n", families[i].name, worst, other);
        assert_true(worst < 1.5e-2);
        assert_true(i == 0 || families[i].n_ctx > 0 || other > 3e-2); /* so that a part left out would be seen */
        if (i == 0) {
            memcpy(llama, cpu->logits, sizeof(llama));
        }
        check_tree(gpu, token, 12);
        gr_lm_destroy(gpu);
        gr_lm_destroy(cpu);
        tiny_finish(&f);
    }
}

/* ---- ranks ---- */

static int n_device;

/* Two GPUs share each family out: the bits of one. */
static void test_families_on_ranks(void **state)
{
    (void)state;
    static float alone[N_TOKEN * TINY_N_VOCAB];
    int32_t token[N_TOKEN];
    random_tokens(21, N_TOKEN, TINY_N_VOCAB, token);
    if (n_device < 2) {
        skip();
    }
    for (size_t i = 0; i < GR_ARRAY_LEN(families); i++) {
        struct tiny_folder f;
        struct rank_gpus ranks;
        struct gr_lm *lm = NULL;
        make(&f, &families[i]);
        const struct gr_llama_config c = config_of(&f, &families[i]);
        assert_int_equal(gr_cuda_llama_create(&c, 0, NULL, NULL, &lm), GR_OK);
        golden_run(lm, token, 0, N_TOKEN, N_TOKEN, NULL);
        memcpy(alone, lm->logits, sizeof(alone));
        gr_lm_destroy(lm);
        lm = rank_gpus_open(&ranks, &c, 2, (size_t)c.n_row_max * HIDDEN);
        assert_non_null(lm);
        golden_run(lm, token, 0, N_TOKEN, N_TOKEN, NULL);
        print_message("# %s: %s\n", families[i].name,
                      memcmp(alone, lm->logits, sizeof(alone)) == 0 ? "equal" : "not equal");
        assert_memory_equal(alone, lm->logits, sizeof(alone));
        assert_int_equal(rank_gpus_close(&ranks, lm), GR_OK);
        tiny_finish(&f);
    }
}

/* ---- windows ---- */

static const struct family windowed[] = {
    {"mistral, 24", "{\"architectures\":[\"MistralForCausalLM\"],\"sliding_window\":24," BASE_OF("2") "}", 0, 0},
    {"mistral, 100", "{\"architectures\":[\"MistralForCausalLM\"],\"sliding_window\":100," BASE_OF("2") "}", 0, 0},
    {"qwen2, 100 in one layer",
     "{\"architectures\":[\"Qwen2ForCausalLM\"],\"use_sliding_window\":true,\"max_window_layers\":1,"
     "\"sliding_window\":100," BASE_OF("2") "}",
     QKV_BIAS, 0},
};

static void open_both(const struct tiny_folder *f, const struct family *family, struct gr_lm **cpu, struct gr_lm **gpu)
{
    const struct gr_llama_config c = config_of(f, family);
    assert_int_equal(gr_llama_create(&c, NULL, NULL, cpu), GR_OK);
    assert_int_equal(gr_cuda_llama_create(&c, 0, NULL, NULL, gpu), GR_OK);
}

/* The prompt in chunks gives the bits that it gives at once. */
static void check_chunks(struct gr_lm *lm, const int32_t *token)
{
    float once[TINY_N_VOCAB];
    golden_run(lm, token, 0, N_LONG, 1, NULL);
    memcpy(once, lm->logits, sizeof(once));
    for (int i = 0; i < N_LONG; i += 77) {
        golden_run(lm, token + i, i, GR_MIN(77, N_LONG - i), 1, NULL);
    }
    assert_memory_equal(once, lm->logits, sizeof(once));
}

/* A prompt longer than the window, and trees that cross its length and lie past it. */
static void test_windows(void **state)
{
    (void)state;
    static float all[N_TOKEN * TINY_N_VOCAB];
    int32_t token[N_LONG];
    random_tokens(12, N_LONG, TINY_N_VOCAB, token);
    for (size_t i = 0; i < GR_ARRAY_LEN(windowed); i++) {
        struct tiny_folder f;
        struct gr_lm *cpu = NULL, *gpu = NULL;
        const int window = i == 0 ? 24 : 100;
        make(&f, &windowed[i]);
        open_both(&f, &windowed[i], &cpu, &gpu);
        golden_run(cpu, token, 0, N_LONG, N_TOKEN, NULL);
        golden_run(gpu, token, 0, N_LONG, N_TOKEN, NULL);
        const double worst = relative_norm(gpu->logits, cpu->logits, N_TOKEN * TINY_N_VOCAB);
        memcpy(all, gpu->logits, sizeof(all));
        check_chunks(gpu, token);
        check_tree(gpu, token, window - 6);
        check_tree(gpu, token, window + 50);
        gr_lm_destroy(gpu);
        gr_lm_destroy(cpu);
        json_object_set_new(f.config, "sliding_window", json_integer(255)); /* hides nothing of these */
        tiny_write(&f);
        open_both(&f, &windowed[i], &cpu, &gpu);
        golden_run(gpu, token, 0, N_LONG, N_TOKEN, NULL);
        const double other = relative_norm(gpu->logits, all, N_TOKEN * TINY_N_VOCAB);
        print_message("# %s: relative norm %.2e, from none %.2e\n", windowed[i].name, worst, other);
        assert_true(worst < 1.5e-2 && other > 2.5 * worst);
        gr_lm_destroy(gpu);
        gr_lm_destroy(cpu);
        tiny_finish(&f);
    }
}

/* In one layer a row sees itself and the window - 1 tokens before it, and no more. */
static void test_window_edge(void **state)
{
    (void)state;
    static const struct family one[] = {
        {"", "{\"architectures\":[\"MistralForCausalLM\"],\"sliding_window\":24," BASE_OF("1") "}", 0, 0},
        {"", "{\"architectures\":[\"MistralForCausalLM\"],\"sliding_window\":100," BASE_OF("1") "}", 0, 0},
    };
    float logits[TINY_N_VOCAB];
    int32_t token[N_LONG];
    random_tokens(13, N_LONG, TINY_N_VOCAB, token);
    for (size_t i = 0; i < GR_ARRAY_LEN(one); i++) {
        const int window = i == 0 ? 24 : 100;
        struct tiny_folder f;
        struct gr_lm *cpu = NULL, *gpu = NULL;
        make(&f, &one[i]);
        open_both(&f, &one[i], &cpu, &gpu);
        golden_run(gpu, token, 0, N_LONG, 1, NULL);
        memcpy(logits, gpu->logits, sizeof(logits));
        for (int distance = window - 1; distance <= window; distance++) {
            int32_t *changed = &token[N_LONG - 1 - distance], old = *changed;
            *changed = (old + 1) % TINY_N_VOCAB;
            golden_run(gpu, token, 0, N_LONG, 1, NULL);
            assert_int_equal(memcmp(logits, gpu->logits, sizeof(logits)) == 0, distance == window);
            *changed = old;
        }
        gr_lm_destroy(gpu);
        gr_lm_destroy(cpu);
        tiny_finish(&f);
    }
}

/* A view and a window would each leave out keys. */
static void test_no_views(void **state)
{
    (void)state;
    static const struct gr_kv_budget most = {.n_sink = 1, .n_retrieval = 1, .n_window = 1};
    struct tiny_folder f;
    struct log_capture cap;
    struct gr_lm *cpu = NULL, *gpu = NULL;
    make(&f, &windowed[2]);
    open_both(&f, &windowed[2], &cpu, &gpu);
    log_capture_begin(&cap);
    const enum gr_status st = gr_lm_view_create(gpu, &most, 1);
    const char *log = log_capture_end(&cap);
    assert_int_equal(st, GR_EUNSUPPORTED);
    assert_non_null(strstr(log, "layer 1 has a window of 100 tokens"));
    gr_lm_destroy(gpu);
    gr_lm_destroy(cpu);
    tiny_finish(&f);
}

static void refused(const char *config, const char *in_log)
{
    struct tiny_folder f;
    struct log_capture cap;
    struct gr_lm *gpu = NULL;
    const struct family family = {"", config, 0, 0};
    make(&f, &family);
    const struct gr_llama_config c = config_of(&f, &family);
    log_capture_begin(&cap);
    const enum gr_status st = gr_cuda_llama_create(&c, 0, NULL, NULL, &gpu);
    const char *log = log_capture_end(&cap);
    if (st != GR_EUNSUPPORTED || strstr(log, in_log) == NULL) {
        fail_msg("%s: status %d, log: %s", in_log, (int)st, log);
    }
    tiny_finish(&f);
}

static void test_refused(void **state)
{
    (void)state;
    refused("{\"architectures\":[\"Gemma3ForCausalLM\"]," BASE "}", "norms after attention and MLP");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_families), cmocka_unit_test(test_windows), cmocka_unit_test(test_window_edge),
        cmocka_unit_test(test_no_views), cmocka_unit_test(test_refused), cmocka_unit_test(test_families_on_ranks),
    };
    if (cudaGetDeviceCount(&n_device) != cudaSuccess || n_device == 0) {
        puts("1..0 # SKIP no GPU");
        return 0;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
