#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "model/files/family.h"
#include "model/files/hf_config.h"
#include "tests/unit/log_capture.h"
#include "tests/unit/write_file.h"
#include "tests/unit/mini_tokenizer.h" /* json_patch_at */

static const char llama31[] =
    "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"hidden_size\":96,"
    "\"intermediate_size\":160,\"num_hidden_layers\":4,\"num_attention_heads\":6,"
    "\"num_key_value_heads\":2,\"head_dim\":16,\"vocab_size\":512,\"rms_norm_eps\":1e-05,"
    "\"rope_theta\":500000.0,\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8.0,"
    "\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,\"original_max_position_embeddings\":32},"
    "\"tie_word_embeddings\":false,\"max_position_embeddings\":256,\"hidden_act\":\"silu\","
    "\"torch_dtype\":\"bfloat16\",\"bos_token_id\":1,\"eos_token_id\":[2,3]}";

static const char qwen3[] = "{\"architectures\":[\"Qwen3ForCausalLM\"],\"model_type\":\"qwen3\",\"hidden_size\":80,"
                            "\"intermediate_size\":144,\"num_hidden_layers\":4,\"num_attention_heads\":4,"
                            "\"num_key_value_heads\":2,\"head_dim\":32,\"vocab_size\":512,\"rms_norm_eps\":1e-06,"
                            "\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":1000000.0},"
                            "\"tie_word_embeddings\":true,\"max_position_embeddings\":256,\"dtype\":\"bfloat16\","
                            "\"bos_token_id\":null,\"eos_token_id\":2,\"use_sliding_window\":false,"
                            "\"sliding_window\":null}";

#define SMALL                                                                                                       \
    "\"hidden_size\":64,\"intermediate_size\":96,\"num_hidden_layers\":4,\"num_attention_heads\":4,\"vocab_size\":" \
    "128,"                                                                                                          \
    "\"rms_norm_eps\":1e-5,\"max_position_embeddings\":4096"

static const char mistral[] = "{\"architectures\":[\"MistralForCausalLM\"],\"sliding_window\":24," SMALL "}";
static const char smollm3[] = "{\"architectures\":[\"SmolLM3ForCausalLM\"],\"no_rope_layers\":[1,1,1,0]," SMALL "}";
static const char gemma3[] =
    "{\"architectures\":[\"Gemma3ForCausalLM\"],\"sliding_window\":16,\"hidden_activation\":\"gelu_pytorch_tanh\","
    "\"layer_types\":[\"sliding_attention\",\"full_attention\",\"sliding_attention\",\"full_attention\"],"
    "\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"linear\",\"factor\":8.0,\"rope_theta\":1000000.0},"
    "\"sliding_attention\":{\"rope_type\":\"default\",\"rope_theta\":10000.0}}," SMALL "}";

static const char gptoss[] =
    "{\"architectures\":[\"GptOssForCausalLM\"],\"model_type\":\"gpt_oss\",\"hidden_size\":64,"
    "\"intermediate_size\":96,\"num_hidden_layers\":4,\"num_attention_heads\":8,"
    "\"num_key_value_heads\":2,\"head_dim\":16,\"vocab_size\":512,\"rms_norm_eps\":1e-05,"
    "\"num_local_experts\":4,\"num_experts_per_tok\":2,\"experts_per_token\":2,"
    "\"sliding_window\":12,\"swiglu_limit\":7.0,\"layer_types\":[\"sliding_attention\","
    "\"full_attention\",\"sliding_attention\",\"full_attention\"],\"rope_theta\":150000,"
    "\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":32.0,\"beta_fast\":32.0,\"beta_slow\":1.0,"
    "\"truncate\":false,\"original_max_position_embeddings\":64},\"attention_bias\":true,"
    "\"max_position_embeddings\":2048,\"eos_token_id\":2,"
    "\"quantization_config\":{\"quant_method\":\"mxfp4\"}}";

static const char eagle3[] =
    "{\"architectures\":[\"LlamaForCausalLMEagle3\"],\"hidden_size\":384,\"intermediate_size\":"
    "1024,"
    "\"num_hidden_layers\":1,\"num_attention_heads\":6,\"vocab_size\":4096,\"rms_norm_eps\":1e-05,"
    "\"max_position_embeddings\":32768,\"draft_vocab_size\":3072,\"eagle_config\":{"
    "\"eagle_aux_hidden_state_layer_ids\":[1,3,6],\"use_aux_hidden_state\":true}}";

static struct gr_hf_config parse_ok(const char *json)
{
    struct gr_hf_config c;
    assert_int_equal(gr_hf_config_parse("config.json", json, strlen(json), &c), GR_OK);
    return c;
}

