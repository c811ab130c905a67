/* A transformer layer on a GPU, as the Llama runtime stacks them and the EAGLE-3 head has one (model/layer.h is the
 * CPU's). The residual stream is f32, everything between two linear layers bf16. */
#ifndef GR_MODEL_CUDA_LAYER_H
#define GR_MODEL_CUDA_LAYER_H

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/linear/heads.h"
#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/attention/view.h"
#include "model/cuda/cells.h"
#include "model/cuda/pass.h"
#include "model/cuda/ranks.h"
#include "model/cuda/weights.h"
#include "model/load/shard.h"

struct gr_cuda_layer {
    float *in_norm, *mlp_norm;                   /* (H) */
    struct gr_cuda_matrix qkv, o, gate_up, down; /* gate and up row by row in turn */
    float *qkv_bias;                             /* (rows of qkv) or NULL */
    float *o_bias, *down_bias;                   /* (H) or NULL */
    float *gate_bias, *up_bias;                  /* (ffn) or NULL, both or none */
    float *q_norm, *k_norm;                      /* (head_dim) or NULL */
    bool no_rope;                                /* q and k are not turned */
    int window;                                  /* 0: all keys, else the work's */
    void *kv;
    int index; /* in the model */
};

/* What all layers of a model share. */
struct gr_cuda_layer_work {
    struct gr_cuda_device *device;
    const struct gr_cuda_pass_inputs *inputs;
    struct gr_cuda_attn_shape attention;
    int window;                    /* of the layers that have one that hides something; 0: none has */
    const struct gr_hf_config *hf; /* borrowed */
    struct gr_shard shard;         /* of a group what this rank has: attention's heads, ffn; else all of it */
    struct gr_cuda_ranks *ranks;   /* borrowed; NULL: no group */
    int hidden, n_in, ffn;         /* n_in: inputs of q, k and v; H, or 2H in an EAGLE-3 head */
    float rms_eps, attn_scale;
    float *cos, *sin;                              /* (n_ctx_max, head_dim / 2) */
    float *cos_none, *sin_none;                    /* (head_dim / 2) of 1 and 0: no rotary embedding .. */
    int32_t *pos_none;                             /* .. at position 0, (n_row_max) */
    float *qkv;                                    /* (n_row_max, rows of qkv), where heads are made apart: else NULL */
    float *gate_up;                                /* (n_row_max, 2 ffn), where gate and up have biases: else NULL */
    float *x;                                      /* (n_row_max, H) residual stream */
    uint16_t *in;                                  /* tiles of width n_in: what q, k and v are given */
    uint16_t *xn;                                  /* tiles of width H */
    uint16_t *q;                                   /* (n_row_max, n_head * head_dim) */
    uint16_t *att, *act;                           /* tiles of width n_head * head_dim, ffn */
    struct gr_cuda_square *o_square, *down_square; /* (n_row_max) of x after o and after down, zero until then */
    void *plan, *window_plan, *attn_work;          /* window_plan: of layers with a window; NULL: there are none */
    struct gr_cuda_chain *chain; /* linear layers are one kernel where they can be; NULL: each is its own */
    struct gr_cuda_kv kv;
    const struct gr_cuda_views *views; /* borrowed: a pass that is enqueued chooses views; NULL: it does not */
};

/* Geometries that the kernels take; one line that names dir. */
GR_NODISCARD enum gr_status gr_cuda_geometry_check(const char *dir, const struct gr_hf_config *hf);
struct gr_cuda_layer_config {
    const struct gr_hf_config *hf;
    const struct gr_model_shapes *shapes;
    struct gr_shard shard;       /* gr_shard_whole: all of it */
    struct gr_cuda_ranks *ranks; /* of a group; NULL: none */
    int n_in;                    /* width of the rows that q, k and v take */
    int n_layer;                 /* layers that share the KV */
    int n_seq_max;               /* sequences of a pass */
    const struct gr_lm *lm;
    const struct gr_cuda_pass_inputs *inputs;
};
/* Tables, activations for lm's rows, KV for its blocks. */
GR_NODISCARD enum gr_status gr_cuda_layer_work_init(struct gr_cuda_layer_work *w, struct gr_cuda_device *d,
                                                    const struct gr_cuda_layer_config *c);
