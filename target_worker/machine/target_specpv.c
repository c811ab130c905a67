/* SpecPV in the target: tokens that were accepted under a view, until full KV has judged them.
 *
 * Between passes of a session that decodes: kv_len tokens have full KV, those up to committed_len - 1 partial KV in
 * their own cells after it (the missing tokens, at most n_buffer), the tail has none. Exact: everything before the
 * first missing token's successor is final, final_len = kv_len + 1; lossy: everything is. A refresh runs the missing
 * tokens again as chain rows. Where the pick of one is not the next committed token, exact SpecPV puts the pick in its
 * place and forgets what follows: VERDICT and COMMIT say keep_len < base_len, and trees on what is gone are after the
 * fence. Everything that ends a turn, frees KV or passes a session on keeps final tokens only.
 * Decisions D-065, D-066, D-068. */
#include "common/base/log.h"
#include "common/base/session_id.h"
#include "target_worker/machine/target_internal.h"

#include <inttypes.h>

/* ---- on and off ---- */

void target_specpv_off(struct gr_target *t, struct session *s, enum gr_fallback reason, const char *detail)
{
    if (s->specpv.mode == GR_SPECPV_OFF) {
        return;
    }
    s->specpv.mode = GR_SPECPV_OFF;
    target_fall_back(t, s, reason, detail);
}

void target_specpv_open(struct gr_target *t, struct session *s)
{
    const struct gr_wishes *w = &s->wishes;
    const bool automatic = w->specpv == GR_SPECPV_AUTO;
    const struct gr_specpv_params wanted =
        automatic ? gr_specpv_automatic(&w->specpv_params, (uint64_t)s->prefix.len + w->turn.max_tokens)
                  : w->specpv_params;
    const int32_t n_node = s->with_draft ? (int32_t)w->n_node : 0;
    const int32_t n_level = w->draft_depth > 0 ? GR_MIN((int32_t)w->draft_depth, n_node) : n_node;
    s->specpv = (struct session_specpv){.mode = automatic ? GR_SPECPV_EXACT : w->specpv,
                                        .automatic = automatic,
                                        .params = gr_specpv_resolve(&wanted, &t->config.specpv),
                                        .dense_from = GR_VIEW_NONE};
    if (s->specpv.mode == GR_SPECPV_OFF) {
        return;
    }
    if (t->config.specpv.n_buffer == 0) {
        target_specpv_off(t, s, t->config.lacks_views ? GR_FALLBACK_NO_VIEWS : GR_FALLBACK_SPECPV_ABSENT, NULL);
        return;
    }
    const char *wrong = gr_specpv_preflight(&s->specpv.params, n_node + 1, n_level, t->config.n_ctx_max);
    if (wrong != NULL) {
        target_specpv_off(t, s, GR_FALLBACK_SPECPV_UNFIT, wrong);
    }
}

enum gr_specpv_mode target_specpv_shown(const struct session *s)
{
    return s->specpv.mode == GR_SPECPV_EXACT && s->specpv.automatic ? GR_SPECPV_AUTO : s->specpv.mode;
}

void target_refresh(struct gr_target *t, uint64_t id)
{
    struct session *s = target_find(t, id);
    if (s != NULL && s->specpv.mode != GR_SPECPV_OFF) { /* else it was told of a session that is gone, or has none */
        target_view_ask(&s->specpv);
    }
}

/* ---- what the next round is ---- */

/* Whether a cycle of partial rounds and a refresh gains, as far as known: times from the cost table, tokens from this
 * session's rounds, drift from its judgements. */