static void load_demo(const char *name, struct gr_hf_config *c)
{
    char dir[512];
    snprintf(dir, sizeof(dir), "%s/models/demo/%s", GR_SOURCE_ROOT, name);
    assert_int_equal(gr_hf_config_load(dir, c), GR_OK);
}

/* The spellings of transformers 4 (two of them) and 5 are one model. */
static void test_spellings(void **state)
{
    (void)state;
    static const char form[] =
        "{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":64,\"intermediate_size\":96,\"num_hidden_layers\":2,"
        "\"num_attention_heads\":4,\"vocab_size\":128,\"rms_norm_eps\":1e-5,\"max_position_embeddings\":4096,%s}";
    static const char *const rope[] = {
        "\"rope_theta\":500000.0,\"torch_dtype\":\"float16\",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":32."
        "0,"
        "\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,\"original_max_position_embeddings\":8192}",
        "\"rope_theta\":500000,\"torch_dtype\":\"float16\",\"rope_scaling\":{\"type\":\"llama3\",\"factor\":32,"
        "\"low_freq_factor\":1,\"high_freq_factor\":4,\"original_max_position_embeddings\":8192}",
        "\"dtype\":\"float16\",\"rope_parameters\":{\"rope_theta\":500000.0,\"rope_type\":\"llama3\",\"factor\":32.0,"
        "\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,\"original_max_position_embeddings\":8192}",
    };
    for (size_t i = 0; i < GR_ARRAY_LEN(rope); i++) {
        char json[1024];
        snprintf(json, sizeof(json), form, rope[i]);
        const struct gr_hf_config c = parse_ok(json);
        assert_string_equal(c.dtype, "float16");
        assert_int_equal(c.rope_kind, GR_ROPE_LLAMA3);
        assert_true(c.rope_theta == 500000.0 && c.rope.factor == 32.0 && c.rope.low_freq_factor == 1.0);
        assert_true(c.rope.high_freq_factor == 4.0 && c.rope.original_max_pos == 8192);
    }
    char json[1024];
    snprintf(json, sizeof(json), form, "\"rope_scaling\":null");
    assert_true(parse_ok(json).rope_theta == 10000.0); /* the family's documented default */
}

static void test_demo_target(void **state)
{
    (void)state;
    struct gr_hf_config c;
    load_demo("target", &c);
    assert_string_equal(c.architecture, "LlamaForCausalLM");
    assert_string_equal(c.model_type, "llama");
    assert_string_equal(c.dtype, "bfloat16");
    assert_int_equal(c.hidden, 384);
    assert_int_equal(c.n_layer, 8);
    assert_int_equal(c.n_head, 6);
    assert_int_equal(c.n_kv_head, 2);
    assert_int_equal(c.head_dim, 64);
    assert_int_equal(c.ffn, 1024);
    assert_int_equal(c.n_vocab, 4096);
    assert_int_equal(c.max_pos, 32768);
    assert_true(c.rms_eps == 1e-5f);
    assert_true(c.rope_theta == 1e6);
    assert_true(c.tie_embeddings);
    assert_false(c.qkv_bias || c.o_bias || c.mlp_bias);
    assert_int_equal(c.bos_id, 4088);
    assert_int_equal(c.n_eos, 1);
    assert_int_equal(c.eos_id[0], 4089);
    assert_int_equal(c.rope_kind, GR_ROPE_PLAIN);
    assert_false(c.has_capture);
    assert_int_equal(c.draft_n_vocab, 0);
}

static void test_demo_draft_and_eagle3(void **state)
{
    (void)state;
    struct gr_hf_config c;
    load_demo("draft", &c);
    assert_int_equal(c.hidden, 192);
    assert_int_equal(c.n_layer, 3);
    assert_int_equal(c.head_dim, 32);
    load_demo("eagle3", &c);
    assert_string_equal(c.architecture, "LlamaForCausalLMEagle3");
    assert_int_equal(c.draft_n_vocab, 3072);
    assert_true(c.has_capture);
    assert_int_equal(c.n_capture, 3);
    assert_true(c.capture_ids_are_outputs); /* [1, 3, 6] in the file: what leaves them enters the next */
    assert_int_equal(c.capture_layer[0], 2);
    assert_int_equal(c.capture_layer[1], 4);
    assert_int_equal(c.capture_layer[2], 7);
}

