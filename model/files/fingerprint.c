#include "model/files/fingerprint.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "common/rules/bf16.h"

#define N_ROW 16 /* of a tensor that are looked at */

static void add_u64(XXH3_state_t *h, uint64_t value)
{
    uint8_t bytes[8];
    for (int i = 0; i < 8; i++) {
        bytes[i] = (uint8_t)(value >> (8 * i));
    }
    XXH3_64bits_update(h, bytes, sizeof(bytes));
}

static void add_f64(XXH3_state_t *h, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof(bits));
    add_u64(h, bits);
}

/* Field by field: padding bytes have no value. The architecture's name does not count, but what it means does: a GGUF
 * file of a Mistral without windows calls it a Llama. */
static void add_config(XXH3_state_t *h, const struct gr_hf_config *c)
{
    const int ints[] = {
        c->hidden,
        c->n_layer,
        c->n_head,
        c->n_kv_head,
        c->head_dim,
        c->ffn,
        c->n_vocab,
        c->max_pos,
        c->tie_embeddings,
        c->qkv_bias,
        c->o_bias,
        c->mlp_bias,
        c->qk_norm,
        c->post_norms,
        c->gelu,
        c->scale_dim,
        (int)c->rope_kind,
        c->rope.truncate,
        c->draft_n_vocab,
        c->target_hidden,
        c->has_capture,
        c->n_capture,
        c->norm_before_residual,
        c->norm_before_fc,
        c->fc_norm,
        c->norm_output,
        c->n_expert,
        c->n_expert_used,
        c->sliding_window,
        c->rope.original_max_pos,
    };
    const double numbers[] = {
        (double)c->rms_eps,       c->rope_theta,          c->rope.factor,      c->rope.low_freq_factor,
        c->rope.high_freq_factor, c->rope.beta_fast,      c->rope.beta_slow,   c->rope.attention_factor,
        (double)c->swiglu_limit,  (double)c->embed_scale, c->rope_local_theta,
    };
    for (size_t i = 0; i < GR_ARRAY_LEN(ints); i++) {
        add_u64(h, (uint64_t)(int64_t)ints[i]);
    }
    for (size_t i = 0; i < GR_ARRAY_LEN(numbers); i++) {
        add_f64(h, numbers[i]);
    }
    for (int i = 0; i < c->n_capture; i++) {
        add_u64(h, (uint64_t)(int64_t)c->capture_layer[i]);
    }
    for (int i = 0; i < c->n_layer; i++) {
        add_u64(h, c->layer_sliding[i]);
        add_u64(h, c->layer_no_rope[i]);
    }
}

/* First, last and rows between: a swapped or retrained tensor differs in all of them. */
static int64_t sampled_row(int64_t n_row, int64_t i)
{
    return n_row <= N_ROW ? i : (int64_t)((n_row - 1) * i / (N_ROW - 1));
}

/* The bytes of what is no weight (an EAGLE-3 head's d2t), all of them. */
static void add_bytes(XXH3_state_t *h, const struct gr_tensor *t)
{
    XXH3_64bits_update(h, t->data, t->bytes);
}

/* How values are held in memory. */
struct holding {
    bool round_all, round_quantised;
    bool norm_plus_one;
};

/* A norm that is held as 1 + w. */
static bool is_shifted(const struct gr_tensor *t, const struct holding *as)
{
    const size_t len = strlen(t->name), tail = strlen("norm.weight");
    return as->norm_plus_one && t->n_dim == 1 && len >= tail && strcmp(t->name + len - tail, "norm.weight") == 0;
}

static void add_values(XXH3_state_t *h, const struct gr_tensor *t, const struct holding *as)
{
    const bool rounded = as->round_all || (as->round_quantised && gr_format_is_quantised(t->dtype));
    const float shift = is_shifted(t, as) ? 1.0f : 0.0f;
    const size_t n_col = (size_t)gr_tensor_n_col(t);
    int64_t n_row = t->bytes > 0 ? 1 : 0;
    for (int d = 0; d + 1 < t->n_dim; d++) {
        n_row *= t->shape[d];
    }
    float *row = n_row > 0 ? malloc(n_col * sizeof(*row)) : NULL;
    GR_ASSERT(n_row == 0 || row != NULL);
    for (int64_t i = 0; i < GR_MIN(n_row, (int64_t)N_ROW); i++) {
        gr_tensor_row_f32(t, sampled_row(n_row, i), row);
        for (size_t k = 0; k < n_col; k++) {
            row[k] = shift != 0.0f ? row[k] + shift : row[k];
            row[k] = rounded ? gr_bf16_to_f32(gr_bf16_from_f32(row[k])) : row[k];
        }
        XXH3_64bits_update(h, row, n_col * sizeof(*row));
    }
    free(row);
}

static void add_tensor(XXH3_state_t *h, const struct gr_tensor *t, const struct holding *as)
{
    add_u64(h, (uint64_t)t->n_dim);
    for (int d = 0; d < t->n_dim; d++) {
        add_u64(h, (uint64_t)t->shape[d]);
    }
    if (gr_format_is_weight(t->dtype)) {
        add_values(h, t, as);
    } else {
        add_bytes(h, t);
    }
}

static uint64_t finish(XXH3_state_t *h)
{
    uint64_t value = XXH3_64bits_digest(h);
    XXH3_freeState(h);
    return value;
}

/* Does the model compute with it? */
static bool counts(const struct gr_hf_config *config, const char *name)
{
    return !gr_tensor_is_buffer(name) && !(config->tie_embeddings && strcmp(name, "lm_head.weight") == 0);
}

uint64_t gr_model_fingerprint(const struct gr_hf_config *config, const struct gr_tensors *ts, bool round_all,
                              bool round_quantised)
{
    XXH3_state_t *h = XXH3_createState();
    GR_ASSERT(h != NULL);
    XXH3_64bits_reset(h);
    add_config(h, config);
    const struct holding as = {round_all, round_quantised, config->norm_plus_one};
    for (size_t i = 0; i < gr_tensors_count(ts); i++) {
        const struct gr_tensor *t = gr_tensors_at(ts, i);
        if (counts(config, t->name)) {
            add_tensor(h, t, &as);
        }
    }
    return finish(h);
}

uint64_t gr_tensors_fingerprint(const struct gr_tensors *ts, const char *const *names, size_t n, bool round_all,
                                bool round_quantised)
{
    XXH3_state_t *h = XXH3_createState();
    GR_ASSERT(h != NULL);
    XXH3_64bits_reset(h);
    const struct holding as = {round_all, round_quantised, false};
    for (size_t i = 0; i < n; i++) {
        const struct gr_tensor *t = gr_tensors_find(ts, names[i]);
        if (t != NULL) {
            add_u64(h, i);
            add_tensor(h, t, &as);
        }
    }
    return finish(h);
}
