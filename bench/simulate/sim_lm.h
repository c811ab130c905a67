/* A model that computes nothing. The target's pick is a number drawn from the tokens before it, and its drafter knows
 * that number as well as it was measured to know it (surmise.h). Both follow the tokens of a row through the KV cells
 * that the row may see. So their picks are right only if the machines are right about KV, and a pass takes this
 * computer the same time whatever the contexts are. What a pass would take on a device is counted and not waited for.
 */
#ifndef GR_BENCH_SIMULATE_SIM_LM_H
#define GR_BENCH_SIMULATE_SIM_LM_H

#include "model/lm.h"
#include "bench/simulate/surmise.h"

#define GR_SIM_FEATURE_BYTES 8 /* of a row of FEATURES */

struct gr_sim_lm_config {
    int32_t n_vocab, n_ctx_max, n_row_max, n_out_max, n_pool_block, n_scratch_block;
    int32_t n_state;                      /* of a head, that it keeps */
    bool features;                        /* a target that feeds a head, or that head */
    const struct gr_surmise *surmise;     /* of a drafter; borrowed. NULL: it is the target */
    const struct gr_surmise_texts *texts; /* borrowed; NULL or none in it: `surmise' counts */
    int32_t n_prompt;                     /* texts begin after it; which one it is says the prompt's first token */
    /* What the pass takes. NULL: nothing. */
    double (*pass_ns)(void *ctx, const struct gr_batch *b);
    void *pass_ctx;
};

/* NULL: out of memory. */
struct gr_lm *gr_sim_lm_create(const struct gr_sim_lm_config *config);
/* The sum of what its passes took: a clock that stands between them. */
uint64_t gr_sim_lm_spent_ns(void *lm);

#endif
