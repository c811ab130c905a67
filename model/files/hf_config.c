#include "model/files/hf_config.h"

#include <limits.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "model/files/capture.h"
#include "model/files/head_layout.h"
#include "model/files/json_util.h"

/* Limits of what a config may say: a wrong one must not become a huge allocation. */
#define HIDDEN_MAX 65536
#define N_HEAD_MAX 1024
#define HEAD_DIM_MAX 1024
#define FFN_MAX (1 << 20)
#define N_VOCAB_MAX (1 << 22)
#define MAX_POS_MAX (1 << 24)
#define THETA_MIN 1.0
#define THETA_MAX 1e12

/* HF's default where config.json is silent (Llama 2 was). */
#define THETA_DEFAULT 10000.0

static const struct {
    const char *alias, *name;
} architectures[] = {
    {"LlamaForCausalLM", "LlamaForCausalLM"},
    {"Qwen3ForCausalLM", "Qwen3ForCausalLM"},
    {"GptOssForCausalLM", "GptOssForCausalLM"},
    {"LlamaForCausalLMEagle3", "LlamaForCausalLMEagle3"},
    {"Eagle3LlamaForCausalLM", "LlamaForCausalLMEagle3"},
};

const char *gr_hf_architectures(void)
{
    return "LlamaForCausalLM, Qwen3ForCausalLM, GptOssForCausalLM, LlamaForCausalLMEagle3, "
           "Eagle3LlamaForCausalLM";
}

static bool is_arch(const struct gr_hf_config *c, const char *name)
{
    return strcmp(c->architecture, name) == 0;
}

static enum gr_status parse_architecture(const struct gr_json_where *w, struct gr_hf_config *c)
{
    const json_t *list = NULL;
    GR_TRY(gr_json_array(w, "architectures", true, &list));
    const json_t *first = json_array_get(list, 0);
    if (json_array_size(list) != 1 || !json_is_string(first)) {
        log_error("%s: architectures must be a list of one string; known: %s", w->name, gr_hf_architectures());
        return GR_EFORMAT;
    }
    const char *text = json_string_value(first);
    for (size_t i = 0; i < GR_ARRAY_LEN(architectures); i++) {
        if (strcmp(text, architectures[i].alias) == 0) {
            memcpy(c->architecture, architectures[i].name, strlen(architectures[i].name) + 1);
            return GR_OK;
        }
    }
    log_error("%s: architecture %.80s is not known; known: %s", w->name, text, gr_hf_architectures());
    return GR_EUNSUPPORTED;
}

/* Copies the string of key into text[cap]; "" when missing. */
static enum gr_status copy_string(const struct gr_json_where *w, const char *key, char *text, size_t cap)
{
    const char *value = NULL;
    GR_TRY(gr_json_string(w, key, false, &value));
    if (value == NULL) {
        return GR_OK;
    }
    size_t len = strlen(value);
    if (len >= cap) {
        log_error("%s: %s%s has %zu bytes, limit %zu", w->name, w->prefix, key, len, cap - 1);
        return GR_ELIMIT;
    }
    memcpy(text, value, len + 1);
    return GR_OK;
}

static enum gr_status parse_geometry(const struct gr_json_where *w, struct gr_hf_config *c)
{
    GR_TRY(gr_json_int(w, "hidden_size", true, 1, HIDDEN_MAX, &c->hidden));
    GR_TRY(gr_json_int(w, "num_hidden_layers", true, 1, GR_HF_N_LAYER_MAX, &c->n_layer));
    GR_TRY(gr_json_int(w, "num_attention_heads", true, 1, N_HEAD_MAX, &c->n_head));
    c->n_kv_head = c->n_head;
    GR_TRY(gr_json_int(w, "num_key_value_heads", false, 1, c->n_head, &c->n_kv_head));
    if (c->n_head % c->n_kv_head != 0) {
        log_error("%s: num_attention_heads = %d is no multiple of num_key_value_heads = %d", w->name, c->n_head,
                  c->n_kv_head);
        return GR_EFORMAT;
    }
    /* An explicit head_dim need not be hidden / heads (Qwen3-0.6B: 128 with 1024 / 16). */
    GR_TRY(gr_json_int(w, "head_dim", false, 2, HEAD_DIM_MAX, &c->head_dim));
    c->head_dim_given = c->head_dim != 0;
    if (!c->head_dim_given) {
        c->head_dim = c->hidden / c->n_head;
        if (c->hidden % c->n_head != 0 || c->head_dim > HEAD_DIM_MAX) {
            log_error("%s: no head_dim, and hidden_size = %d / num_attention_heads = %d gives none "
                      "(a whole number up to %d)",
                      w->name, c->hidden, c->n_head, HEAD_DIM_MAX);
            return GR_EFORMAT;
        }
    }
    if (c->head_dim % 2 != 0) {
        log_error("%s: head_dim = %d must be even (rotary embedding)", w->name, c->head_dim);
        return GR_EFORMAT;
    }
    GR_TRY(gr_json_int(w, "intermediate_size", true, 1, FFN_MAX, &c->ffn));
    GR_TRY(gr_json_int(w, "vocab_size", true, 1, N_VOCAB_MAX, &c->n_vocab));
    GR_TRY(gr_json_int(w, "max_position_embeddings", true, 1, MAX_POS_MAX, &c->max_pos));
    double eps = 0;
    GR_TRY(gr_json_double(w, "rms_norm_eps", true, 1e-12, 0.1, &eps));
    c->rms_eps = (float)eps;
    return GR_OK;
}