static void test_architectures(void **state)
{
    (void)state;
    struct gr_hf_config c = parse_ok(llama31);
    assert_int_equal(c.rope_kind, GR_ROPE_LLAMA3);
    assert_true(c.rope.factor == 8 && c.rope.low_freq_factor == 1 && c.rope.high_freq_factor == 4);
    assert_int_equal(c.rope.original_max_pos, 32);
    assert_int_equal(c.n_eos, 2);
    assert_int_equal(c.eos_id[1], 3);

    c = parse_ok(qwen3);
    assert_int_equal(c.rope_kind, GR_ROPE_PLAIN);
    assert_true(c.rope_theta == 1e6);
    assert_int_equal(c.head_dim, 32); /* not 80 / 4 */
    assert_int_equal(c.bos_id, -1);
    assert_string_equal(c.dtype, "bfloat16");

    c = parse_ok(gptoss);
    assert_int_equal(c.rope_kind, GR_ROPE_YARN);
    assert_false(c.rope.truncate);
    assert_true(fabs(c.rope.attention_factor - 1.3465735902799727) < 1e-12);
    assert_int_equal(c.n_expert, 4);
    assert_int_equal(c.n_expert_used, 2);
    assert_int_equal(c.sliding_window, 12);
    assert_true(c.layer_sliding[0] && !c.layer_sliding[1] && c.layer_sliding[2]);

    c = parse_ok(eagle3);
    assert_int_equal(c.n_kv_head, 6); /* silent: as many as heads */
    assert_int_equal(c.head_dim, 64); /* silent: 384 / 6 */
    assert_true(c.rope_theta == 0);   /* the target's */
}

/* A model's kinds of layers in three spellings, and what a silent config means. */
static void test_layer_kinds(void **state)
{
    (void)state;
    static const char form[] = "{\"architectures\":[\"%s\"]%s," SMALL "}";
    static const struct {
        const char *architecture, *keys;
        int window;
        const char *sliding, *no_rope; /* a letter for each of the four layers */
    } cases[] = {
        {"Gemma3ForCausalLM", ",\"sliding_window\":16,\"sliding_window_pattern\":2", 16, "x.x.", "...."},
        {"Gemma3ForCausalLM", ",\"sliding_window\":16,\"_sliding_window_pattern\":2", 16, "x.x.", "...."},
        {"Gemma3ForCausalLM",
         ",\"sliding_window\":16,\"layer_types\":[\"sliding_attention\",\"full_attention\",\"sliding_attention\","
         "\"full_attention\"]",
         16, "x.x.", "...."},
        {"Gemma3ForCausalLM", "", 4096, "xxxx", "...."}, /* of six layers the sixth is a global one */
        {"MistralForCausalLM", "", 4096, "xxxx", "...."},
        {"MistralForCausalLM", ",\"sliding_window\":null", 0, "....", "...."},
        {"MistralForCausalLM", ",\"use_sliding_window\":false", 4096, "xxxx", "...."}, /* a key that it has not */
        {"LlamaForCausalLM", ",\"sliding_window\":16", 0, "....", "...."},
        {"Qwen2ForCausalLM", ",\"sliding_window\":16", 0, "....", "...."},
        {"Qwen2ForCausalLM", ",\"use_sliding_window\":true", 4096, "....", "...."}, /* from layer 28 on */
        {"Qwen3ForCausalLM", ",\"use_sliding_window\":true,\"max_window_layers\":3", 4096, "...x", "...."},
        {"SmolLM3ForCausalLM", "", 0, "....", "...x"},
        {"SmolLM3ForCausalLM", ",\"no_rope_layer_interval\":2", 0, "....", ".x.x"},
        {"SmolLM3ForCausalLM", ",\"no_rope_layers\":[0,1,1,0],\"use_sliding_window\":true", 4096, "x..x", "x..x"},
    };
    for (size_t i = 0; i < GR_ARRAY_LEN(cases); i++) {
        char json[1024];
        snprintf(json, sizeof(json), form, cases[i].architecture, cases[i].keys);
        const struct gr_hf_config c = parse_ok(json);
        assert_int_equal(c.sliding_window, cases[i].window);
        for (int l = 0; l < 4; l++) {
            assert_int_equal(c.layer_sliding[l], cases[i].sliding[l] == 'x');
            assert_int_equal(c.layer_no_rope[l], cases[i].no_rope[l] == 'x');
        }
    }
}

