/* Every variant of the EAGLE-3 head against a slow reference: plain loops in double over the folder's own weights.
 * A variant is a change of the tiny folders and the matching change of the reference. */
#include "model/eagle3.h"
#include "model/llama.h"
#include "model/rope.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "tests/unit/tiny_model.h"
#include "tests/unit/tiny_retype.h"

#define N_ROW 20  /* crosses a block of 16 */
#define WIDTH 128 /* no row of the tiny models is wider */
#define N_POS 128

/* ---- the reference ---- */

static double weight(const struct gr_tensor *t, size_t i)
{
    float value = 0.0f;
    gr_format_to_f32(t->dtype, (const char *)t->data + i * gr_format_bytes(t->dtype), 1, &value);
    return (double)value;
}

static struct gr_tensor *tensor(struct tiny_folder *f, const char *prefix, const char *name)
{
    char text[128];
    snprintf(text, sizeof(text), "%s%s", prefix, name);
    return tiny_find(f, text);
}

static struct gr_tensor *must(struct gr_tensor *t)
{
    assert_non_null(t);
    return t;
}

/* y = W x (+ b): W and b by name. */
static void ref_linear(struct tiny_folder *f, const char *prefix, const char *name, const double *x, double *y)
{
    char text[64];
    snprintf(text, sizeof(text), "%s.weight", name);
    const struct gr_tensor *w = must(tensor(f, prefix, text));
    snprintf(text, sizeof(text), "%s.bias", name);
    const struct gr_tensor *b = tensor(f, prefix, text);
    for (int64_t o = 0; o < w->shape[0]; o++) {
        y[o] = b != NULL ? weight(b, (size_t)o) : 0.0;
        for (int64_t i = 0; i < w->shape[1]; i++) {
            y[o] += weight(w, (size_t)(o * w->shape[1] + i)) * x[i];
        }
    }
}

static void ref_norm(const struct gr_tensor *w, const double *x, double *y)
{
    const int n = (int)must((struct gr_tensor *)(uintptr_t)w)->shape[0];
    double sum = 0.0;
    for (int i = 0; i < n; i++) {
        sum += x[i] * x[i];
    }
    for (int i = 0; i < n; i++) {
        y[i] = x[i] / sqrt(sum / n + 1e-5) * weight(w, (size_t)i);
    }
}

struct reference {
    struct tiny_folder *head;
    const char *prefix; /* "midlayer." */
    const struct gr_tensor *embed, *lm_head;
    struct gr_hf_config rope; /* whose rotation the head should use */
    int hidden, n_head, n_kv, ffn;
    bool norm_before_residual, norm_output;
    double k[N_ROW][WIDTH], v[N_ROW][WIDTH];
    float cos[N_POS * 8], sin[N_POS * 8];
};

static void ref_rope(const struct reference *r, double *x, int n_head, int pos)
{
    for (int h = 0; h < n_head; h++) {
        for (int i = 0; i < 8; i++) {
            double *a = &x[h * 16 + i], *b = &x[h * 16 + i + 8];
            const double c = (double)r->cos[pos * 8 + i], s = (double)r->sin[pos * 8 + i], a0 = *a;
            *a = a0 * c - *b * s;
            *b = *b * c + a0 * s;
        }
    }
}

/* Query row over keys 0 .. row. */
static void ref_attend(const struct reference *r, const double *q, int row, double *out)
{
    for (int h = 0; h < r->n_head; h++) {
        const int kv = h / (r->n_head / r->n_kv);
        double e[N_ROW], sum = 0.0;
        for (int p = 0; p <= row; p++) {
            double s = 0.0;
            for (int i = 0; i < 16; i++) {
                s += q[h * 16 + i] * r->k[p][kv * 16 + i];
            }
            sum += e[p] = exp(s / 4.0);
        }
        for (int i = 0; i < 16; i++) {
            out[h * 16 + i] = 0.0;
            for (int p = 0; p <= row; p++) {
                out[h * 16 + i] += e[p] / sum * r->v[p][kv * 16 + i];
            }
        }
    }
}