static enum gr_status parse_flags(const struct gr_json_where *w, struct gr_hf_config *c)
{
    GR_TRY(gr_json_bool(w, "tie_word_embeddings", false, &c->tie_embeddings));
    GR_TRY(gr_json_bool(w, "attention_bias", false, &c->attention_bias));
    GR_TRY(gr_json_bool(w, "mlp_bias", false, &c->mlp_bias));
    GR_TRY(copy_string(w, "model_type", c->model_type, sizeof(c->model_type)));
    GR_TRY(copy_string(w, "dtype", c->dtype, sizeof(c->dtype)));
    if (c->dtype[0] == '\0') {
        GR_TRY(copy_string(w, "torch_dtype", c->dtype, sizeof(c->dtype)));
    }
    return GR_OK;
}

/* Keys that change what the model computes in a way graft has not. */
static enum gr_status refuse_unsupported(const struct gr_json_where *w, const struct gr_hf_config *c)
{
    const char *act = "silu";
    GR_TRY(gr_json_string(w, "hidden_act", false, &act));
    if (strcmp(act, "silu") != 0 && strcmp(act, "swish") != 0) {
        log_error("%s: hidden_act %.40s is not supported; known: silu", w->name, act);
        return GR_EUNSUPPORTED;
    }
    double partial = 1.0;
    GR_TRY(gr_json_double(w, "partial_rotary_factor", false, 0, 1e6, &partial));
    if (partial != 1.0) {
        log_error("%s: partial_rotary_factor = %g is not supported; must be 1", w->name, partial);
        return GR_EUNSUPPORTED;
    }
    bool window = false;
    GR_TRY(gr_json_bool(w, "use_sliding_window", false, &window));
    if (window) {
        log_error("%s: use_sliding_window = true is not supported", w->name);
        return GR_EUNSUPPORTED;
    }
    const json_t *quant = NULL;
    GR_TRY(gr_json_object(w, "quantization_config", false, &quant));
    if (quant == NULL) {
        return GR_OK;
    }
    const char *method = "";
    struct gr_json_where qw = {w->name, "quantization_config.", quant};
    GR_TRY(gr_json_string(&qw, "quant_method", true, &method));
    if (!is_arch(c, "GptOssForCausalLM") || strcmp(method, "mxfp4") != 0) {
        log_error("%s: quantization_config.quant_method %.40s is not supported for %s; use the "
                  "unquantized checkpoint (mxfp4 is read for GptOssForCausalLM only)",
                  w->name, method, c->architecture);
        return GR_EUNSUPPORTED;
    }
    return GR_OK;
}

static enum gr_status parse_llama3_rope(const struct gr_json_where *w, struct gr_hf_config *c)
{
    GR_TRY(gr_json_double(w, "factor", true, 1.0, 1e4, &c->rope.factor));
    GR_TRY(gr_json_double(w, "low_freq_factor", true, 1e-3, 1e4, &c->rope.low_freq_factor));
    GR_TRY(gr_json_double(w, "high_freq_factor", true, 1e-3, 1e4, &c->rope.high_freq_factor));
    GR_TRY(gr_json_int(w, "original_max_position_embeddings", true, 1, MAX_POS_MAX, &c->rope.original_max_pos));
    if (c->rope.high_freq_factor <= c->rope.low_freq_factor) {
        log_error("%s: %shigh_freq_factor = %g must be above low_freq_factor = %g", w->name, w->prefix,
                  c->rope.high_freq_factor, c->rope.low_freq_factor);
        return GR_EFORMAT;
    }
    return GR_OK;
}

