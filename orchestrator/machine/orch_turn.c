/* The text of a session, its turns, and the state that it is in:
 *
 *   WAITING (for a target, or a slot of it) -> OPENING (OPEN or APPEND is on its way) -> RUNNING -> IDLE (kept) or
 * CLOSING -> gone IDLE -> OPENING (the next turn); RUNNING, OPENING -> WAITING or OPENING (its target is lost: the next
 * epoch) */
#include "orchestrator/machine/orch_internal.h"

#include <stdio.h>

void orch_turn_begin(struct entry *e, uint32_t base)
{
    struct entry_turn *t = &e->turn;
    t->number++;
    t->base = base;
    t->len = t->transcript.len;
    t->n_fallback = t->n_reopen = 0;
    t->is_open = true;
    gr_metrics_begin_turn(&e->metrics, t->len - base);
}

void orch_turn_reopened(struct entry *e)
{
    e->turn.n_reopen++;
    e->metrics.reopens++;
}

void orch_turn_finish_as(struct entry *e, enum gr_finish finish)
{
    e->turn.finish = finish;
}

void orch_turn_say(struct entry *e, const char *text)
{
    snprintf(e->turn.text, sizeof(e->turn.text), "%s", text);
}

void orch_turn_over(struct entry *e)
{
    e->turn.is_open = false;
}

void orch_wait(struct entry *e)
{
    e->state = GR_SESSION_WAITING;
}

void orch_opening(struct entry *e)
{
    e->state = GR_SESSION_OPENING;
}

void orch_running(struct entry *e)
{
    e->state = GR_SESSION_RUNNING;
}

void orch_closing(struct entry *e)
{
    e->state = GR_SESSION_CLOSING;
}

void orch_idle(struct entry *e, uint64_t now_ns)
{
    e->state = GR_SESSION_IDLE;
    e->turn.is_open = false;
    e->turn.idle_since_ns = now_ns;
}

void orch_text_cut(struct entry *e, uint32_t len)
{
    gr_transcript_cut(&e->turn.transcript, len);
    e->turn.final_len = e->turn.transcript.len;
}

enum gr_status orch_text_put(struct entry *e, uint32_t keep_len, enum gr_segment_kind kind, const int32_t *ids,
                             uint32_t n)
{
    orch_text_cut(e, keep_len);
    const enum gr_status st = gr_transcript_add(&e->turn.transcript, kind, ids, n);
    e->turn.final_len = e->turn.transcript.len;
    e->turn.len = st == GR_OK ? e->turn.len : GR_MIN(e->turn.len, keep_len);
    return st;
}

void orch_text_show(struct entry *e, uint32_t final_len)
{
    e->turn.final_len = final_len;
}

void orch_drop_provisional(struct entry *e)
{
    struct entry_turn *t = &e->turn;
    gr_metrics_drop(&e->metrics, t->transcript.len - t->final_len);
    gr_metrics_roll_back(&e->metrics, t->final_len);
    gr_transcript_cut(&t->transcript, t->final_len);
}

void orch_fall_back(struct entry *e, enum gr_fallback reason, const char *detail)
{
    gr_fall_back(&e->turn.fallbacks, reason, e->id, 0, detail);
    e->turn.n_fallback++;
    gr_metrics_fall_back(&e->metrics);
}
