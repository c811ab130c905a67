/* The drafter that a session works with, and the statistics that detached ones still owe. */
#include "common/base/clock.h"
#include "common/rules/hash.h"
#include "orchestrator/machine/orch_internal.h"

#include <stdio.h>

/* Failed attachments are repeated after 50 ms, 100 ms ... 2 s, each drawn from its upper half by the session's number,
 * so that sessions do not come back in step: a data path that comes up during the turn is used, and one that does not
 * costs a message every two seconds. */
#define RETRY_NS_MIN (50 * GR_MS)
#define RETRY_NS_MAX (2 * GR_S)

void orch_with_attached(struct session *s, int drafter)
{
    s->with.drafter = drafter;
    s->with.shed = false;
    orch_load_note(s);
    orch_books_note(s);
}

void orch_with_shed(struct session *s, const char *why)
{
    s->with.shed = true;
    orch_with_broke(s, why);
}

void orch_with_detached(struct session *s)
{
    struct session_drafter *w = &s->with;
    w->stats_due_ns = 0;
    w->n_stats_owed = w->stats_from == w->drafter ? w->n_stats_owed + 1 : 1;
    w->stats_from = w->drafter;
    w->drafter = -1;
    w->attached_ns = 0;
    orch_load_note(s);
    orch_books_note(s);
}

void orch_with_lost(struct session *s)
{
    s->with.drafter = -1;
    s->with.attached_ns = 0;
    orch_load_note(s);
    orch_books_note(s);
}

void orch_with_stats(struct session *s)
{
    s->with.n_stats_owed -= s->with.n_stats_owed > 0;
    orch_books_note(s);
}

void orch_with_no_stats(struct session *s)
{
    s->with.n_stats_owed = 0;
    orch_books_note(s);
}

void orch_with_stats_due(struct session *s, uint64_t at_ns)
{
    s->with.stats_due_ns = at_ns;
    orch_books_note(s);
}

void orch_with_failed(struct session *s, bool failed)
{
    s->with.failed = failed;
}

void orch_with_stands(struct session *s, uint64_t now_ns)
{
    s->with.attached_ns = now_ns;
    s->with.why[0] = '\0';
}

void orch_with_broke(struct session *s, const char *why)
{
    snprintf(s->with.why, sizeof(s->with.why), "%s", why);
}

/* One that stood for long begins a new row; one that breaks as soon as it stands does not. */
void orch_with_retry(struct session *s, bool at_once, uint64_t now_ns)
{
    struct session_drafter *w = &s->with;
    const bool stood = w->attached_ns != 0 && now_ns - w->attached_ns >= RETRY_NS_MAX;
    w->n_retry = stood ? 0 : w->n_retry;
    const uint64_t pause_ns = GR_MIN(RETRY_NS_MIN << GR_MIN(w->n_retry, 10u), RETRY_NS_MAX);
    const uint64_t draw = gr_hash_extend(s->id, (int32_t)w->n_retry) % (pause_ns / 2 + 1);
    w->retry_ns = at_once && w->n_retry == 0 ? now_ns : now_ns + pause_ns / 2 + draw;
    w->n_retry++;
    orch_books_note(s);
}

void orch_with_not_due(struct session *s)
{
    s->with.retry_ns = 0;
    orch_books_note(s);
}

void orch_with_avoid(struct session *s, uint32_t worker)
{
    orch_set_add(&s->with.avoided, worker);
}

void orch_with_avoid_none(struct session *s)
{
    orch_set_clear(&s->with.avoided);
    orch_set_clear(&s->with.passed_over);
}

void orch_with_pass_over(struct session *s, uint32_t worker)
{
    orch_set_add(&s->with.passed_over, worker);
}

void orch_with_pass_over_none(struct session *s)
{
    orch_set_clear(&s->with.passed_over);
}

void orch_with_try_again(struct session *s, uint32_t worker)
{
    orch_set_remove(&s->with.avoided, worker);
    orch_set_remove(&s->with.passed_over, worker);
}

void orch_with_new_epoch(struct session *s)
{
    s->with.n_retry = 0;
    s->with.retry_ns = 0;
    s->with.shed = false;
    orch_with_avoid_none(s); /* they may work with the target that comes */
    orch_books_note(s);
}
