/* The turns that wait for a target, or for a slot of one: how many may, in which order they are opened, and what their
 * clients are told of their places. */
#include "common/base/clock.h"
#include "orchestrator/machine/orch_internal.h"

#include <stdlib.h>
#include <string.h>

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

/* Tags of turns that come later go on from those that were started; the last of a flow has the largest of its tags. */
void orch_queue_join(struct gr_orch *o, struct session *s)
{
    const uint64_t flow = gr_queue_flow_of(s->request.wishes.owner, priority_of(s));
    const int last = gr_queue_flows_last(&o->books.flows, flow);
    orch_turn_arrived(s, ++o->books.n_arrival,
                      gr_queue_tag(o->books.newest_tag, last >= 0 ? orch_at(o, last)->turn.tag : 0));
    orch_books_join_flow(s, flow);
}

/* All turns that wait, in their order, in o->queue. Returns how many. */
static int order_queue(struct gr_orch *o)
{
    const struct gr_place_set *waiting = &o->books.waiting;
    int n = 0;
    for (int i = gr_place_set_next(waiting, 0); i >= 0; i = gr_place_set_next(waiting, (uint32_t)i + 1)) {
        struct session *s = orch_at(o, i);
        o->queue[n++] = (struct gr_queue_entry){
            .tag = s->turn.tag, .arrival = s->turn.arrival, .priority = priority_of(s), .user = s};
    }
    gr_queue_sort(o->queue, n);
    return n;
}

uint32_t orch_n_queued(const struct gr_orch *o)
{
    return o->books.queued.n;
}

/* A restored turn asks for targets of its own numerics alone. */
static bool ask_the_same(const struct session *a, const struct session *b)
{
    if (a->turn.is_restored && strcmp(a->numerics_id, b->numerics_id) != 0) {
        return false;
    }
    return a->request.tokenizer_fingerprint == b->request.tokenizer_fingerprint && a->model.bound == b->model.bound &&
           a->model.fingerprint == b->model.fingerprint && a->turn.is_restored == b->turn.is_restored;
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