static enum gr_status parse_yarn_rope(const struct gr_json_where *w, struct gr_hf_config *c)
{
    GR_TRY(gr_json_double(w, "factor", true, 1.0, 1e4, &c->rope.factor));
    c->rope.beta_fast = 32.0;
    c->rope.beta_slow = 1.0;
    c->rope.truncate = true;
    c->rope.original_max_pos = c->max_pos;
    c->rope.attention_factor = 0.1 * log(c->rope.factor) + 1.0;
    GR_TRY(gr_json_double(w, "beta_fast", false, 1e-3, 1e6, &c->rope.beta_fast));
    GR_TRY(gr_json_double(w, "beta_slow", false, 1e-3, 1e6, &c->rope.beta_slow));
    GR_TRY(gr_json_bool(w, "truncate", false, &c->rope.truncate));
    GR_TRY(gr_json_double(w, "attention_factor", false, 1e-3, 1e3, &c->rope.attention_factor));
    GR_TRY(gr_json_int(w, "original_max_position_embeddings", false, 1, MAX_POS_MAX, &c->rope.original_max_pos));
    if (c->rope.beta_fast < c->rope.beta_slow) {
        log_error("%s: %sbeta_fast = %g must not be below beta_slow = %g", w->name, w->prefix, c->rope.beta_fast,
                  c->rope.beta_slow);
        return GR_EFORMAT;
    }
    return GR_OK;
}

/* The scaling object: rope_parameters (transformers 5) or rope_scaling. */
static enum gr_status parse_rope_object(const struct gr_json_where *w, struct gr_hf_config *c)
{
    static const char *const keys[] = {"rope_type",
                                       "type",
                                       "rope_theta",
                                       "factor",
                                       "low_freq_factor",
                                       "high_freq_factor",
                                       "original_max_position_embeddings",
                                       "beta_fast",
                                       "beta_slow",
                                       "attention_factor",
                                       "truncate",
                                       NULL};
    /* A key such as mscale, or one object per layer type, must not pass as plain. */
    GR_TRY(gr_json_only_keys(w, keys));
    const char *kind = "default", *old_kind = NULL;
    GR_TRY(gr_json_string(w, "type", false, &old_kind));
    kind = old_kind != NULL ? old_kind : kind;
    GR_TRY(gr_json_string(w, "rope_type", false, &kind));
    if (old_kind != NULL && strcmp(kind, old_kind) != 0) {
        log_error("%s: %srope_type %.40s and %stype %.40s differ", w->name, w->prefix, kind, w->prefix, old_kind);
        return GR_EFORMAT;
    }
    if (strcmp(kind, "default") == 0) {
        return GR_OK;
    }
    if (strcmp(kind, "llama3") == 0) {
        c->rope_kind = GR_ROPE_LLAMA3;
        return parse_llama3_rope(w, c);
    }
    if (strcmp(kind, "yarn") == 0) {
        c->rope_kind = GR_ROPE_YARN;
        return parse_yarn_rope(w, c);
    }
    log_error("%s: %srope_type %.40s is not supported; known: default, llama3, yarn", w->name, w->prefix, kind);
    return GR_EUNSUPPORTED;
}

static enum gr_status parse_rope(const struct gr_json_where *w, struct gr_hf_config *c)
{
    const json_t *params = NULL, *scaling = NULL;
    GR_TRY(gr_json_object(w, "rope_parameters", false, &params));
    GR_TRY(gr_json_object(w, "rope_scaling", false, &scaling));
    if (params != NULL && scaling != NULL && !json_equal(params, scaling)) {
        log_error("%s: rope_parameters and rope_scaling differ; keep one of them", w->name);
        return GR_EFORMAT;
    }
    double outer = 0, inner = 0;
    GR_TRY(gr_json_double(w, "rope_theta", false, THETA_MIN, THETA_MAX, &outer));
    if (params != NULL || scaling != NULL) {
        struct gr_json_where rw = {w->name, params != NULL ? "rope_parameters." : "rope_scaling.",
                                   params != NULL ? params : scaling};
        GR_TRY(gr_json_double(&rw, "rope_theta", false, THETA_MIN, THETA_MAX, &inner));
        GR_TRY(parse_rope_object(&rw, c));
    }
    if (outer != 0 && inner != 0 && outer != inner) {
        log_error("%s: rope_theta = %g at the top and %g in the rope object", w->name, outer, inner);
        return GR_EFORMAT;
    }
    c->rope_theta = inner != 0 ? inner : outer;
    if (c->rope_theta == 0 && !is_arch(c, "LlamaForCausalLMEagle3")) {
        c->rope_theta = THETA_DEFAULT;
    }
    return GR_OK;
}

