/* SpecPV's state of a session: the view that the verifier holds, and what is due. target_specpv.c decides. */
#include "target_worker/machine/target_internal.h"

void target_view_drop(struct session_specpv *pv)
{
    pv->dense_from = GR_VIEW_NONE;
    pv->n_partial = 0;
}

void target_view_cut(struct session_specpv *pv, int32_t kv_len)
{
    pv->end_due = GR_FINISH_NONE;
    pv->dense_from = pv->dense_from > kv_len ? GR_VIEW_NONE : pv->dense_from;
}

void target_view_ask(struct session_specpv *pv)
{
    pv->asked = true;
}

void target_view_full(struct session_specpv *pv)
{
    pv->n_partial = 0;
    pv->end_due = GR_FINISH_NONE;
}

void target_view_take(struct session_specpv *pv, int32_t dense_from, int32_t kv_len)
{
    pv->dense_from = dense_from > kv_len ? GR_VIEW_NONE : dense_from;
    pv->asked = false;
}

void target_view_partial(struct session_specpv *pv, enum gr_finish finish)
{
    pv->n_partial++;
    if (pv->mode == GR_SPECPV_EXACT) {
        pv->end_due = finish;
    }
}
