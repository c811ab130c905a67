/* The text of a session, its turns, and the state that it is in:
 *
 *   WAITING (for a target, or a slot of it) -> OPENING (OPEN or APPEND is on its way) -> RUNNING
 *   RUNNING -> IDLE (kept) or CLOSING -> gone
 *   IDLE -> OPENING (the next turn); RUNNING, OPENING -> WAITING or OPENING (its target is lost: the next epoch) */
#include "orchestrator/machine/orch_internal.h"

#include <stdio.h>

void orch_turn_begin(struct session *s, uint32_t base, uint64_t now_ns, uint64_t deadline_ns)
{
    struct session_turn *t = &s->turn;
    t->number++;
    t->base = base;
    t->len = t->transcript.len;
    t->n_fallback = t->n_reopen = 0;
    t->is_open = true;
    t->has_run = t->has_failed = t->is_restored = false;
    t->begun_ns = now_ns;
    t->taken_ns = t->first_ns = t->shown_ns = 0;
    t->wait_since_ns = 0;
    t->deadline_ns = deadline_ns;
    t->place = 0;
    gr_metrics_begin_turn(&s->metrics, t->len - base);
    orch_books_note(s);
}

void orch_turn_restore(struct session *s, uint32_t number, uint32_t base, uint32_t len)
{
    s->turn.number = number;
    s->turn.base = base;
    s->turn.len = len;
    s->turn.has_run = s->turn.is_restored = true;
}

void orch_turn_arrived(struct session *s, uint64_t arrival, uint64_t tag)
{
    s->turn.arrival = arrival;
    s->turn.tag = tag;
}

void orch_turn_place(struct session *s, uint32_t place)
{
    s->turn.place = place;
}

void orch_turn_reopened(struct session *s)
{
    s->turn.n_reopen++;
    s->metrics.reopens++;
}

void orch_turn_failed_once(struct session *s)
{
    s->turn.has_failed = true;
}

void orch_turn_taken(struct session *s, uint64_t now_ns)
{
    s->turn.taken_ns = now_ns;
}

void orch_turn_shown(struct session *s, uint64_t now_ns)
{
    s->turn.first_ns = s->turn.first_ns == 0 ? now_ns : s->turn.first_ns;
    s->turn.shown_ns = now_ns;
}

void orch_turn_finish_as(struct session *s, enum gr_finish finish)
{
    s->turn.finish = finish;
}

void orch_turn_say(struct session *s, const char *text)
{
    snprintf(s->turn.text, sizeof(s->turn.text), "%s", text);
}

void orch_turn_over(struct session *s)
{
    s->turn.is_open = false;
    orch_books_note(s);
}

void orch_wait(struct session *s, uint64_t now_ns)
{
    s->state = GR_SESSION_WAITING;
    s->turn.wait_since_ns = s->turn.wait_since_ns == 0 ? now_ns : s->turn.wait_since_ns;
    orch_load_note(s);
    orch_books_note(s);
}

void orch_opening(struct session *s)
{
    s->state = GR_SESSION_OPENING;
    orch_load_note(s);
    orch_books_note(s);
}

void orch_running(struct session *s)
{
    s->state = GR_SESSION_RUNNING;
    s->turn.has_run = true;
    s->turn.wait_since_ns = 0;
    orch_load_note(s);
    orch_books_note(s);
}

void orch_closing(struct session *s)
{
    s->state = GR_SESSION_CLOSING;
    orch_load_note(s);
    orch_books_note(s);
}

void orch_idle(struct session *s, uint64_t now_ns)
{
    s->state = GR_SESSION_IDLE;
    s->turn.is_open = false;
    s->turn.idle_since_ns = now_ns;
    orch_load_note(s);
    orch_books_note(s);
}

void orch_text_cut(struct session *s, uint32_t len)
{
    gr_transcript_cut(&s->turn.transcript, len);
    s->turn.final_len = s->turn.transcript.len;
}

enum gr_status orch_text_put(struct session *s, uint32_t keep_len, enum gr_segment_kind kind, const int32_t *ids,
                             uint32_t n)
{
    orch_text_cut(s, keep_len);
    const enum gr_status st = gr_transcript_add(&s->turn.transcript, kind, ids, n);
    s->turn.final_len = s->turn.transcript.len;
    s->turn.len = st == GR_OK ? s->turn.len : GR_MIN(s->turn.len, keep_len);
    return st;
}

enum gr_status orch_text_commit(struct session *s, const struct gr_msg_commit *c)
{
    gr_transcript_cut(&s->turn.transcript, c->keep_len);
    GR_TRY(gr_transcript_add(&s->turn.transcript, GR_SEGMENT_GENERATED, c->ids.p, c->ids.n));
    s->turn.final_len = c->final_len;
    return GR_OK;
}

void orch_drop_provisional(struct session *s)
{
    struct session_turn *t = &s->turn;
    gr_metrics_drop(&s->metrics, t->transcript.len - t->final_len);
    gr_metrics_roll_back(&s->metrics, t->final_len);
    gr_transcript_cut(&t->transcript, t->final_len);
}

void orch_fall_back(struct gr_orch *o, struct session *s, enum gr_fallback reason, const char *detail)
{
    gr_fall_back(&s->turn.fallbacks, reason, s->id, 0, detail);
    s->turn.n_fallback++;
    gr_metrics_fall_back(&s->metrics);
    gr_totals_fall_back(&o->totals);
}
