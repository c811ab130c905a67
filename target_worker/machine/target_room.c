/* KV blocks for sessions: idle ones are evicted, younger ones pre-empted, queued ones admitted. Decision D-075. */
#include "common/base/log.h"
#include "common/base/session_id.h"
#include "target_worker/machine/target_internal.h"

#include <inttypes.h>

/* An idle session is forgotten: its blocks or its slot are needed. The orchestrator keeps the transcript. */
bool target_evict_idle(struct gr_target *t, const struct session *not_this)
{
    struct session *oldest = NULL;
    for (int i = 0; i < t->config.n_session_max; i++) {
        struct session *s = &t->session[i];
        if (s->state == SESSION_IDLE && s != not_this &&
            (oldest == NULL || s->turn.last_used_ns < oldest->turn.last_used_ns)) {
            oldest = s;
        }
    }
    if (oldest == NULL) {
        return false;
    }
    const struct gr_msg m = {.type = GR_MSG_EVICTED, .session = oldest->id};
    const struct gr_log_subject before = gr_log_subject_now();
    target_log_about(oldest);
    log_info("session %" GR_SESSION_ID_PRI ": idle and evicted, %d tokens of KV", oldest->id, oldest->kv.len);
    gr_log_about(&before);
    t->counters.n_evicted++;
    target_clear_slot(t, oldest);
    t->io.send_msg(t->io.ctx, &m);
    return true;
}

/* The youngest session that is younger than s, not in a pass, and holds blocks (only_queued: from earlier turns): its
 * KV is freed, it queues again, and computes the same KV later. The oldest is never pre-empted, so there is always one
 * that goes on. */
static bool preempt_younger(struct gr_target *t, const struct session *s, bool only_queued)
{
    struct session *youngest = NULL;
    for (int i = 0; i < t->config.n_session_max; i++) {
        struct session *o = &t->session[i];
        const bool fits =
            o->state == SESSION_QUEUED || (!only_queued && (o->state == SESSION_PREFILL || o->state == SESSION_DECODE));
        if (fits && !o->flight.in_pass && o->arrival > s->arrival && o->kv.table.n_block + o->kv.table.n_reserved > 0 &&
            (youngest == NULL || o->arrival > youngest->arrival)) {
            youngest = o;
        }
    }
    if (youngest == NULL) {
        return false;
    }
    const struct gr_log_subject before = gr_log_subject_now();
    target_log_about(youngest);
    log_info("session %" GR_SESSION_ID_PRI ": pre-empted, %d tokens of KV will be computed again", youngest->id,
             youngest->kv.len);
    gr_log_about(&before);
    t->counters.n_preempted++;
    target_drop_provisional(t, youngest);
    target_view_drop(&youngest->specpv);
    target_kv_release(t, youngest);
    target_turn_preempt(youngest);
    return true;
}

bool target_make_room(struct gr_target *t, struct session *s, int32_t n_token)
{
    while (!target_reserve(t, s, n_token)) {
        if (!target_evict_idle(t, s) && !preempt_younger(t, s, false)) {
            return false;
        }
    }
    return true;
}

static int32_t admission_tokens(struct gr_target *t, const struct session *s)
{
    const int32_t more = t->config.admit_tokens;
    const int32_t n_token =
        more <= 0 ? s->turn.len_max : (int32_t)GR_MIN((int64_t)s->prefix.len + more, s->turn.len_max);
    return n_token - target_fork_saves(t, s);
}

/* Idle sessions make room for it, and queued ones that hold blocks of earlier turns; running ones do not. */
static bool make_room_at_admission(struct gr_target *t, struct session *s)
{
    while (!target_reserve(t, s, admission_tokens(t, s))) {
        if (!target_evict_idle(t, s) && !preempt_younger(t, s, true)) {
            return false;
        }
    }
    return true;
}

/* Sessions are admitted in the order of their arrival; one that must wait keeps the later ones waiting. */
static void admit_queued(struct gr_target *t, uint64_t now_ns)
{
    for (;;) {
        struct session *oldest = NULL;
        for (int i = 0; i < t->config.n_session_max; i++) {
            struct session *s = &t->session[i];
            if (s->state == SESSION_QUEUED && (oldest == NULL || s->arrival < oldest->arrival)) {
                oldest = s;
            }
        }
        if (oldest == NULL) {
            return;
        }
        target_log_about(oldest);
        const int32_t n_taken = target_fork_saves(t, oldest) == 0 ? target_prefix_take(t, oldest) : 0;
        if (!make_room_at_admission(t, oldest)) {
            target_prefix_return(t, oldest); /* while it waits others may need them */
            return;
        }
        target_prefix_taken(t, oldest, n_taken);
        target_turn_prefill(oldest);
        if (oldest->kv.len >= oldest->turn.prefill_end) {
            target_resume(t, oldest, false, now_ns);
        }
    }
}

void target_admit_queued(struct gr_target *t, uint64_t now_ns)
{
    const struct gr_log_subject before = gr_log_subject_now();
    admit_queued(t, now_ns);
    gr_log_about(&before);
}