static void ref_mlp(const struct reference *r, double *x)
{
    double n[WIDTH], gate[WIDTH], up[WIDTH], down[WIDTH];
    ref_norm(tensor(r->head, r->prefix, "post_attention_layernorm.weight"), x, n);
    ref_linear(r->head, r->prefix, "mlp.gate_proj", n, gate);
    ref_linear(r->head, r->prefix, "mlp.up_proj", n, up);
    for (int i = 0; i < r->ffn; i++) {
        gate[i] = gate[i] / (1.0 + exp(-gate[i])) * up[i];
    }
    ref_linear(r->head, r->prefix, "mlp.down_proj", gate, down);
    for (int i = 0; i < r->hidden; i++) {
        x[i] += down[i];
    }
}

/* Row at position `row`: what is fed back into hidden, logits over the draft vocabulary. */
static void ref_row(struct reference *r, int row, int token, const float *feature, double *hidden, double *logits)
{
    double e[WIDTH], g[WIDTH], in[2 * WIDTH], q[WIDTH], att[WIDTH], x[WIDTH], normed[WIDTH];
    for (int i = 0; i < r->hidden; i++) {
        e[i] = weight(r->embed, (size_t)(token * r->hidden + i));
        g[i] = (double)feature[i];
    }
    ref_norm(tensor(r->head, r->prefix, "input_layernorm.weight"), e, in);
    ref_norm(tensor(r->head, r->prefix, "hidden_norm.weight"), g, in + r->hidden);
    ref_linear(r->head, r->prefix, "self_attn.q_proj", in, q);
    ref_linear(r->head, r->prefix, "self_attn.k_proj", in, r->k[row]);
    ref_linear(r->head, r->prefix, "self_attn.v_proj", in, r->v[row]);
    ref_rope(r, q, r->n_head, row);
    ref_rope(r, r->k[row], r->n_kv, row);
    ref_attend(r, q, row, att);
    ref_linear(r->head, r->prefix, "self_attn.o_proj", att, x);
    for (int i = 0; i < r->hidden; i++) {
        x[i] += r->norm_before_residual ? in[r->hidden + i] : g[i];
    }
    ref_mlp(r, x);
    ref_norm(must(tiny_find(r->head, "norm.weight")), x, normed);
    memcpy(hidden, r->norm_output ? normed : x, (size_t)r->hidden * sizeof(double));
    for (int64_t o = 0; o < r->lm_head->shape[0]; o++) {
        logits[o] = 0.0;
        for (int i = 0; i < r->hidden; i++) {
            logits[o] += weight(r->lm_head, (size_t)(o * r->hidden + i)) * normed[i];
        }
    }
}

/* ---- variants ---- */

struct variant {
    const char *name;
    const char *prefix;      /* NULL: midlayer */
    const char *patch[3][2]; /* path and literal in the head's config */
    void (*change)(struct tiny_folder *head, struct tiny_folder *target);
    bool own_embed, target_lm_head, embed_is_lm_head, target_rope;
    int hidden; /* 0: that of the target */
};

static void add_input_norm(struct tiny_folder *head, struct tiny_folder *target)
{
    (void)target;
    tiny_add(head, "input_norm.weight", 3 * TINY_HIDDEN, 0);
}

static void add_stream_norms(struct tiny_folder *head, struct tiny_folder *target)
{
    (void)target;
    tiny_add(head, "fc_norm.0.weight", TINY_HIDDEN, 0);
    tiny_add(head, "fc_norm.1.weight", TINY_HIDDEN, 0);
    tiny_add(head, "fc_norm.2.weight", TINY_HIDDEN, 0);
}

static void add_fc_bias(struct tiny_folder *head, struct tiny_folder *target)
{
    (void)target;
    tiny_add(head, "fc.bias", TINY_HIDDEN, 0);
}

static void add_own_embedding(struct tiny_folder *head, struct tiny_folder *target)
{
    (void)target;
    tiny_add(head, "embed_tokens.weight", TINY_N_VOCAB, TINY_HIDDEN);
}

