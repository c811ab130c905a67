/* For tests: the forward pass of a family in double precision, written apart from the runtime: whole sequences, plain
 * loops, nothing kept. It is told by flags of its own what a family has, not by config.json. */
#ifndef GR_TESTS_FAMILY_REFERENCE_H
#define GR_TESTS_FAMILY_REFERENCE_H

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "tests/unit/tiny_model.h"

enum { REF_LAYERS = 4, REF_HEADS = 4, REF_KV = 2, REF_D = 16, REF_ROWS = 64 };

struct ref_rope {
    enum { REF_PLAIN, REF_LINEAR, REF_LLAMA3, REF_YARN } kind;
    double theta, factor, original; /* llama3: bands 1 and 4; yarn: 32 and 1 */
    double magnitude;               /* of cos and sin; 0: 1 */
};

/* What a family computes otherwise than Llama. */
struct ref_family {
    struct ref_rope rope, local; /* local.theta 0: layers with a window rotate as the others */
    bool qkv_bias, o_bias, mlp_bias, qk_norm, gemma, tied;
    int window;
    unsigned windows, no_rope; /* bit i: layer i */
    double scale_dim, embed_scale, eps;
};

static inline double ref_at(struct tiny_folder *f, const char *name, size_t i)
{
    const struct gr_tensor *t = tiny_find(f, name);
    GR_ASSERT(t != NULL && t->dtype == GR_FORMAT_BF16);
    return (double)gr_bf16_to_f32(((const uint16_t *)t->data)[i]);
}

/* y (n_out) = W x (+ b) of tensor NAME.weight. */
static inline void ref_linear(struct tiny_folder *f, const char *name, bool bias, const double *x, int n_out, int n_in,
                              double *y)
{
    char w[160], b[160];
    snprintf(w, sizeof(w), "%s.weight", name);
    snprintf(b, sizeof(b), "%s.bias", name);
    for (int o = 0; o < n_out; o++) {
        y[o] = bias ? ref_at(f, b, (size_t)o) : 0.0;
        for (int k = 0; k < n_in; k++) {
            y[o] += x[k] * ref_at(f, w, (size_t)(o * n_in + k));
        }
    }
}

static inline void ref_norm(struct tiny_folder *f, const struct ref_family *m, const char *name, const double *x, int n,
                            double *y)
{
    double sum = 0.0;
    for (int i = 0; i < n; i++) {
        sum += x[i] * x[i];
    }
    for (int i = 0; i < n; i++) {
        y[i] = x[i] / sqrt(sum / n + m->eps) * (ref_at(f, name, (size_t)i) + (m->gemma ? 1.0 : 0.0));
    }
}

/* Where YaRN's ramp is at pair i: 0 keeps the frequency, 1 divides it. */
static inline double ref_yarn_ramp(const struct ref_rope *r, int i)
{
    const double low = floor(REF_D * log(r->original / (32.0 * 2 * M_PI)) / (2 * log(r->theta)));
    const double high = ceil(REF_D * log(r->original / (1.0 * 2 * M_PI)) / (2 * log(r->theta)));
    const double from = fmax(low, 0), to = fmin(high, REF_D - 1);
    const double at = (i - from) / (to > from ? to - from : 0.001);
    return at < 0 ? 0 : at > 1 ? 1 : at;
}

static inline double ref_frequency(const struct ref_rope *r, int i)
{
    const double f = pow(r->theta, -2.0 * i / REF_D), turns = r->original * f / (2 * M_PI);
    const double smooth = (turns - 1.0) / (4.0 - 1.0), ramp = r->kind == REF_YARN ? ref_yarn_ramp(r, i) : 0;
    switch (r->kind) {
    case REF_PLAIN:
        return f;
    case REF_LINEAR:
        return f / r->factor;
    case REF_LLAMA3:
        return smooth < 0 ? f / r->factor : smooth > 1 ? f : (1 - smooth) * f / r->factor + smooth * f;
    case REF_YARN:
        return f * (1 - ramp) + f / r->factor * ramp;
    }
    return 0;
}

static inline void ref_rotate(const struct ref_rope *r, int pos, double *v)
{
    const double m = r->magnitude > 0 ? r->magnitude : 1.0;
    for (int i = 0; i < REF_D / 2; i++) {
        const double angle = pos * ref_frequency(r, i), a = v[i], b = v[i + REF_D / 2];
        v[i] = m * (a * cos(angle) - b * sin(angle));
        v[i + REF_D / 2] = m * (b * cos(angle) + a * sin(angle));
    }
}

struct ref_heads { /* of all rows of a layer */
    double q[REF_ROWS][REF_HEADS * REF_D], k[REF_ROWS][REF_KV * REF_D], v[REF_ROWS][REF_KV * REF_D];
};

static inline void ref_heads(struct tiny_folder *f, const struct ref_family *m, int layer, int pos, const double *in,
                             struct ref_heads *h)
{
    char name[128];
    const bool local = m->local.theta > 0 && (m->windows >> layer & 1) != 0;
    const struct {
        const char *what;
        double *rows;
        int n_head;
        bool turned;
    } parts[] = {{"q", h->q[pos], REF_HEADS, true}, {"k", h->k[pos], REF_KV, true}, {"v", h->v[pos], REF_KV, false}};
    for (int p = 0; p < 3; p++) {
        snprintf(name, sizeof(name), "model.layers.%d.self_attn.%s_proj", layer, parts[p].what);
        ref_linear(f, name, m->qkv_bias, in, parts[p].n_head * REF_D, TINY_HIDDEN, parts[p].rows);
        snprintf(name, sizeof(name), "model.layers.%d.self_attn.%s_norm.weight", layer, parts[p].what);
        for (int i = 0; parts[p].turned && i < parts[p].n_head; i++) {
            double *one = parts[p].rows + i * REF_D;
            if (m->qk_norm) {
                ref_norm(f, m, name, one, REF_D, one);
            }
            if ((m->no_rope >> layer & 1) == 0) {
                ref_rotate(local ? &m->local : &m->rope, pos, one);
            }
        }
    }
}

