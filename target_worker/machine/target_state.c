/* A session of the target: found, cut, freed, and the lines that end it. Everything above stands on this. */
#include "target_worker/machine/target.h"
#include "target_worker/machine/target_internal.h"

#include <stdio.h>

struct session *target_find(struct gr_target *t, uint64_t id)
{
    for (int i = 0; i < t->config.n_session_max; i++) {
        if (t->session[i].state != SESSION_FREE && t->session[i].id == id) {
            return &t->session[i];
        }
    }
    return NULL;
}

static void send_error(struct gr_target *t, uint64_t session, enum gr_status code, bool ended, const char *text)
{
    struct gr_msg m = {.type = GR_MSG_ERROR, .session = session, .code = (uint32_t)-code, .ended = ended};
    snprintf(m.text, sizeof(m.text), "%s", text);
    t->io.send_msg(t->io.ctx, &m);
}

void target_send_error(struct gr_target *t, uint64_t session, enum gr_status code, const char *text)
{
    send_error(t, session, code, false, text);
}

void target_fall_back(struct gr_target *t, struct session *s, enum gr_fallback reason, const char *detail)
{
    t->counters.n_fallback++;
    gr_fall_back(&s->fallbacks, reason, s->id, s->round, detail);
}

void target_forget_trees(struct session *s)
{
    s->draft.valid = s->probe.valid = s->asked = false;
    s->silent_ns = 0;
    s->econ[0].probing = s->econ[1].probing = false;
}

void target_drop_drafter(struct gr_target *t, struct session *s, enum gr_fallback reason)
{
    if (!s->has_peer && s->ever_attached) {
        return;
    }
    s->has_peer = false;
    s->ever_attached = true;
    target_forget_trees(s);
    s->owed = false;
    target_fall_back(t, s, reason, NULL);
}

void target_cut(struct gr_target *t, struct session *s, int32_t len)
{
    if (len >= s->committed_len) {
        return;
    }
    s->committed_len = len;
    s->kv_len = GR_MIN(s->kv_len, len);
    s->final_len = GR_MIN(s->final_len, len);
    s->pv.end_due = GR_FINISH_NONE;
    s->pv.dense_from = s->pv.dense_from > s->kv_len ? GR_VIEW_NONE : s->pv.dense_from;
    s->peer_len = GR_MIN(s->peer_len, len);
    s->fence_round = ++s->round; /* trees on what is gone come too late */
    target_cut_features(s, len);
    target_forget_trees(s);
    gr_kv_table_truncate(&t->pool, &s->table, s->kv_len);
}

/* An empty slot; the arrays stay. */
void target_clear_slot(struct gr_target *t, struct session *s)
{
    gr_kv_table_release(&t->pool, &s->table);
    const struct session empty = {.token = s->token, .kind = s->kind, .hash = s->hash, .table = s->table, .cut_at = -1};
    *s = empty;
}

void target_free_session(struct gr_target *t, struct session *s)
{
    const struct gr_msg m = {.type = GR_MSG_CLOSED, .session = s->id};
    for (uint32_t i = 0; s->held.valid && i <= s->held.n_refused; i++) { /* every APPEND is answered */
        target_send_error(t, s->id, GR_ECANCELED, "the session is closed");
    }
    target_clear_slot(t, s);
    t->io.send_msg(t->io.ctx, &m);
}

void target_go_idle(struct gr_target *t, struct session *s, uint64_t now_ns)
{
    GR_ASSERT(s->final_len == s->committed_len);
    s->state = SESSION_IDLE;
    s->last_used_ns = now_ns;
    target_forget_trees(s);
    s->owed = s->owed && s->has_peer;
    gr_kv_table_truncate(&t->pool, &s->table, s->kv_len); /* tokens that lack full KV are computed with the next turn */
    gr_kv_table_unreserve(&t->pool, &s->table);
}

void target_fail_session(struct gr_target *t, struct session *s, enum gr_status code, const char *text)
{
    send_error(t, s->id, code, true, text);
    target_free_session(t, s);
}

void target_drop_provisional(struct gr_target *t, struct session *s)
{
    if (s->final_len < s->committed_len) {
        t->counters.n_dropped += (uint64_t)(s->committed_len - s->final_len);
        target_cut(t, s, s->final_len);
    }
}

int32_t target_tree_rows_max(const struct session *s)
{
    return s->mode == GR_SPEC_TREE && s->draft.valid ? GR_MIN(s->draft.tree.n, s->n_want) : 0;
}

int32_t target_decode_rows(const struct session *s)
{
    const bool judge = s->pv.next.round == GR_SPECPV_ROUND_JUDGE;
    return target_n_chain(s) + (judge ? 0 : target_tree_rows_max(s) + 1);
}
