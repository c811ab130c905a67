/* Which target may hold a session, and which answers it owes. A request may be on its way while the session moves on,
 * so answers are counted and only the last one counts. */
#include "orchestrator/machine/orch_internal.h"

void orch_home_choose(struct session *s, int target)
{
    s->at.target = target;
    orch_load_note(s);
}

void orch_home_open_sent(struct session *s, bool has_draft)
{
    struct session_home *h = &s->at;
    h->append_sent = h->opened_over = h->evicted = h->sent_elsewhere = false;
    h->has_draft = has_draft;
    h->n_reply_owed = h->home == h->target ? h->n_reply_owed + 1 : 1;
    h->home = h->target;
}

void orch_home_over(struct session *s, bool over)
{
    s->at.opened_over = over;
}

void orch_home_append_sent(struct session *s)
{
    s->at.append_sent = true;
    s->at.evicted = s->at.sent_elsewhere = false;
    s->at.n_reply_owed++; /* target is home: it holds the session */
}

void orch_home_close_sent(struct session *s)
{
    s->at.open_after_close = true;
}

void orch_home_forgot(struct session *s)
{
    s->at.target = -1;
    orch_load_note(s);
}

void orch_home_closed(struct session *s)
{
    s->at.open_after_close = false;
    s->at.target = -1;
    orch_load_note(s);
}

void orch_home_wait_closed(struct session *s, bool wait)
{
    s->at.wait_closed = wait;
}

void orch_home_evicted(struct session *s)
{
    s->at.evicted = true;
}

bool orch_home_answered(struct session *s)
{
    const bool owed = s->at.n_reply_owed > 0;
    s->at.n_reply_owed -= owed;
    return owed;
}

void orch_home_gone(struct session *s)
{
    s->at.home = -1;
    s->at.n_reply_owed = 0;
}

void orch_home_refused(struct session *s)
{
    orch_set_add(&s->at.refused, (uint32_t)s->at.target);
}

void orch_home_sent_elsewhere(struct session *s)
{
    s->at.sent_elsewhere = true;
}

void orch_home_ask_all(struct session *s)
{
    orch_set_clear(&s->at.refused);
}

void orch_home_ask_again(struct session *s, uint32_t worker)
{
    orch_set_remove(&s->at.refused, worker);
}