/* A head of hidden size 48 on a target of 32. */
static void widen(struct tiny_folder *head, struct tiny_folder *target)
{
    (void)target;
    tiny_add(head, "embed_tokens.weight", TINY_N_VOCAB, 48);
    tiny_add(head, "fc.weight", 48, 3 * TINY_HIDDEN);
    tiny_add_layer(head, "midlayer", 96, 64, 32, 48, 40);
    tiny_add(head, "midlayer.hidden_norm.weight", 48, 0);
    tiny_add(head, "norm.weight", 48, 0);
    tiny_add(head, "lm_head.weight", TINY_N_DRAFT, 48);
}

static void add_attention_biases(struct tiny_folder *head, struct tiny_folder *target)
{
    (void)target;
    tiny_add(head, "midlayer.self_attn.q_proj.bias", 64, 0);
    tiny_add(head, "midlayer.self_attn.k_proj.bias", 32, 0);
    tiny_add(head, "midlayer.self_attn.v_proj.bias", 32, 0);
    tiny_add(head, "midlayer.self_attn.o_proj.bias", TINY_HIDDEN, 0);
}

static void add_mlp_biases(struct tiny_folder *head, struct tiny_folder *target)
{
    (void)target;
    tiny_add(head, "midlayer.mlp.gate_proj.bias", 40, 0);
    tiny_add(head, "midlayer.mlp.up_proj.bias", 40, 0);
    tiny_add(head, "midlayer.mlp.down_proj.bias", TINY_HIDDEN, 0);
}

static void whole_vocabulary(struct tiny_folder *head, struct tiny_folder *target)
{
    (void)target;
    tiny_remove(head, "lm_head.weight");
    tiny_remove(head, "d2t");
    tiny_remove(head, "t2d");
}

static void whole_vocabulary_of_tied_target(struct tiny_folder *head, struct tiny_folder *target)
{
    whole_vocabulary(head, target);
    tiny_remove(target, "lm_head.weight");
    json_patch_at(target->config, "tie_word_embeddings", "true");
}

static void tied_own_embedding(struct tiny_folder *head, struct tiny_folder *target)
{
    whole_vocabulary(head, target);
    add_own_embedding(head, target);
}

static void one_stream(struct tiny_folder *head, struct tiny_folder *target)
{
    (void)target;
    tiny_add(head, "fc.weight", TINY_HIDDEN, TINY_HIDDEN);
}

static void scale_target_rope(struct tiny_folder *head, struct tiny_folder *target)
{
    (void)head;
    json_patch_at(target->config, "rope_scaling",
                  "{\"rope_type\":\"llama3\",\"factor\":8.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"
                  "\"original_max_position_embeddings\":32}");
}

static void all_at_once(struct tiny_folder *head, struct tiny_folder *target)
{
    add_stream_norms(head, target);
    add_own_embedding(head, target);
    add_fc_bias(head, target);
    add_mlp_biases(head, target);
    add_attention_biases(head, target);
}

