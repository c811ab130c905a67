#include "model/files/gguf_model.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "model/files/gguf_internal.h"
#include "model/files/tensors_internal.h"

/* ---- names ---- */

enum side { GGUF, HF };

/* Of one tensor, or of one part of its name. */
struct name {
    const char *of[2];
};

static const struct name whole_names[] = {
    {{"token_embd.weight", "model.embed_tokens.weight"}},
    {{"output_norm.weight", "model.norm.weight"}},
    {{"output.weight", "lm_head.weight"}},
};

/* blk.N.NAME.weight (or .bias) is model.layers.N.NAME.weight. */
static const struct name layer_names[] = {
    {{"attn_norm", "input_layernorm"}},    {{"ffn_norm", "post_attention_layernorm"}},
    {{"attn_q", "self_attn.q_proj"}},      {{"attn_k", "self_attn.k_proj"}},
    {{"attn_v", "self_attn.v_proj"}},      {{"attn_output", "self_attn.o_proj"}},
    {{"ffn_gate", "mlp.gate_proj"}},       {{"ffn_up", "mlp.up_proj"}},
    {{"ffn_down", "mlp.down_proj"}},       {{"attn_rot_embd", "self_attn.rotary_emb.inv_freq"}},
    {{"attn_q_norm", "self_attn.q_norm"}}, {{"attn_k_norm", "self_attn.k_norm"}},
};

/* The norms that Gemma has otherwise: before these, in its files. */
static const struct name gemma_names[] = {
    {{"post_attention_norm", "post_attention_layernorm"}},
    {{"ffn_norm", "pre_feedforward_layernorm"}},
    {{"post_ffw_norm", "post_feedforward_layernorm"}},
};

/* The other side's name of a text that is one side's; NULL: the table does not know it. */
static const char *other_name(const struct name *names, size_t n, enum side from, const char *text, size_t len)
{
    for (size_t i = 0; i < n; i++) {
        if (strlen(names[i].of[from]) == len && memcmp(text, names[i].of[from], len) == 0) {
            return names[i].of[from == GGUF ? HF : GGUF];
        }
    }
    return NULL;
}

static const char *other_whole(enum side from, const char *name)
{
    return other_name(whole_names, GR_ARRAY_LEN(whole_names), from, name, strlen(name));
}

static const char *other_of_layer(enum side from, bool gemma, const char *text, size_t len)
{
    const char *name = gemma ? other_name(gemma_names, GR_ARRAY_LEN(gemma_names), from, text, len) : NULL;
    return name != NULL ? name : other_name(layer_names, GR_ARRAY_LEN(layer_names), from, text, len);
}

/* A name that the tables do not know stays as it is, and is refused as a tensor that the architecture has not. */
static void hf_name(const char *name, bool gemma, char *out, size_t cap)
{
    int layer = 0, at = 0;
    const char *whole = other_whole(GGUF, name);
    snprintf(out, cap, "%s", whole != NULL ? whole : name);
    if (whole != NULL || sscanf(name, "blk.%5d.%n", &layer, &at) != 1 || at == 0 || layer < 0) {
        return;
    }
    const char *rest = name + at;
    const size_t len = strcspn(rest, ".");
    const char *hf = other_of_layer(GGUF, gemma, rest, len);
    if (hf != NULL) {
        const char *suffix = strncmp(rest, "attn_rot_embd", len) == 0 ? "" : rest + len;
        snprintf(out, cap, "model.layers.%d.%s%s", layer, hf, suffix);
    }
}

/* hf_name() backwards, for messages. */
static void gguf_name(const char *name, bool gemma, char *out, size_t cap)
{
    int layer = 0, at = 0;
    const char *whole = other_whole(HF, name), *suffix = strrchr(name, '.');
    snprintf(out, cap, "%s", whole != NULL ? whole : name);
    if (whole != NULL || suffix == NULL || sscanf(name, "model.layers.%5d.%n", &layer, &at) != 1 || at == 0 ||
        name + at > suffix) {
        return;
    }
    const char *gguf = other_of_layer(HF, gemma, name + at, (size_t)(suffix - name) - (size_t)at);
    if (gguf != NULL) {
        snprintf(out, cap, "blk.%d.%s%s", layer, gguf, suffix);
    }
}

static void name_in_file(const char *name, char *out, size_t cap)
{
    gguf_name(name, false, out, cap);
}

static void name_in_gemma_file(const char *name, char *out, size_t cap)
{
    gguf_name(name, true, out, cap);
}

/* ---- the files ---- */

static void header_free(void *p)
{
    struct gr_gguf_header *h = p;
    gr_gguf_free(h->gguf);
    free(h->names);
    free(h);
}

