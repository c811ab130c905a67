#include "model/files/fingerprint.h"

#include <string.h>
#include <xxhash.h>

#define PAGE_BYTES 4096u /* of a tensor, which are hashed in pages spread over it */
#define N_PAGE 4u        /* pages of each tensor */

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

static void add_text(XXH3_state_t *h, const char *text)
{
    size_t len = strlen(text);
    add_u64(h, len);
    XXH3_64bits_update(h, text, len);
}

/* Field by field: padding bytes have no value. */
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
        c->attention_bias,
        c->mlp_bias,
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
        (double)c->rms_eps,       c->rope_theta,     c->rope.factor,    c->rope.low_freq_factor,
        c->rope.high_freq_factor, c->rope.beta_fast, c->rope.beta_slow, c->rope.attention_factor,
        (double)c->swiglu_limit,
    };
    add_text(h, c->architecture);
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
    }
}

/* First, last and two pages between: a swapped or retrained tensor differs in all of them. */
static void add_pages(XXH3_state_t *h, const uint8_t *data, size_t bytes)
{
    if (bytes <= N_PAGE * PAGE_BYTES) {
        XXH3_64bits_update(h, data, bytes);
        return;
    }
    for (size_t i = 0; i < N_PAGE; i++) {
        size_t at = (bytes - PAGE_BYTES) / (N_PAGE - 1) * i;
        at = i == N_PAGE - 1 ? bytes - PAGE_BYTES : at;
        XXH3_64bits_update(h, data + at, PAGE_BYTES);
    }
}

static void add_tensor(XXH3_state_t *h, const struct gr_tensor *t)
{
    add_text(h, t->name);
    add_text(h, gr_st_dtype_name(t->dtype));
    add_u64(h, (uint64_t)t->n_dim);
    for (int d = 0; d < t->n_dim; d++) {
        add_u64(h, (uint64_t)t->shape[d]);
    }
    add_pages(h, t->data, t->bytes);
}

static uint64_t finish(XXH3_state_t *h)
{
    uint64_t value = XXH3_64bits_digest(h);
    XXH3_freeState(h);
    return value;
}

uint64_t gr_model_fingerprint(const struct gr_hf_config *config, const struct gr_safetensors *st)
{
    XXH3_state_t *h = XXH3_createState();
    GR_ASSERT(h != NULL);
    XXH3_64bits_reset(h);
    add_config(h, config);
    size_t n = gr_safetensors_count(st);
    add_u64(h, n);
    for (size_t i = 0; i < n; i++) {
        add_tensor(h, gr_safetensors_at(st, i));
    }
    return finish(h);
}

uint64_t gr_tensors_fingerprint(const struct gr_safetensors *st, const char *const *names, size_t n)
{
    XXH3_state_t *h = XXH3_createState();
    GR_ASSERT(h != NULL);
    XXH3_64bits_reset(h);
    for (size_t i = 0; i < n; i++) {
        const struct gr_tensor *t = gr_safetensors_find(st, names[i]);
        if (t != NULL) {
            add_tensor(h, t);
        }
    }
    return finish(h);
}