#define LAYER_IDS "eagle_config.eagle_aux_hidden_state_layer_ids"
static const struct variant variants[] = {
    {.name = "plain"},
    {.name = "layers.0 names", .prefix = "layers.0"},
    {.name = "default layers", .patch = {{"eagle_config", NULL}}},
    {.name = "norm_before_residual", .patch = {{"norm_before_residual", "true"}}},
    {.name = "norm_before_fc", .patch = {{"norm_before_fc", "true"}}, .change = add_input_norm},
    {.name = "fc_norm", .patch = {{"eagle_config.fc_norm", "true"}}, .change = add_stream_norms},
    {.name = "fc.bias", .change = add_fc_bias},
    {.name = "norm_output", .patch = {{"norm_output", "true"}}},
    {.name = "own embedding", .change = add_own_embedding, .own_embed = true},
    {.name = "wider than the target",
     .patch = {{"hidden_size", "48"}, {"target_hidden_size", "32"}},
     .change = widen,
     .own_embed = true,
     .hidden = 48},
    {.name = "attention biases", .patch = {{"attention_bias", "true"}}, .change = add_attention_biases},
    {.name = "mlp biases", .patch = {{"mlp_bias", "true"}}, .change = add_mlp_biases},
    {.name = "whole vocabulary, the target's lm_head",
     .patch = {{"draft_vocab_size", NULL}},
     .change = whole_vocabulary,
     .target_lm_head = true},
    {.name = "whole vocabulary, the target's tied embedding",
     .patch = {{"draft_vocab_size", NULL}},
     .change = whole_vocabulary_of_tied_target,
     .embed_is_lm_head = true},
    {.name = "whole vocabulary, own tied embedding",
     .patch = {{"draft_vocab_size", "64"}, {"tie_word_embeddings", "true"}},
     .change = tied_own_embedding,
     .own_embed = true,
     .embed_is_lm_head = true},
    {.name = "one captured layer", .patch = {{LAYER_IDS, "[7]"}}, .change = one_stream},
    {.name = "one captured layer, the last output",
     .patch = {{LAYER_IDS, "[7]"}, {"aux_hidden_state_layer_ids_are", "\"outputs\""}},
     .change = one_stream},
    {.name = "own yarn",
     .patch = {{"rope_scaling", "{\"rope_type\":\"yarn\",\"factor\":4.0,"
                                "\"original_max_position_embeddings\":32}"}}},
    {.name = "the target's rotation",
     .patch = {{"rope_theta", NULL}},
     .change = scale_target_rope,
     .target_rope = true},
    {.name = "head_dim from the shapes", .patch = {{"head_dim", NULL}}},
    {.name = "all at once",
     .patch = {{"norm_before_residual", "true"}, {"norm_output", "true"}, {"fc_norm", "true"}},
     .change = all_at_once,
     .own_embed = true},
};

/* ---- running ---- */

struct pair {
    struct tiny_folder head, target;
    struct gr_lm *lm, *target_lm;
};

static void open_pair(struct pair *p, const struct variant *v)
{
    tiny_target(&p->target, 8);
    tiny_head(&p->head, v->prefix != NULL ? v->prefix : "midlayer");
    for (size_t i = 0; i < GR_ARRAY_LEN(v->patch) && v->patch[i][0] != NULL; i++) {
        json_patch_at(p->head.config, v->patch[i][0], v->patch[i][1]);
    }
    if (v->change == all_at_once) {
        json_patch_at(p->head.config, "attention_bias", "true");
        json_patch_at(p->head.config, "mlp_bias", "true");
    }
    if (v->change != NULL) {
        v->change(&p->head, &p->target);
    }
    tiny_write(&p->head);
    tiny_write(&p->target);
    const struct gr_eagle3_config c = {.dir = p->head.dir,
                                       .target_dir = p->target.dir,
                                       .n_thread = 2,
                                       .n_row_max = 32,
                                       .n_out_max = 32,
                                       .n_pool_block = 8,
                                       .n_scratch_block = 1};
    const struct gr_llama_config t = {.dir = p->target.dir,
                                      .head_dir = p->head.dir,
                                      .n_thread = 2,
                                      .n_row_max = 32,
                                      .n_out_max = 32,
                                      .n_pool_block = 8,
                                      .n_scratch_block = 1};
    assert_int_equal(gr_eagle3_create(&c, NULL, NULL, &p->lm), GR_OK);
    assert_int_equal(gr_llama_create(&t, NULL, NULL, &p->target_lm), GR_OK);
    assert_true(p->lm->fc_fingerprint == p->target_lm->fc_fingerprint);
    assert_int_equal(p->lm->feature_width, p->target_lm->fused_width);
}

static void close_pair(struct pair *p)
{
    gr_lm_destroy(p->lm);
    gr_lm_destroy(p->target_lm);
    tiny_finish(&p->head);
    tiny_finish(&p->target);
}

