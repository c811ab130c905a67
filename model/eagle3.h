/* The EAGLE-3 draft head (arXiv 2503.01840): one transformer layer that reads the target's fused features and tokens.
 * A row stands for position t >= 0 of the text: it is given the feature of t, RoPE position t (the caller's pos) and
 * the token of t + 1, and its logits are for t + 2:
 *   g = feature                                     fc over the target's captured states (fc.h), or `hidden` of the
 *                                                   row before, where the token was drafted
 *   a = attention(concat(norm_in(embed(token)), norm_hidden(g)))     the embedding FIRST; q, k, v take 2H values
 *   r = g + a                                       the un-normed g (norm_before_residual: the normed one)
 *   hidden = r + mlp(norm_post(r))                  before the final norm (norm_output: after it)
 *   logits = lm_head(norm_final(r + mlp(...)))      over the draft vocabulary; lm->to_target has the target's ids
 * Row independence as everywhere (kernels.h). batch.feature may point into lm->hidden of the pass before, where the
 * model has it: features are copied before anything is written.
 *
 * Tensors: fc.weight [, fc.bias, input_norm.weight, fc_norm.{i}.weight: checked, used by the target], d2t [, t2d],
 * norm.weight, and under midlayer. or layers.0.: input_layernorm, hidden_norm, post_attention_layernorm,
 * self_attn.{q,k,v,o}_proj, mlp.{gate,up,down}_proj [, biases as the config says]. embed_tokens.weight and
 * lm_head.weight are the head's own where it has them, else the target's. Anything missing or left over is refused.
 * Decision D-018. */
#ifndef GR_MODEL_EAGLE3_H
#define GR_MODEL_EAGLE3_H

#include "model/load/expand.h"
#include "model/load/loader.h"
#include "model/files/hf_config.h"
#include "model/lm.h"
#include "model/files/tuned.h"

struct gr_eagle3_config {
    const char *dir; /* the head's folder; both borrowed for the call */
    enum gr_weights_as as;
    const char *target_dir; /* the target's, for what the head borrows */
    const char *isa;        /* CPU kernels: NULL = best, or avx512 | avx2 | c | ref */
    int n_thread;           /* 0: every CPU this process may use */
    int n_ctx_max;          /* positions; 0: the target's max_position_embeddings */
    int n_row_max;          /* rows of a pass */
    int n_out_max;          /* rows of a pass whose logits may be asked for */
    int n_pool_block;       /* KV blocks of 16 tokens */
    int n_pool_block_least; /* llama.h */
    int n_scratch_block;    /* after them, for tree rows */
    int n_seq_max;          /* sequences of a pass; only a GPU's runtime asks */
    int n_ctx_kept; /* positions of a sequence whose KV is kept at most, by which a GPU chooses n_pool_block; 0: all */
    int n_state;    /* states that are kept between passes (lm.h) */
    int n_token;    /* ids of the target that may be picked; 0: all of the vocabulary */
    int n_capture;  /* captures the target was told to make (capture.h); 0: by the head's config */
    int capture_layer[GR_CAPTURE_MAX];
    const struct gr_geometry *geometry; /* NULL: as in the folders; else expanded (expand.h), as the target */
    bool geometry_positions;            /* as the target's (llama.h) */
    const struct gr_tuned *tuned; /* only a GPU's runtime asks; NULL: nothing was measured. Borrowed for the call */
    bool raw_features;            /* the target ships captured states: the head is to run fc itself (lm.h) */
    /* lm.h: features lie in far memory of the GPU, which is to have room for so many bytes of them; 0: on the host.
     * Only for a GPU's runtime. */
    uint64_t far_feature_bytes;
    /* Copies of inner values are kept for every row (gr_eagle3_stage); costs two more linears a pass, and all rows are
     * run whole. */
    bool keep_stages;
};

/* Errors name the file, tensor or limit, and both values where two do not fit. hf_out (the head's config with geometry
 * and RoPE as used), fingerprint_out (of the head's files) may be NULL. lm->fc_fingerprint is that of fc. */
GR_NODISCARD enum gr_status gr_eagle3_create(const struct gr_eagle3_config *config, struct gr_hf_config *hf_out,
                                             uint64_t *fingerprint_out, struct gr_lm **lm_out);

/* Inner values of the last pass, (rows, width): attn_input (2H), attn_out and ffn_out (H, before the residual), hidden
 * (H) of all rows; pre_head_hidden (H, what lm_head was given) of the out rows. Lives until the next pass.
 * NULL: no such stage, or the head was made without keep_stages. */
const float *gr_eagle3_stage(const struct gr_lm *lm, const char *name, int *width_out);

/* Bytes of KV one token takes, f32. */
size_t gr_eagle3_kv_bytes_per_token(const struct gr_hf_config *hf);
/* Bytes of weights a pass reads, and floating point operations of one row's linears (2 per weight); lm_head included.
 */
size_t gr_eagle3_weight_bytes(const struct gr_hf_config *hf);
double gr_eagle3_flops_per_row(const struct gr_hf_config *hf);

#endif
