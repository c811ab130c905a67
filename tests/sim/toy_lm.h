/* A table model for the simulation: the logits after a row are a function of the tokens of that row's whole visible
 * prefix, which it reads back through block tables, scratch slots and cells. A wrong commit, a stale cell or a wrong
 * ancestor therefore changes the text or trips a check. */
#ifndef GR_TESTS_SIM_TOY_LM_H
#define GR_TESTS_SIM_TOY_LM_H

#include "model/lm.h"

struct toy_config {
    int n_vocab, n_ctx_max, n_row_max, n_out_max, n_pool_block, n_scratch_block;
    uint64_t seed;       /* of the table */
    uint64_t blur_seed;  /* != 0: a drafter, which sees a wrong table in one context of `blur` */
    int blur;
    float sharpness;     /* spread of the logits; negative: likes best what a positive one likes least */
    int memory;          /* tokens of the prefix that count; 0: all (and all of it is checked) */
};

struct gr_lm *toy_lm_create(const struct toy_config *config);
/* The logits after n tokens, from the table alone. */
void toy_lm_logits(const struct toy_config *config, const int32_t *token, int n, float *out);

#endif