static bool pays(const struct gr_target *t, const struct session *s, int32_t n_row)
{
    const struct gr_specpv_params *p = &s->specpv.params;
    const struct gr_spec_econ *e = s->shares_pass ? &s->econ.shared : &s->econ.alone;
    const double n_token = s->next.mode == GR_SPEC_TREE ? GR_MAX(e->tree_tokens, 1.0) : 1.0;
    const int32_t n_missing = gr_specpv_usual_missing(p, &s->specpv.drift, n_row, n_token);
    const int32_t n_seen = GR_MIN(gr_specpv_view_tokens(p), s->prefix.len) + n_missing / 2;
    const struct gr_attended all = gr_attends_all(s->prefix.len);
    const struct gr_attended view = {.n_token = GR_MIN(n_seen, s->prefix.len), .view = true};
    const struct gr_specpv_price price = {.full_ns = target_alone_ns(t, n_row, all),
                                          .partial_ns = target_alone_ns(t, n_row, view),
                                          .refresh_ns = target_alone_ns(t, n_row + n_missing, all),
                                          .rest_ns =
                                              e->overhead_ns + (s->next.mode == GR_SPEC_TREE ? e->latency_ns : 0.0),
                                          .n_token = n_token,
                                          .n_missing = n_missing,
                                          .drift = gr_specpv_drift_rate(&s->specpv.drift)};
    return gr_specpv_pays(&price);
}

/* After rounds without it the view is too old: its window would be all that has come since. */
static bool has_view(const struct session *s)
{
    const int32_t window = (int32_t)(s->specpv.params.n_window + 1) * GR_KV_BLOCK_TOKENS;
    return s->specpv.dense_from != GR_VIEW_NONE &&
           s->kv.len - s->specpv.dense_from <= window + (int32_t)s->specpv.params.n_buffer;
}

void target_specpv_decide(const struct gr_target *t, struct session *s, int32_t n_row, int32_t n_level)
{
    struct session_specpv *pv = &s->specpv;
    pv->next = (struct gr_specpv_decision){GR_SPECPV_ROUND_PLAIN, GR_SPECPV_WHY_NONE};
    if (t->config.specpv.n_buffer == 0 || s->state != SESSION_DECODE) {
        return;
    }
    const bool rests =
        pv->automatic && target_n_missing(s) == 0 && (!gr_specpv_trial_due(&pv->trial) || !pays(t, s, n_row));
    const struct gr_specpv_input in = {.mode = rests ? GR_SPECPV_OFF : pv->mode,
                                       .params = &pv->params,
                                       .context = s->prefix.len,
                                       .n_missing = target_n_missing(s),
                                       .n_row = n_row,
                                       .n_level = n_level,
                                       .n_partial = pv->n_partial,
                                       .has_view = has_view(s),
                                       .asked = pv->asked,
                                       .end_due = pv->end_due != GR_FINISH_NONE,
                                       .drift = &pv->drift};
    pv->next = gr_specpv_decide(&in);
}

void target_specpv_fill_none(struct gr_pass_seq *q)
{
    q->partial = q->refresh_view = q->exact = q->judge_only = false;
    q->n_chain = 0;
    q->corrupt_at = -1;
}

void target_specpv_fill(struct gr_target *t, struct session *s, struct gr_pass_seq *q)
{
    const struct gr_specpv_params *p = &s->specpv.params;
    const enum gr_specpv_round round = s->specpv.next.round;
    const bool may_go_on = s->specpv.mode != GR_SPECPV_OFF;
    q->partial = round == GR_SPECPV_ROUND_PARTIAL;
    q->refresh_view = may_go_on && (round == GR_SPECPV_ROUND_REFRESH || round == GR_SPECPV_ROUND_SEED);
    q->judge_only = round == GR_SPECPV_ROUND_JUDGE;
    q->n_chain = target_n_chain(s);
    q->chain_token = &s->prefix.token[s->kv.len];
    /* A session that SpecPV was taken from has no provisional tokens (target_specpv_off's callers). */
    q->exact = s->specpv.mode == GR_SPECPV_EXACT && q->n_chain > 0;
    q->view_budget = (struct gr_kv_budget){.n_sink = (int32_t)p->n_sink,
                                           .n_retrieval = (int32_t)p->n_retrieval,
                                           .n_window = (int32_t)p->n_window,
                                           .score_max = t->config.specpv_score_max};
    if (q->partial && s->specpv.mode == GR_SPECPV_EXACT) {
        q->n_logprob = 0; /* nothing that it brings is final: the judgement's logits count */
    }
    q->corrupt_at = -1;
    if (q->partial && t->config.test_corrupt > 0 && ++s->specpv.n_pass % t->config.test_corrupt == 0) {
        q->corrupt_at = 0;
    }
}