static inline void ref_attend(const struct ref_family *m, int layer, int pos, const struct ref_heads *h, double *out)
{
    const int first = (m->windows >> layer & 1) != 0 && pos >= m->window ? pos - m->window + 1 : 0;
    memset(out, 0, REF_HEADS * REF_D * sizeof(*out));
    for (int i = 0; i < REF_HEADS; i++) {
        const int g = i / (REF_HEADS / REF_KV);
        double weight[REF_ROWS], sum = 0, top = -INFINITY;
        for (int p = first; p <= pos; p++) {
            weight[p] = 0;
            for (int d = 0; d < REF_D; d++) {
                weight[p] += h->q[pos][i * REF_D + d] * h->k[p][g * REF_D + d] / sqrt(m->scale_dim);
            }
            top = fmax(top, weight[p]);
        }
        for (int p = first; p <= pos; p++) {
            sum += weight[p] = exp(weight[p] - top);
        }
        for (int p = first; p <= pos; p++) {
            for (int d = 0; d < REF_D; d++) {
                out[i * REF_D + d] += weight[p] / sum * h->v[p][g * REF_D + d];
            }
        }
    }
}

static inline void ref_mlp(struct tiny_folder *f, const struct ref_family *m, int layer, const double *in, double *out)
{
    char name[128];
    double gate[TINY_FFN], up[TINY_FFN];
    snprintf(name, sizeof(name), "model.layers.%d.mlp.gate_proj", layer);
    ref_linear(f, name, m->mlp_bias, in, TINY_FFN, TINY_HIDDEN, gate);
    snprintf(name, sizeof(name), "model.layers.%d.mlp.up_proj", layer);
    ref_linear(f, name, m->mlp_bias, in, TINY_FFN, TINY_HIDDEN, up);
    for (int i = 0; i < TINY_FFN; i++) {
        const double g = gate[i];
        up[i] *= m->gemma ? 0.5 * g * (1 + tanh(sqrt(2 / M_PI) * (g + 0.044715 * g * g * g))) : g / (1 + exp(-g));
    }
    snprintf(name, sizeof(name), "model.layers.%d.mlp.down_proj", layer);
    ref_linear(f, name, m->mlp_bias, up, TINY_HIDDEN, TINY_FFN, out);
}

/* x += branch, through the norm called `norm` where the family has one there. */
static inline void ref_add(struct tiny_folder *f, const struct ref_family *m, int layer, const char *norm,
                           double *branch, double *x)
{
    char name[128];
    snprintf(name, sizeof(name), "model.layers.%d.%s.weight", layer, norm);
    if (m->gemma) {
        ref_norm(f, m, name, branch, TINY_HIDDEN, branch);
    }
    for (int i = 0; i < TINY_HIDDEN; i++) {
        x[i] += branch[i];
    }
}

static inline void ref_layer(struct tiny_folder *f, const struct ref_family *m, int layer, int n,
                             double (*x)[TINY_HIDDEN])
{
    static struct ref_heads h;
    char name[128];
    double in[TINY_HIDDEN], att[REF_HEADS * REF_D], branch[TINY_HIDDEN];
    snprintf(name, sizeof(name), "model.layers.%d.input_layernorm.weight", layer);
    for (int p = 0; p < n; p++) {
        ref_norm(f, m, name, x[p], TINY_HIDDEN, in);
        ref_heads(f, m, layer, p, in, &h);
    }
    for (int p = 0; p < n; p++) {
        ref_attend(m, layer, p, &h, att);
        snprintf(name, sizeof(name), "model.layers.%d.self_attn.o_proj", layer);
        ref_linear(f, name, m->o_bias, att, TINY_HIDDEN, REF_HEADS * REF_D, branch);
        ref_add(f, m, layer, "post_attention_layernorm", branch, x[p]);
        snprintf(name, sizeof(name), "model.layers.%d.%s.weight", layer,
                 m->gemma ? "pre_feedforward_layernorm" : "post_attention_layernorm");
        ref_norm(f, m, name, x[p], TINY_HIDDEN, in);
        ref_mlp(f, m, layer, in, branch);
        ref_add(f, m, layer, "post_feedforward_layernorm", branch, x[p]);
    }
}

/* Logits of all n rows: (n, TINY_N_VOCAB). */
static inline void ref_logits(struct tiny_folder *f, const struct ref_family *m, const int32_t *token, int n,
                              float *out)
{
    static double x[REF_ROWS][TINY_HIDDEN];
    double y[TINY_HIDDEN], logit[TINY_N_VOCAB];
    for (int p = 0; p < n; p++) {
        for (int i = 0; i < TINY_HIDDEN; i++) {
            x[p][i] = ref_at(f, "model.embed_tokens.weight", (size_t)(token[p] * TINY_HIDDEN + i)) *
                      (m->gemma ? m->embed_scale : 1.0);
        }
    }
    for (int l = 0; l < REF_LAYERS; l++) {
        ref_layer(f, m, l, n, x);
    }
    for (int p = 0; p < n; p++) {
        ref_norm(f, m, "model.norm.weight", x[p], TINY_HIDDEN, y);
        ref_linear(f, m->tied ? "model.embed_tokens" : "lm_head", false, y, TINY_N_VOCAB, TINY_HIDDEN, logit);
        for (int i = 0; i < TINY_N_VOCAB; i++) {
            out[p * TINY_N_VOCAB + i] = (float)logit[i];
        }
    }
}

#endif