/* What a silent config means in each family, and Gemma's rope in its two spellings. */
static void test_family_defaults(void **state)
{
    (void)state;
    static const char form[] = "{\"architectures\":[\"%s\"]," SMALL "}";
    static const struct {
        const char *architecture;
        int head_dim;
        double theta;
        bool tied, qkv_bias, qk_norm;
    } cases[] = {
        {"LlamaForCausalLM", 16, 1e4, false, false, false},  {"MistralForCausalLM", 16, 1e4, false, false, false},
        {"Qwen2ForCausalLM", 16, 1e4, false, true, false},   {"Qwen3ForCausalLM", 128, 1e4, false, false, true},
        {"SmolLM3ForCausalLM", 16, 2e6, true, false, false}, {"Gemma3ForCausalLM", 256, 1e6, true, false, true},
    };
    for (size_t i = 0; i < GR_ARRAY_LEN(cases); i++) {
        char json[1024];
        snprintf(json, sizeof(json), form, cases[i].architecture);
        const struct gr_hf_config c = parse_ok(json);
        assert_int_equal(c.head_dim, cases[i].head_dim);
        assert_true(c.rope_theta == cases[i].theta);
        assert_true(c.tie_embeddings == cases[i].tied && c.qkv_bias == cases[i].qkv_bias && !c.o_bias);
        assert_true(c.qk_norm == cases[i].qk_norm);
        assert_non_null(strstr(GR_FAMILIES_RUN, cases[i].architecture));
    }
    struct gr_hf_config c = parse_ok(gemma3);
    assert_true(c.rope_kind == GR_ROPE_LINEAR && c.rope.factor == 8 && c.rope_theta == 1e6);
    assert_true(c.rope_local_theta == 1e4 && c.scale_dim == 256 && c.embed_scale == 8.0f);
    assert_true(c.norm_plus_one && c.post_norms && c.gelu);
    c = parse_ok("{\"architectures\":[\"Gemma3ForCausalLM\"],\"rope_theta\":500000.0,\"rope_local_base_freq\":20000.0,"
                 "\"rope_scaling\":null," SMALL "}");
    assert_true(c.rope_kind == GR_ROPE_PLAIN && c.rope_theta == 5e5 && c.rope_local_theta == 2e4);
}

/* What YaRN multiplies cos and sin by: as it is said, by the ratio of two scales, or by the rule. */
static void test_yarn_magnitude(void **state)
{
    (void)state;
    static const struct {
        const char *keys;
        double want;
    } cases[] = {
        {"", 1.3465735902799727},
        {",\"attention_factor\":0.5", 0.5},
        {",\"mscale\":1.0,\"mscale_all_dim\":1.0", 1.0},
        {",\"mscale\":0.707,\"mscale_all_dim\":1.0", 0.9245892963555604},
        {",\"mscale\":1.0,\"mscale_all_dim\":0.0", 1.3465735902799727},
        {",\"mscale\":1.0,\"mscale_all_dim\":1.0,\"attention_factor\":1.25", 1.25},
    };
    for (size_t i = 0; i < GR_ARRAY_LEN(cases); i++) {
        char json[1024];
        snprintf(
            json, sizeof(json),
            "{\"architectures\":[\"LlamaForCausalLM\"],\"rope_scaling\":{\"type\":\"yarn\",\"factor\":32.0%s}," SMALL
            "}",
            cases[i].keys);
        const struct gr_hf_config c = parse_ok(json);
        assert_true(c.rope_kind == GR_ROPE_YARN && c.rope.original_max_pos == 4096);
        assert_true(fabs(c.rope.attention_factor - cases[i].want) < 1e-9);
    }
}

struct patch {
    const char *base, *path, *literal;
    enum gr_status status;
    const char *names[2]; /* all in the log line */
};

/* One more than there may be. */
#define EIGHT(tens) #tens "0," #tens "1," #tens "2," #tens "3," #tens "4," #tens "5," #tens "6," #tens "7,"
#define SIXTY_FOUR(a) EIGHT(a##0) EIGHT(a##1) EIGHT(a##2) EIGHT(a##3) EIGHT(a##4) EIGHT(a##5) EIGHT(a##6) EIGHT(a##7)
#define TOO_MANY "[" SIXTY_FOUR(1) SIXTY_FOUR(2) SIXTY_FOUR(3) SIXTY_FOUR(4) "99]"

