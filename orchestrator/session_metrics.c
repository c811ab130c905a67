#include "orchestrator/session_metrics.h"

#include <string.h>

static void take_commit(struct gr_session_metrics *s, const struct gr_msg *m, uint64_t now_ns)
{
    s->completion_tokens += m->ids.n;
    s->first_token_ns = s->first_token_ns == 0 ? now_ns : s->first_token_ns;
    s->last_token_ns = now_ns;
    s->late_trees += m->n_late;
    s->late_trees_rerooted += m->n_reroot;
    s->desyncs += m->n_desync;
    s->fallbacks += m->n_fallback;
    if (m->round == 0) {
        return; /* the prefill is not a round */
    }
    s->rounds++;
    s->wait_ns += m->wait_ns;
    s->verify_ns += m->verify_ns;
    s->host_ns += m->host_ns;
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

void gr_metrics_take(struct gr_session_metrics *s, const struct gr_msg *m, uint64_t now_ns)
{
    if (m->type == GR_MSG_COMMIT) {
        take_commit(s, m, now_ns);
    } else if (m->type == GR_MSG_DRAFT_STATS) {
        s->n_drafter_round += m->n_round;
        s->draft_ns += m->draft_ns;
        s->draft_host_ns += m->host_ns;
        s->draft_ahead_verdicts += m->n_ahead;
        s->draft_ahead_hits += m->n_hit;
        s->n_first += m->n_first;
        s->n_first_hit += m->n_first_hit;
        s->first_expected += m->first_expected;
        s->acceptance_alarms += m->n_alarm;
        s->wire_bytes += m->wire_bytes;
        s->wire_tokens += m->wire_tokens;
    } else if (m->type == GR_MSG_ATTACHED) {
        memcpy(s->transport, m->transport, sizeof(s->transport));
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