/* bytes and len are set. */
static enum gr_status parse_file(struct gr_tensor_file *f)
{
    struct gr_gguf_header *h = calloc(1, sizeof(*h));
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
    GR_TRY(gr_gguf_int(gr_gguf_of_file(f), "split.count", false, &count));
    GR_TRY(gr_gguf_int(gr_gguf_of_file(f), "split.no", false, &number));
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

/* All files are there. They must agree on the number of tensors, and have that many together. */
static enum gr_status check_split_total(const struct gr_tensors *ts)
{
    const char *first = ts->files[0].path;
    int64_t total = -1, found = 0;
    GR_TRY(gr_gguf_int(gr_gguf_of_file(&ts->files[0]), "split.tensors.count", false, &total));
    for (size_t i = 0; i < ts->n_file; i++) {
        const struct gr_gguf *g = gr_gguf_of_file(&ts->files[i]);
        int64_t said = total;
        GR_TRY(gr_gguf_int(g, "split.tensors.count", false, &said));
        if (said != total) {
            log_error("%s: split.tensors.count = %" PRId64 ", %s has %" PRId64 ": it is of another model",
                      ts->files[i].path, said, first, total);
            return GR_EMISMATCH;
        }
        found += (int64_t)gr_gguf_n_tensor(g);
    }
    if (ts->n_file > 1 && total >= 0 && total != found) {
        log_error("%s: split.tensors.count = %" PRId64 ", its %zu files have %" PRId64, first, total, ts->n_file,
                  found);
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

/* ---- tensors ---- */

/* Rows that lie paired: gr_tensor_row(). 0: none. */
static int heads_of(const char *name, const struct gr_tensor *t, const struct gr_hf_config *hf)
{
    const char *end = strrchr(name, '.');
    const size_t stem = end != NULL ? (size_t)(end - name) : 0;
    const bool is_q = stem > 7 && memcmp(name + stem - 7, ".attn_q", 7) == 0;
    const bool is_k = stem > 7 && memcmp(name + stem - 7, ".attn_k", 7) == 0;
    const int n_head = is_q ? hf->n_head : is_k ? hf->n_kv_head : 0;
    return n_head > 0 && t->n_dim == 2 && t->shape[0] % (2 * (int64_t)n_head) == 0 ? n_head : 0;
}

static enum gr_status list_file(struct gr_tensor_file *f, uint32_t i_file, const struct gr_gguf_meaning *m,
                                struct gr_tensor_list *list)
{
    struct gr_gguf_header *h = f->header;
    const size_t n = gr_gguf_n_tensor(h->gguf), cap = GR_TENSOR_NAME_LEN_MAX + 64;
    GR_TRY(gr_tensor_list_reserve(list, n));
    h->names = calloc(n + 1, cap);
    if (h->names == NULL) {
        log_error("%s: no memory for %zu names", f->path, n);
        return GR_ENOMEM;
    }
    for (size_t i = 0; i < n; i++) {
        const struct gr_gguf_tensor *t = gr_gguf_tensor(h->gguf, i);
        if (strcmp(t->name, GR_GGUF_ROPE_FREQS) == 0) {
            continue; /* the config has it */
        }
        char *name = h->names + i * cap;
        hf_name(t->name, m->family->gemma, name, cap);
        struct gr_tensor_entry e = {.file = i_file, .begin = t->begin, .end = t->begin + t->bytes};
        e.tensor = (struct gr_tensor){
            .name = name, .dtype = t->dtype, .n_dim = t->n_dim, .data = f->bytes + t->begin, .bytes = (size_t)t->bytes};
        memcpy(e.tensor.shape, t->shape, sizeof(t->shape));
        e.tensor.n_head_paired = m->family->gguf_pairs ? heads_of(t->name, &e.tensor, &m->hf) : 0;
        list->items[list->n++] = e;
    }
    return GR_OK;
}

/* The files are parsed. */
static enum gr_status finish(struct gr_tensors *ts, struct gr_hf_config *hf_out)
{
    struct gr_gguf_meaning m;
    struct gr_tensor_list list = {0};
    ts->shapes_from = "the metadata";
    GR_TRY(gr_gguf_read_config(ts, &m));
    ts->name_in_file = m.family->gemma ? name_in_gemma_file : name_in_file;
    enum gr_status st = GR_OK;
    for (size_t i = 0; i < ts->n_file && st == GR_OK; i++) {
        st = list_file(&ts->files[i], (uint32_t)i, &m, &list);
    }
    if (st == GR_OK) {
        st = gr_tensors_finish(ts, &list);
    }
    free(list.items);
    if (st == GR_OK && hf_out != NULL) {
        *hf_out = m.hf;
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
    return gr_gguf_of_file(&ts->files[0]);
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
