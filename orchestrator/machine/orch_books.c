/* What the machine knows of its sessions without a look at each of them: which places are free, which turns are open,
 * wait or queue, whose turns came last, and who is to be looked at when. Every change of a session that one of these
 * goes by ends in orch_books_note(). */
#include "orchestrator/machine/orch_internal.h"

bool orch_books_create(struct orch_books *b, int n_place_max)
{
    const uint32_t n = (uint32_t)n_place_max;
    return gr_place_set_create(&b->vacant, n) && gr_place_set_create(&b->open, n) &&
           gr_place_set_create(&b->waiting, n) && gr_place_set_create(&b->queued, n) &&
           gr_place_set_create(&b->stirred, n) && gr_due_times_create(&b->due, n) &&
           gr_queue_flows_create(&b->flows, n);
}

void orch_books_destroy(struct orch_books *b)
{
    gr_place_set_destroy(&b->vacant);
    gr_place_set_destroy(&b->open);
    gr_place_set_destroy(&b->waiting);
    gr_place_set_destroy(&b->queued);
    gr_place_set_destroy(&b->stirred);
    gr_due_times_destroy(&b->due);
    gr_queue_flows_destroy(&b->flows);
}

void orch_books_add_place(struct orch_books *b, int place)
{
    gr_place_set_put(&b->vacant, (uint32_t)place, true);
}

int orch_books_vacant(const struct orch_books *b)
{
    return gr_place_set_next(&b->vacant, 0);
}

void orch_books_begin(struct orch_books *b, struct session *s, int place)
{
    s->books = b;
    s->place = (uint32_t)place;
    gr_place_set_put(&b->vacant, s->place, false);
}

void orch_books_join_flow(struct session *s, uint64_t flow)
{
    gr_queue_flows_join(&s->books->flows, s->place, flow);
}

static bool has_started(const struct session *s)
{
    return s->state == GR_SESSION_OPENING || s->state == GR_SESSION_RUNNING;
}

bool orch_is_queued(const struct session *s)
{
    return s->state == GR_SESSION_WAITING && s->request.wishes.queues && !s->turn.has_run;
}

void orch_books_note(struct session *s)
{
    struct orch_books *b = s->books;
    const bool waits = s->state == GR_SESSION_WAITING;
    gr_place_set_put(&b->open, s->place, s->turn.is_open);
    gr_place_set_put(&b->waiting, s->place, waits);
    gr_place_set_put(&b->queued, s->place, orch_is_queued(s));
    gr_place_set_put(&b->stirred, s->place, true);
    if (has_started(s)) {
        b->newest_tag = GR_MAX(b->newest_tag, s->turn.tag);
    } else if (!waits) {
        gr_queue_flows_leave(&b->flows, s->place);
    }
}

void orch_books_leave(struct session *s)
{
    struct orch_books *b = s->books;
    gr_place_set_put(&b->open, s->place, false);
    gr_place_set_put(&b->waiting, s->place, false);
    gr_place_set_put(&b->queued, s->place, false);
    gr_place_set_put(&b->stirred, s->place, false);
    gr_place_set_put(&b->vacant, s->place, true);
    gr_due_times_set(&b->due, s->place, UINT64_MAX);
    gr_queue_flows_leave(&b->flows, s->place);
}

void orch_books_looked_at(struct session *s, uint64_t at_ns)
{
    gr_place_set_put(&s->books->stirred, s->place, false);
    gr_due_times_set(&s->books->due, s->place, at_ns);
}

int orch_books_stirred(struct orch_books *b, uint32_t from)
{
    const int place = gr_place_set_next(&b->stirred, from);
    if (place >= 0) {
        gr_place_set_put(&b->stirred, (uint32_t)place, false);
    }
    return place;
}

void orch_books_wake(struct orch_books *b, uint64_t now_ns)
{
    for (int place = gr_due_times_take(&b->due, now_ns); place >= 0; place = gr_due_times_take(&b->due, now_ns)) {
        gr_place_set_put(&b->stirred, (uint32_t)place, true);
    }
}

uint64_t orch_books_next_ns(const struct orch_books *b, uint64_t now_ns)
{
    return b->stirred.n > 0 ? now_ns : gr_due_times_first_ns(&b->due);
}
