/* A session of the target: found, cut, freed, and the lines that end it. Everything above stands on this. */
#include "common/base/log.h"
#include "common/base/session_id.h"
#include "target_worker/machine/target_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum gr_status target_init_session(struct session *s, const struct gr_target_config *c)
{
    const bool ok = gr_prefix_alloc(&s->prefix, c->n_ctx_max);
    s->kind = calloc((size_t)c->n_ctx_max, sizeof(*s->kind));
    if (!ok || s->kind == NULL) {
        log_error("out of memory for %d sessions of %d tokens", c->n_session_max, c->n_ctx_max);
        return GR_ENOMEM;
    }
    return gr_kv_table_init(&s->kv.table, c->n_ctx_max / GR_KV_BLOCK_TOKENS + 1);
}

void target_finish_session(struct session *s)
{
    gr_prefix_free(&s->prefix);
    free(s->kind);
    gr_kv_table_finish(&s->kv.table);
}

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
    struct gr_msg m = {.type = GR_MSG_ERROR, .session = session, .error = {.code = (uint32_t)-code, .ended = ended}};
    snprintf(m.error.text, sizeof(m.error.text), "%s", text);
    t->io.send_msg(t->io.ctx, &m);
}

void target_send_error(struct gr_target *t, uint64_t session, enum gr_status code, const char *text)
{
    send_error(t, session, code, false, text);
}

void target_log_about(const struct session *s)
{
    gr_log_about(&(struct gr_log_subject){.session = s->id, .epoch = s->epoch, .round = s->next.round});
}

void target_fall_back(struct gr_target *t, struct session *s, enum gr_fallback reason, const char *detail)
{
    const struct gr_log_subject before = gr_log_subject_now();
    t->counters.n_fallback++;
    target_log_about(s);
    gr_fall_back(&s->fallbacks, reason, s->id, s->next.round, detail);
    gr_log_about(&before);
}

void target_append_token(struct session *s, int32_t token, enum token_kind kind)
{
    s->kind[s->prefix.len] = (uint8_t)kind;
    gr_prefix_append(&s->prefix, token);
}

void target_note_late(struct gr_target *t, struct session *s)
{
    s->tally.n_late++;
    t->counters.n_draft_late++;
}

void target_note_desync(struct gr_target *t, struct session *s)
{
    t->counters.n_desync++;
    s->tally.n_desync++;
    s->tally.n_desync_all++;
}

void target_note_reroot(struct gr_target *t, struct session *s)
{
    s->tally.n_reroot++;
    t->counters.n_reroot++;
}

void target_tally_told(struct session *s)
{
    s->tally = (struct tally){.n_desync_all = s->tally.n_desync_all};
    s->fallbacks.n_untold = 0;
}

void target_forget_probe_sent(struct session *s)
{
    gr_spec_econ_forget_probe(&s->econ.alone);
    gr_spec_econ_forget_probe(&s->econ.shared);
}

void target_forget_probe(struct session *s)
{
    target_walk_forget(&s->probe);
    target_forget_probe_sent(s);
}

void target_forget_trees(struct session *s)
{
    target_walk_forget(&s->draft);
    target_forget_probe(s);
    target_link_forget_asked(&s->link);
}

void target_drop_drafter(struct gr_target *t, struct session *s, enum gr_fallback reason)
{
    if (!s->link.attached && s->link.ever_attached) {
        return;
    }
    target_link_lose(&s->link);
    target_forget_trees(s);
    if (reason != GR_FALLBACK_NONE) {
        target_fall_back(t, s, reason, NULL);
    } else {
        log_info("session %" GR_SESSION_ID_PRI ": the drafter is gone", s->id);
    }
}

void target_cut(struct gr_target *t, struct session *s, int32_t len)
{
    if (len >= s->prefix.len) {
        return;
    }
    gr_prefix_cut(&s->prefix, len);
    target_kv_cut(t, s, len);
    target_view_cut(&s->specpv, s->kv.len);
    target_link_forget_from(&s->link, len);
    target_next_number(&s->next);
    target_link_fence(&s->link, s->next.round); /* trees on what is gone come too late */
    target_cut_features(s, len);
    target_forget_trees(s);
}

/* An empty slot; the arrays stay. */
void target_clear_slot(struct gr_target *t, struct session *s)
{
    gr_kv_table_release(&t->pool, &s->kv.table);
    const struct session empty = {
        .prefix = gr_prefix_empty(&s->prefix), .kind = s->kind, .kv = {.table = s->kv.table}, .turn = {.cut_at = -1}};
    *s = empty;
}

void target_free_session(struct gr_target *t, struct session *s)
{
    const struct gr_msg m = {.type = GR_MSG_CLOSED, .session = s->id};
    for (uint32_t i = 0; s->turn.held.valid && i <= s->turn.held.n_refused; i++) { /* every APPEND is answered */
        target_send_error(t, s->id, GR_ECANCELED, "the session is closed");
    }
    target_clear_slot(t, s);
    t->io.send_msg(t->io.ctx, &m);
}

void target_go_idle(struct gr_target *t, struct session *s, uint64_t now_ns)
{
    GR_ASSERT(s->kv.final_len == s->prefix.len);
    target_turn_idle(s, now_ns);
    target_forget_trees(s);
    target_link_owe(&s->link, s->link.owes_delta);
    gr_kv_table_truncate(&t->pool, &s->kv.table,
                         s->kv.len); /* tokens that lack full KV are computed with the next turn */
    gr_kv_table_unreserve(&t->pool, &s->kv.table);
}

void target_fail_session(struct gr_target *t, struct session *s, enum gr_status code, const char *text)
{
    send_error(t, s->id, code, true, text);
    target_free_session(t, s);
}

void target_drop_provisional(struct gr_target *t, struct session *s)
{
    if (s->kv.final_len < s->prefix.len) {
        t->counters.n_dropped += (uint64_t)(s->prefix.len - s->kv.final_len);
        target_cut(t, s, s->kv.final_len);
    }
}

int32_t target_tree_rows_max(const struct session *s)
{
    return s->next.mode == GR_SPEC_TREE && s->draft.valid ? GR_MIN(s->draft.tree.n, s->next.n_want) : 0;
}

int32_t target_decode_rows(const struct session *s)
{
    const bool judge = s->specpv.next.round == GR_SPECPV_ROUND_JUDGE;
    return target_n_chain(s) + (judge ? 0 : target_tree_rows_max(s) + 1);
}