static enum gr_status add_eos(const char *name, const json_t *value, int n_vocab, struct gr_hf_config *c)
{
    if (!json_is_integer(value)) {
        log_error("%s: eos_token_id must be an integer or a list of integers", name);
        return GR_EFORMAT;
    }
    long long id = json_integer_value(value);
    if (id < 0 || id >= n_vocab) {
        log_error("%s: eos_token_id = %lld is outside the vocabulary of %d", name, id, n_vocab);
        return GR_ELIMIT;
    }
    for (int i = 0; i < c->n_eos; i++) {
        if (c->eos_id[i] == id) {
            return GR_OK;
        }
    }
    if (c->n_eos == GR_HF_N_EOS_MAX) {
        log_error("%s: more than %d eos_token_id values", name, GR_HF_N_EOS_MAX);
        return GR_ELIMIT;
    }
    c->eos_id[c->n_eos++] = (int)id;
    return GR_OK;
}

/* Adds to the eos ids. */
static enum gr_status parse_eos(const char *name, const json_t *root, struct gr_hf_config *c)
{
    const json_t *value = json_object_get(root, "eos_token_id");
    if (value == NULL || json_is_null(value)) {
        return GR_OK;
    }
    if (!json_is_array(value)) {
        return add_eos(name, value, c->n_vocab, c);
    }
    for (size_t i = 0; i < json_array_size(value); i++) {
        GR_TRY(add_eos(name, json_array_get(value, i), c->n_vocab, c));
    }
    return GR_OK;
}

static enum gr_status parse_capture_ids_are(const struct gr_json_where *w, struct gr_hf_config *c)
{
    static const char key[] = "aux_hidden_state_layer_ids_are";
    const char *text = NULL;
    GR_TRY(gr_json_string(w, key, false, &text));
    if (text == NULL) {
        return GR_OK;
    }
    if (strcmp(text, "inputs") != 0 && strcmp(text, "outputs") != 0) {
        log_error("%s: %s%s %.40s is not known; known: inputs, outputs", w->name, w->prefix, key, text);
        return GR_EFORMAT;
    }
    c->capture_ids_are = strcmp(text, "inputs") == 0 ? GR_CAPTURE_IDS_INPUTS : GR_CAPTURE_IDS_OUTPUTS;
    return GR_OK;
}

/* The list of key as inputs of layers. */
static enum gr_status parse_capture(const struct gr_json_where *w, const char *key, struct gr_hf_config *c)
{
    const json_t *list = NULL;
    GR_TRY(gr_json_array(w, key, false, &list));
    if (list == NULL) {
        return GR_OK;
    }
    size_t n = json_array_size(list);
    if (n < 1 || n > GR_HF_N_CAPTURE_MAX) {
        log_error("%s: %s%s has %zu entries, must be 1..%d", w->name, w->prefix, key, n, GR_HF_N_CAPTURE_MAX);
        return GR_ELIMIT;
    }
    int layers[GR_HF_N_CAPTURE_MAX] = {0};
    bool outputs = false;
    for (size_t i = 0; i < n; i++) {
        const json_t *value = json_array_get(list, i);
        long long id = json_is_integer(value) ? json_integer_value(value) : -1;
        outputs = i == 0 ? gr_capture_ids_are_outputs(c->capture_ids_are, (int)GR_MIN(id, 2LL)) : outputs;
        if (id < 0 || id >= GR_HF_N_LAYER_MAX || (i > 0 && id + outputs <= layers[i - 1])) {
            log_error("%s: %s%s[%zu]: must be integers 0..%d in rising order", w->name, w->prefix, key, i,
                      GR_HF_N_LAYER_MAX - 1);
            return GR_EFORMAT;
        }
        layers[i] = (int)id + outputs;
    }
    if (c->has_capture && ((size_t)c->n_capture != n || memcmp(c->capture_layer, layers, sizeof(layers)) != 0)) {
        log_error("%s: %s%s and the same list in eagle_config differ; keep one", w->name, w->prefix, key);
        return GR_EFORMAT;
    }
    c->has_capture = true;
    c->capture_ids_are_outputs = outputs;
    c->n_capture = (int)n;
    memcpy(c->capture_layer, layers, sizeof(layers));
    return GR_OK;
}

