/* A model's part in a tensor-parallel group that does not depend on where it computes: what all ranks must have alike,
 * and how those that follow do what rank 0 says (step.h). Decision D-102. */
#ifndef GR_MODEL_FOLLOW_H
#define GR_MODEL_FOLLOW_H

#include "model/files/hf_config.h"
#include "model/load/loader.h"
#include "model/step.h"

/* A rank that does what rank 0 says. group NULL: alone. */
static inline bool gr_group_follows(const struct gr_group *g)
{
    return g != NULL && g->rank > 0;
}

static inline bool gr_group_leads(const struct gr_group *g)
{
    return g != NULL && g->rank == 0;
}

/* Sizes that all ranks must have alike, and the blocks that all of them have room for (lm->n_pool_block). */
GR_NODISCARD enum gr_status gr_agree_on_sizes(const struct gr_steps *s, const struct gr_hf_config *hf, struct gr_lm *lm,
                                              enum gr_weights_as as);

/* What a rank does itself in each step. */
struct gr_follow_ops {
    enum gr_status (*forward)(struct gr_lm *lm, const struct gr_batch *b);
    void (*copy_cells)(struct gr_lm *lm, int n, const int32_t *src, const int32_t *dst);
    enum gr_status (*take_views)(struct gr_lm *lm, const struct gr_kv_budget *most, int n_view);
    void (*give_views_back)(struct gr_lm *lm);
};

/* Views of a model (lm.h), which has none. s: of rank 0, whose others take theirs first; NULL: it leads nobody. */
GR_NODISCARD enum gr_status gr_lead_views(struct gr_lm *lm, struct gr_steps *s, const struct gr_follow_ops *ops,
                                          const struct gr_kv_budget *most, int n_view);
/* They are given back, those of the others first. */
void gr_lead_no_views(struct gr_lm *lm, struct gr_steps *s, const struct gr_follow_ops *ops);

/* Until rank 0 ends the group (GR_OK). */
GR_NODISCARD enum gr_status gr_follow(struct gr_lm *lm, struct gr_steps *s, const struct gr_follow_ops *ops);

#endif
