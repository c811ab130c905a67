/* A small trained model in the geometry of a large published one, in memory and WITHOUT CHANGING ITS FUNCTION: what a
 * pass costs is what the large model costs, what is predicted (and so what a drafter has accepted) is the small
 * model's. For benchmarks and tests; say so wherever a number comes from it.
 *
 * - hidden: h -> H: the residual stream is padded with zeros. RMSNorm divides by H instead of h, so its weight is
 *   scaled by sqrt(h / H) (in f32) and eps by h / H.
 * - heads: d -> D = m d: RoPE pair i goes to pair m i, which turns at the same speed (the theta is kept); q is zero in
 *   the other pairs. Attention is scaled as before (gr_hf_config.scale_dim). Query heads stay with their KV head, which
 *   is there as often as all of them have room, side by side, and the query heads are dealt to its copies. A copy that
 *   would get none has a query head of another copy as well; their outputs are halved in o_proj, which rounds nothing.
 * - neurons: spread evenly. So the small model's heads and neurons lie in every segment of a sum that a tensor-parallel
 *   group cuts (common/rules/segments.h), and a wrong order of these sums is seen.
 * - extra heads, extra FFN neurons: random, but o_proj and down_proj give them no output.
 * - extra layers: random, with o_proj and down_proj zero; the small model's are spread evenly among them, so the stream
 *   entering small layer i enters layer gr_expand_layer(i).
 * - extra vocabulary: random rows of lm_head after the real ones; their logits are computed, never sampled.
 *
 * Every weight is stored and every product computed: zeros are no shortcut here. Random weights are bf16 with
 * magnitudes from 2^-6 to 2^-5, a function of tensor, row and column alone.
 *
 * This file says what the rule of each tensor is; common/rules/expand_rule.h says what a value is by its rule, for CPUs
 * and for GPUs, which make their weights themselves (kernels/cuda/rows/expand.h).
 *
 * Pure, no state of its own; used while a model is loaded (loader.h). Decisions D-021, D-023. */
#ifndef GR_MODEL_LOAD_EXPAND_H
#define GR_MODEL_LOAD_EXPAND_H

#include "common/rules/expand_rule.h"
#include "model/files/hf_config.h"

#include <stdint.h>

struct gr_geometry {
    const char *name;
    int hidden, n_layer, n_head, n_kv_head, head_dim, ffn, n_vocab;
    int draft_n_vocab; /* of its EAGLE-3 head: one layer as the model's own, q, k and v with 2H inputs */
    int max_pos;       /* the published model's; gr_expand_positions alone asks */
};

/* name: of an option --geometry; NULL gives NULL. GR_EINVAL (one line logged, with the names there are): unknown. */
GR_NODISCARD enum gr_status gr_geometry_find(const char *name, const struct gr_geometry **out);

struct gr_expand {
    const struct gr_geometry *to;
    struct gr_hf_config from; /* as in the folder */
    int n_copy;               /* of each KV head */
};

/* hf: in: of the folder, target or EAGLE-3 head; out: in the geometry. A model that does not fit inside is refused. */
GR_NODISCARD enum gr_status gr_expand_init(struct gr_expand *e, const struct gr_geometry *to, const char *dir,
                                           struct gr_hf_config *hf);
/* The config alone; to NULL: as it is. */
GR_NODISCARD enum gr_status gr_expand_config(const struct gr_geometry *to, const char *dir, struct gr_hf_config *hf);
/* For benchmarks of cost: hf (of the target, expanded to `to`) gets the published model's positions where it has fewer.
 * The small model's weights were not made for those: what is predicted there means nothing. */
void gr_expand_positions(const struct gr_geometry *to, struct gr_hf_config *hf);
/* The layer that the stream entering layer i of the small target enters; i up to n_layer. */
int gr_expand_layer(const struct gr_expand *e, int i);

/* A tensor of the large model and where its values come from. */
struct gr_expand_tensor {
    char name[160]; /* in the folder; "": nothing there (an extra layer) */
    struct gr_expand_rule rule;
    float scale;       /* of a vector */
    int32_t *col_from; /* owned, (n_in, and up to a multiple of 4): gr_expand_columns of all */
};

/* name: of the large model, as the loaders build it ("model.layers.11.self_attn.o_proj.weight"). */
GR_NODISCARD enum gr_status gr_expand_tensor_init(const struct gr_expand *e, const char *name, int n_out, int n_in,
                                                  struct gr_expand_tensor *out);
void gr_expand_tensor_finish(struct gr_expand_tensor *t);
/* Rows [row0, row0 + n_row) of the large matrix. from: bf16 (n_out_from, n_in_from), NULL for an extra layer;
 * out: bf16 (n_row, n_in). */
void gr_expand_rows(const struct gr_expand_tensor *t, const uint16_t *from, int row0, int n_row, uint16_t *out);
/* A norm's weight or a bias: out (n_out). */
void gr_expand_vector(const struct gr_expand_tensor *t, const uint16_t *from, float *out);

#endif