/* Rows begin .. begin + n - 1 of a causal session, the first n_kv_only for their KV alone; logits of the others. */
static void run_from(struct gr_lm *lm, const int32_t *token, int begin, int n, int32_t n_kv_only, const float *feature)
{
    static const int32_t block[2] = {5, 2}, n_anc[N_ROW];
    static const int16_t anc[N_ROW * GR_ATTN_ANC_MAX];
    int32_t pos[N_ROW], cell[N_ROW], limit[N_ROW], out_row[N_ROW];
    const float *features[N_ROW];
    for (int i = 0; i < n; i++) {
        pos[i] = begin + i;
        cell[i] = block[pos[i] / 16] * 16 + pos[i] % 16;
        limit[i] = pos[i] + 1;
        out_row[i] = n_kv_only + i;
        features[i] = feature != NULL ? feature + (size_t)i * (size_t)lm->feature_width : NULL;
    }
    const struct gr_attn_seq seq = {.n_row = n, .block = block, .limit = limit, .n_anc = n_anc, .anc = anc};
    assert_int_equal(gr_lm_forward(lm, &(struct gr_batch){.n_row = n,
                                                          .n_seq = 1,
                                                          .n_out = n - n_kv_only,
                                                          .token = token,
                                                          .pos = pos,
                                                          .cell = cell,
                                                          .seq = &seq,
                                                          .out_row = out_row,
                                                          .feature = features,
                                                          .n_kv_only = n_kv_only > 0 ? &n_kv_only : NULL}),
                     GR_OK);
}

static void run(struct gr_lm *lm, const int32_t *token, int begin, int n, const float *feature)
{
    run_from(lm, token, begin, n, 0, feature);
}

/* The last of n rows has the same bits where those before it only leave their KV. */
static void check_kv_only(struct gr_lm *lm, const int32_t *token, int n, const float *feature)
{
    float hidden[WIDTH], logits[WIDTH];
    const size_t n_hidden = (size_t)lm->feature_width;
    const float *last = lm->hidden + (size_t)(n - 1) * n_hidden;
    run(lm, token, 0, n, feature);
    memcpy(hidden, last, n_hidden * sizeof(float));
    memcpy(logits, gr_lm_logits(lm, n - 1), (size_t)lm->n_vocab * sizeof(float));
    memset(lm->hidden, 0, (size_t)n * n_hidden * sizeof(float));
    run_from(lm, token, 0, n, n - 1, feature);
    assert_memory_equal(last, hidden, n_hidden * sizeof(float));
    assert_memory_equal(lm->logits, logits, (size_t)lm->n_vocab * sizeof(float));
}

static double worst_of(const float *got, const double *want, size_t n)
{
    double diff = 0.0, norm = 0.0;
    for (size_t i = 0; i < n; i++) {
        diff += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
        norm += want[i] * want[i];
    }
    return sqrt(diff / norm);
}

/* Fused features of all rows, against fc in double over the captures; returns the worst relative error. */
static double check_fused(struct pair *p, const struct variant *v, const int32_t *token, float *fused)
{
    const float *row[N_ROW];
    const int width = p->target_lm->n_capture * TINY_HIDDEN;
    double worst = 0.0;
    (void)v;
    run(p->target_lm, token, 0, N_ROW, NULL);
    for (int i = 0; i < N_ROW; i++) {
        row[i] = gr_lm_capture(p->target_lm, i);
    }
    gr_lm_fuse(p->target_lm, N_ROW, row, fused);
    for (int r = 0; r < N_ROW; r++) {
        double in[4 * WIDTH], want[WIDTH];
        for (int i = 0; i < width; i++) {
            in[i] = (double)p->target_lm->capture[r * width + i];
        }
        if (tiny_find(&p->head, "input_norm.weight") != NULL) {
            ref_norm(tiny_find(&p->head, "input_norm.weight"), in, in);
        }
        for (int c = 0; tiny_find(&p->head, "fc_norm.0.weight") != NULL && c < p->target_lm->n_capture; c++) {
            char name[32];
            snprintf(name, sizeof(name), "fc_norm.%d.weight", c);
            ref_norm(tiny_find(&p->head, name), in + c * TINY_HIDDEN, in + c * TINY_HIDDEN);
        }
        ref_linear(&p->head, "", "fc", in, want);
        const int n = p->target_lm->fused_width;
        worst = fmax(worst, worst_of(fused + (size_t)r * (size_t)n, want, (size_t)n));
    }
    return worst;
}

