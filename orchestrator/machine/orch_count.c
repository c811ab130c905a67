/* Turns as the totals see them: each begins once, is taken by a target once, and ends once; and rounds as the workers
 * that had a part in them. */
#include "orchestrator/machine/orch_internal.h"

/* Of several answers to one prompt the first alone brings it. */
static bool has_own_prompt(const struct session *s)
{
    return s->turn.number > 1 || s->request.wishes.fork_of == 0;
}

void orch_count_begun(struct gr_orch *o, const struct session *s)
{
    o->totals.turns_begun++;
    o->totals.prompt_tokens += has_own_prompt(s) ? s->turn.len - s->turn.base : 0;
}

void orch_count_cached(struct gr_orch *o, const struct session *s, uint32_t n)
{
    o->totals.cached_tokens += has_own_prompt(s) ? n : 0;
}

void orch_count_taken(struct gr_orch *o, struct session *s)
{
    gr_histogram_add(&o->totals.queue, o->now_ns - s->turn.begun_ns, 1);
    orch_turn_taken(s, o->now_ns);
}

static void count_for(struct gr_orch *o, int worker, const struct gr_msg_commit *m)
{
    if (worker >= 0) {
        struct gr_worker_rounds *r = &o->worker[worker].rounds;
        r->n_round++;
        r->n_draft_tokens += m->n_draft;
        r->n_accepted_tokens += m->n_accepted;
    }
}

void orch_count_round(struct gr_orch *o, const struct session *s, const struct gr_msg_commit *m)
{
    if (m->round > 0) {
        count_for(o, s->at.target, m);
        count_for(o, s->with.drafter, m);
    }
}

/* What was re-opened meanwhile is one prefill. A turn that an earlier process gave to its target has none here. */
static void count_prefill(struct gr_orch *o, const struct session *s)
{
    if (s->turn.taken_ns > 0) {
        gr_histogram_add(&o->totals.prefill, o->now_ns - s->turn.taken_ns, 1);
    }
}

void orch_count_shown(struct gr_orch *o, struct session *s, uint32_t n)
{
    if (n == 0) {
        return;
    }
    o->totals.generation_tokens += n;
    if (s->turn.shown_ns == 0) {
        gr_histogram_add(&o->totals.first_token, o->now_ns - s->turn.begun_ns, 1);
        count_prefill(o, s);
    } else {
        gr_histogram_add(&o->totals.inter_token, (o->now_ns - s->turn.shown_ns) / n, n);
    }
    orch_turn_shown(s, o->now_ns);
}

void orch_count_ended(struct gr_orch *o, const struct session *s, enum gr_finish finish)
{
    o->totals.turns_ended[finish]++;
    gr_histogram_add(&o->totals.turn, o->now_ns - s->turn.begun_ns, 1);
    if (s->turn.first_ns > 0) {
        gr_histogram_add(&o->totals.decode, s->turn.shown_ns - s->turn.first_ns, 1);
    }
}
