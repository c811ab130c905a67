#include "model/follow.h"

#include "model/group/agree.h"

enum gr_status gr_agree_on_sizes(const struct gr_steps *s, const struct gr_hf_config *hf, struct gr_lm *lm,
                                 enum gr_weights_as as)
{
    const int32_t sizes[] = {hf->hidden,    hf->n_layer,         hf->n_head,         hf->n_kv_head, hf->head_dim,
                             hf->ffn,       lm->n_vocab,         lm->n_vocab_stride, lm->n_ctx_max, lm->n_row_max,
                             lm->n_out_max, lm->n_scratch_block, s->n_seq_max,       (int)as};
    GR_TRY(gr_group_same(s->group, "model or other limits", sizes, sizeof(sizes)));
    return gr_group_least(s->group, &lm->n_pool_block);
}

static enum gr_status follow_step(struct gr_lm *lm, const struct gr_steps *s, const struct gr_follow_ops *ops,
                                  const struct gr_step *step)
{
    switch (step->kind) {
    case GR_STEP_FORWARD:
        return ops->forward(lm, &step->batch);
    case GR_STEP_COPY:
        ops->copy_cells(lm, step->n_copy, step->src, step->dst);
        return GR_OK;
    case GR_STEP_VIEWS: {
        const enum gr_status st = ops->take_views(lm, &step->most, step->n_view);
        return s->group->status != GR_OK ? st : GR_OK; /* that some rank has no memory for them rank 0 knows */
    }
    case GR_STEP_NO_VIEWS:
        ops->give_views_back(lm);
        return GR_OK;
    case GR_STEP_END:
        return GR_OK;
    }
    return GR_EPROTO;
}

enum gr_status gr_lead_views(struct gr_lm *lm, struct gr_steps *s, const struct gr_follow_ops *ops,
                             const struct gr_kv_budget *most, int n_view)
{
    GR_ASSERT(lm->view == NULL && n_view >= 1);
    if (s != NULL) {
        GR_TRY(gr_steps_views(s, most, n_view));
    }
    return ops->take_views(lm, most, n_view);
}

void gr_lead_no_views(struct gr_lm *lm, struct gr_steps *s, const struct gr_follow_ops *ops)
{
    if (s != NULL) {
        const enum gr_status st = gr_steps_say(s, GR_STEP_NO_VIEWS);
        (void)st; /* logged; the next pass fails with it */
    }
    ops->give_views_back(lm);
}

enum gr_status gr_follow(struct gr_lm *lm, struct gr_steps *s, const struct gr_follow_ops *ops)
{
    struct gr_step step = {.kind = GR_STEP_COPY};
    while (step.kind != GR_STEP_END) {
        GR_TRY(gr_steps_next(s, &step));
        GR_TRY(follow_step(lm, s, ops, &step));
    }
    return GR_OK;
}