static const struct patch bad[] = {
    {llama31, "architectures", "[\"MambaForCausalLM\"]", GR_EUNSUPPORTED, {"MambaForCausalLM", "Qwen3ForCausalLM"}},
    {llama31, "architectures", "[]", GR_EFORMAT, {"architectures", "GptOssForCausalLM"}},
    {llama31, "architectures", NULL, GR_EFORMAT, {"architectures", "missing"}},
    {llama31, "hidden_size", NULL, GR_EFORMAT, {"hidden_size", "missing"}},
    {llama31, "hidden_size", "0", GR_ELIMIT, {"hidden_size = 0", "1..65536"}},
    {llama31, "hidden_size", "100000000000", GR_ELIMIT, {"hidden_size = 100000000000", "65536"}},
    {llama31, "hidden_size", "\"96\"", GR_EFORMAT, {"hidden_size", "a string"}},
    {llama31, "hidden_size", "96.0", GR_EFORMAT, {"hidden_size", "integer"}},
    {llama31, "num_hidden_layers", "257", GR_ELIMIT, {"num_hidden_layers = 257", "256"}},
    {llama31, "num_attention_heads", "-1", GR_ELIMIT, {"num_attention_heads = -1", "1..1024"}},
    {llama31, "num_key_value_heads", "4", GR_EFORMAT, {"num_key_value_heads = 4", "multiple"}},
    {llama31, "num_key_value_heads", "7", GR_ELIMIT, {"num_key_value_heads = 7", "1..6"}},
    {llama31, "head_dim", "15", GR_EFORMAT, {"head_dim = 15", "even"}},
    {llama31, "head_dim", "4096", GR_ELIMIT, {"head_dim = 4096", "1024"}},
    {llama31, "intermediate_size", "2000000", GR_ELIMIT, {"intermediate_size = 2000000", "1048576"}},
    {llama31, "vocab_size", "5000000", GR_ELIMIT, {"vocab_size = 5000000", "4194304"}},
    {llama31, "max_position_embeddings", "0", GR_ELIMIT, {"max_position_embeddings = 0", "1.."}},
    {llama31, "rms_norm_eps", "1", GR_ELIMIT, {"rms_norm_eps = 1", "0.1"}},
    {llama31, "rms_norm_eps", "0", GR_ELIMIT, {"rms_norm_eps = 0", "1e-12"}},
    {llama31, "rope_theta", "-5", GR_ELIMIT, {"rope_theta = -5", "1e+12"}},
    {llama31, "tie_word_embeddings", "1", GR_EFORMAT, {"tie_word_embeddings", "true or false"}},
    {llama31, "hidden_act", "\"gelu\"", GR_EUNSUPPORTED, {"hidden_act", "gelu"}},
    {llama31, "partial_rotary_factor", "0.5", GR_EUNSUPPORTED, {"partial_rotary_factor", "0.5"}},
    {llama31, "quantization_config", "{\"quant_method\":\"awq\"}", GR_EUNSUPPORTED, {"quant_method", "awq"}},
    {llama31, "bos_token_id", "512", GR_ELIMIT, {"bos_token_id = 512", "511"}},
    {llama31, "eos_token_id", "512", GR_ELIMIT, {"eos_token_id = 512", "512"}},
    {llama31, "eos_token_id", "[1,\"x\"]", GR_EFORMAT, {"eos_token_id", "integer"}},
    {llama31, "eos_token_id", TOO_MANY, GR_ELIMIT, {"eos_token_id", "256"}},
    {llama31, "rope_scaling.rope_type", "null", GR_EFORMAT, {"rope_scaling.factor = 8 without", "linear"}},
    {llama31, "rope_scaling.rope_type", "\"dynamic\"", GR_EUNSUPPORTED, {"dynamic", "default, linear, llama3, yarn"}},
    {llama31,
     "rope_scaling.partial_rotary_factor",
     "0.5",
     GR_EUNSUPPORTED,
     {"rope_scaling.partial_rotary_factor", "1"}},
    {llama31, "final_logit_softcapping", "30.0", GR_EUNSUPPORTED, {"final_logit_softcapping", "null"}},
    {llama31, "rope_scaling.type", "\"yarn\"", GR_EFORMAT, {"rope_type", "differ"}},
    {llama31, "rope_scaling.factor", NULL, GR_EFORMAT, {"rope_scaling.factor", "missing"}},
    {llama31, "rope_scaling.factor", "0.5", GR_ELIMIT, {"rope_scaling.factor = 0.5", "1.."}},
    {llama31, "rope_scaling.high_freq_factor", "1", GR_EFORMAT, {"high_freq_factor", "low_freq"}},
    {llama31, "rope_scaling.mscale", "1", GR_EUNSUPPORTED, {"rope_scaling.mscale", "understood"}},
    {llama31, "rope_parameters", "{\"rope_type\":\"default\"}", GR_EFORMAT, {"rope_parameters", "differ"}},
    {llama31, "rope_scaling.rope_theta", "10000", GR_EFORMAT, {"rope_theta", "500000"}},
    {llama31, "layer_types", "[\"sliding_attention\"]", GR_EUNSUPPORTED, {"layer_types[0]", "sliding_attention"}},
    {llama31,
     "layer_types",
     "[\"full_attention\"]",
     GR_EFORMAT,
     {"layer_types has 1 entries", "num_hidden_layers = 4"}},
    {llama31, "model_type", "\"0123456789012345678901234567890123456789\"", GR_ELIMIT, {"model_type", "31"}},
    {qwen3, "layer_types", "[\"sliding_attention\"]", GR_EUNSUPPORTED, {"layer_types[0]", "sliding_attention"}},
    {qwen3, "mlp_bias", "true", GR_EUNSUPPORTED, {"mlp_bias", "Qwen3ForCausalLM"}},
    {mistral, "attention_bias", "true", GR_EUNSUPPORTED, {"attention_bias", "MistralForCausalLM"}},
    {mistral, "sliding_window", "0", GR_ELIMIT, {"sliding_window = 0", "1.."}},
    {mistral, "hidden_act", "\"gelu\"", GR_EUNSUPPORTED, {"hidden_act gelu", "silu"}},
    {smollm3, "no_rope_layers", "[1,1]", GR_EFORMAT, {"no_rope_layers", "2 entries"}},
    {smollm3, "no_rope_layers", "[1,1,2,0]", GR_EFORMAT, {"no_rope_layers[2]", "1 (rotary"}},
    {smollm3, "no_rope_layer_interval", "0", GR_ELIMIT, {"no_rope_layer_interval = 0", "1.."}},
    {gemma3, "hidden_activation", "\"silu\"", GR_EUNSUPPORTED, {"hidden_activation silu", "gelu_pytorch_tanh"}},
    {gemma3, "attn_logit_softcapping", "50.0", GR_EUNSUPPORTED, {"attn_logit_softcapping", "null"}},
    {gemma3, "use_bidirectional_attention", "true", GR_EUNSUPPORTED, {"use_bidirectional_attention", "null"}},
    {gemma3, "query_pre_attn_scalar", "0", GR_ELIMIT, {"query_pre_attn_scalar = 0", "1.."}},
    {gemma3, "rope_parameters.sliding_attention.rope_type", "\"linear\"", GR_EFORMAT, {"sliding_attention", "factor"}},
    {gemma3,
     "rope_parameters.sliding_attention",
     "{\"rope_type\":\"linear\",\"factor\":2.0}",
     GR_EUNSUPPORTED,
     {"sliding_attention.rope_type", "only default"}},
    {gemma3, "rope_parameters.sliding_attention", NULL, GR_EFORMAT, {"sliding_attention", "missing"}},
    {qwen3, "rope_parameters.full_attention", "{}", GR_EUNSUPPORTED, {"rope_parameters.full_attention", "understood"}},
    {gptoss, "num_experts_per_tok", "5", GR_ELIMIT, {"num_experts_per_tok = 5", "1..4"}},
    {gptoss, "experts_per_token", "3", GR_EFORMAT, {"experts_per_token = 3", "differ"}},
    {gptoss, "layer_types", "[\"full_attention\"]", GR_EFORMAT, {"layer_types", "1 entries"}},
    {gptoss, "layer_types.1", "\"chunked_attention\"", GR_EUNSUPPORTED, {"layer_types[1]", "chunked_attention"}},
    {gptoss, "rope_scaling.beta_fast", "0.5", GR_EFORMAT, {"beta_fast", "beta_slow"}},
    {eagle3, "draft_vocab_size", "5000", GR_ELIMIT, {"draft_vocab_size = 5000", "4096"}},
    {eagle3, "norm_before_fc", "1", GR_EFORMAT, {"norm_before_fc", "true or false"}},
    {eagle3, "aux_hidden_state_layer_ids_are", "\"layers\"", GR_EFORMAT, {"layers", "outputs"}},
    {eagle3, "eagle_config.use_aux_hidden_state", "false", GR_EUNSUPPORTED, {"use_aux_hidden_state", "false"}},
    {eagle3, "eagle_config.eagle_aux_hidden_state_layer_ids", "[3,1]", GR_EFORMAT, {"layer_ids[1]", "rising"}},
    {eagle3, "eagle_config.eagle_aux_hidden_state_layer_ids", "[1,2,3,4,5,6,7,8,9]", GR_ELIMIT, {"9 entries", "1..8"}},
    {eagle3, "eagle_aux_hidden_state_layer_ids", "[2,3,6]", GR_EFORMAT, {"eagle_config", "differ"}},
    {eagle3, "speculators_model_type", "\"eagle\"", GR_EUNSUPPORTED, {"speculators_model_type eagle", "known: eagle3"}},
    {eagle3, "speculators_model_type", "3", GR_EFORMAT, {"speculators_model_type", "string"}},
    {eagle3, "speculators_model_type", "\"eagle3\"", GR_EFORMAT, {"transformer_layer_config", "missing"}},
    {eagle3, "truncated_vocab_size", "64", GR_EFORMAT, {"draft_vocab_size", "truncated_vocab_size differ"}},
    {eagle3, "hidden_size", "385", GR_EFORMAT, {"hidden_size = 385", "head_dim"}},
};

