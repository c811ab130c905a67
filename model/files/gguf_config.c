/* What the metadata of a GGUF file mean, by way of config.json's keys, whose reader knows every limit. */
#include "model/files/gguf_internal.h"
#include "model/files/hf_config_internal.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"

/* One file's metadata on its way to config.json's keys. */
struct reading {
    const struct gr_tensors *ts;
    const struct gr_gguf *g; /* of the first file */
    const struct gr_family *family;
    const char *path;
    int64_t n_layer; /* 0: not read yet */
    json_t *to;
    json_t *shown; /* config.json's keys to those of the file, for messages (gr_json_where) */
};

/* A field of the architecture's: "llama.KEY". */
static const char *key_name(const struct reading *r, const char *key, char name[128])
{
    snprintf(name, 128, "%s.%s", r->family->gguf, key);
    return name;
}

static const struct gr_gguf_field *find(const struct reading *r, const char *key)
{
    char name[128];
    return gr_gguf_find(r->g, key_name(r, key, name));
}

/* An array has a value for each layer. */
static enum gr_status check_per_layer(const struct reading *r, const char *key)
{
    const struct gr_gguf_field *f = find(r, key);
    if (f == NULL || !f->is_array || (r->n_layer > 0 && f->n == (uint64_t)r->n_layer)) {
        return GR_OK;
    }
    if (r->n_layer > 0) {
        log_error("%s: field %s is an array of %" PRIu64 ", %s.block_count = %" PRId64
                  ": must be a number or have one value for each layer",
                  r->path, f->key, f->n, r->family->gguf, r->n_layer);
    } else {
        log_error("%s: field %s is an array of %" PRIu64 ", must be a number", r->path, f->key, f->n);
    }
    return GR_EFORMAT;
}

static enum gr_status get_int(const struct reading *r, const char *key, bool required, int64_t *out)
{
    char name[128];
    GR_TRY(check_per_layer(r, key));
    return gr_gguf_int(r->g, key_name(r, key, name), required, out);
}

/* What messages about config.json's key shall call it. */
static void show_as(const struct reading *r, const char *key, const char *hf_key, const json_t *to)
{
    char name[128], full[GR_JSON_KEY_BYTES];
    snprintf(full, sizeof(full), "%s%s", to == r->to ? "" : "rope_scaling.", hf_key);
    json_object_set_new(r->shown, full, json_string(key_name(r, key, name)));
}

/* Under its name in config.json. */
static enum gr_status add_int(const struct reading *r, const char *key, bool required, const char *hf_key, json_t *to)
{
    int64_t value = INT64_MIN;
    show_as(r, key, hf_key, to);
    GR_TRY(get_int(r, key, required, &value));
    if (value != INT64_MIN) {
        json_object_set_new(to, hf_key, json_integer(value));
    }
    return GR_OK;
}

static enum gr_status add_float(const struct reading *r, const char *key, bool required, const char *hf_key, json_t *to)
{
    char name[128];
    double value = NAN;
    show_as(r, key, hf_key, to);
    GR_TRY(check_per_layer(r, key));
    GR_TRY(gr_gguf_float(r->g, key_name(r, key, name), required, &value));
    if (gr_gguf_find(r->g, name) == NULL) {
        return GR_OK;
    }
    if (!isfinite(value)) {
        log_error("%s: field %s is NaN or infinite", r->path, name);
        return GR_EFORMAT;
    }
    json_object_set_new(to, hf_key, json_real(value));
    return GR_OK;
}

/* -1: none. */
static enum gr_status get_token_id(const struct reading *r, const char *key, int64_t *out)
{
    const int64_t n_vocab = json_integer_value(json_object_get(r->to, "vocab_size"));
    int64_t id = -1;
    GR_TRY(gr_gguf_int(r->g, key, false, &id));
    if (id >= n_vocab) {
        log_error("%s: field %s = %" PRId64 " is outside the vocabulary of %" PRId64
                  ", the rows of tensor token_embd.weight",
                  r->path, key, id, n_vocab);
        return GR_ELIMIT;
    }
    *out = GR_MAX(id, -1);
    return GR_OK;
}

