#include "model/files/gguf_model.h"

#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "model/files/json_util.h"
#include "model/files/tensors_internal.h"

#define ARCHITECTURES "llama"
#define ROPE_FREQS "rope_freqs.weight"

/* ---- names ---- */

static const struct {
    const char *gguf, *hf;
} whole_names[] = {
    {"token_embd.weight", "model.embed_tokens.weight"},
    {"output_norm.weight", "model.norm.weight"},
    {"output.weight", "lm_head.weight"},
};

/* blk.N.NAME.weight (or .bias) is model.layers.N.NAME.weight. */
static const struct {
    const char *gguf, *hf;
} layer_names[] = {
    {"attn_norm", "input_layernorm"}, {"ffn_norm", "post_attention_layernorm"},
    {"attn_q", "self_attn.q_proj"},   {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},   {"attn_output", "self_attn.o_proj"},
    {"ffn_gate", "mlp.gate_proj"},    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},    {"attn_rot_embd", "self_attn.rotary_emb.inv_freq"},
};

/* A name that the table does not know stays as it is, and is refused as a tensor that the architecture has not. */
static void hf_name(const char *name, char *out, size_t cap)
{
    int layer = 0, at = 0;
    for (size_t i = 0; i < GR_ARRAY_LEN(whole_names); i++) {
        if (strcmp(name, whole_names[i].gguf) == 0) {
            snprintf(out, cap, "%s", whole_names[i].hf);
            return;
        }
    }
    if (sscanf(name, "blk.%5d.%n", &layer, &at) == 1 && at > 0 && layer >= 0) {
        const char *rest = name + at;
        const size_t len = strcspn(rest, ".");
        for (size_t i = 0; i < GR_ARRAY_LEN(layer_names); i++) {
            if (strlen(layer_names[i].gguf) == len && memcmp(rest, layer_names[i].gguf, len) == 0) {
                const char *suffix = strcmp(layer_names[i].gguf, "attn_rot_embd") == 0 ? "" : rest + len;
                snprintf(out, cap, "model.layers.%d.%s%s", layer, layer_names[i].hf, suffix);
                return;
            }
        }
    }
    snprintf(out, cap, "%s", name);
}

/* ---- the files ---- */

/* What a tensor file's header points to: the parsed file, and room for the names. */
struct header {
    struct gr_gguf *gguf;
    char *names;
};

static void header_free(void *p)
{
    struct header *h = p;
    gr_gguf_free(h->gguf);
    free(h->names);
    free(h);
}

static const struct gr_gguf *gguf_of(const struct gr_tensor_file *f)
{
    return ((const struct header *)f->header)->gguf;
}

/* bytes and len are set. */
static enum gr_status parse_file(struct gr_tensor_file *f)
{
    struct header *h = calloc(1, sizeof(*h));
    if (h == NULL) {
        log_error("%s: no memory", f->path);
        return GR_ENOMEM;
    }
    f->header = h;
    f->header_free = header_free;
    return gr_gguf_parse(f->path, f->bytes, f->len, &h->gguf);
}

/* The number of files that a name ending in -00001-of-0000N.gguf tells; 0: it does not end so. stem_out: the length of
 * what stands before. */
static int split_of_name(const char *path, int *no_out, size_t *stem_out)
{
    static const char form[] = "-00001-of-00001.gguf";
    const size_t len = strlen(path), tail = sizeof(form) - 1;
    int no = 0, n = 0, end = 0;
    if (len <= tail || sscanf(path + len - tail, "-%5d-of-%5d.gguf%n", &no, &n, &end) != 2 || end != (int)tail ||
        no < 1 || n < no) {
        return 0;
    }
    *no_out = no;
    *stem_out = len - tail;
    return n;
}

