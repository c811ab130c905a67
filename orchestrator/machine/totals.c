#include "orchestrator/machine/totals.h"

#include "common/protocol/wire.h"

#include <string.h>

/* ---- times in buckets ---- */

uint64_t gr_histogram_ceiling_ns(int i)
{
    static const uint64_t step[] = {1, 2, 5};
    uint64_t ns = 100000;
    for (int k = 0; k < i / 3; k++) {
        ns *= 10;
    }
    return ns * step[i % 3];
}

void gr_histogram_add(struct gr_histogram *h, uint64_t ns, uint64_t times)
{
    int i = 0;
    while (i < GR_HISTOGRAM_CEILINGS && ns > gr_histogram_ceiling_ns(i)) {
        i++;
    }
    h->n[i] += times;
    h->sum_ns += ns * times;
}

/* ---- messages of workers ---- */

static const char *const transports[GR_TOTALS_TRANSPORTS] = {"loop", "shm", "tcp", "verbs", "other"};

const char *gr_totals_transport_name(int i)
{
    return transports[i];
}

static int find_transport(const char *name)
{
    int i = 0;
    while (i < GR_TOTALS_TRANSPORTS - 1 && strcmp(name, transports[i]) != 0) {
        i++;
    }
    return i;
}

static void take_round(struct gr_totals *t, const struct gr_msg_commit *m)
{
    t->rounds++;
    t->wait_ns += m->wait_ns;
    t->verify_ns += m->verify_ns;
    t->host_ns += m->host_ns;
    if (m->n_draft == 0) {
        t->root_only_rounds++;
        return;
    }
    t->num_drafts++;
    t->num_draft_tokens += m->n_draft;
    t->num_accepted_tokens += m->n_accepted;
    for (uint32_t i = 0; i < GR_MIN(m->n_accepted, (uint32_t)GR_NODE_MAX); i++) {
        t->accepted_per_position[i]++;
    }
    gr_histogram_add(&t->draft_round_trip, m->wait_ns, 1);
}

static void take_commit(struct gr_totals *t, const struct gr_msg_commit *m)
{
    t->partial_rounds += m->verdict_kind == GR_VERDICT_PARTIAL;
    t->full_refreshes += m->verdict_kind == GR_VERDICT_FULL;
    t->drift_checked += m->n_judged;
    t->drift_mismatches += m->n_mismatch;
    t->late_trees += m->n_late;
    t->late_trees_rerooted += m->n_reroot;
    t->desyncs[GR_TOLD_BY_TARGET] += m->n_desync;
    t->fallbacks[GR_TOLD_BY_TARGET] += m->n_fallback;
    if (m->round != 0) { /* the prefill is not a round */
        take_round(t, m);
    }
}

static void take_stats(struct gr_totals *t, const struct gr_msg_draft_stats *m, const char *transport)
{
    t->draft_ns += m->draft_ns;
    t->draft_host_ns += m->host_ns;
    t->draft_ahead_verdicts += m->n_ahead;
    t->draft_ahead_hits += m->n_hit;
    t->acceptance_alarms += m->n_alarm;
    t->wire_bytes[find_transport(transport)] += m->wire_bytes;
}

void gr_totals_take(struct gr_totals *t, const struct gr_msg *m, const char *transport)
{
    switch (m->type) {
    case GR_MSG_COMMIT:
        take_commit(t, &m->commit);
        break;
    case GR_MSG_DRAFT_STATS:
        take_stats(t, &m->draft_stats, transport);
        break;
    case GR_MSG_DRAFT_TROUBLE:
        t->desyncs[GR_TOLD_BY_DRAFT] += m->draft_trouble.n_desync;
        t->fallbacks[GR_TOLD_BY_DRAFT] += m->draft_trouble.n_fallback;
        t->feature_gaps += m->draft_trouble.n_feature_gap;
        break;
    case GR_MSG_PONG:
        t->prefix_queries += m->pong.n_prefix_query;
        t->prefix_hits += m->pong.n_prefix_hit;
        t->prefix_evictions += m->pong.n_prefix_evicted;
        t->orphans += m->pong.n_orphan;
        break;
    case GR_MSG_ATTACHED:
        t->fallbacks[GR_TOLD_BY_DRAFT] += m->attached.n_fallback;
        break;
    default:
        break;
    }
}

void gr_totals_fall_back(struct gr_totals *t)
{
    t->fallbacks[GR_TOLD_BY_ORCHESTRATOR]++;
}

void gr_totals_refused(struct gr_totals *t, enum gr_status why)
{
    const bool full = why == GR_AGAIN || why == GR_ENOMEM;
    t->turns_refused[full ? GR_REFUSED_FULL : why == GR_ELIMIT ? GR_REFUSED_LIMIT : GR_REFUSED_INVALID]++;
}