/* ---- what came back ---- */

bool target_specpv_is_sound(const struct session *s, const struct gr_pass_seq *q)
{
    if (q->partial ? q->n_chain != 0 : s->kv.len + q->n_chain != s->prefix.len - 1) {
        return false;
    }
    if (q->n_chain_ok < 0 || q->n_chain_ok > q->n_chain) {
        return false;
    }
    if (!q->exact || q->n_chain_ok == q->n_chain) {
        return true;
    }
    return q->correction >= 0 && q->correction != s->prefix.token[s->kv.len + q->n_chain_ok + 1];
}

uint8_t target_specpv_kind(const struct gr_pass_seq *q)
{
    return q->partial ? GR_VERDICT_PARTIAL : q->n_chain > 0 ? GR_VERDICT_FULL : GR_VERDICT_PLAIN;
}

/* Exact: nothing is judged after the first that is another. */
struct judged target_specpv_judged(const struct gr_pass_seq *q)
{
    const int32_t n_wrong = q->n_chain - q->n_chain_ok;
    return q->exact ? (struct judged){q->n_chain_ok + (n_wrong > 0), n_wrong > 0}
                    : (struct judged){q->n_chain, n_wrong};
}

static void count_judged(struct gr_target *t, struct session *s, const struct gr_pass_seq *q)
{
    const struct judged j = target_specpv_judged(q);
    gr_specpv_drift_observe(&s->specpv.drift, j.n_checked, j.n_mismatch);
    t->counters.n_refresh += !q->judge_only;
    t->counters.n_judge += q->judge_only;
    t->counters.n_drift_checked += (uint64_t)j.n_checked;
    t->counters.n_drift_mismatch += (uint64_t)j.n_mismatch;
    log_debug("session %" GR_SESSION_ID_PRI " round %u: %d missing tokens judged (%s), %d of %d stand", s->id,
              s->next.round, q->n_chain, gr_specpv_why_text(s->specpv.next.why), q->n_chain_ok, q->n_chain);
}

int32_t target_specpv_settle(struct gr_target *t, struct session *s, const struct gr_pass_seq *q)
{
    if (q->n_chain == 0) {
        return s->prefix.len;
    }
    count_judged(t, s, q);
    if (!q->exact || q->n_chain_ok == q->n_chain) {
        return s->prefix.len;
    }
    const int32_t keep_len = s->kv.len + q->n_chain_ok + 1; /* the row of the mismatch itself is right */
    t->counters.n_roll_back++;
    gr_prefix_cut(&s->prefix, keep_len);
    target_cut_features(s, keep_len);
    target_link_fence(&s->link, s->next.round + 1); /* this round's own trees, too, are on what is gone */
    target_forget_trees(s);
    return keep_len;
}

enum gr_finish target_specpv_commit(struct gr_target *t, struct session *s, const struct gr_pass_seq *q,
                                    enum gr_finish finish)
{
    struct session_specpv *pv = &s->specpv;
    if (q->kind == GR_PASS_PREFILL || !q->partial) {
        target_kv_complete(s);
        target_view_full(pv);
        if (q->kind != GR_PASS_PREFILL && (q->n_chain > 0 || q->refresh_view)) {
            target_view_take(pv, q->dense_from, s->kv.len);
            t->counters.n_view_seed += q->n_chain == 0;
        }
        return finish;
    }
    target_view_partial(pv, finish);
    t->counters.n_partial_round++;
    if (pv->mode == GR_SPECPV_EXACT) {
        return GR_FINISH_NONE;
    }
    target_kv_show_all(s);
    return finish;
}
