/* What time brings: turns that are given up, attachments that are due, idle sessions, ends that wait. */
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/session_id.h"
#include "orchestrator/machine/orch_internal.h"

#include <inttypes.h>
#include <stdio.h>

#define STATS_PATIENCE_NS GR_S /* for the statistics of a session that is over */

/* What keeps targets from taking a turn that waits. */
enum bar { BAR_NONE, BAR_NUMERICS, BAR_NEVER_CAME, BAR_ABSENT, BAR_LEAVING, BAR_DRAINED, BAR_REFUSED, BAR_SLOTS };

static bool is_of_its_model(const struct session *s, const struct worker *w)
{
    const bool is_target = w->joined && w->info.role == GR_WORKER_TARGET;
    return is_target && (!s->model.bound || orch_model_is(s, &w->info));
}

/* Targets of its model, by what they are in the way of. */
struct bars {
    int n_here, n_drained, n_taking, n_refused, n_full;
};

static struct bars count_bars(const struct gr_orch *o, const struct session *s)
{
    struct bars b = {0};
    for (int i = 0; i < o->n_worker_max; i++) {
        const struct worker *w = &o->worker[i];
        if (is_of_its_model(s, w)) {
            const bool takes = orch_is_taking(w), refused = orch_set_has(&s->at.refused, (int)i);
            b.n_here++;
            b.n_drained += w->drained;
            b.n_taking += takes;
            b.n_refused += takes && refused;
            b.n_full += takes && !refused && !orch_has_room(o, i);
        }
    }
    return b;
}

static enum bar find_bar(const struct gr_orch *o, const struct session *s)
{
    const struct bars b = count_bars(o, s);
    if (s->turn.is_restored) {
        return BAR_NUMERICS;
    }
    if (b.n_taking == 0) {
        return b.n_drained > 0                        ? BAR_DRAINED
               : b.n_here > 0 || s->at.sent_elsewhere ? BAR_LEAVING
               : s->model.bound                       ? BAR_ABSENT
                                                      : BAR_NEVER_CAME;
    }
    return b.n_refused == b.n_taking ? BAR_REFUSED : b.n_refused + b.n_full == b.n_taking ? BAR_SLOTS : BAR_NONE;
}

/* "no target of model `NAME' was there". */
static void spell_bar(const struct gr_orch *o, const struct session *s, char text[GR_MSG_TEXT_MAX])
{
    static const char none[] = "no target";
    static const struct {
        const char *what, *how;
    } bars[] = {[BAR_NONE] = {none, "has taken it"},
                [BAR_NUMERICS] = {none, "was there that computes it in the same order"},
                [BAR_NEVER_CAME] = {none, "has joined yet"},
                [BAR_ABSENT] = {none, "was there"},
                [BAR_LEAVING] = {none, "takes turns: the one that was here is to end"},
                [BAR_DRAINED] = {none, "takes turns: drained (`graft worker list')"},
                [BAR_REFUSED] = {none, "of those that are here has taken it"},
                [BAR_SLOTS] = {"no slot of a target", "was free"}};
    char name[GR_MODEL_NAME_MAX];
    const enum bar bar = find_bar(o, s);
    orch_model_name(o, s, name);
    snprintf(text, GR_MSG_TEXT_MAX, "%s%s%s%s %s", bars[bar].what, name[0] != '\0' ? " of model `" : "", name,
             name[0] != '\0' ? "'" : "", bars[bar].how);
}

static void give_turn_up(struct gr_orch *o, struct session *s)
{
    char text[GR_MSG_TEXT_MAX], bar[GR_MSG_TEXT_MAX];
    const uint64_t waited_s = o->config.queue_timeout_ns / GR_S;
    spell_bar(o, s, bar);
    snprintf(text, sizeof(text), "%.190s; the turn has waited for %" PRIu64 " s (--queue-timeout)", bar, waited_s);
    orch_log_about(0, s, 0);
    log_warn("session %" GR_SESSION_ID_PRI ": %s; its turn is given up", s->id, text);
    gr_log_about(NULL);
    orch_fail_turn(o, s, GR_FINISH_UNSERVED, text);
}

/* What time brings to a session in one state; when it is to be looked at again. */

/* A turn whose time is over ends with what there is of its text. */
static void time_out(struct gr_orch *o, struct session *s)
{
    char text[GR_MSG_TEXT_MAX], bar[GR_MSG_TEXT_MAX] = "";
    const bool waits = s->state == GR_SESSION_WAITING;
    if (waits) {
        spell_bar(o, s, bar);
    }
    snprintf(text, sizeof(text), "the turn has taken longer than the %.9g s that it was given (timeout)%s%.150s",
             (double)s->request.wishes.turn.timeout_ns / 1e9, waits ? "; it was still waiting: " : "", bar);
    orch_log_about(0, s, 0);
    log_info("session %" GR_SESSION_ID_PRI ": %s", s->id, text);
    gr_log_about(NULL);
    orch_cut_turn(o, s, UINT32_MAX, GR_FINISH_TIMEOUT, text);
}

