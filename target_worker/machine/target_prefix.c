/* The prefix cache of the target: sessions whose texts begin alike compute that beginning once.
 *
 * Between passes every whole block with full KV of final tokens is published, of whatever session: row independence
 * makes its KV what any other session would compute for these tokens, as a prompt or as its own text. What was computed
 * under a view is missing from kv.len until a refresh has computed it anew, and what is provisional lies after it. What
 * came after a stop of which the target was not told yet is forgotten with the TRUNCATE that tells it.
 *
 * A session takes blocks once a turn, when it is admitted: so hits count against what it needs, and are held from then
 * on. The features that a head needs of them are stored with the blocks, by whichever session has them first; where a
 * block has none the head starts after it, as it does when it attaches late. Its last token is always computed where a
 * pick is due, since the pick is its row's. Idle blocks count as free ones everywhere, and are given up, the longest
 * unused first, before any session is evicted or pre-empted. Decisions D-217, D-218. */
#include "common/base/log.h"
#include "common/base/session_id.h"
#include "target_worker/machine/target_internal.h"

#include <inttypes.h>

enum gr_status target_prefix_create(struct gr_target *t)
{
    return t->config.prefix_cache ? gr_kv_cache_init(&t->prefix_cache, &t->pool, &t->config.kv_identity) : GR_OK;
}

void target_prefix_destroy(struct gr_target *t)
{
    if (t->prefix_cache.n_evicted > 0 || t->counters.n_prefix_hit > 0) {
        log_info("prefix cache: %" PRIu64 " of %" PRIu64 " prompt tokens were there, %" PRIu64 " blocks given up",
                 t->counters.n_prefix_hit, t->counters.n_prefix_query, t->prefix_cache.n_evicted);
    }
    gr_kv_cache_finish(&t->prefix_cache);
}

/* Tokens at the beginning that may come from others. */
static int32_t takable_len(const struct session *s)
{
    return s->turn.prefill_end - (s->turn.pick_due ? 1 : 0);
}

int32_t target_prefix_take(struct gr_target *t, struct session *s)
{
    struct gr_kv_table *table = &s->kv.table;
    if (!t->config.prefix_cache || s->kv.len != table->n_block * GR_KV_BLOCK_TOKENS) {
        return 0; /* it goes on in a block of its own */
    }
    return gr_kv_cache_take(&t->prefix_cache, s->wishes.salt, s->prefix.token, takable_len(s), table);
}

void target_prefix_return(struct gr_target *t, struct session *s)
{
    gr_kv_table_truncate(&t->pool, &s->kv.table, s->kv.len);
}

void target_prefix_taken(struct gr_target *t, struct session *s, int32_t n)
{
    if (n > 0) {
        target_kv_taken(s, n);
        s->wishes.fork_of = 0; /* it has its beginning */
        target_turn_taken(s, n * GR_KV_BLOCK_TOKENS);
        target_take_features(t, s);
        log_debug("session %" GR_SESSION_ID_PRI ": %d tokens of the prompt have KV of others", s->id,
                  n * GR_KV_BLOCK_TOKENS);
    }
}

void target_prefix_count(struct gr_target *t, const struct session *s)
{
    if (t->config.prefix_cache) {
        t->counters.n_prefix_query += (uint64_t)s->turn.prefill_end;
        t->counters.n_prefix_hit += (uint64_t)s->turn.n_taken;
    }
}

void target_prefix_tell(struct gr_target *t, struct gr_msg_pong *m)
{
    m->shares_prefixes = t->config.prefix_cache;
    m->n_prefix_query = t->counters.n_prefix_query - t->prefix_told.n_query;
    m->n_prefix_hit = t->counters.n_prefix_hit - t->prefix_told.n_hit;
    m->n_prefix_evicted = t->prefix_cache.n_evicted - t->prefix_told.n_evicted;
    t->prefix_told.n_query += m->n_prefix_query;
    t->prefix_told.n_hit += m->n_prefix_hit;
    t->prefix_told.n_evicted += m->n_prefix_evicted;
}

static void publish(struct gr_target *t, struct session *s)
{
    const int32_t len = GR_MIN(s->kv.len, s->kv.final_len);
    gr_kv_cache_publish(&t->prefix_cache, s->wishes.salt, s->prefix.token, len, s->id, &s->kv.table);
    target_store_features(t, s, len / GR_KV_BLOCK_TOKENS);
}

void target_prefix_publish_pass(struct gr_target *t)
{
    for (int i = 0; t->config.prefix_cache && i < t->pass.n_seq; i++) {
        struct session *s = &t->session[t->pass.seq[i].session];
        if (s->state != SESSION_FREE) {
            publish(t, s);
        }
    }
}

void target_prefix_forget(struct gr_target *t, const struct session *s, int32_t len)
{
    if (t->config.prefix_cache && len < s->prefix.len) {
        gr_kv_cache_forget(&t->prefix_cache, &s->kv.table, len / GR_KV_BLOCK_TOKENS, s->id);
    }
}

void target_prefix_give_up(struct gr_target *t)
{
    const bool all = !t->config.prefix_cache || gr_kv_cache_make_free(&t->prefix_cache, t->pool.n_block);
    GR_ASSERT(all);
}

bool target_reserve(struct gr_target *t, struct session *s, int32_t n_token)
{
    struct gr_kv_table *table = &s->kv.table;
    if (gr_kv_table_reserve(&t->pool, table, n_token) == GR_OK) {
        return true;
    }
    const int32_t n_block = (n_token + GR_KV_BLOCK_TOKENS - 1) / GR_KV_BLOCK_TOKENS;
    return t->config.prefix_cache &&
           gr_kv_cache_make_free(&t->prefix_cache, n_block - table->n_block - table->n_reserved) &&
           gr_kv_table_reserve(&t->pool, table, n_token) == GR_OK;
}
