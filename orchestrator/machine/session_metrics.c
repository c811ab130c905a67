#include "orchestrator/machine/session_metrics.h"

#include "common/protocol/wire.h"

#include <string.h>

void gr_metrics_roll_back(struct gr_session_metrics *s, uint32_t keep_len)
{
    for (uint32_t k = s->n_open; k > 0; k--) {
        struct gr_metrics_round *r = &s->open[k - 1];
        const uint32_t end = r->base_len + r->n_accepted;
        const uint32_t n_back = end > keep_len ? GR_MIN(end - keep_len, r->n_accepted) : 0;
        if (n_back == 0) {
            continue;
        }
        s->num_accepted_tokens -= n_back;
        s->num_rewound_tokens += n_back;
        s->rewind_steps += !r->rewound;
        r->rewound = true;
        for (uint32_t i = r->n_accepted - n_back; i < r->n_accepted; i++) {
            s->accepted_per_position[i]--;
        }
        r->n_accepted -= n_back;
    }
}

/* Rounds that nothing can take back any more are forgotten: their tokens were final before the COMMIT that came now. */
static void settle(struct gr_session_metrics *s)
{
    uint32_t n_done = 0;
    while (n_done < s->n_open && s->open[n_done].base_len + s->open[n_done].n_accepted <= s->final_len) {
        n_done++;
    }
    s->n_open -= n_done;
    memmove(s->open, s->open + n_done, s->n_open * sizeof(s->open[0]));
}

static void uncount(struct gr_session_metrics *s, const struct gr_metrics_round *r)
{
    s->rounds--;
    s->wait_ns -= r->wait_ns;
    s->verify_ns -= r->verify_ns;
    s->host_ns -= r->host_ns;
    s->partial_rounds -= r->partial;
    if (r->n_draft == 0) {
        s->root_only_rounds--;
        return;
    }
    s->num_drafts--;
    s->num_draft_tokens -= r->n_draft;
    s->num_rewound_tokens -= r->n_draft - r->n_accepted;
    s->rewind_steps -= r->rewound;
}

void gr_metrics_cut(struct gr_session_metrics *s, uint32_t keep_len)
{
    uint32_t n = 0;
    gr_metrics_roll_back(s, keep_len);
    for (uint32_t i = 0; i < s->n_open; i++) {
        if (s->open[i].base_len >= keep_len && !s->open[i].judged) {
            uncount(s, &s->open[i]);
        } else {
            s->open[n++] = s->open[i];
        }
    }
    s->n_open = n;
}

static void take_verification(struct gr_session_metrics *s, const struct gr_msg_commit *m)
{
    s->partial_rounds += m->verdict_kind == GR_VERDICT_PARTIAL;
    s->full_refreshes += m->verdict_kind == GR_VERDICT_FULL;
    s->drift_checked += m->n_judged;
    s->drift_mismatches += m->n_mismatch;
    s->partial_since_refresh = m->verdict_kind == GR_VERDICT_PARTIAL ? s->partial_since_refresh + 1 : 0;
    gr_metrics_roll_back(s, m->keep_len);
}

/* The oldest gives way: it is as good as final where more than a buffer of them are open. */
static void keep_open(struct gr_session_metrics *s, const struct gr_msg_commit *m)
{
    const uint32_t most = (uint32_t)GR_ARRAY_LEN(s->open);
    if (s->n_open == most) {
        memmove(s->open, s->open + 1, (most - 1) * sizeof(s->open[0]));
        s->n_open--;
    }
    s->open[s->n_open++] = (struct gr_metrics_round){.base_len = m->keep_len,
                                                     .n_draft = m->n_draft,
                                                     .n_accepted = m->n_accepted,
                                                     .rewound = m->n_accepted<m->n_draft, .judged = m->n_judged> 0,
                                                     .partial = m->verdict_kind == GR_VERDICT_PARTIAL,
                                                     .wait_ns = m->wait_ns,
                                                     .verify_ns = m->verify_ns,
                                                     .host_ns = m->host_ns};
}

