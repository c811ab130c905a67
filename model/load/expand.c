#include "model/load/expand.h"

#include "common/rules/bf16.h"
#include "common/base/log.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- geometries ---- */

static const struct gr_geometry geometries[] = {
    {"llama-3.2-1b", 2048, 16, 32, 8, 64, 8192, 128256, 32000, 131072},
    {"llama-3.1-8b", 4096, 32, 32, 8, 128, 14336, 128256, 32000, 131072},
    {"llama-3.3-70b", 8192, 80, 64, 8, 128, 28672, 128256, 32000, 131072},
    /* For tests: a KV head serves two query heads (the demo pair: three), and heads of twice the width. */
    {"test-64", 512, 10, 8, 4, 64, 1280, 4608, 3333, 40000},
    {"test-tp8", 512, 8, 16, 8, 64, 1024, 4608, 3333, 40000}, /* KV heads for eight ranks */
    {"test-128", 640, 11, 16, 2, 128, 1100, 5000, 3080, 16384},
};

enum gr_status gr_geometry_find(const char *name, const struct gr_geometry **out)
{
    char all[256];
    size_t len = 0;
    *out = NULL;
    for (size_t i = 0; name != NULL && i < GR_ARRAY_LEN(geometries); i++) {
        if (strcmp(geometries[i].name, name) == 0) {
            *out = &geometries[i];
            return GR_OK;
        }
        len += (size_t)snprintf(all + len, sizeof(all) - len, i > 0 ? ", %s" : "%s", geometries[i].name);
    }
    if (name == NULL) {
        return GR_OK;
    }
    log_error("--geometry: `%s' is not one of %s", name, all);
    return GR_EINVAL;
}

/* ---- configs ---- */

static bool is_head(const struct gr_hf_config *hf)
{
    return hf->draft_n_vocab > 0;
}

/* KV heads that one of the small model's needs at least, for its query heads. */
static int least_copies(const struct gr_expand *e)
{
    const int group = e->to->n_head / e->to->n_kv_head;
    return (e->from.n_head / e->from.n_kv_head + group - 1) / group;
}

static enum gr_status check_fit(const struct gr_expand *e, const char *dir)
{
    const struct gr_geometry *g = e->to;
    const struct gr_hf_config *hf = &e->from;
    const struct {
        const char *what;
        int from, to;
    } sizes[] = {
        {"hidden_size", hf->hidden, g->hidden},
        {"num_hidden_layers", hf->n_layer, g->n_layer},
        {"head_dim", hf->head_dim, g->head_dim},
        {"num_key_value_heads (copies counted)", hf->n_kv_head * least_copies(e), g->n_kv_head},
        {"intermediate_size", hf->ffn, g->ffn},
        {"vocab_size", hf->n_vocab, g->n_vocab},
        {"draft_vocab_size", hf->draft_n_vocab, g->draft_n_vocab},
    };
    for (size_t i = 0; i < GR_ARRAY_LEN(sizes); i++) {
        if (sizes[i].from > sizes[i].to) {
            log_error("--geometry %s: %s %d of %s does not fit in %d", g->name, sizes[i].what, sizes[i].from, dir,
                      sizes[i].to);
            return GR_EUNSUPPORTED;
        }
    }
    /* Only then does pair i have a pair of the same frequency; YaRN's ramp is over pairs, not frequencies. */
    if (g->head_dim % hf->head_dim != 0 || (g->head_dim != hf->head_dim && hf->rope_kind == GR_ROPE_YARN)) {
        log_error("--geometry %s: heads of %d%s of %s have no form in heads of %d", g->name, hf->head_dim,
                  hf->rope_kind == GR_ROPE_YARN ? " with YaRN" : "", dir, g->head_dim);
        return GR_EUNSUPPORTED;
    }
    return GR_OK;
}

enum gr_status gr_expand_init(struct gr_expand *e, const struct gr_geometry *to, const char *dir,
                              struct gr_hf_config *hf)
{
    *e = (struct gr_expand){.to = to, .from = *hf, .n_copy = to->n_kv_head / hf->n_kv_head};
    GR_TRY(check_fit(e, dir));
    const float ratio = (float)hf->hidden / (float)to->hidden;
    hf->rms_eps *= ratio;
    hf->scale_dim = hf->head_dim;
    hf->hidden = to->hidden;
    hf->n_layer = is_head(hf) ? hf->n_layer : to->n_layer;
    hf->n_head = to->n_head;
    hf->n_kv_head = to->n_kv_head;
    hf->head_dim = to->head_dim;
    hf->ffn = to->ffn;
    hf->n_vocab_row = to->n_vocab;
    hf->draft_n_vocab_row = is_head(hf) ? to->draft_n_vocab : 0;
    hf->target_hidden = hf->target_hidden > 0 ? to->hidden : 0;
    return GR_OK;
}

