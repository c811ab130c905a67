#include "model/files/hf_config.h"

#include <limits.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "model/files/capture.h"
#include "model/files/head_layout.h"
#include "model/files/hf_config_internal.h"

#define N_HEAD_MAX 1024
#define HEAD_DIM_MAX 1024
#define FFN_MAX (1 << 20)
#define N_VOCAB_MAX (1 << 22)

static bool is_arch(const struct gr_hf_config *c, const char *name)
{
    return strcmp(c->architecture, name) == 0;
}

static enum gr_status parse_architecture(const struct gr_json_where *w, struct gr_hf_config *c,
                                         const struct gr_family **family_out)
{
    const json_t *list = NULL;
    GR_TRY(gr_json_array(w, "architectures", true, &list));
    const json_t *first = json_array_get(list, 0);
    if (json_array_size(list) != 1 || !json_is_string(first)) {
        log_error("%s: architectures must be a list of one string; known: " GR_FAMILIES_KNOWN, w->name);
        return GR_EFORMAT;
    }
    const struct gr_family *f = gr_family_find(json_string_value(first));
    if (f == NULL) {
        log_error("%s: architecture %.80s is not known; known: " GR_FAMILIES_KNOWN, w->name, json_string_value(first));
        return GR_EUNSUPPORTED;
    }
    memcpy(c->architecture, f->architecture, strlen(f->architecture) + 1);
    *family_out = f;
    return GR_OK;
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

/* An explicit head_dim need not be hidden / heads (Qwen3-0.6B: 128 with 1024 / 16). */
static enum gr_status parse_head_dim(const struct gr_json_where *w, const struct gr_family *f, struct gr_hf_config *c)
{
    GR_TRY(gr_json_int(w, "head_dim", false, 2, HEAD_DIM_MAX, &c->head_dim));
    c->head_dim_given = c->head_dim != 0;
    if (!c->head_dim_given && f->head_dim > 0) {
        c->head_dim = f->head_dim;
    } else if (!c->head_dim_given) {
        c->head_dim = c->hidden / c->n_head;
        if (c->hidden % c->n_head != 0 || c->head_dim > HEAD_DIM_MAX) {
            char dim[GR_JSON_KEY_BYTES], hidden[GR_JSON_KEY_BYTES], heads[GR_JSON_KEY_BYTES];
            log_error("%s: no %s, and %s = %d / %s = %d gives none (a whole number up to %d)", w->name,
                      gr_json_key(w, "head_dim", dim), gr_json_key(w, "hidden_size", hidden), c->hidden,
                      gr_json_key(w, "num_attention_heads", heads), c->n_head, HEAD_DIM_MAX);
            return GR_EFORMAT;
        }
    }
    if (c->head_dim % 2 != 0) {
        char dim[GR_JSON_KEY_BYTES];
        log_error("%s: %s = %d must be even (rotary embedding)", w->name, gr_json_key(w, "head_dim", dim), c->head_dim);
        return GR_EFORMAT;
    }
    return GR_OK;
}

static enum gr_status parse_geometry(const struct gr_json_where *w, const struct gr_family *f, struct gr_hf_config *c)
{
    GR_TRY(gr_json_int(w, "hidden_size", true, 1, HF_HIDDEN_MAX, &c->hidden));
    GR_TRY(gr_json_int(w, "num_hidden_layers", true, 1, GR_HF_N_LAYER_MAX, &c->n_layer));
    GR_TRY(gr_json_int(w, "num_attention_heads", true, 1, N_HEAD_MAX, &c->n_head));
    c->n_kv_head = c->n_head;
    GR_TRY(gr_json_int(w, "num_key_value_heads", false, 1, c->n_head, &c->n_kv_head));
    if (c->n_head % c->n_kv_head != 0) {
        char heads[GR_JSON_KEY_BYTES], kv_heads[GR_JSON_KEY_BYTES];
        log_error("%s: %s = %d is no multiple of %s = %d", w->name, gr_json_key(w, "num_attention_heads", heads),
                  c->n_head, gr_json_key(w, "num_key_value_heads", kv_heads), c->n_kv_head);
        return GR_EFORMAT;
    }
    GR_TRY(parse_head_dim(w, f, c));
    GR_TRY(gr_json_int(w, "intermediate_size", true, 1, FFN_MAX, &c->ffn));
    GR_TRY(gr_json_int(w, "vocab_size", true, 1, N_VOCAB_MAX, &c->n_vocab));
    GR_TRY(gr_json_int(w, "max_position_embeddings", true, 1, HF_MAX_POS_MAX, &c->max_pos));
    double eps = 0;
    GR_TRY(gr_json_double(w, "rms_norm_eps", true, 1e-12, 0.1, &eps));
    c->rms_eps = (float)eps;
    return GR_OK;
}

static enum gr_status parse_biases(const struct gr_json_where *w, const struct gr_family *f, struct gr_hf_config *c)
{
    bool attention = false;
    GR_TRY(gr_json_bool(w, "attention_bias", false, &attention));
    GR_TRY(gr_json_bool(w, "mlp_bias", false, &c->mlp_bias));
    if ((attention && f->bias == GR_BIAS_NONE) || (c->mlp_bias && !f->mlp_bias)) {
        log_error("%s: %s = true is not supported for %s", w->name, c->mlp_bias ? "mlp_bias" : "attention_bias",
                  f->architecture);
        return GR_EUNSUPPORTED;
    }
    c->qkv_bias = attention || f->bias == GR_BIAS_QKV;
    c->o_bias = attention && f->bias == GR_BIAS_BY_FLAG;
    return GR_OK;
}

static enum gr_status parse_flags(const struct gr_json_where *w, const struct gr_family *f, struct gr_hf_config *c)
{
    c->tie_embeddings = f->tied;
    c->qk_norm = f->qk_norm;
    GR_TRY(gr_json_bool(w, "tie_word_embeddings", false, &c->tie_embeddings));
    GR_TRY(parse_biases(w, f, c));
    GR_TRY(copy_string(w, "model_type", c->model_type, sizeof(c->model_type)));
    GR_TRY(copy_string(w, "dtype", c->dtype, sizeof(c->dtype)));
    if (c->dtype[0] == '\0') {
        GR_TRY(copy_string(w, "torch_dtype", c->dtype, sizeof(c->dtype)));
    }
    return GR_OK;
}

/* Of Gemma: what is scaled, normed and activated otherwise. */
static enum gr_status parse_gemma(const struct gr_json_where *w, struct gr_hf_config *c)
{
    c->scale_dim = 256;
    c->norm_plus_one = c->post_norms = c->gelu = true;
    c->embed_scale = sqrtf((float)c->hidden);
    return gr_json_int(w, "query_pre_attn_scalar", false, 1, HF_HIDDEN_MAX, &c->scale_dim);
}

/* What the file's key says, or nothing, where nothing is what the class has. */
static enum gr_status check_activation(const struct gr_json_where *w, const struct gr_family *f)
{
    const char *key =
        f->gemma && json_object_get(w->obj, "hidden_activation") != NULL ? "hidden_activation" : "hidden_act";
    const char *known = f->gemma ? "gelu_pytorch_tanh" : "silu", *act = known;
    GR_TRY(gr_json_string(w, key, false, &act));
    if (strcmp(act, known) != 0 && (f->gemma || strcmp(act, "swish") != 0)) {
        log_error("%s: %s %.40s is not supported for %s; known: %s", w->name, key, act, f->architecture, known);
        return GR_EUNSUPPORTED;
    }
    return GR_OK;
}

/* Keys that must be null, false or missing. */
static enum gr_status refuse_keys(const struct gr_json_where *w)
{
    static const char *const keys[] = {"attn_logit_softcapping", "final_logit_softcapping",
                                       "use_bidirectional_attention"};
    for (size_t i = 0; i < GR_ARRAY_LEN(keys); i++) {
        const json_t *value = json_object_get(w->obj, keys[i]);
        if (value != NULL && !json_is_null(value) && !json_is_false(value)) {
            log_error("%s: %s is not supported; must be null", w->name, keys[i]);
            return GR_EUNSUPPORTED;
        }
    }
    return GR_OK;
}

/* Keys that change what the model computes in a way graft has not. */
static enum gr_status refuse_unsupported(const struct gr_json_where *w, const struct gr_family *f,
                                         const struct gr_hf_config *c)
{
    GR_TRY(check_activation(w, f));
    GR_TRY(refuse_keys(w));
    const json_t *quant = NULL;
    GR_TRY(gr_json_object(w, "quantization_config", false, &quant));
    if (quant == NULL) {
        return GR_OK;
    }
    const char *method = "";
    struct gr_json_where qw = {.name = w->name, .prefix = "quantization_config.", .obj = quant};
    GR_TRY(gr_json_string(&qw, "quant_method", true, &method));
    if (!is_arch(c, "GptOssForCausalLM") || strcmp(method, "mxfp4") != 0) {
        log_error("%s: quantization_config.quant_method %.40s is not supported for %s; use the "
                  "unquantized checkpoint (mxfp4 is read for GptOssForCausalLM only)",
                  w->name, method, c->architecture);
        return GR_EUNSUPPORTED;
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
    GR_TRY(gr_json_int(w, "target_hidden_size", false, 1, HF_HIDDEN_MAX, &c->target_hidden));
    GR_TRY(parse_eagle3_flags(w, c));
    const json_t *eagle = NULL;
    GR_TRY(gr_json_object(w, "eagle_config", false, &eagle));
    if (eagle != NULL) {
        struct gr_json_where ew = {.name = w->name, .prefix = "eagle_config.", .obj = eagle};
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
    double limit = 7.0;
    GR_TRY(gr_json_double(w, "swiglu_limit", false, 1e-3, 1e6, &limit));
    c->swiglu_limit = (float)limit;
    return GR_OK;
}

static enum gr_status parse_root(const char *name, const json_t *root, const json_t *shown, struct gr_hf_config *c)
{
    struct gr_json_where w = {.name = name, .prefix = "", .obj = root, .shown = shown};
    const struct gr_family *f = NULL;
    c->bos_id = -1;
    GR_TRY(parse_architecture(&w, c, &f));
    GR_TRY(parse_flags(&w, f, c));
    GR_TRY(parse_geometry(&w, f, c));
    GR_TRY(refuse_unsupported(&w, f, c));
    GR_TRY(gr_hf_parse_rope(&w, f, c));
    GR_TRY(gr_hf_parse_layers(&w, f, c));
    GR_TRY(gr_json_int(&w, "bos_token_id", false, 0, c->n_vocab - 1, &c->bos_id));
    GR_TRY(parse_eos(name, root, c));
    if (f->gemma) {
        return parse_gemma(&w, c);
    }
    if (is_arch(c, "GptOssForCausalLM")) {
        return parse_gptoss(&w, c);
    }
    return gr_hf_is_eagle3(c) ? parse_eagle3(&w, c) : GR_OK;
}

enum gr_status gr_hf_config_parse(const char *name, const char *json, size_t len, struct gr_hf_config *out)
{
    json_t *root;
    GR_TRY(gr_json_parse_object(name, json, len, &root));
    struct gr_hf_config config = {0};
    enum gr_status st = gr_head_layout_flatten(name, root);
    st = st == GR_OK ? parse_root(name, root, NULL, &config) : st;
    json_decref(root);
    if (st == GR_OK) {
        *out = config;
    }
    return st;
}

enum gr_status gr_hf_config_of_gguf(const char *name, const json_t *root, const json_t *shown, struct gr_hf_config *out)
{
    struct gr_hf_config config = {0};
    GR_TRY(parse_root(name, root, shown, &config));
    *out = config;
    return GR_OK;
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
