#include "model/kv_partial.h"

void gr_kv_view_plan(struct gr_kv_view *v, const struct gr_kv_budget *budget, int32_t kv_len)
{
    const int32_t n_below = GR_MAX(0, kv_len / GR_KV_BLOCK - budget->n_window);
    v->dense_from = n_below * GR_KV_BLOCK;
    v->n_list = GR_MIN(n_below, budget->n_sink + budget->n_retrieval);
    GR_ASSERT(v->n_list <= v->n_list_max);
}

void gr_kv_view_truncate(struct gr_kv_view *v, int32_t len)
{
    v->n_summed = GR_MIN(v->n_summed, len / GR_KV_BLOCK);
    if (v->dense_from > len) {
        v->dense_from = GR_VIEW_NONE;
    }
}

void gr_kv_view_attend(const struct gr_kv_view *v, struct gr_attn_seq *seq)
{
    GR_ASSERT(v->dense_from != GR_VIEW_NONE);
    seq->sparse = v->list;
    seq->n_sparse = v->n_list;
    seq->sparse_stride = v->n_list_max;
    seq->dense_from = v->dense_from;
}