static char *patched(const struct patch *p)
{
    json_t *root = json_loads(p->base, 0, NULL);
    assert_non_null(root);
    json_patch_at(root, p->path, p->literal);
    char *text = json_dumps(root, 0);
    json_decref(root);
    assert_non_null(text);
    return text;
}

static void test_bad(void **state)
{
    (void)state;
    for (size_t i = 0; i < GR_ARRAY_LEN(bad); i++) {
        char *json = patched(&bad[i]);
        struct gr_hf_config c = {.hidden = -7};
        struct log_capture cap;
        log_capture_begin(&cap);
        enum gr_status st = gr_hf_config_parse("some/config.json", json, strlen(json), &c);
        const char *log = log_capture_end(&cap);
        if (st != bad[i].status || strstr(log, bad[i].names[0]) == NULL || strstr(log, bad[i].names[1]) == NULL ||
            strstr(log, "some/config.json") == NULL || log_capture_n_line(log) != 1 || c.hidden != -7) {
            fail_msg("%s = %s: status %d, log: %s", bad[i].path, bad[i].literal != NULL ? bad[i].literal : "(deleted)",
                     (int)st, log);
        }
        free(json);
    }
}

static void test_good_spellings(void **state)
{
    (void)state;
    static const struct patch good[] = {
        {llama31, "rope_scaling.rope_theta", "500000.0", GR_OK, {"", ""}},
        {llama31, "rope_scaling.type", "\"llama3\"", GR_OK, {"", ""}},
        {llama31, "rope_scaling", "null", GR_OK, {"", ""}},
        {llama31, "rope_theta", "500000", GR_OK, {"", ""}}, /* an integer will do */
        {llama31, "eos_token_id", "null", GR_OK, {"", ""}},
        {llama31, "eos_token_id", "[1,2,3,4,5,6,7,8,9]", GR_OK, {"", ""}},
        {llama31,
         "layer_types",
         "[\"full_attention\",\"full_attention\",\"full_attention\",\"full_attention\"]",
         GR_OK,
         {"", ""}},
        {llama31, "unknown_key", "[1,{\"x\":2}]", GR_OK, {"", ""}},
        {eagle3, "architectures", "[\"Eagle3LlamaForCausalLM\"]", GR_OK, {"", ""}},
        {eagle3, "rope_theta", "null", GR_OK, {"", ""}},
        /* The same layers, written as inputs. */
        {eagle3, "eagle_aux_hidden_state_layer_ids", "[2,4,7]", GR_OK, {"", ""}},
        {eagle3, "eagle_config.eagle_aux_hidden_state_layer_ids", "[2,4,7]", GR_OK, {"", ""}},
        {eagle3, "eagle_config.norm_before_fc", "true", GR_OK, {"", ""}},
    };
    for (size_t i = 0; i < GR_ARRAY_LEN(good); i++) {
        char *json = patched(&good[i]);
        struct gr_hf_config c = parse_ok(json);
        assert_true(c.hidden > 0);
        if (good[i].base == eagle3) {
            assert_string_equal(c.architecture, "LlamaForCausalLMEagle3");
            assert_int_equal(c.capture_layer[2], 7);
        }
        free(json);
    }
}

