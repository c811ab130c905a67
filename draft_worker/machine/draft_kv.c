/* The draft model's or head's KV of a session: how far it reaches, and where it begins. */
#include "draft_worker/machine/drafter_internal.h"

void draft_kv_trim(struct gr_drafter *d, struct follow *f)
{
    gr_kv_table_truncate(&d->pool, &f->kv.table, drafter_n_cell(f, f->kv.len));
}

void draft_kv_cut(struct gr_drafter *d, struct follow *f, int32_t len)
{
    f->kv.len = GR_MIN(f->kv.len, len);
    if (!f->job.in_flight) {
        draft_kv_trim(d, f);
    }
}

void draft_kv_begin_at(struct gr_drafter *d, struct follow *f, int32_t shift)
{
    f->kv.shift = shift;
    f->kv.len = 0;
    if (!f->job.in_flight) {
        gr_kv_table_truncate(&d->pool, &f->kv.table, 0);
    }
}

void draft_kv_of_head(struct follow *f)
{
    f->kv.shift = GR_MAX(f->kv.shift, 1);
}

void draft_kv_reach(struct follow *f, int32_t len)
{
    f->kv.len = len;
}

void draft_kv_drop_front(struct gr_drafter *d, struct follow *f, int32_t n_block)
{
    gr_kv_table_drop_front(&d->pool, &f->kv.table, n_block);
    f->kv.shift += n_block * GR_KV_BLOCK_TOKENS;
}
