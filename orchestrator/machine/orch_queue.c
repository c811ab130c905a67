/* The turns that wait for a target, or for a slot of one: how many may, in which order they are opened, and what their
 * clients are told of their places. */
#include "common/base/clock.h"
#include "orchestrator/machine/orch_internal.h"

#include <stdlib.h>

#define TELL_PLACES_NS (500 * GR_MS) /* between two looks at the places of those that wait */

bool orch_queue_create(struct gr_orch *o)
{
    o->queue = calloc((size_t)o->n_session_cap, sizeof(*o->queue));
    return o->queue != NULL;
}

void orch_queue_destroy(struct gr_orch *o)
{
    free(o->queue);
    o->queue = NULL;
}

static uint32_t priority_of(const struct session *s)
{
    const uint32_t priority = s->request.wishes.priority;
    return priority == 0 ? GR_PRIORITY_USUAL : priority;
}

static bool has_started(const struct session *s)
{
    return s->state == GR_SESSION_OPENING || s->state == GR_SESSION_RUNNING;
}

/* Tags of turns that come later go on from those that were started. */
static void note_started(struct gr_orch *o, const struct session *s)
{
    if (has_started(s)) {
        o->newest_tag = GR_MAX(o->newest_tag, s->turn.tag);
    }
}

static bool shares_queue(const struct session *a, const struct session *b)
{
    return a->request.wishes.owner == b->request.wishes.owner && priority_of(a) == priority_of(b);
}

void orch_queue_join(struct gr_orch *o, struct session *s)
{
    uint64_t newest_owned = 0;
    for (int i = 0; i < o->n_place; i++) {
        const struct session *t = orch_at(o, i);
        note_started(o, t);
        if (t != s && (has_started(t) || t->state == GR_SESSION_WAITING) && shares_queue(t, s)) {
            newest_owned = GR_MAX(newest_owned, t->turn.tag);
        }
    }
    orch_turn_tag(s, gr_queue_tag(o->newest_tag, newest_owned));
}

/* All turns that wait, in their order, in o->queue. Returns how many. */
static int order_queue(struct gr_orch *o)
{
    int n = 0;
    for (int i = 0; i < o->n_place; i++) {
        struct session *s = orch_at(o, i);
        if (s->state == GR_SESSION_WAITING) {
            o->queue[n++] =
                (struct gr_queue_entry){.tag = s->turn.tag, .id = s->id, .priority = priority_of(s), .user = s};
        }
        note_started(o, s);
    }
    gr_queue_sort(o->queue, n);
    return n;
}

bool orch_is_queued(const struct session *s)
{
    return s->state == GR_SESSION_WAITING && s->request.wishes.queues && !s->turn.has_run;
}

uint32_t orch_n_queued(const struct gr_orch *o)
{
    uint32_t n = 0;
    for (int i = 0; i < o->n_place; i++) {
        n += orch_is_queued(orch_at(o, i));
    }
    return n;
}

static bool ask_the_same(const struct session *a, const struct session *b)
{
    return a->request.tokenizer_fingerprint == b->request.tokenizer_fingerprint && a->model.bound == b->model.bound &&
           a->model.fingerprint == b->model.fingerprint;
}

/* Of many that queue for the same targets only the first that finds no slot is asked about. */
void orch_open_waiting(struct gr_orch *o)
{
    const struct session *full = NULL;
    const int n = order_queue(o);
    for (int i = 0; i < n; i++) {
        struct session *s = o->queue[i].user;
        const bool queues = s->request.wishes.queues;
        if (s->state == GR_SESSION_WAITING && !(queues && full != NULL && ask_the_same(s, full))) {
            orch_open(o, s);
            full = queues && s->state == GR_SESSION_WAITING ? s : full;
        }
    }
}

void orch_open_due(struct gr_orch *o)
{
    if (o->queue_due) {
        o->queue_due = false;
        orch_open_waiting(o);
    }
}

static void tell_place(struct gr_orch *o, struct session *s, uint32_t place, uint32_t n_waiting)
{
    const struct gr_msg m = {
        .type = GR_MSG_QUEUED, .session = s->id, .queued = {.place = place, .n_waiting = n_waiting}};
    if (s->turn.place != place) {
        orch_turn_place(s, place);
        o->io.on_report(o->io.ctx, s->id, s->request.user, &m);
    }
}

uint64_t orch_tell_places(struct gr_orch *o)
{
    if (o->io.on_report == NULL) {
        return UINT64_MAX;
    }
    if (o->now_ns < o->places_due_ns) {
        return o->places_due_ns;
    }
    const int n = order_queue(o);
    for (int i = 0; i < n; i++) {
        struct session *s = o->queue[i].user;
        if (s->request.wishes.queues) {
            tell_place(o, s, (uint32_t)i + 1, (uint32_t)n);
        }
    }
    o->places_due_ns = o->now_ns + TELL_PLACES_NS;
    return o->places_due_ns;
}