/* Flags of the head's variants: at the top or in eagle_config; either place can switch one on. */
static enum gr_status parse_eagle3_flags(const struct gr_json_where *w, struct gr_hf_config *c)
{
    const struct {
        const char *key;
        bool *flag;
    } flags[] = {
        {"norm_before_residual", &c->norm_before_residual},
        {"norm_before_fc", &c->norm_before_fc},
        {"fc_norm", &c->fc_norm},
        {"norm_output", &c->norm_output},
    };
    for (size_t i = 0; i < GR_ARRAY_LEN(flags); i++) {
        bool on = false;
        GR_TRY(gr_json_bool(w, flags[i].key, false, &on));
        *flags[i].flag |= on;
    }
    return parse_capture_ids_are(w, c);
}

static enum gr_status parse_eagle3(const struct gr_json_where *w, struct gr_hf_config *c)
{
    static const char key[] = "eagle_aux_hidden_state_layer_ids";
    c->draft_n_vocab = c->n_vocab;
    GR_TRY(gr_json_int(w, "draft_vocab_size", false, 1, c->n_vocab, &c->draft_n_vocab));
    GR_TRY(gr_json_int(w, "target_hidden_size", false, 1, HIDDEN_MAX, &c->target_hidden));
    GR_TRY(parse_eagle3_flags(w, c));
    const json_t *eagle = NULL;
    GR_TRY(gr_json_object(w, "eagle_config", false, &eagle));
    if (eagle != NULL) {
        struct gr_json_where ew = {w->name, "eagle_config.", eagle};
        bool use_aux = true;
        GR_TRY(gr_json_bool(&ew, "use_aux_hidden_state", false, &use_aux));
        if (!use_aux) {
            log_error(
                "%s: eagle_config.use_aux_hidden_state = false: a head that is fed with the final state alone is not "
                "supported, only heads that are fed with captured layers",
                w->name);
            return GR_EUNSUPPORTED;
        }
        GR_TRY(parse_eagle3_flags(&ew, c));
        GR_TRY(parse_capture(&ew, key, c));
    }
    GR_TRY(parse_capture(w, key, c));
    if (c->norm_before_fc && c->fc_norm) {
        log_error("%s: norm_before_fc and fc_norm are both true; a head has one of them", w->name);
        return GR_EFORMAT;
    }
    return GR_OK;
}

static enum gr_status parse_layer_types(const struct gr_json_where *w, struct gr_hf_config *c)
{
    for (int l = 0; l < c->n_layer; l++) {
        c->layer_sliding[l] = l % 2 == 0;
    }
    const json_t *list = NULL;
    GR_TRY(gr_json_array(w, "layer_types", false, &list));
    if (list == NULL) {
        return GR_OK;
    }
    if (json_array_size(list) != (size_t)c->n_layer) {
        log_error("%s: layer_types has %zu entries, num_hidden_layers = %d", w->name, json_array_size(list),
                  c->n_layer);
        return GR_EFORMAT;
    }
    for (int l = 0; l < c->n_layer; l++) {
        const char *text = json_string_value(json_array_get(list, (size_t)l));
        bool sliding = text != NULL && strcmp(text, "sliding_attention") == 0;
        if (!sliding && (text == NULL || strcmp(text, "full_attention") != 0)) {
            log_error("%s: layer_types[%d] %.40s is not supported; known: sliding_attention, "
                      "full_attention",
                      w->name, l, text != NULL ? text : "(not a string)");
            return GR_EUNSUPPORTED;
        }
        c->layer_sliding[l] = sliding;
    }
    return GR_OK;
}