/* Both conventions, the key that says which, and both ends of the range. */
static void test_capture_ids(void **state)
{
    (void)state;
    static const struct {
        const char *ids, *are;
        int layer[3];
    } cases[] = {
        {"[1,3,6]", NULL, {2, 4, 7}},
        {"[1,3,6]", "\"inputs\"", {1, 3, 6}},
        {"[2,4,7]", NULL, {2, 4, 7}},
        {"[2,4,7]", "\"outputs\"", {3, 5, 8}},
        {"[0,1,2]", NULL, {0, 1, 2}},
        {"[24,30,36]", NULL, {24, 30, 36}},
        {"[1,17,32]", "\"outputs\"", {2, 18, 33}},
    };
    for (size_t i = 0; i < GR_ARRAY_LEN(cases); i++) {
        json_t *root = json_loads(eagle3, 0, NULL);
        json_patch_at(root, "eagle_config.eagle_aux_hidden_state_layer_ids", cases[i].ids);
        if (cases[i].are != NULL) {
            json_patch_at(root,
                          i % 2 == 1 ? "aux_hidden_state_layer_ids_are" : "eagle_config.aux_hidden_state_layer_ids_are",
                          cases[i].are);
        }
        char *text = json_dumps(root, 0);
        const struct gr_hf_config c = parse_ok(text);
        assert_memory_equal(c.capture_layer, cases[i].layer, sizeof(cases[i].layer));
        free(text);
        json_decref(root);
    }
}