static void reference_init(struct reference *r, struct pair *p, const struct variant *v)
{
    static char prefix[32];
    snprintf(prefix, sizeof(prefix), "%s.", v->prefix != NULL ? v->prefix : "midlayer");
    *r = (struct reference){.head = &p->head,
                            .prefix = prefix,
                            .hidden = v->hidden > 0 ? v->hidden : TINY_HIDDEN,
                            .n_head = 4,
                            .n_kv = 2,
                            .ffn = 40};
    struct tiny_folder *of_embed = v->own_embed ? &p->head : &p->target;
    r->embed = must(tiny_find(of_embed, v->own_embed ? "embed_tokens.weight" : "model.embed_tokens.weight"));
    r->lm_head =
        v->embed_is_lm_head ? r->embed : must(tiny_find(v->target_lm_head ? &p->target : &p->head, "lm_head.weight"));
    r->norm_before_residual = json_is_true(json_object_get(p->head.config, "norm_before_residual"));
    r->norm_output = json_is_true(json_object_get(p->head.config, "norm_output"));
    assert_int_equal(gr_hf_config_load(v->target_rope ? p->target.dir : p->head.dir, &r->rope), GR_OK);
    r->rope.head_dim = 16;
    gr_rope_tables(&r->rope, N_POS, r->cos, r->sin);
}

/* A chunk of rows on features, then rows that follow their own states; the reference gets the same inputs. */
static void check_variant(const struct variant *v)
{
    static struct reference r;
    struct pair p;
    int32_t token[N_ROW];
    float fused[N_ROW * WIDTH], feature[N_ROW * WIDTH];
    open_pair(&p, v);
    for (int i = 0; i < N_ROW; i++) {
        token[i] = (i * 29 + 7) % TINY_N_VOCAB;
    }
    const double fused_error = check_fused(&p, v, token, fused);
    reference_init(&r, &p, v);
    const size_t n_hidden = (size_t)r.hidden, n_vocab = (size_t)r.lm_head->shape[0];
    const int n_chunk = N_ROW - 4;
    double error = 0.0;
    assert_int_equal(p.lm->n_vocab, n_vocab);
    memcpy(feature, fused, sizeof(feature));
    run(p.lm, token, 0, n_chunk, feature);
    for (int row = 0; row < N_ROW; row++) {
        double hidden[WIDTH], logits[WIDTH];
        const int i_row = row < n_chunk ? row : 0;
        if (row >= n_chunk) {
            const int last = row == n_chunk ? n_chunk - 1 : 0;
            memcpy(feature + (size_t)row * n_hidden, p.lm->hidden + (size_t)last * n_hidden, n_hidden * sizeof(float));
            run(p.lm, token + row, row, 1, p.lm->hidden + (size_t)last * n_hidden);
        }
        ref_row(&r, row, token[row], feature + (size_t)row * n_hidden, hidden, logits);
        error = fmax(error, worst_of(p.lm->hidden + (size_t)i_row * n_hidden, hidden, n_hidden));
        error = fmax(error, worst_of(gr_lm_logits(p.lm, i_row), logits, n_vocab));
    }
    print_message("# %s: fused %.1e, head %.1e\n", v->name, fused_error, error);
    assert_true(fused_error < 2e-6 && error < 1e-5);
    check_kv_only(p.lm, token, N_ROW, feature);
    close_pair(&p);
}

static void test_variants(void **state)
{
    (void)state;
    for (size_t i = 0; i < GR_ARRAY_LEN(variants); i++) {
        check_variant(&variants[i]);
    }
}

/* ---- all norms that a config can ask for ---- */

static const struct {
    const char *key;
    void (*change)(struct tiny_folder *head, struct tiny_folder *target);
} norms[] = {
    {"norm_before_residual", NULL},
    {"norm_output", NULL},
    {"norm_before_fc", add_input_norm},
    {"eagle_config.fc_norm", add_stream_norms},
};
static unsigned norms_asked;

static void add_norms(struct tiny_folder *head, struct tiny_folder *target)
{
    for (size_t i = 0; i < GR_ARRAY_LEN(norms); i++) {
        if ((norms_asked >> i & 1) != 0 && norms[i].change != NULL) {
            norms[i].change(head, target);
        }
    }
}