static enum gr_status check_split(const struct gr_tensor_file *f, int no, int n_file)
{
    int64_t count = 1, number = 0;
    GR_TRY(gr_gguf_int(gguf_of(f), "split.count", false, &count));
    GR_TRY(gr_gguf_int(gguf_of(f), "split.no", false, &number));
    count = count == 0 ? 1 : count; /* some writers say 0 of a whole file */
    if (count != n_file) {
        log_error("%s: split.count = %" PRId64 ", but by its name it is one of %d files (NAME-00001-of-0000N.gguf)",
                  f->path, count, n_file);
        return GR_EMISMATCH;
    }
    if (number != no - 1) {
        log_error("%s: split.no = %" PRId64 " (from 0), but by its name it is file %d of %d", f->path, number, no,
                  n_file);
        return GR_EMISMATCH;
    }
    return GR_OK;
}

/* All files are there: together they must have as many tensors as the first says. */
static enum gr_status check_split_total(const struct gr_tensors *ts)
{
    int64_t total = -1, found = 0;
    GR_TRY(gr_gguf_int(gguf_of(&ts->files[0]), "split.tensors.count", false, &total));
    for (size_t i = 0; i < ts->n_file; i++) {
        found += (int64_t)gr_gguf_n_tensor(gguf_of(&ts->files[i]));
    }
    if (ts->n_file > 1 && total >= 0 && total != found) {
        log_error("%s: split.tensors.count = %" PRId64 ", its %zu files have %" PRId64, ts->files[0].path, total,
                  ts->n_file, found);
        return GR_EMISMATCH;
    }
    return GR_OK;
}

static enum gr_status open_files(struct gr_tensors *ts, const char *path, int n_file, size_t stem)
{
    for (int i = 0; i < n_file; i++) {
        struct gr_tensor_file *f = &ts->files[i];
        char name[PATH_MAX];
        snprintf(name, sizeof(name), "%.*s-%05d-of-%05d.gguf", (int)stem, path, i + 1, n_file);
        GR_TRY(gr_tensor_file_set_path(f, NULL, stem > 0 ? name : path));
        GR_TRY(gr_tensor_file_map(f));
        GR_TRY(parse_file(f));
        GR_TRY(check_split(f, i + 1, n_file));
    }
    return check_split_total(ts);
}

/* ---- config ---- */

/* A field of the architecture's, "llama.KEY", under its name in config.json. */
static enum gr_status add_int(const struct gr_gguf *g, const char *arch, const char *key, bool required,
                              const char *hf_key, json_t *to)
{
    char name[128];
    int64_t value = INT64_MIN;
    snprintf(name, sizeof(name), "%s.%s", arch, key);
    GR_TRY(gr_gguf_int(g, name, required, &value));
    if (value != INT64_MIN) {
        json_object_set_new(to, hf_key, json_integer(value));
    }
    return GR_OK;
}

static enum gr_status add_float(const struct gr_gguf *g, const char *arch, const char *key, bool required,
                                const char *hf_key, json_t *to)
{
    char name[128];
    double value = NAN;
    snprintf(name, sizeof(name), "%s.%s", arch, key);
    GR_TRY(gr_gguf_float(g, name, required, &value));
    if (gr_gguf_find(g, name) != NULL) {
        json_object_set_new(to, hf_key, json_real(isfinite(value) ? value : -1.0)); /* -1: refused by its range */
    }
    return GR_OK;
}