static void test_eagle3_flags(void **state)
{
    (void)state;
    static const char *const keys[] = {"norm_before_residual", "norm_before_fc", "fc_norm", "norm_output"};
    for (size_t i = 0; i < 2 * GR_ARRAY_LEN(keys); i++) {
        char path[64];
        snprintf(path, sizeof(path), "%s%s", i % 2 == 0 ? "" : "eagle_config.", keys[i / 2]);
        json_t *root = json_loads(eagle3, 0, NULL);
        json_patch_at(root, path, "true");
        char *text = json_dumps(root, 0);
        const struct gr_hf_config c = parse_ok(text);
        const bool flags[] = {c.norm_before_residual, c.norm_before_fc, c.fc_norm, c.norm_output};
        for (size_t k = 0; k < GR_ARRAY_LEN(flags); k++) {
            assert_int_equal(flags[k], k == i / 2);
        }
        free(text);
        json_decref(root);
    }
}

static void test_not_json(void **state)
{
    (void)state;
    static const char *const texts[] = {"", "[]", "{", "{\"a\":1,\"a\":2}", "{\"a\":\"\\u0000\"}", "\xff"};
    for (size_t i = 0; i < GR_ARRAY_LEN(texts); i++) {
        struct gr_hf_config c;
        struct log_capture cap;
        log_capture_begin(&cap);
        enum gr_status st = gr_hf_config_parse("c.json", texts[i], strlen(texts[i]), &c);
        const char *log = log_capture_end(&cap);
        assert_int_equal(st, GR_EFORMAT);
        assert_non_null(strstr(log, "c.json"));
        assert_int_equal(log_capture_n_line(log), 1);
    }
}

static enum gr_status load_quietly(const char *dir, struct gr_hf_config *c, struct log_capture *cap)
{
    log_capture_begin(cap);
    enum gr_status st = gr_hf_config_load(dir, c);
    (void)log_capture_end(cap);
    return st;
}

static void test_load(void **state)
{
    (void)state;
    char dir[] = "/tmp/graft-test-XXXXXX", path[600];
    assert_non_null(mkdtemp(dir));
    struct gr_hf_config c;
    struct log_capture cap;
    assert_int_equal(load_quietly(dir, &c, &cap), GR_ENOTFOUND);
    assert_non_null(strstr(cap.text, "config.json"));

    write_file_in(dir, "config.json", llama31);
    assert_int_equal(gr_hf_config_load(dir, &c), GR_OK);
    assert_int_equal(c.n_eos, 2);

    write_file_in(dir, "generation_config.json", "{\"eos_token_id\":[7,8,8],\"temperature\":0.6}");
    assert_int_equal(gr_hf_config_load(dir, &c), GR_OK);
    assert_int_equal(c.n_eos, 4); /* those of both files */
    assert_int_equal(c.eos_id[0], 2);
    assert_int_equal(c.eos_id[1], 3);
    assert_int_equal(c.eos_id[2], 7);
    assert_int_equal(c.eos_id[3], 8);

    write_file_in(dir, "generation_config.json", "{\"temperature\":0.6}");
    assert_int_equal(gr_hf_config_load(dir, &c), GR_OK);
    assert_int_equal(c.eos_id[0], 2);

    write_file_in(dir, "generation_config.json", "{\"eos_token_id\":9999}");
    assert_int_equal(load_quietly(dir, &c, &cap), GR_ELIMIT);
    assert_non_null(strstr(cap.text, "generation_config.json"));
    assert_non_null(strstr(cap.text, "9999"));

    snprintf(path, sizeof(path), "%s/generation_config.json", dir);
    assert_int_equal(unlink(path), 0);
    snprintf(path, sizeof(path), "%s/config.json", dir);
    assert_int_equal(truncate(path, (off_t)GR_HF_FILE_BYTES + 1), 0);
    assert_int_equal(load_quietly(dir, &c, &cap), GR_ELIMIT);
    assert_non_null(strstr(cap.text, "1048576"));
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0);               /* must not hang */
    assert_int_equal(load_quietly(dir, &c, &cap), GR_EIO); /* a file, not a bad value: status 1 */
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(dir), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_demo_target),    cmocka_unit_test(test_spellings),
        cmocka_unit_test(test_layer_kinds),    cmocka_unit_test(test_family_defaults),
        cmocka_unit_test(test_yarn_magnitude), cmocka_unit_test(test_demo_draft_and_eagle3),
        cmocka_unit_test(test_architectures),  cmocka_unit_test(test_bad),
        cmocka_unit_test(test_good_spellings), cmocka_unit_test(test_not_json),
        cmocka_unit_test(test_capture_ids),    cmocka_unit_test(test_eagle3_flags),
        cmocka_unit_test(test_load),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