/* A head has one of the two norms before fc. */
static void test_norms(void **state)
{
    (void)state;
    for (norms_asked = 0; norms_asked < 3u << (GR_ARRAY_LEN(norms) - 2); norms_asked++) {
        struct variant v = {.change = add_norms};
        char name[64];
        int n = 0;
        for (size_t i = 0; i < GR_ARRAY_LEN(norms); i++) {
            if ((norms_asked >> i & 1) != 0) {
                v.patch[n][0] = norms[i].key;
                v.patch[n++][1] = "true";
            }
        }
        snprintf(name, sizeof(name), "norms 0x%x", norms_asked);
        v.name = name;
        check_variant(&v);
    }
}

/* ---- formats of a head's files ---- */

static void in_bf16(struct tiny_folder *head, struct tiny_folder *target)
{
    (void)target;
    tiny_simplify(head);
}

static void in_f16(struct tiny_folder *head, struct tiny_folder *target)
{
    in_bf16(head, target);
    for (size_t i = 0; i < head->n; i++) {
        if (head->tensor[i].dtype == GR_FORMAT_BF16) {
            tiny_retype(&head->tensor[i], GR_FORMAT_F16);
        }
    }
}

static void in_several(struct tiny_folder *head, struct tiny_folder *target)
{
    static const enum gr_format formats[] = {GR_FORMAT_F32, GR_FORMAT_F16, GR_FORMAT_BF16};
    in_bf16(head, target);
    for (size_t i = 0; i < head->n; i++) {
        if (head->tensor[i].dtype == GR_FORMAT_BF16) {
            tiny_retype(&head->tensor[i], formats[i % GR_ARRAY_LEN(formats)]);
        }
    }
}

/* Fused features, then hidden states and logits of all rows. */
static uint64_t run_format(const struct variant *v, float *out)
{
    struct pair p;
    int32_t token[N_ROW];
    open_pair(&p, v);
    for (int i = 0; i < N_ROW; i++) {
        token[i] = (i * 29 + 7) % TINY_N_VOCAB;
    }
    assert_true(check_fused(&p, v, token, out) < 2e-6);
    run(p.lm, token, 0, N_ROW, out);
    memcpy(out + (size_t)N_ROW * WIDTH, p.lm->hidden, (size_t)N_ROW * TINY_HIDDEN * sizeof(float));
    for (int i = 0; i < N_ROW; i++) {
        memcpy(out + (size_t)(2 * N_ROW + i) * WIDTH, gr_lm_logits(p.lm, i), TINY_N_DRAFT * sizeof(float));
    }
    const uint64_t fc = p.lm->fc_fingerprint;
    close_pair(&p);
    return fc;
}

/* A head in F16, or in a mix, is the head of the same values in BF16: equal bits on both sides. */
static void test_formats(void **state)
{
    (void)state;
    static const struct variant forms[] = {{.name = "bf16", .change = in_bf16},
                                           {.name = "f16", .change = in_f16},
                                           {.name = "several", .change = in_several}};
    static float first[3 * N_ROW * WIDTH], other[3 * N_ROW * WIDTH];
    const uint64_t fc = run_format(&forms[0], first);
    for (size_t i = 1; i < GR_ARRAY_LEN(forms); i++) {
        assert_true(run_format(&forms[i], other) == fc);
        assert_memory_equal(other, first, sizeof(first));
    }
}

/* The rotation is the head's own, in either spelling; another base is another head's. */
static void test_rotation(void **state)
{
    (void)state;
    static const struct variant forms[] = {
        {.name = "rope_theta"},
        {.name = "rope_parameters",
         .patch = {{"rope_theta", NULL}, {"rope_parameters", "{\"rope_type\":\"default\",\"rope_theta\":3000.0}"}}},
        {.name = "another base", .patch = {{"rope_theta", "10000.0"}}}};
    static float out[GR_ARRAY_LEN(forms)][3 * N_ROW * WIDTH];
    for (size_t i = 0; i < GR_ARRAY_LEN(forms); i++) {
        (void)run_format(&forms[i], out[i]);
    }
    assert_memory_equal(out[1], out[0], sizeof(out[0]));
    assert_memory_not_equal(out[2], out[0], sizeof(out[0]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_variants), cmocka_unit_test(test_norms),
                                       cmocka_unit_test(test_formats), cmocka_unit_test(test_rotation)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