static enum gr_status parse_gptoss(const struct gr_json_where *w, struct gr_hf_config *c)
{
    GR_TRY(gr_json_int(w, "num_local_experts", true, 1, 4096, &c->n_expert));
    GR_TRY(gr_json_int(w, "experts_per_token", false, 1, c->n_expert, &c->n_expert_used));
    int n_used = c->n_expert_used;
    GR_TRY(gr_json_int(w, "num_experts_per_tok", n_used == 0, 1, c->n_expert, &n_used));
    if (c->n_expert_used != 0 && n_used != c->n_expert_used) {
        log_error("%s: num_experts_per_tok = %d and experts_per_token = %d differ", w->name, n_used, c->n_expert_used);
        return GR_EFORMAT;
    }
    c->n_expert_used = n_used;
    GR_TRY(gr_json_int(w, "sliding_window", true, 1, MAX_POS_MAX, &c->sliding_window));
    double limit = 7.0;
    GR_TRY(gr_json_double(w, "swiglu_limit", false, 1e-3, 1e6, &limit));
    c->swiglu_limit = (float)limit;
    return parse_layer_types(w, c);
}

/* Other architectures have full attention in every layer; a list that says otherwise is refused. */
static enum gr_status refuse_sliding_layers(const struct gr_json_where *w)
{
    const json_t *list = NULL;
    GR_TRY(gr_json_array(w, "layer_types", false, &list));
    for (size_t l = 0; l < json_array_size(list); l++) {
        const char *text = json_string_value(json_array_get(list, l));
        if (text == NULL || strcmp(text, "full_attention") != 0) {
            log_error("%s: layer_types[%zu] %.40s is not supported; known: full_attention", w->name, l,
                      text != NULL ? text : "(not a string)");
            return GR_EUNSUPPORTED;
        }
    }
    return GR_OK;
}

static enum gr_status parse_root(const char *name, const json_t *root, struct gr_hf_config *c)
{
    struct gr_json_where w = {name, "", root};
    c->bos_id = -1;
    GR_TRY(parse_architecture(&w, c));
    GR_TRY(parse_flags(&w, c));
    GR_TRY(parse_geometry(&w, c));
    GR_TRY(refuse_unsupported(&w, c));
    GR_TRY(parse_rope(&w, c));
    GR_TRY(gr_json_int(&w, "bos_token_id", false, 0, c->n_vocab - 1, &c->bos_id));
    GR_TRY(parse_eos(name, root, c));
    if (is_arch(c, "GptOssForCausalLM")) {
        return parse_gptoss(&w, c);
    }
    GR_TRY(refuse_sliding_layers(&w));
    return is_arch(c, "LlamaForCausalLMEagle3") ? parse_eagle3(&w, c) : GR_OK;
}

enum gr_status gr_hf_config_parse(const char *name, const char *json, size_t len, struct gr_hf_config *out)
{
    json_t *root;
    GR_TRY(gr_json_parse_object(name, json, len, &root));
    struct gr_hf_config config = {0};
    enum gr_status st = gr_head_layout_flatten(name, root);
    st = st == GR_OK ? parse_root(name, root, &config) : st;
    json_decref(root);
    if (st == GR_OK) {
        *out = config;
    }
    return st;
}

enum gr_status gr_hf_config_parse_generation(const char *name, const char *json, size_t len,
                                             struct gr_hf_config *config)
{
    json_t *root;
    GR_TRY(gr_json_parse_object(name, json, len, &root));
    struct gr_hf_config changed = *config;
    enum gr_status st = parse_eos(name, root, &changed);
    json_decref(root);
    if (st == GR_OK) {
        *config = changed;
    }
    return st;
}

enum gr_status gr_hf_config_load(const char *dir, struct gr_hf_config *out)
{
    char path[PATH_MAX];
    char *json;
    size_t len;
    struct gr_hf_config config;
    GR_TRY(gr_path_join(path, sizeof(path), dir, "config.json"));
    GR_TRY(gr_file_read(path, GR_HF_FILE_BYTES, true, &json, &len));
    enum gr_status st = gr_hf_config_parse(path, json, len, &config);
    free(json);
    GR_TRY(st);

    GR_TRY(gr_path_join(path, sizeof(path), dir, "generation_config.json"));
    st = gr_file_read(path, GR_HF_FILE_BYTES, false, &json, &len);
    if (st == GR_OK) {
        st = gr_hf_config_parse_generation(path, json, len, &config);
        free(json);
    }
    if (st != GR_OK && st != GR_ENOTFOUND) {
        return st;
    }
    *out = config;
    return GR_OK;
}
