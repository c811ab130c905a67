/* The drafter that a session works with, and the statistics that detached ones still owe. */
#include "orchestrator/machine/orch_internal.h"

void orch_with_attached(struct session *s, int drafter)
{
    s->with.drafter = drafter;
}

void orch_with_detached(struct session *s)
{
    struct session_drafter *w = &s->with;
    w->n_stats_owed = w->stats_from == w->drafter ? w->n_stats_owed + 1 : 1;
    w->stats_from = w->drafter;
    w->drafter = -1;
}

void orch_with_lost(struct session *s)
{
    s->with.drafter = -1;
}

void orch_with_stats(struct session *s)
{
    s->with.n_stats_owed -= s->with.n_stats_owed > 0;
}

void orch_with_no_stats(struct session *s)
{
    s->with.n_stats_owed = 0;
}

void orch_with_failed(struct session *s, bool failed)
{
    s->with.failed = failed;
}

void orch_with_retry(struct session *s)
{
    s->with.n_retry++;
}

void orch_with_new_epoch(struct session *s)
{
    s->with.n_retry = 0;
}