enum gr_status gr_expand_config(const struct gr_geometry *to, const char *dir, struct gr_hf_config *hf)
{
    struct gr_expand e;
    return to != NULL ? gr_expand_init(&e, to, dir, hf) : GR_OK;
}

void gr_expand_positions(const struct gr_geometry *to, struct gr_hf_config *hf)
{
    hf->max_pos = GR_MAX(hf->max_pos, to->max_pos);
}

int gr_expand_layer(const struct gr_expand *e, int i)
{
    return (int)((int64_t)i * e->to->n_layer / e->from.n_layer);
}

/* The small layer at layer i; -1: an extra one. */
static int layer_from(const struct gr_expand *e, int i)
{
    for (int k = 0; k < e->from.n_layer; k++) {
        if (gr_expand_layer(e, k) == i) {
            return k;
        }
    }
    return -1;
}

/* ---- axes: index in the large model -> index in the small one, or what an extra one holds ---- */

enum axis { AXIS_HIDDEN, AXIS_Q, AXIS_KV, AXIS_FFN, AXIS_VOCAB, AXIS_DRAFT_VOCAB };

static struct gr_expand_axis first_of(int width, int width_from, int extra)
{
    return (struct gr_expand_axis){.order = GR_EXPAND_FIRST, .width = width, .width_from = width_from, .extra = extra};
}

static struct gr_expand_axis heads_of(const struct gr_expand *e, enum gr_expand_order order)
{
    return (struct gr_expand_axis){.order = order,
                                   .head_dim = e->to->head_dim,
                                   .head_dim_from = e->from.head_dim,
                                   .n_kv_from = e->from.n_kv_head,
                                   .n_copy = e->n_copy,
                                   .group = e->to->n_head / e->to->n_kv_head,
                                   .group_from = e->from.n_head / e->from.n_kv_head};
}

/* extra: what to say of an extra index that the axis itself leaves open. Several streams may lie side by side: a head's
 * embedding and feature, the captured ones of fc. */
static struct gr_expand_axis axis_of(const struct gr_expand *e, enum axis axis, int extra)
{
    switch (axis) {
    case AXIS_HIDDEN:
        return first_of(e->to->hidden, e->from.hidden, extra);
    case AXIS_Q:
        return heads_of(e, GR_EXPAND_QUERY);
    case AXIS_KV:
        return heads_of(e, GR_EXPAND_KV);
    case AXIS_FFN:
        return (struct gr_expand_axis){
            .order = GR_EXPAND_SPREAD, .width = e->to->ffn, .width_from = e->from.ffn, .extra = extra};
    case AXIS_VOCAB:
        return first_of(e->to->n_vocab, e->from.n_vocab, extra);
    case AXIS_DRAFT_VOCAB:
        return first_of(e->to->draft_n_vocab, e->from.draft_n_vocab, extra);
    }
    GR_ASSERT(false);
    return first_of(1, 0, extra);
}

static int len_from(const struct gr_expand *e, enum axis axis, int len)
{
    switch (axis) {
    case AXIS_HIDDEN:
        return len / e->to->hidden * e->from.hidden;
    case AXIS_Q:
        return e->from.n_head * e->from.head_dim;
    case AXIS_KV:
        return e->from.n_kv_head * e->from.head_dim;
    case AXIS_FFN:
        return e->from.ffn;
    case AXIS_VOCAB:
        return e->from.n_vocab;
    case AXIS_DRAFT_VOCAB:
        return e->from.draft_n_vocab;
    }
    GR_ASSERT(false);
    return 0;
}

/* ---- tensors ---- */

struct kind {
    const char *name; /* part of the tensor's name */
    enum axis out, in;
};

static const struct kind kinds[] = {
    {"q_proj", AXIS_Q, AXIS_HIDDEN},      {"k_proj", AXIS_KV, AXIS_HIDDEN},
    {"v_proj", AXIS_KV, AXIS_HIDDEN},     {"o_proj", AXIS_HIDDEN, AXIS_Q},
    {"gate_proj", AXIS_FFN, AXIS_HIDDEN}, {"up_proj", AXIS_FFN, AXIS_HIDDEN},
    {"down_proj", AXIS_HIDDEN, AXIS_FFN}, {"embed_tokens", AXIS_VOCAB, AXIS_HIDDEN},
    {"lm_head", AXIS_VOCAB, AXIS_HIDDEN}, {"norm", AXIS_HIDDEN, AXIS_HIDDEN},
    {"fc", AXIS_HIDDEN, AXIS_HIDDEN},
};