/* prefix: "model.layers.3"; index: which part of the KV is its own. */
GR_NODISCARD enum gr_status gr_cuda_layer_load(struct gr_cuda_weights *l, const struct gr_cuda_layer_work *w,
                                               const char *prefix, int index, struct gr_cuda_layer *out);

/* ---- parts of a pass of at most n rows ---- */

/* y = norm of x's rows in tiles of width y_n from column y_col on. weight NULL: as they are. n_row_true, row: of the
 * inputs, for the rows that are wanted; else all rows. */
struct gr_cuda_norm_step {
    const float *x, *weight;
    uint16_t *y;
    int y_n, y_col;
    uint16_t *capture; /* NULL: none */
    int capture_n, capture_col;
    bool out_rows; /* of the rows whose logits are wanted */
};
GR_NODISCARD enum gr_status gr_cuda_enqueue_norm(const struct gr_cuda_layer_work *w, const struct gr_cuda_norm_step *s,
                                                 int n);
/* Before the first layer: the plan of attention, the inputs' tokens looked up in table and kept in x, if that is not
 * NULL, and their norm (token.x is not looked at). feature: another norm beside it; NULL: none. states, with feature,
 * whose x is w->x then: what the inputs' from_state counts, to be copied there; NULL: none. The inputs' half, where
 * there is one, with feature and the same x. plan_error: two words, of the plan (attention.h) and of that of layers
 * with a window. */
struct gr_cuda_begin_step {
    const uint16_t *table;
    float *x;
    struct gr_cuda_norm_step token;
    const struct gr_cuda_norm_step *feature;
    const float *states;
    int32_t *plan_error;
};
GR_NODISCARD enum gr_status gr_cuda_enqueue_begin(const struct gr_cuda_layer_work *w,
                                                  const struct gr_cuda_begin_step *s, int n);
/* q, k and v of the first layer; w->in holds what they are given. */
GR_NODISCARD enum gr_status gr_cuda_enqueue_first_heads(const struct gr_cuda_layer_work *w,
                                                        const struct gr_cuda_layer *l, int n);
/* What is after a layer. next: the layer whose q, k and v it makes; NULL: it leaves the residual stream alone.
 * capture: with next, where that stream is kept besides; NULL: nowhere. */
struct gr_cuda_layer_place {
    const struct gr_cuda_layer *next;
    uint16_t *capture;
    int capture_n, capture_col;
};
/* From its attention on: q, k and v are there. Adds to the residual stream w->x. */
GR_NODISCARD enum gr_status gr_cuda_enqueue_layer(const struct gr_cuda_layer_work *w, const struct gr_cuda_layer *l,
                                                  const struct gr_cuda_layer_place *place, int n);
/* Whether its linear layers can be one kernel in a pass of n rows. */
bool gr_cuda_layer_can_chain(const struct gr_cuda_layer_work *w, const struct gr_cuda_layer *l, int n);
/* y = x W^T; x in tiles. out_rows: as above. */
struct gr_cuda_linear_step {
    const uint16_t *x;
    const float *bias; /* NULL: none */
    enum gr_cuda_linear_out out;
    void *y;
    int y_stride; /* in values */
    bool out_rows;
    struct gr_cuda_linear_norm norm; /* before it, and after it (kernels/cuda/linear/linear.h) */
    struct gr_cuda_linear_next next;
    struct gr_cuda_square *clear;
    struct gr_cuda_heads heads;
};
GR_NODISCARD enum gr_status gr_cuda_enqueue_linear(const struct gr_cuda_layer_work *w, const struct gr_cuda_matrix *m,
                                                   const struct gr_cuda_linear_step *s, int n);

/* Bytes of a row's sums of q, k and v, where a family has biases or norms of them (Qwen); else 0. */
size_t gr_cuda_sums_bytes(const struct gr_hf_config *hf, const struct gr_shard *shard);
/* Bytes that the KV of a block of 16 tokens takes. */
uint64_t gr_cuda_kv_block_bytes(const struct gr_hf_config *hf, int n_kv_head, int n_layer);

#endif
