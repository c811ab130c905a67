/* When a pass starts: who is ready for it, and how long these wait for the others' trees.
 *
 * A pass reads all weights, whoever is in it, so one pass for all is cheaper than two. But those that are ready stand
 * still while they wait. Both are prices of the cost table, so the choice is made anew for each pass. Decision D-046.
 */
#include "target_worker/machine/target_internal.h"

/* The decoding sessions: those that are ready, and those whose trees are being drafted. */
struct halves {
    struct gr_pass_load ready, waiting;
    int n_ready, n_fixed;
    uint64_t since_ns; /* when a pass could have started */
    uint64_t fixed_ns; /* until when trees of a fixed size are waited for, whatever that costs */
};

static uint64_t ready_since(const struct gr_target *t, const struct session *s)
{
    const uint64_t since_ns = s->draft.valid ? GR_MAX(s->draft.arrived_ns, s->next.verdict_ns) : s->next.verdict_ns;
    return GR_MAX(since_ns, t->idle_ns);
}

static void add_ready(const struct gr_target *t, const struct session *s, struct halves *h)
{
    const bool fixed = s->next.mode == GR_SPEC_TREE && !s->wishes.auto_tree;
    gr_pass_load_add(&h->ready, target_decode_rows(s), target_specpv_context(s));
    h->n_ready++;
    h->n_fixed += fixed;
    h->since_ns = GR_MIN(h->since_ns, ready_since(t, s));
    h->fixed_ns = fixed ? GR_MIN(h->fixed_ns, s->next.deadline_ns) : h->fixed_ns;
}

/* The trees that are awaited are not known yet: they are taken to have as many rows as those that have come. */
static void add_waiting(const struct gr_target *t, uint64_t now_ns, struct halves *h)
{
    const int32_t n_row = (h->ready.n_row + h->n_ready - 1) / GR_MAX(h->n_ready, 1);
    for (int i = 0; i < t->config.n_session_max; i++) {
        const struct session *s = &t->session[i];
        if (s->state == SESSION_DECODE && target_waits(s, now_ns)) {
            gr_pass_load_add(&h->waiting, n_row, target_specpv_context(s));
        }
    }
}

/* When those that are ready go without the others: when they have waited for as long as a second pass, which the others
 * would then need, takes beyond one pass for all. Trees of a fixed size were asked for by the user, and are waited for
 * until their deadline, whatever it costs. */
static uint64_t go_without_others(const struct gr_target *t, uint64_t now_ns, struct halves *h)
{
    if (h->n_fixed == h->n_ready) {
        return h->fixed_ns;
    }
    add_waiting(t, now_ns, h);
    const struct gr_pass_load all = gr_pass_load_sum(&h->ready, &h->waiting);
    const double saved_ns = gr_cost_table_estimate(&t->cost, &h->ready) +
                            gr_cost_table_estimate(&t->cost, &h->waiting) - gr_cost_table_estimate(&t->cost, &all);
    return GR_MIN(h->fixed_ns, h->since_ns + (uint64_t)GR_MAX(saved_ns, 0.0));
}

struct gathering target_gather(const struct gr_target *t, uint64_t now_ns)
{
    struct gathering g = {.wake_ns = UINT64_MAX, .go_ns = UINT64_MAX};
    struct halves h = {.since_ns = UINT64_MAX, .fixed_ns = UINT64_MAX};
    for (int i = 0; i < t->config.n_session_max; i++) {
        const struct session *s = &t->session[i];
        g.prefill = g.prefill || s->state == SESSION_PREFILL;
        if (s->state != SESSION_DECODE) {
            continue;
        }
        g.decoding = true;
        if (target_waits(s, now_ns)) {
            g.waiting = true;
            g.wake_ns = GR_MIN(g.wake_ns, s->next.deadline_ns);
        } else {
            g.ready = true;
            add_ready(t, s, &h);
        }
    }
    if (g.ready && g.waiting) {
        g.go_ns = go_without_others(t, now_ns, &h);
    }
    return g;
}