/* A turn that no target takes. */
static uint64_t step_waiting(struct gr_orch *o, struct session *s)
{
    const uint64_t limit_ns = o->config.queue_timeout_ns;
    if (limit_ns == 0) {
        return UINT64_MAX;
    }
    if (o->now_ns - s->turn.wait_since_ns < limit_ns) {
        return s->turn.wait_since_ns + limit_ns;
    }
    give_turn_up(o, s);
    return o->now_ns; /* it is in another state, which has a time of its own */
}

/* An attachment that is due. */
static uint64_t step_running(struct gr_orch *o, struct session *s)
{
    if (s->with.drafter >= 0) {
        return UINT64_MAX;
    }
    orch_attach_if_due(o, s);
    return s->with.retry_ns != 0 ? s->with.retry_ns : UINT64_MAX;
}

static uint64_t step_idle(struct gr_orch *o, struct session *s)
{
    const uint64_t ttl_ns = o->config.session_ttl_ns;
    if (ttl_ns == 0) {
        return UINT64_MAX;
    }
    if (o->now_ns - s->turn.idle_since_ns < ttl_ns) {
        return s->turn.idle_since_ns + ttl_ns;
    }
    orch_drop_idle(o, s, "idle for longer than session_ttl");
    return UINT64_MAX;
}

/* A session's end waits for its drafter's statistics, but not for a drafter that hangs. */
static uint64_t step_closing(struct gr_orch *o, struct session *s)
{
    if (s->with.n_stats_owed == 0) {
        return UINT64_MAX;
    }
    if (s->with.stats_due_ns == 0) {
        orch_with_stats_due(s, o->now_ns + STATS_PATIENCE_NS);
    }
    if (o->now_ns < s->with.stats_due_ns) {
        return s->with.stats_due_ns;
    }
    orch_with_no_stats(s);
    orch_finish_if_released(o, s);
    return UINT64_MAX;
}

static bool is_in_turn(const struct session *s)
{
    return s->state == GR_SESSION_WAITING || s->state == GR_SESSION_OPENING || s->state == GR_SESSION_RUNNING;
}

static uint64_t step_state(struct gr_orch *o, struct session *s)
{
    switch (s->state) {
    case GR_SESSION_WAITING:
        return step_waiting(o, s);
    case GR_SESSION_RUNNING:
        return step_running(o, s);
    case GR_SESSION_IDLE:
        return step_idle(o, s);
    case GR_SESSION_CLOSING:
        return step_closing(o, s);
    case GR_SESSION_FREE:
    case GR_SESSION_OPENING:
        break;
    }
    return UINT64_MAX;
}

static uint64_t step_session(struct gr_orch *o, struct session *s)
{
    const uint64_t deadline_ns = is_in_turn(s) && s->turn.deadline_ns != 0 ? s->turn.deadline_ns : UINT64_MAX;
    if (o->now_ns >= deadline_ns) {
        time_out(o, s);
        return o->now_ns;
    }
    const uint64_t at_ns = step_state(o, s);
    return GR_MIN(at_ns, deadline_ns);
}

/* Those that have changed, and those whose time has come, in the order of their places. */
static uint64_t step_sessions(struct gr_orch *o)
{
    struct orch_books *b = &o->books;
    orch_books_wake(b, o->now_ns);
    for (int i = orch_books_stirred(b, 0); i >= 0; i = orch_books_stirred(b, (uint32_t)i + 1)) {
        struct session *s = orch_at(o, i);
        const uint64_t id = s->id;
        const uint64_t at_ns = step_session(o, s);
        if (s->id == id) { /* it is not over */
            orch_books_looked_at(s, at_ns);
        }
    }
    return orch_books_next_ns(b, o->now_ns);
}

uint64_t gr_orch_step(struct gr_orch *o, uint64_t now_ns)
{
    o->now_ns = now_ns;
    const uint64_t worker_ns = orch_step_workers(o, now_ns);
    const uint64_t seat_ns = orch_step_seats(o);
    orch_open_due(o);
    const uint64_t session_ns = step_sessions(o);
    const uint64_t places_ns = orch_n_queued(o) > 0 ? orch_tell_places(o) : UINT64_MAX;
    orch_let_go(o);
    return GR_MIN(GR_MIN(worker_ns, seat_ns), GR_MIN(session_ns, places_ns));
}
