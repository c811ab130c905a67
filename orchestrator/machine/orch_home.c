/* Which target may hold a session, and which answers it owes. A request may be on its way while the session moves on,
 * so answers are counted and only the last one counts. */
#include "orchestrator/machine/orch_internal.h"

void orch_home_choose(struct entry *e, int target)
{
    e->at.target = target;
}

void orch_home_open_sent(struct entry *e, bool has_draft)
{
    struct entry_home *h = &e->at;
    h->append_sent = h->opened_over = h->evicted = false;
    h->has_draft = has_draft;
    h->n_reply_owed = h->home == h->target ? h->n_reply_owed + 1 : 1;
    h->home = h->target;
}

void orch_home_over(struct entry *e, bool over)
{
    e->at.opened_over = over;
}

void orch_home_append_sent(struct entry *e)
{
    e->at.append_sent = true;
    e->at.evicted = false;
    e->at.n_reply_owed++; /* target is home: it holds the session */
}

void orch_home_close_sent(struct entry *e)
{
    e->at.open_after_close = true;
}

void orch_home_forgot(struct entry *e)
{
    e->at.target = -1;
}

void orch_home_closed(struct entry *e)
{
    e->at.open_after_close = false;
    e->at.target = -1;
}

void orch_home_wait_closed(struct entry *e, bool wait)
{
    e->at.wait_closed = wait;
}

void orch_home_evicted(struct entry *e)
{
    e->at.evicted = true;
}

bool orch_home_answered(struct entry *e)
{
    const bool owed = e->at.n_reply_owed > 0;
    e->at.n_reply_owed -= owed;
    return owed;
}

void orch_home_gone(struct entry *e)
{
    e->at.home = -1;
    e->at.n_reply_owed = 0;
}