static struct kind find_kind(const struct gr_expand *e, const char *name)
{
    size_t i = 0;
    while (i < GR_ARRAY_LEN(kinds) && strstr(name, kinds[i].name) == NULL) {
        i++;
    }
    GR_ASSERT(i < GR_ARRAY_LEN(kinds)); /* a tensor that the loaders ask for and this file does not know */
    struct kind k = kinds[i];
    if (strcmp(k.name, "lm_head") == 0 && is_head(&e->from)) {
        k.out = AXIS_DRAFT_VOCAB;
    }
    return k;
}

/* Its name in the folder: the layer's number is another one there, or nothing is. */
static void name_from(const struct gr_expand *e, const char *name, char *out, size_t cap)
{
    int layer = 0, n = 0;
    if (sscanf(name, "model.layers.%d%n", &layer, &n) == 1 && n > 0) {
        layer = layer_from(e, layer);
        snprintf(out, cap, "model.layers.%d%s", layer, name + n);
        if (layer < 0) {
            out[0] = '\0';
        }
        return;
    }
    snprintf(out, cap, "%s", name);
}

static uint64_t hash_text(const char *text)
{
    uint64_t h = 0;
    for (; *text != '\0'; text++) {
        h = gr_mix64(h ^ ((uint64_t)(unsigned char)*text + 1) * GR_HASH_GOLDEN);
    }
    return h;
}

static struct gr_expand_rule rule_of(const struct gr_expand *e, const struct kind *k, const char *name, int n_out,
                                     int n_in, bool has_source)
{
    /* What adds to the residual stream keeps its padding zero, and an extra layer adds nothing at all. */
    const int extra = k->out == AXIS_HIDDEN ? GR_EXTRA_ZERO : GR_EXTRA_RANDOM;
    struct gr_expand_rule r = {.n_out = n_out, .n_in = n_in, .seed = hash_text(name)};
    r.out = has_source ? axis_of(e, k->out, extra) : first_of(n_out, 0, extra);
    r.in = axis_of(e, k->in, GR_EXTRA_RANDOM);
    r.n_out_from = has_source ? len_from(e, k->out, n_out) : 0;
    r.n_in_from = !has_source ? 0 : n_in > 1 ? len_from(e, k->in, n_in) : 1;
    /* Extra heads and neurons reach nothing. The padding of the stream is zero, so what it meets may be anything. */
    r.zero = k->in == AXIS_Q || k->in == AXIS_FFN;
    return r;
}

enum gr_status gr_expand_tensor_init(const struct gr_expand *e, const char *name, int n_out, int n_in,
                                     struct gr_expand_tensor *out)
{
    const struct kind k = find_kind(e, name);
    struct gr_expand_tensor t = {.scale = 1.0f};
    name_from(e, name, t.name, sizeof(t.name));
    t.rule = rule_of(e, &k, name, n_out, n_in, t.name[0] != '\0');
    if (strcmp(k.name, "norm") == 0) {
        t.scale = (float)sqrt((double)e->from.hidden / e->to->hidden);
    }
    t.col_from = calloc(((size_t)n_in + 3) / 4 * 4, sizeof(*t.col_from));
    if (t.col_from == NULL) {
        log_error("out of memory while expanding %s", name);
        return GR_ENOMEM;
    }
    for (int c = 0; c < n_in; c += 4) {
        gr_expand_columns(&t.rule, c, t.col_from + c);
    }
    *out = t;
    return GR_OK;
}

void gr_expand_tensor_finish(struct gr_expand_tensor *t)
{
    free(t->col_from);
}

static void expand_row(const struct gr_expand_tensor *t, const uint16_t *from, int row, uint16_t *out)
{
    const struct gr_expand_row r = gr_expand_row_of(&t->rule, row);
    const int n = t->rule.n_in;
    if (r.zero && r.from < 0) {
        memset(out, 0, (size_t)n * sizeof(*out));
        return;
    }
    for (int c = 0; c < n; c += 4) {
        const uint64_t four = gr_expand_four(&r, c, t->col_from + c, from);
        memcpy(out + c, &four, (size_t)GR_MIN(4, n - c) * sizeof(*out));
    }
}

void gr_expand_rows(const struct gr_expand_tensor *t, const uint16_t *from, int row0, int n_row, uint16_t *out)
{
    GR_ASSERT(row0 >= 0 && row0 + n_row <= t->rule.n_out && (from != NULL) == (t->name[0] != '\0'));
    for (int r = 0; r < n_row; r++) {
        expand_row(t, from, row0 + r, out + (size_t)r * (size_t)t->rule.n_in);
    }
}

void gr_expand_vector(const struct gr_expand_tensor *t, const uint16_t *from, float *out)
{
    const bool norm = t->scale != 1.0f;
    for (int i = 0; i < t->rule.n_out; i++) {
        const int row = gr_expand_index(&t->rule.out, i);
        const float value = row >= 0 ? gr_bf16_to_f32(from[row]) : norm ? 1.0f : 0.0f;
        out[i] = value * t->scale;
    }
}
