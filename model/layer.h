/* One transformer layer, as the Llama runtime stacks them and the EAGLE-3 head has one: its weights and KV, how they
 * are read from a model folder, and its two blocks as parts of a pass. Everything is run by all threads of a team
 * (kernels.h); nothing is allocated after the load. */
#ifndef GR_MODEL_LAYER_H
#define GR_MODEL_LAYER_H

#include "model/files/hf_config.h"
#include "model/group/group.h"
#include "model/lm.h"
#include "model/load/loader.h"
#include "model/load/shard.h"

struct gr_linear {
    struct gr_weight w;
    const float *bias; /* (n_out) or NULL */
};

struct gr_layer {
    float *in_norm, *mlp_norm;   /* (H): before attention, and before the MLP */
    float *q_norm, *k_norm;      /* (d) or NULL: of each head of q and k */
    float *o_norm, *down_norm;   /* (H) or NULL: of what attention and the MLP give, before it is added */
    struct gr_linear q, k, v, o; /* (n_head * d, n_in), (n_kv * d, n_in) twice, (H, n_head * d) */
    struct gr_linear gate, up;   /* (ffn, H) */
    struct gr_linear down;       /* (H, ffn) */
    /* In a group n_head, n_kv and ffn are the rank's own, and the biases of o and down are added to the joined sum. */
    struct gr_kv_layer kv;
    int index;                        /* in the model */
    int window;                       /* 0: all keys */
    const float *rope_cos, *rope_sin; /* borrowed of the work; NULL: no rotary embedding */
};

/* What all layers of a model share: geometry, tables, activations of the pass. */
struct gr_layer_work {
    const struct gr_kernels *kernels;
    /* n_in: inputs of q, k and v; H, or 2H in an EAGLE-3 head. Heads and ffn: this rank's. */
    int hidden, n_in, n_head, n_kv_head, head_dim, ffn;
    /* Set before gr_layer_work_init: zeros, all of the model; in a group what this rank has of it. */
    struct gr_shard shard;
    struct gr_group *group;        /* borrowed; NULL: alone */
    const struct gr_hf_config *hf; /* borrowed */
    float rms_eps, attn_scale;
    float *rope_cos, *rope_sin;             /* (n_ctx_max, d / 2) */
    float *rope_local_cos, *rope_local_sin; /* of layers with a window; the same two where they have no other */
    int n_ctx_max;
    float *xn;              /* (n_row_max, H) */
    float *q, *k, *v, *att; /* (n_row_max, n_head * d | n_kv * d | n_kv * d | n_head * d) */
    float *gate, *up;       /* (n_row_max, ffn) */
    float *branch;          /* (n_row_max, H) with norms after o and down, else NULL */
    float *joined;          /* (n_row_max, H) in a group, else NULL: the ranks' sum */
    void *attn_work;
    const struct gr_kv_views *views; /* borrowed; for batches that refresh views */
};

/* ---- start ---- */

/* isa: as in gr_kernels_init_cpu, or "ref". */
GR_NODISCARD enum gr_status gr_model_kernels(struct gr_kernels *k, const char *isa);
/* "cpu/...": equal ids promise equal bits. The three CPU versions share one, and groups of every size. */
void gr_model_numerics_id(const struct gr_kernels *k, char *text, size_t cap);
/* A head_dim that the attention kernels take, else a line that names dir. */
GR_NODISCARD enum gr_status gr_head_dim_check(const char *dir, int head_dim);
/* Geometry from the config, which stays borrowed; activations for n_row_max rows, tables for n_ctx_max positions. */
GR_NODISCARD enum gr_status gr_layer_work_init(struct gr_layer_work *w, const struct gr_kernels *kernels,
                                               struct gr_memory *memory, const struct gr_hf_config *hf, int n_in,
                                               const struct gr_lm *lm);
/* prefix: "model.layers.3", of which index is the number. What it has is as the work's config says. KV with n_cell
 * cells. */
GR_NODISCARD enum gr_status gr_layer_load(const struct gr_loader *l, const struct gr_layer_work *w, const char *prefix,
                                          int index, size_t n_cell, struct gr_layer *out);
/* A norm of n values, as the config says: w or 1 + w. */
GR_NODISCARD enum gr_status gr_layer_load_norm(const struct gr_loader *l, const struct gr_hf_config *hf,
                                               const char *name, int n, float **out);

/* ---- parts of a pass ---- */

/* y = norm(x) * weight, rows of H; split by rows, no barrier inside. */
void gr_layer_norm(const struct gr_exec *x, const struct gr_layer_work *w, const float *in, const float *weight,
                   float *out, int n_row);
/* y = x W^T (+ bias) (+ residual), rows as wide as the weight says; split by columns, no barrier inside. */
void gr_layer_linear(const struct gr_exec *x, const struct gr_layer_work *w, const struct gr_linear *l, const float *in,
                     const float *residual, float *out, int n_row);
/* The rows of a pass that ask: all of its batch, or those of them that are run further than to their KV. */
struct gr_layer_queries {
    const float *in;               /* (n_row, n_in) */
    const int32_t *pos;            /* (n_row) */
    const struct gr_attn_seq *seq; /* (n_seq); their row0 counts these rows */
    int n_row, n_seq;
};
static inline struct gr_layer_queries gr_layer_all_ask(const struct gr_batch *b, const float *in)
{
    return (struct gr_layer_queries){.in = in, .pos = b->pos, .seq = b->seq, .n_row = b->n_row, .n_seq = b->n_seq};
}
/* KV of all rows of the batch, from in (its n_row, n_in), and out = residual + o(attention(q of asking)), of the rows
 * that ask. in and asking->in complete before; a barrier after. w->att keeps what o was given. out may be residual. */
void gr_layer_attention(const struct gr_exec *x, const struct gr_layer_work *w, const struct gr_layer *l,
                        const struct gr_batch *b, const float *in, const struct gr_layer_queries *asking,
                        const float *residual, float *out);
/* rows += down(act(gate) * up of their norm), in place; a barrier after. w->gate keeps what down was given. */
void gr_layer_mlp(const struct gr_exec *x, const struct gr_layer_work *w, const struct gr_layer *l, float *rows,
                  int n_row);

#endif
