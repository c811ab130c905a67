/* The drafter that a session works with, and the statistics that detached ones still owe. */
#include "orchestrator/machine/orch_internal.h"

void orch_with_attached(struct entry *e, int drafter)
{
    e->with.drafter = drafter;
}

void orch_with_detached(struct entry *e)
{
    struct entry_drafter *w = &e->with;
    w->n_stats_owed = w->stats_from == w->drafter ? w->n_stats_owed + 1 : 1;
    w->stats_from = w->drafter;
    w->drafter = -1;
}

void orch_with_lost(struct entry *e)
{
    e->with.drafter = -1;
}

void orch_with_stats(struct entry *e)
{
    e->with.n_stats_owed -= e->with.n_stats_owed > 0;
}

void orch_with_no_stats(struct entry *e)
{
    e->with.n_stats_owed = 0;
}

void orch_with_failed(struct entry *e, bool failed)
{
    e->with.failed = failed;
}

void orch_with_retry(struct entry *e)
{
    e->with.n_retry++;
}

void orch_with_new_epoch(struct entry *e)
{
    e->with.n_retry = 0;
}
