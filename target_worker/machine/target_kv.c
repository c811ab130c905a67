/* The KV that stands of a session: how many tokens have it in full, and how many of them the user may see. The block of
 * the token after them is the session's alone (gr_kv_table_own_len), so that no pass writes what others read. */
#include "target_worker/machine/target_internal.h"

void target_kv_cut(struct gr_target *t, struct session *s, int32_t len)
{
    s->kv.len = gr_kv_table_own_len(&t->pool, &s->kv.table, GR_MIN(s->kv.len, len));
    s->kv.final_len = GR_MIN(s->kv.final_len, len);
    gr_kv_table_truncate(&t->pool, &s->kv.table, s->kv.len);
}

void target_kv_begin_turn(struct gr_target *t, struct session *s)
{
    s->kv.len = gr_kv_table_own_len(&t->pool, &s->kv.table, GR_MIN(s->kv.len, s->prefix.len - 1));
    s->kv.final_len = s->prefix.len;
    gr_kv_table_truncate(&t->pool, &s->kv.table, s->kv.len);
}

void target_kv_release(struct gr_target *t, struct session *s)
{
    gr_kv_table_release(&t->pool, &s->kv.table);
    s->kv.len = 0;
    s->kv.forked = false;
}

void target_kv_fork(struct gr_target *t, struct session *s, const struct session *from, int32_t n_block)
{
    gr_kv_table_share(&t->pool, &s->kv.table, &from->kv.table, n_block);
    s->kv.len = n_block * GR_KV_BLOCK_TOKENS;
    s->kv.forked = true;
}

void target_kv_taken(struct session *s, int32_t n_block)
{
    s->kv.len += n_block * GR_KV_BLOCK_TOKENS;
    s->kv.forked = true;
}

bool target_kv_rows_run(struct session *s)
{
    const bool forked = s->kv.forked;
    s->kv.forked = false;
    return forked;
}

void target_kv_add(struct session *s, int32_t n_row)
{
    s->kv.len += n_row;
}

void target_kv_complete(struct session *s)
{
    s->kv.len = s->prefix.len - 1;
    s->kv.final_len = s->prefix.len;
}

void target_kv_show_all(struct session *s)
{
    s->kv.final_len = s->prefix.len;
}