/* The ids that end a text: as many as the file tells. */
static enum gr_status add_token_ids(const struct gr_gguf *g, json_t *to)
{
    static const char *const ends[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    json_t *eos = json_array();
    int64_t bos = -1;
    enum gr_status st = gr_gguf_int(g, "tokenizer.ggml.bos_token_id", false, &bos);
    for (size_t i = 0; st == GR_OK && i < GR_ARRAY_LEN(ends); i++) {
        int64_t id = -1;
        st = gr_gguf_int(g, ends[i], false, &id);
        if (st == GR_OK && id >= 0) {
            json_array_append_new(eos, json_integer(id));
        }
    }
    if (bos >= 0) {
        json_object_set_new(to, "bos_token_id", json_integer(bos));
    }
    json_object_set_new(to, "eos_token_id", eos);
    return st;
}

static const struct gr_gguf_tensor *find_tensor(const struct gr_tensors *ts, const char *name,
                                                const struct gr_tensor_file **file_out)
{
    for (size_t i = 0; i < ts->n_file; i++) {
        const struct gr_gguf *g = gguf_of(&ts->files[i]);
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
    const struct gr_gguf_tensor *t = find_tensor(ts, ROPE_FREQS, &file);
    if (t == NULL) {
        return GR_OK;
    }
    const int64_t n = t->shape[0];
    bool is_llama3 = t->dtype == GR_FORMAT_F32 && t->n_dim == 1 && n >= 1 && n <= 1024;
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
        log_error("%s: tensor " ROPE_FREQS ": the divisors are not those of Llama 3's rope (low 1, high 4, original "
                  "context 8192), which alone are read",
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

static enum gr_status check_rope_scaling(const struct gr_gguf *g, const char *arch, const char *path)
{
    char name[128];
    const char *kind = NULL;
    size_t len = 0;
    snprintf(name, sizeof(name), "%s.rope.scaling.type", arch);
    GR_TRY(gr_gguf_string(g, name, false, &kind, &len));
    if (kind != NULL && !(len == 4 && memcmp(kind, "none", 4) == 0)) {
        log_error("%s: %s %.*s is not read; known: none", path, name, (int)GR_MIN(len, (size_t)40), kind);
        return GR_EUNSUPPORTED;
    }
    return GR_OK;
}

/* What would make another model of it. */
static enum gr_status check_unsupported(const struct gr_gguf *g, const char *arch, const char *path)
{
    static const char *const keys[] = {"expert_count", "attention.sliding_window"};
    for (size_t i = 0; i < GR_ARRAY_LEN(keys); i++) {
        char name[128];
        int64_t value = 0;
        snprintf(name, sizeof(name), "%s.%s", arch, keys[i]);
        GR_TRY(gr_gguf_int(g, name, false, &value));
        if (value != 0) {
            log_error("%s: %s = %" PRId64 " is not supported; must be 0", path, name, value);
            return GR_EUNSUPPORTED;
        }
    }
    return check_rope_scaling(g, arch, path);
}

static enum gr_status check_head_dims(const struct gr_gguf *g, const char *path, json_t *to)
{
    int64_t value_length = -1, dims = -1;
    const json_t *key_length = json_object_get(to, "head_dim");
    GR_TRY(gr_gguf_int(g, "llama.attention.value_length", false, &value_length));
    GR_TRY(gr_gguf_int(g, "llama.rope.dimension_count", false, &dims));
    int64_t head_dim = key_length != NULL ? json_integer_value(key_length) : 0;
    if (head_dim == 0) {
        const int64_t heads = json_integer_value(json_object_get(to, "num_attention_heads"));
        head_dim = heads > 0 ? json_integer_value(json_object_get(to, "hidden_size")) / heads : 0;
    }
    if ((value_length >= 0 && value_length != head_dim) || (dims >= 0 && dims != head_dim)) {
        log_error("%s: heads of %" PRId64 ": llama.attention.value_length = %" PRId64
                  ", llama.rope.dimension_count = %" PRId64 ": must be equal",
                  path, head_dim, value_length, dims);
        return GR_EUNSUPPORTED;
    }
    return GR_OK;
}

static enum gr_status add_all(const struct gr_tensors *ts, const char *arch, json_t *to)
{
    const struct gr_gguf *g = gguf_of(&ts->files[0]);
    const struct gr_tensor_file *file = NULL;
    GR_TRY(add_int(g, arch, "embedding_length", true, "hidden_size", to));
    GR_TRY(add_int(g, arch, "block_count", true, "num_hidden_layers", to));
    GR_TRY(add_int(g, arch, "feed_forward_length", true, "intermediate_size", to));
    GR_TRY(add_int(g, arch, "context_length", true, "max_position_embeddings", to));
    GR_TRY(add_int(g, arch, "attention.head_count", true, "num_attention_heads", to));
    GR_TRY(add_int(g, arch, "attention.head_count_kv", false, "num_key_value_heads", to));
    GR_TRY(add_int(g, arch, "attention.key_length", false, "head_dim", to));
    GR_TRY(add_float(g, arch, "attention.layer_norm_rms_epsilon", true, "rms_norm_eps", to));
    GR_TRY(add_float(g, arch, "rope.freq_base", false, "rope_theta", to));
    GR_TRY(add_token_ids(g, to));
    GR_TRY(check_unsupported(g, arch, ts->files[0].path));
    GR_TRY(check_head_dims(g, ts->files[0].path, to));
    const json_t *theta = json_object_get(to, "rope_theta");
    GR_TRY(add_rope_freqs(ts, theta != NULL ? json_real_value(theta) : 10000.0, to));
    json_object_set_new(to, "tie_word_embeddings", json_boolean(find_tensor(ts, "output.weight", &file) == NULL));
    json_object_set_new(to, "attention_bias", json_boolean(find_tensor(ts, "blk.0.attn_q.bias", &file) != NULL));
    const struct gr_gguf_tensor *embedding = find_tensor(ts, "token_embd.weight", &file);
    if (embedding == NULL) {
        log_error("%s: tensor token_embd.weight is missing", ts->files[0].path);
        return GR_ENOTFOUND;
    }
    json_object_set_new(to, "vocab_size", json_integer(embedding->shape[0]));
    return GR_OK;
}

/* By way of config.json's keys, whose reader knows every limit. */
static enum gr_status read_config(const struct gr_tensors *ts, struct gr_hf_config *out)
{
    const char *path = ts->files[0].path;
    const char *arch = NULL;
    size_t len = 0;
    GR_TRY(gr_gguf_string(gguf_of(&ts->files[0]), "general.architecture", true, &arch, &len));
    if (len != 5 || memcmp(arch, "llama", 5) != 0) {
        log_error("%s: general.architecture %.*s is not read; known: " ARCHITECTURES, path,
                  (int)GR_MIN(len, (size_t)40), arch);
        return GR_EUNSUPPORTED;
    }
    json_t *root = json_pack("{s:[s], s:s}", "architectures", "LlamaForCausalLM", "model_type", "llama");
    enum gr_status st = root != NULL ? add_all(ts, "llama", root) : GR_ENOMEM;
    char *text = st == GR_OK ? json_dumps(root, JSON_REAL_PRECISION(17)) : NULL;
    if (st == GR_OK) {
        st = text != NULL ? gr_hf_config_parse(path, text, strlen(text), out) : GR_ENOMEM;
    }
    free(text);
    json_decref(root);
    return st;
}

/* ---- tensors ---- */

/* Rows that lie paired: gr_tensor_row(). */
static int heads_of(const char *name, const struct gr_tensor *t, const struct gr_hf_config *hf)
{
    const char *end = strrchr(name, '.');
    const size_t stem = end != NULL ? (size_t)(end - name) : 0;
    const bool is_q = stem > 7 && memcmp(name + stem - 7, ".attn_q", 7) == 0;
    const bool is_k = stem > 7 && memcmp(name + stem - 7, ".attn_k", 7) == 0;
    const int n_head = is_q ? hf->n_head : is_k ? hf->n_kv_head : 0;
    return n_head > 0 && t->n_dim == 2 && t->shape[0] % (2 * (int64_t)n_head) == 0 ? n_head : 0;
}

static enum gr_status list_file(struct gr_tensor_file *f, uint32_t i_file, const struct gr_hf_config *hf,
                                struct gr_tensor_list *list)
{
    struct header *h = f->header;
    const size_t n = gr_gguf_n_tensor(h->gguf), cap = GR_TENSOR_NAME_LEN_MAX + 64;
    GR_TRY(gr_tensor_list_reserve(list, n));
    h->names = calloc(n + 1, cap);
    if (h->names == NULL) {
        log_error("%s: no memory for %zu names", f->path, n);
        return GR_ENOMEM;
    }
    for (size_t i = 0; i < n; i++) {
        const struct gr_gguf_tensor *t = gr_gguf_tensor(h->gguf, i);
        if (strcmp(t->name, ROPE_FREQS) == 0) {
            continue; /* the config has it */
        }
        char *name = h->names + i * cap;
        hf_name(t->name, name, cap);
        struct gr_tensor_entry e = {.file = i_file, .begin = t->begin, .end = t->begin + t->bytes};
        e.tensor = (struct gr_tensor){
            .name = name, .dtype = t->dtype, .n_dim = t->n_dim, .data = f->bytes + t->begin, .bytes = (size_t)t->bytes};
        memcpy(e.tensor.shape, t->shape, sizeof(t->shape));
        e.tensor.n_head_paired = heads_of(t->name, &e.tensor, hf);
        list->items[list->n++] = e;
    }
    return GR_OK;
}

/* The files are parsed. */
static enum gr_status finish(struct gr_tensors *ts, struct gr_hf_config *hf_out)
{
    struct gr_hf_config hf;
    struct gr_tensor_list list = {0};
    ts->shapes_from = "the metadata";
    GR_TRY(read_config(ts, &hf));
    enum gr_status st = GR_OK;
    for (size_t i = 0; i < ts->n_file && st == GR_OK; i++) {
        st = list_file(&ts->files[i], (uint32_t)i, &hf, &list);
    }
    if (st == GR_OK) {
        st = gr_tensors_finish(ts, &list);
    }
    free(list.items);
    if (st == GR_OK && hf_out != NULL) {
        *hf_out = hf;
    }
    return st;
}

static enum gr_status give(struct gr_tensors *ts, enum gr_status st, struct gr_tensors **out)
{
    if (st != GR_OK || out == NULL) {
        gr_tensors_close(ts);
    } else {
        *out = ts;
    }
    return st;
}

enum gr_status gr_gguf_model_open(const char *path, struct gr_hf_config *hf_out, struct gr_tensors **out)
{
    struct gr_tensors *ts = NULL;
    int no = 1;
    size_t stem = 0;
    int n_file = split_of_name(path, &no, &stem);
    if (n_file > GR_TENSORS_N_FILE_MAX) {
        log_error("%s: one of %d files, limit %d", path, n_file, GR_TENSORS_N_FILE_MAX);
        return GR_ELIMIT;
    }
    n_file = GR_MAX(n_file, 1);
    GR_TRY(gr_tensors_create(path, (size_t)n_file, &ts));
    enum gr_status st = open_files(ts, path, n_file, stem);
    if (st == GR_OK) {
        st = finish(ts, hf_out);
    }
    return give(ts, st, out);
}

const struct gr_gguf *gr_gguf_model_metadata(const struct gr_tensors *ts)
{
    return gguf_of(&ts->files[0]);
}

enum gr_status gr_gguf_model_parse(const char *name, const void *data, size_t len, struct gr_hf_config *hf_out,
                                   struct gr_tensors **out)
{
    struct gr_tensors *ts = NULL;
    GR_TRY(gr_tensors_create(name, 1, &ts));
    ts->files[0].bytes = data;
    ts->files[0].len = len;
    enum gr_status st = gr_tensor_file_set_path(&ts->files[0], NULL, name);
    if (st == GR_OK) {
        st = parse_file(&ts->files[0]);
    }
    if (st == GR_OK) {
        st = finish(ts, hf_out);
    }
    return give(ts, st, out);
}