/* The ids that end a text: as many as the file tells. */
static enum gr_status add_token_ids(const struct reading *r)
{
    static const char *const ends[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    json_t *eos = json_array();
    int64_t id = -1;
    json_object_set_new(r->to, "eos_token_id", eos);
    GR_TRY(get_token_id(r, "tokenizer.ggml.bos_token_id", &id));
    if (id >= 0) {
        json_object_set_new(r->to, "bos_token_id", json_integer(id));
    }
    for (size_t i = 0; i < GR_ARRAY_LEN(ends); i++) {
        GR_TRY(get_token_id(r, ends[i], &id));
        if (id >= 0) {
            json_array_append_new(eos, json_integer(id));
        }
    }
    return GR_OK;
}

static const struct gr_gguf_tensor *find_tensor(const struct gr_tensors *ts, const char *name,
                                                const struct gr_tensor_file **file_out)
{
    for (size_t i = 0; i < ts->n_file; i++) {
        const struct gr_gguf *g = gr_gguf_of_file(&ts->files[i]);
        for (size_t k = 0; k < gr_gguf_n_tensor(g); k++) {
            if (strcmp(gr_gguf_tensor(g, k)->name, name) == 0) {
                *file_out = &ts->files[i];
                return gr_gguf_tensor(g, k);
            }
        }
    }
    return NULL;
}

/* What the frequency of pair i is divided by (Llama 3.1 and later), as their folders' config tells it. */
static double llama3_divisor(double theta, int half, int i, double factor)
{
    const double low = 1.0, high = 4.0, original = 8192.0;
    const double wavelength = 2.0 * M_PI * pow(theta, (double)i / half);
    if (wavelength > original / low) {
        return factor;
    }
    if (wavelength < original / high) {
        return 1.0;
    }
    const double smooth = (original / wavelength - low) / (high - low);
    return 1.0 / ((1.0 - smooth) / factor + smooth);
}

/* rope_freqs.weight: divisors of the frequencies. Those of Llama 3.1 and later are recognised, so that the model
 * computes what its folder does, bit for bit; others are refused. */
static enum gr_status add_rope_freqs(const struct gr_tensors *ts, double theta, json_t *to)
{
    const struct gr_tensor_file *file = NULL;
    const struct gr_gguf_tensor *t = find_tensor(ts, GR_GGUF_ROPE_FREQS, &file);
    if (t == NULL || json_integer_value(json_object_get(to, "head_dim")) <= 0) {
        return GR_OK;
    }
    const int64_t n = t->shape[0], half = json_integer_value(json_object_get(to, "head_dim")) / 2;
    if (t->dtype != GR_FORMAT_F32 || t->n_dim != 1 || n != half) {
        log_error("%s: tensor " GR_GGUF_ROPE_FREQS ": %s with %" PRId64 " values, must be F32 with %" PRId64
                  ", half of a head",
                  file->path, gr_format_name(t->dtype), n, half);
        return GR_EMISMATCH;
    }
    bool is_llama3 = true;
    double factor = 1.0;
    for (int pass = 0; pass < 2 && is_llama3; pass++) {
        for (int i = 0; i < n; i++) {
            float x = 0.0f;
            memcpy(&x, file->bytes + t->begin + (size_t)i * sizeof(x), sizeof(x));
            if (pass == 0) {
                factor = fmax(factor, (double)x);
            } else {
                const double want = llama3_divisor(theta, (int)n, i, factor);
                is_llama3 = is_llama3 && fabs((double)x - want) <= 1e-5 * want;
            }
        }
    }
    if (!is_llama3) {
        log_error("%s: tensor " GR_GGUF_ROPE_FREQS
                  ": the divisors are not those of Llama 3's rope (low 1, high 4, original "
                  "context 8192), which alone are read",
                  file->path);
        return GR_EUNSUPPORTED;
    }
    if (factor > 1.0 && json_object_get(to, "rope_scaling") != NULL) {
        log_error("%s: tensor " GR_GGUF_ROPE_FREQS " beside a rope.scaling.type: one of them alone is read",
                  file->path);
        return GR_EUNSUPPORTED;
    }
    if (factor > 1.0) {
        json_object_set_new(to, "rope_scaling",
                            json_pack("{s:s, s:f, s:f, s:f, s:i}", "rope_type", "llama3", "factor", factor,
                                      "low_freq_factor", 1.0, "high_freq_factor", 4.0,
                                      "original_max_position_embeddings", 8192));
    }
    return GR_OK;
}

/* Of yarn: what transformers computes from the same numbers. A factor of its own means one thing to transformers and
 * another to llama.cpp, so none is taken. */
static enum gr_status add_yarn(const struct reading *r, json_t *scaling)
{
    static const char *const keys[] = {"rope.scaling.yarn_attn_factor", "rope.scaling.attn_factor",
                                       "rope.scaling.yarn_log_multiplier", "rope.scaling.yarn_ext_factor"};
    for (size_t i = 0; i < GR_ARRAY_LEN(keys); i++) {
        if (find(r, keys[i]) != NULL) {
            log_error("%s: %s.%s is not read", r->path, r->family->gguf, keys[i]);
            return GR_EUNSUPPORTED;
        }
    }
    GR_TRY(add_int(r, "rope.scaling.original_context_length", true, "original_max_position_embeddings", scaling));
    GR_TRY(add_float(r, "rope.scaling.yarn_beta_fast", false, "beta_fast", scaling));
    return add_float(r, "rope.scaling.yarn_beta_slow", false, "beta_slow", scaling);
}

static enum gr_status add_rope_scaling(const struct reading *r)
{
    char name[128], kind[16] = "none";
    const char *text = NULL;
    size_t len = 0;
    GR_TRY(gr_gguf_string(r->g, key_name(r, "rope.scaling.type", name), false, &text, &len));
    if (text == NULL && (find(r, "rope.scale_linear") != NULL || find(r, "rope.scaling.factor") != NULL)) {
        text = "linear", len = strlen(text); /* as llama.cpp reads a factor without a kind, and older files have it */
    }
    if (text != NULL) {
        snprintf(kind, sizeof(kind), "%.*s", (int)GR_MIN(len, sizeof(kind) - 1), text);
    }
    if (strcmp(kind, "none") == 0) {
        return GR_OK;
    }
    const bool yarn = strcmp(kind, "yarn") == 0;
    if (!yarn && strcmp(kind, "linear") != 0) {
        log_error("%s: %s %s is not read; known: none, linear, yarn", r->path, name, kind);
        return GR_EUNSUPPORTED;
    }
    json_t *scaling = json_pack("{s:s}", "rope_type", kind);
    json_object_set_new(r->to, "rope_scaling", scaling);
    const char *factor = find(r, "rope.scaling.factor") != NULL ? "rope.scaling.factor" : "rope.scale_linear";
    GR_TRY(add_float(r, factor, true, "factor", scaling));
    return yarn ? add_yarn(r, scaling) : GR_OK;
}

/* What would make another model of it. */
static enum gr_status check_unsupported(const struct reading *r)
{
    static const char *const keys[] = {"expert_count", "attn_logit_softcapping", "final_logit_softcapping",
                                       "attention.scale"};
    for (size_t i = 0; i < GR_ARRAY_LEN(keys); i++) {
        char name[128];
        double value = 0.0;
        const struct gr_gguf_field *f = find(r, keys[i]);
        int64_t count = 0;
        key_name(r, keys[i], name);
        if (f != NULL && (f->type == GR_GGUF_F32 || f->type == GR_GGUF_F64)) {
            GR_TRY(gr_gguf_float(r->g, name, false, &value));
        } else {
            GR_TRY(gr_gguf_int(r->g, name, false, &count));
        }
        if (value != 0.0 || count != 0) {
            log_error("%s: %s = %g is not supported; must be 0", r->path, name, value + (double)count);
            return GR_EUNSUPPORTED;
        }
    }
    return GR_OK;
}

static enum gr_status check_head_length(const struct reading *r, const char *key, int64_t head_dim)
{
    int64_t value = head_dim;
    GR_TRY(get_int(r, key, false, &value));
    if (value != head_dim) {
        log_error("%s: heads of %" PRId64 ": %s.%s = %" PRId64 ": must be equal", r->path, head_dim, r->family->gguf,
                  key, value);
        return GR_EUNSUPPORTED;
    }
    return GR_OK;
}

/* An explicit length of keys, or hidden size / heads: in these files no family has another default. Nothing is added
 * where they give none: who reads the config says why. */
static enum gr_status add_head_dim(const struct reading *r)
{
    static const char key[] = "attention.key_length";
    const int64_t heads = json_integer_value(json_object_get(r->to, "num_attention_heads"));
    const int64_t hidden = json_integer_value(json_object_get(r->to, "hidden_size"));
    GR_TRY(add_int(r, key, false, "head_dim", r->to));
    int64_t head_dim = json_integer_value(json_object_get(r->to, "head_dim"));
    if (find(r, key) == NULL && heads > 0 && hidden % heads == 0) {
        head_dim = hidden / heads;
        json_object_set_new(r->to, "head_dim", json_integer(head_dim));
    }
    if (head_dim <= 0) {
        return GR_OK;
    }
    GR_TRY(check_head_length(r, "attention.value_length", head_dim));
    return check_head_length(r, "rope.dimension_count", head_dim);
}

/* An array says of each layer whether it has the window; a number is the pattern. */
static enum gr_status add_window_pattern(const struct reading *r)
{
    static const char key[] = "attention.sliding_window_pattern";
    const struct gr_gguf_field *f = find(r, key);
    if (f == NULL || !f->is_array) {
        return add_int(r, key, false, "sliding_window_pattern", r->to);
    }
    GR_TRY(check_per_layer(r, key));
    if (f->type != GR_GGUF_BOOL) {
        log_error("%s: %s.%s must be a number, or an array of true and false", r->path, r->family->gguf, key);
        return GR_EUNSUPPORTED;
    }
    json_t *types = json_array();
    for (uint64_t i = 0; i < f->n; i++) {
        json_array_append_new(types, json_string(f->data[i] != 0 ? "sliding_attention" : "full_attention"));
    }
    json_object_set_new(r->to, "layer_types", types);
    return GR_OK;
}

/* A file of Llama's kind that tells a window is a Mistral, which has it in all layers; of the other families only Gemma
 * has one in these files. */
static enum gr_status add_window(const struct reading *r)
{
    int64_t window = 0;
    show_as(r, "attention.sliding_window", "sliding_window", r->to);
    GR_TRY(get_int(r, "attention.sliding_window", false, &window));
    const bool mistral = strcmp(r->family->gguf, "llama") == 0;
    if (window != 0 && !mistral && !r->family->gemma) {
        log_error("%s: %s.attention.sliding_window = %" PRId64 " is not supported; must be 0", r->path, r->family->gguf,
                  window);
        return GR_EUNSUPPORTED;
    }
    json_object_set_new(r->to, "sliding_window", window != 0 ? json_integer(window) : json_null());
    if (mistral && window != 0) {
        json_object_set_new(r->to, "architectures", json_pack("[s]", "MistralForCausalLM"));
    }
    return window != 0 && r->family->gemma ? add_window_pattern(r) : GR_OK;
}

/* What Gemma's attention is scaled by is no key. All but the model of 62 layers have head_dim; its scalar is hidden
 * size / heads, as llama.cpp knows it. */
static enum gr_status add_gemma(const struct reading *r)
{
    const int64_t n_layer = json_integer_value(json_object_get(r->to, "num_hidden_layers"));
    const int64_t heads = json_integer_value(json_object_get(r->to, "num_attention_heads"));
    const int64_t hidden = json_integer_value(json_object_get(r->to, "hidden_size"));
    const int64_t head_dim = json_integer_value(json_object_get(r->to, "head_dim"));
    const int64_t scalar = n_layer == 62 && heads > 0 ? hidden / heads : head_dim;
    json_object_set_new(r->to, "query_pre_attn_scalar", json_integer(scalar));
    return add_float(r, "rope.freq_base_swa", false, "rope_local_base_freq", r->to);
}

/* How many ids there are, the rows of the embedding tell; a field that says it once more must agree. */
static enum gr_status add_vocabulary(const struct reading *r)
{
    const struct gr_tensor_file *file = NULL;
    const struct gr_gguf_tensor *embedding = find_tensor(r->ts, "token_embd.weight", &file);
    if (embedding == NULL) {
        log_error("%s: tensor token_embd.weight is missing", r->path);
        return GR_ENOTFOUND;
    }
    int64_t told = embedding->shape[0];
    GR_TRY(get_int(r, "vocab_size", false, &told));
    if (told != embedding->shape[0]) {
        log_error("%s: field %s.vocab_size = %" PRId64 ", tensor token_embd.weight has %" PRId64
                  " rows: must be equal (a wrong conversion: convert the model again)",
                  r->path, r->family->gguf, told, embedding->shape[0]);
        return GR_EMISMATCH;
    }
    json_object_set_new(r->to, "vocab_size", json_integer(told));
    return GR_OK;
}

/* What the tensors themselves tell. */
static enum gr_status add_of_tensors(const struct reading *r)
{
    const struct gr_tensor_file *file = NULL;
    const bool bias = find_tensor(r->ts, "blk.0.attn_q.bias", &file) != NULL;
    if (bias && r->family->gguf_pairs) {
        log_error("%s: tensor blk.0.attn_q.bias: biases of q and k are not read for %s", r->path, r->family->gguf);
        return GR_EUNSUPPORTED;
    }
    json_object_set_new(r->to, "tie_word_embeddings", json_boolean(find_tensor(r->ts, "output.weight", &file) == NULL));
    json_object_set_new(r->to, "attention_bias", json_boolean(bias));
    return GR_OK;
}

/* In these files no family has a default of its own. */
static enum gr_status add_rope_theta(const struct reading *r)
{
    GR_TRY(add_float(r, "rope.freq_base", false, "rope_theta", r->to));
    if (json_object_get(r->to, "rope_theta") == NULL) {
        json_object_set_new(r->to, "rope_theta", json_real(10000.0));
    }
    return GR_OK;
}

static enum gr_status add_all(struct reading *r)
{
    json_t *to = r->to;
    GR_TRY(add_int(r, "block_count", true, "num_hidden_layers", to));
    r->n_layer = GR_MAX(json_integer_value(json_object_get(to, "num_hidden_layers")), 0);
    GR_TRY(add_int(r, "embedding_length", true, "hidden_size", to));
    GR_TRY(add_int(r, "feed_forward_length", true, "intermediate_size", to));
    GR_TRY(add_int(r, "context_length", true, "max_position_embeddings", to));
    GR_TRY(add_int(r, "attention.head_count", true, "num_attention_heads", to));
    GR_TRY(add_int(r, "attention.head_count_kv", false, "num_key_value_heads", to));
    GR_TRY(add_float(r, "attention.layer_norm_rms_epsilon", true, "rms_norm_eps", to));
    GR_TRY(add_rope_theta(r));
    GR_TRY(check_unsupported(r));
    GR_TRY(add_head_dim(r));
    GR_TRY(add_window(r));
    GR_TRY(add_rope_scaling(r));
    GR_TRY(r->family->gemma ? add_gemma(r) : GR_OK);
    GR_TRY(add_rope_freqs(r->ts, json_real_value(json_object_get(to, "rope_theta")), to));
    GR_TRY(add_of_tensors(r));
    GR_TRY(add_vocabulary(r));
    return add_token_ids(r);
}

static enum gr_status find_family(const struct reading *r, const struct gr_family **out)
{
    const char *arch = NULL;
    size_t len = 0;
    GR_TRY(gr_gguf_string(r->g, "general.architecture", true, &arch, &len));
    *out = gr_family_of_gguf(arch, len);
    if (*out == NULL) {
        log_error("%s: general.architecture %.*s is not read; known: " GR_FAMILIES_GGUF, r->path,
                  (int)GR_MIN(len, (size_t)40), arch);
        return GR_EUNSUPPORTED;
    }
    return GR_OK;
}

enum gr_status gr_gguf_read_config(const struct gr_tensors *ts, struct gr_gguf_meaning *out)
{
    struct reading r = {.ts = ts, .g = gr_gguf_of_file(&ts->files[0]), .path = ts->files[0].path};
    GR_TRY(find_family(&r, &r.family));
    r.to = json_pack("{s:[s], s:s}", "architectures", r.family->architecture, "model_type", r.family->gguf);
    r.shown = json_object();
    enum gr_status st = r.to != NULL && r.shown != NULL ? add_all(&r) : GR_ENOMEM;
    if (st == GR_OK) {
        st = gr_hf_config_of_gguf(r.path, r.to, r.shown, &out->hf);
    }
    json_decref(r.to);
    json_decref(r.shown);
    out->family = r.family;
    out->hf.norm_plus_one = false; /* the file's norms have it in their weights */
    return st;
}
