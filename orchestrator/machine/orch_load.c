/* How many sessions each worker has, which is what placement goes by, and how many are in each state. Every change of a
 * session's state, target or drafter ends here, so a session counts from the moment of the choice, and is released on
 * every way out. */
#include "orchestrator/machine/orch_internal.h"

static uint32_t *count_of(struct worker *w, bool active)
{
    return active ? &w->load.n_active : &w->load.n_held;
}

/* `was` and what is returned: the worker's number and 1, 0: none. */
static uint16_t moved(struct worker *table, uint16_t was, int now, bool active)
{
    const uint16_t is = (uint16_t)(now + 1);
    if (was == is) {
        return is;
    }
    if (was > 0) {
        --*count_of(&table[was - 1], active);
    }
    if (is > 0) {
        ++*count_of(&table[is - 1], active);
    }
    return is;
}

static bool is_active(const struct session *s)
{
    return s->state == GR_SESSION_OPENING || s->state == GR_SESSION_RUNNING || s->state == GR_SESSION_CLOSING;
}

static void note_state(struct session_load *l, enum gr_session_state now)
{
    l->states->n[l->as] -= l->as != GR_SESSION_FREE;
    l->states->n[now] += now != GR_SESSION_FREE;
    l->as = now;
}

void orch_load_note(struct session *s)
{
    struct session_load *l = &s->load;
    const bool active = is_active(s);
    note_state(l, s->state);
    l->holds = moved(l->table, l->holds, s->at.target, false);
    l->verifies = moved(l->table, l->verifies, active ? s->at.target : -1, true);
    l->attached = moved(l->table, l->attached, s->with.drafter, false);
    l->drafts = moved(l->table, l->drafts, active ? s->with.drafter : -1, true);
}

void orch_load_begin(struct gr_orch *o, struct session *s)
{
    s->load = (struct session_load){.table = o->worker, .states = &o->states};
}

void orch_load_leave(struct session *s)
{
    struct session_load *l = &s->load;
    note_state(l, GR_SESSION_FREE);
    l->holds = moved(l->table, l->holds, -1, false);
    l->verifies = moved(l->table, l->verifies, -1, true);
    l->attached = moved(l->table, l->attached, -1, false);
    l->drafts = moved(l->table, l->drafts, -1, true);
}
