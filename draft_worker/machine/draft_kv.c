/* The draft model's or head's KV of a session: how far it reaches, and where it begins. */
#include "draft_worker/machine/drafter_internal.h"

void draft_kv_trim(struct gr_drafter *d, struct session *s)
{
    gr_kv_table_truncate(&d->pool, &s->kv.table, drafter_n_cell(s, s->kv.len));
}

void draft_kv_cut(struct gr_drafter *d, struct session *s, int32_t len)
{
    s->kv.len = GR_MIN(s->kv.len, len);
    if (!s->job.in_flight) {
        draft_kv_trim(d, s);
    }
}

void draft_kv_begin_at(struct gr_drafter *d, struct session *s, int32_t shift)
{
    s->kv.shift = shift;
    s->kv.len = 0;
    if (!s->job.in_flight) {
        gr_kv_table_truncate(&d->pool, &s->kv.table, 0);
    }
}

void draft_kv_of_head(struct session *s)
{
    s->kv.shift = GR_MAX(s->kv.shift, 1);
}

void draft_kv_reach(struct session *s, int32_t len)
{
    s->kv.len = len;
}

void draft_kv_drop_front(struct gr_drafter *d, struct session *s, int32_t n_block)
{
    gr_kv_table_drop_front(&d->pool, &s->kv.table, n_block);
    s->kv.shift += n_block * GR_KV_BLOCK_TOKENS;
}