static void take_commit(struct gr_session_metrics *s, const struct gr_msg_commit *m, uint64_t now_ns)
{
    take_verification(s, m);
    s->completion_tokens += m->ids.n;
    s->first_token_ns = s->first_token_ns == 0 ? now_ns : s->first_token_ns;
    s->last_token_ns = now_ns;
    s->late_trees += m->n_late;
    s->late_trees_rerooted += m->n_reroot;
    s->desyncs += m->n_desync;
    s->fallbacks += m->n_fallback;
    if (m->round == 0) {
        s->cached_tokens += m->n_cached;
        return; /* the prefill is not a round */
    }
    s->rounds++;
    s->wait_ns += m->wait_ns;
    s->verify_ns += m->verify_ns;
    s->host_ns += m->host_ns;
    keep_open(s, m);
    if (m->n_draft == 0) {
        s->root_only_rounds++;
        return;
    }
    s->num_drafts++;
    s->num_draft_tokens += m->n_draft;
    s->num_accepted_tokens += m->n_accepted;
    s->num_rewound_tokens += m->n_draft - m->n_accepted;
    s->rewind_steps += m->n_accepted < m->n_draft;
    for (uint32_t i = 0; i < m->n_accepted; i++) {
        s->accepted_per_position[i]++;
    }
}

void gr_metrics_begin_turn(struct gr_session_metrics *s, uint32_t n_prompt)
{
    s->prompt_tokens += n_prompt;
    s->n_open = 0;
}

void gr_metrics_drop(struct gr_session_metrics *s, uint32_t n_token)
{
    s->completion_tokens -= n_token;
}

void gr_metrics_fall_back(struct gr_session_metrics *s)
{
    s->fallbacks++;
}

void gr_metrics_take(struct gr_session_metrics *s, const struct gr_msg *m, uint64_t now_ns)
{
    if (m->type == GR_MSG_COMMIT) {
        settle(s);
        take_commit(s, &m->commit, now_ns);
        s->final_len = m->commit.final_len;
    } else if (m->type == GR_MSG_DRAFT_STATS) {
        s->n_drafter_round += m->draft_stats.n_round;
        s->draft_ns += m->draft_stats.draft_ns;
        s->draft_host_ns += m->draft_stats.host_ns;
        s->draft_ahead_verdicts += m->draft_stats.n_ahead;
        s->draft_ahead_hits += m->draft_stats.n_hit;
        s->n_first += m->draft_stats.n_first;
        s->n_first_hit += m->draft_stats.n_first_hit;
        s->first_expected += m->draft_stats.first_expected;
        s->acceptance_alarms += m->draft_stats.n_alarm;
        s->wire_bytes += m->draft_stats.wire_bytes;
        s->wire_tokens += m->draft_stats.wire_tokens;
    } else if (m->type == GR_MSG_DRAFT_TROUBLE) {
        s->desyncs += m->draft_trouble.n_desync;
        s->fallbacks += m->draft_trouble.n_fallback;
        s->feature_gaps += m->draft_trouble.n_feature_gap;
    } else if (m->type == GR_MSG_ATTACHED) {
        memcpy(s->transport, m->attached.transport, sizeof(s->transport));
        s->fallbacks += m->attached.n_fallback;
    }
}

double gr_metrics_tokens_per_second(const struct gr_session_metrics *m)
{
    if (m->completion_tokens < 2 || m->last_token_ns <= m->first_token_ns) {
        return 0.0;
    }
    return (double)(m->completion_tokens - 1) * 1e9 / (double)(m->last_token_ns - m->first_token_ns);
}

double gr_metrics_mean_acceptance_length(const struct gr_session_metrics *m)
{
    return m->num_drafts > 0 ? 1.0 + (double)m->num_accepted_tokens / (double)m->num_drafts : 1.0;
}
