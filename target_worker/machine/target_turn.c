/* Where a session stands in its turn:
 *
 *   FREE -> QUEUED (has a slot, waits for blocks) -> PREFILL (its prompt gets KV) -> DECODE (rounds) -> IDLE (kept)
 *   IDLE -> QUEUED (the next turn); PREFILL, DECODE -> QUEUED (pre-empted); any -> FREE (closed, evicted, failed) */
#include "target_worker/machine/target_internal.h"

void target_turn_begin(struct session *s, int32_t len_max, int32_t len_min)
{
    s->turn.pick_due = s->kind[s->prefix.len - 1] != TOKEN_GENERATED;
    s->turn.prefill_end = s->prefix.len - (s->turn.pick_due ? 0 : 1);
    s->turn.len_max = len_max;
    s->turn.len_min = len_min;
    s->turn.n_cached = -1;
    s->turn.n_taken = 0;
    s->state = SESSION_QUEUED;
}

void target_turn_preempt(struct session *s)
{
    if (s->state == SESSION_DECODE) { /* a prompt that had its pick is a decode round's prefix now */
        s->turn.pick_due = false;
        s->turn.prefill_end = s->prefix.len - 1;
    }
    s->turn.n_taken = 0;
    s->state = SESSION_QUEUED;
}

void target_turn_prefill(struct session *s)
{
    s->state = SESSION_PREFILL;
}

void target_turn_taken(struct session *s, int32_t n)
{
    s->turn.n_taken += n;
}

bool target_turn_read(struct session *s, int32_t pos)
{
    const bool first = s->turn.n_cached < 0;
    s->turn.n_cached = first ? pos : s->turn.n_cached;
    return first;
}

void target_turn_decode(struct session *s)
{
    s->state = SESSION_DECODE;
}

void target_turn_idle(struct session *s, uint64_t now_ns)
{
    s->state = SESSION_IDLE;
    s->turn.last_used_ns = now_ns;
}

void target_turn_hold(struct session *s, const struct held_append *held)
{
    s->turn.held = *held;
}

void target_turn_forget_held(struct session *s)
{
    s->turn.held.valid = false;
}

void target_turn_cut_later(struct session *s, int32_t len)
{
    int32_t *cut_at = s->turn.held.valid ? &s->turn.held.cut_at : &s->turn.cut_at;
    *cut_at = GR_MIN(*cut_at < 0 ? INT32_MAX : *cut_at, len);
}

void target_turn_cut_done(struct session *s)
{
    s->turn.cut_at = -1;
    s->turn.held.valid = false;
}
