/* The workers of an orchestrator: who has joined and fits the others, who is silent, and what their loss means for
 * sessions. */
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/session_id.h"
#include "orchestrator/machine/orch_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- who fits ---- */

/* One of the targets, if this drafter is for none of those that are here; -1. */
static int useless_with(const struct gr_orch *o, const struct gr_worker_info *drafter)
{
    int target = -1;
    for (int i = 0; i < o->n_worker_max; i++) {
        const struct worker *w = &o->worker[i];
        if (w->joined && w->info.role == GR_WORKER_TARGET) {
            if (orch_drafts_for(drafter, &w->info)) {
                return -1;
            }
            target = i;
        }
    }
    return target;
}

static void check_drafter(struct gr_orch *o, uint32_t worker)
{
    const struct gr_worker_info *d = &o->worker[worker].info;
    const int target = o->worker[worker].told_useless ? -1 : useless_with(o, d);
    if (target >= 0) {
        char why[GR_MISFIT_BYTES];
        orch_misfit(d, &o->worker[target].info, why);
        log_warn("draft worker %u (host %s, model `%s') is for none of the targets that are here; target worker %d: %s",
                 worker + 1, d->host, d->model, target + 1, why);
        o->worker[worker].told_useless = true;
    }
}

/* Whichever of the two came first. Each drafter is told of once: where a fleet has several models, more targets of
 * others may join before its own does. */
static void check_drafters(struct gr_orch *o)
{
    for (int i = 0; i < o->n_worker_max; i++) {
        if (o->worker[i].joined && o->worker[i].info.role == GR_WORKER_DRAFT) {
            check_drafter(o, (uint32_t)i);
        }
    }
}

static enum gr_status refuse(struct gr_orch *o, uint32_t worker, const struct gr_worker_info *info, enum gr_status code,
                             const char *text)
{
    struct gr_msg m = {.type = GR_MSG_ERROR, .error = {.code = (uint32_t)-code}};
    snprintf(m.error.text, sizeof(m.error.text), "%s", text);
    snprintf(o->why, sizeof(o->why), "%s", text);
    log_error("a worker was refused%s%s: %s", info->peer[0] != '\0' ? " that came from " : "", info->peer, text);
    o->io.send(o->io.ctx, worker, &m);
    return code;
}

static enum gr_status refuse_worker(struct gr_orch *o, uint32_t worker, const struct gr_worker_info *info,
                                    enum gr_status code, const char *text)
{
    o->totals.workers_refused++;
    return refuse(o, worker, info, code, text);
}

static enum gr_status refuse_replaced(struct gr_orch *o, uint32_t worker, const struct gr_worker_info *info,
                                      const char *text)
{
    o->totals.workers_replaced++;
    return refuse(o, worker, info, GR_ECANCELED, text);
}

/* ---- coming and going ---- */

static void attach_running(struct gr_orch *o)
{
    for (int i = 0; i < o->n_place; i++) {
        if (orch_at(o, i)->state == GR_SESSION_RUNNING) {
            orch_attach(o, orch_at(o, i));
        }
    }
}

/* What another worker of this number has refused, or failed at, says nothing of the one that has come. */
static void forgive(struct gr_orch *o, uint32_t worker)
{
    for (int i = 0; i < o->n_place; i++) {
        orch_home_ask_again(orch_at(o, i), worker);
        orch_with_try_again(orch_at(o, i), worker);
    }
}

static void vacate_drained(struct gr_orch *o)
{
    for (int i = 0; i < o->n_place; i++) {
        orch_vacate(o, orch_at(o, i));
    }
}

static void employ(struct gr_orch *o, uint32_t worker)
{
    const enum gr_worker_role role = o->worker[worker].info.role;
    forgive(o, worker);
    if (role == GR_WORKER_TARGET) {
        orch_open_waiting(o);
    } else {
        attach_running(o);
        vacate_drained(o);
    }
    orch_spread_idle(o, worker);
}

/* Did its link break while it was drained? It may have come back under another number: the old one forgets it. */
static bool claim_drained(struct gr_orch *o, uint64_t incarnation)
{
    bool drained = false;
    for (int i = 0; i < o->n_worker_max; i++) {
        struct worker *w = &o->worker[i];
        if (!w->joined && w->drained && incarnation != 0 && w->info.incarnation == incarnation) {
            drained = true;
            w->drained = false;
        }
    }
    return drained;
}

/* A process that is frozen, or cut off, and whose seat another one has taken: what it says from now on is not heard. */
static void end_predecessor(struct gr_orch *o, uint32_t worker, int seat)
{
    for (uint32_t i = 0; seat >= 0 && i < (uint32_t)o->n_worker_max; i++) {
        const struct worker *w = &o->worker[i];
        if (i == worker || !w->joined || w->seat != seat) {
            continue;
        }
        o->totals.workers_replaced++;
        log_warn("%s worker %u (host %s, pid %u) is ended: another process has taken its seat `%s'",
                 gr_worker_role_name(w->info.role), i + 1, w->info.host, w->info.pid, w->info.seat);
        if (o->io.drop != NULL) {
            o->io.drop(o->io.ctx, i);
        }
        gr_orch_on_lost(o, i, o->now_ns);
    }
}

static void tell_number(struct gr_orch *o, uint32_t worker)
{
    const uint64_t number = orch_seat_number(o, worker);
    if (number != 0) {
        o->io.send(o->io.ctx, worker, &(struct gr_msg){.type = GR_MSG_JOINED, .joined = {.number = number}});
    }
}

enum gr_status gr_orch_join(struct gr_orch *o, uint32_t worker, const struct gr_worker_info *info, uint64_t now_ns)
{
    char text[GR_MSG_TEXT_MAX];
    if (worker >= (uint32_t)o->n_worker_max) {
        log_error("more than %d workers", o->n_worker_max);
        return GR_ELIMIT;
    }
    o->now_ns = now_ns;
    if (info->role == GR_WORKER_TARGET && orch_model_is_taken(o, info, text)) {
        return refuse_worker(o, worker, info, GR_EMISMATCH, text);
    }
    int seat = -1;
    const enum gr_status st = orch_seat_take(o, worker, info, &seat, text);
    if (st != GR_OK) {
        return st == GR_ECANCELED ? refuse_replaced(o, worker, info, text) : refuse_worker(o, worker, info, st, text);
    }
    end_predecessor(o, worker, seat);
    o->totals.workers_joined[info->role]++;
    const bool drained = claim_drained(o, info->incarnation);
    o->worker[worker] = (struct worker){.joined = true,
                                        .drained = drained,
                                        .seat = seat,
                                        .info = *info,
                                        .heard_ns = now_ns,
                                        .next_ping_ns = now_ns + o->config.ping_interval_ns};
    o->workers_due_ns = 0;
    orch_prefix_forget(o, worker);
    tell_number(o, worker);
    if (info->role == GR_WORKER_TARGET) {
        orch_model_join(o, info);
    }
    check_drafters(o);
    if (!drained) {
        employ(o, worker);
    }
    return GR_OK;
}

enum gr_status gr_orch_on_join(struct gr_orch *o, uint32_t worker, enum gr_worker_role role, const char *data_address,
                               uint64_t now_ns)
{
    struct gr_worker_info info = {.role = role};
    snprintf(info.address, sizeof(info.address), "%s", data_address);
    return gr_orch_join(o, worker, &info, now_ns);
}

static void lose_target(struct gr_orch *o, struct session *s, uint32_t worker)
{
    orch_home_closed(s);
    orch_drop_provisional(s);
    if (s->state == GR_SESSION_CLOSING) {
        orch_home_wait_closed(s, false);
        orch_finish_if_released(o, s);
    } else if (s->state == GR_SESSION_IDLE) {
        orch_detach(o, s); /* the next turn opens it again */
    } else if (s->turn.transcript.len - s->turn.len >= s->request.wishes.turn.max_tokens) {
        orch_end_turn(o, s, GR_FINISH_LENGTH, "");
    } else {
        log_warn("session %" GR_SESSION_ID_PRI
                 ": its target is lost (worker %u); re-opening it as epoch %u when there is one",
                 s->id, worker + 1, s->epoch + 1);
        orch_reopen(o, s);
    }
}

static void lose_drafter(struct gr_orch *o, struct session *s, uint32_t worker)
{
    char detail[32];
    orch_with_lost(s);
    if (s->state != GR_SESSION_RUNNING && s->state != GR_SESSION_OPENING) {
        return;
    }
    snprintf(detail, sizeof(detail), "worker %u", worker + 1);
    orch_fall_back(o, s, GR_FALLBACK_DRAFTER_LOST, detail);
    orch_attach(o, s); /* to another one, if there is one */
}

void gr_orch_on_lost(struct gr_orch *o, uint32_t worker, uint64_t now_ns)
{
    GR_ASSERT(worker < (uint32_t)o->n_worker_max);
    o->now_ns = now_ns;
    o->worker[worker].joined = false;
    orch_prefix_forget(o, worker);
    if (o->worker[worker].let_go) {
        orch_model_leave(o, &o->worker[worker].info);
    } else {
        o->totals.workers_lost[o->worker[worker].info.role]++;
        orch_seat_failed(o, worker, GR_FAILURE_LOSS);
    }
    for (int i = 0; i < o->n_place; i++) {
        struct session *s = orch_at(o, i);
        orch_log_about(worker + 1, s, 0);
        if (s->state != GR_SESSION_FREE && s->with.stats_from == (int)worker && s->with.n_stats_owed > 0) {
            orch_with_no_stats(s);
            orch_finish_if_released(o, s);
        }
        if (s->state != GR_SESSION_FREE && s->with.drafter == (int)worker) {
            lose_drafter(o, s, worker);
        }
        if (s->state != GR_SESSION_FREE && s->at.home == (int)worker) {
            orch_home_gone(s);
        }
        if (s->state != GR_SESSION_FREE && s->at.target == (int)worker) {
            lose_target(o, s, worker);
        }
    }
    gr_log_about(NULL);
}

/* ---- leaving ---- */

void orch_leave(struct gr_orch *o, uint32_t worker)
{
    struct worker *w = &o->worker[worker];
    if (!w->leaving) {
        log_info("%s worker %u leaves when its turns are over", gr_worker_role_name(w->info.role), worker + 1);
    }
    w->leaving = true;
    o->some_leave = true;
}

enum gr_status gr_orch_drain(struct gr_orch *o, uint32_t worker, bool drain, uint64_t now_ns)
{
    o->now_ns = now_ns;
    if (worker >= (uint32_t)o->n_worker_max || !o->worker[worker].joined) {
        return GR_ENOTFOUND;
    }
    struct worker *w = &o->worker[worker];
    if (w->drained == drain) {
        return GR_OK;
    }
    w->drained = drain;
    log_info("%s worker %u %s", gr_worker_role_name(w->info.role), worker + 1,
             drain ? "is drained: it takes no more sessions" : "is drained no longer: it takes sessions");
    if (drain) {
        vacate_drained(o);
    } else {
        employ(o, worker);
    }
    return GR_OK;
}

/* A turn goes on with it, or an answer of it is awaited. */
static bool is_needed(const struct gr_orch *o, int worker)
{
    bool needed = false;
    for (int i = 0; i < o->n_place; i++) {
        const struct session *s = orch_at(o, i);
        const bool works = s->at.target == worker || s->with.drafter == worker;
        const bool owes = s->with.n_stats_owed > 0 && s->with.stats_from == worker;
        needed = needed || (s->state != GR_SESSION_FREE && ((s->turn.is_open && works) || owes));
    }
    return needed;
}

void orch_let_go(struct gr_orch *o)
{
    bool some_leave = false;
    for (int i = 0; o->some_leave && i < o->n_worker_max; i++) {
        struct worker *w = &o->worker[i];
        const bool leaves = w->joined && w->leaving && !w->let_go;
        const bool needed = leaves && is_needed(o, i);
        some_leave = some_leave || needed;
        if (leaves && !needed) {
            w->let_go = true;
            o->io.send(o->io.ctx, (uint32_t)i, &(struct gr_msg){.type = GR_MSG_DRAIN});
        }
    }
    o->some_leave = some_leave;
}

uint32_t gr_orch_n_worker(const struct gr_orch *o, enum gr_worker_role role)
{
    uint32_t n = 0;
    for (int i = 0; i < o->n_worker_max; i++) {
        n += o->worker[i].joined && !o->worker[i].leaving && o->worker[i].info.role == role;
    }
    return n;
}

/* ---- pings ---- */

static enum gr_status send_ping(struct gr_orch *o, uint32_t worker, uint64_t cookie, uint64_t now_ns)
{
    struct worker *w = &o->worker[worker];
    if (w->n_ping == PING_MAX) {
        return GR_AGAIN;
    }
    w->ping[w->n_ping++] = (struct ping){.sent_ns = now_ns, .cookie = cookie};
    o->workers_due_ns = 0;
    o->io.send(o->io.ctx, worker, &(struct gr_msg){.type = GR_MSG_PING});
    return GR_OK;
}

enum gr_status gr_orch_ping(struct gr_orch *o, uint32_t worker, uint64_t cookie, uint64_t now_ns)
{
    if (worker >= (uint32_t)o->n_worker_max || !o->worker[worker].joined) {
        return GR_ENOTFOUND;
    }
    return send_ping(o, worker, cookie, now_ns);
}

void orch_heard(struct gr_orch *o, uint32_t worker, uint64_t now_ns)
{
    o->worker[worker].heard_ns = now_ns;
}

void orch_on_pong(struct gr_orch *o, uint32_t worker, const struct gr_msg *m, uint64_t now_ns)
{
    struct worker *w = &o->worker[worker];
    if (w->n_ping == 0) {
        return; /* unasked: it says nothing */
    }
    const struct ping p = w->ping[0];
    w->n_ping--;
    memmove(w->ping, w->ping + 1, w->n_ping * sizeof(w->ping[0]));
    w->rtt_ns = now_ns - p.sent_ns;
    w->n_block = m->pong.n_block;
    w->n_free_block = m->pong.n_free_block;
    w->shares_prefixes = m->pong.shares_prefixes != 0;
    gr_totals_take(&o->totals, m, "");
    w->forecast = (struct gr_round_forecast){.n_active = m->pong.n_turn,
                                             .round_ns = (double)m->pong.round_ns,
                                             .more_ns = (double)m->pong.more_ns,
                                             .first_ns = (double)m->pong.first_ns};
    if (w->info.role == GR_WORKER_DRAFT) {
        orch_balance(o, worker);
    }
    if (p.cookie != 0 && o->io.on_pong != NULL) {
        o->io.on_pong(o->io.ctx, worker, p.cookie, w->rtt_ns, m);
    }
}

/* When the worker counts as lost; UINT64_MAX while nothing is owed. */
static uint64_t silence_ends_ns(const struct gr_orch *o, const struct worker *w)
{
    return w->n_ping == 0 ? UINT64_MAX : GR_MAX(w->heard_ns, w->ping[0].sent_ns) + o->config.ping_timeout_ns;
}

static uint64_t step_worker(struct gr_orch *o, uint32_t worker, uint64_t now_ns)
{
    struct worker *w = &o->worker[worker];
    if (now_ns >= silence_ends_ns(o, w)) {
        log_warn("%s worker %u (host %s, address %s, pid %u) has been silent for %" PRIu64 " ms: taken as lost",
                 gr_worker_role_name(w->info.role), worker + 1, w->info.host, w->info.peer, w->info.pid,
                 (uint64_t)(o->config.ping_timeout_ns / GR_MS));
        if (o->io.drop != NULL) {
            o->io.drop(o->io.ctx, worker);
        }
        gr_orch_on_lost(o, worker, now_ns);
        return UINT64_MAX;
    }
    if (now_ns >= w->next_ping_ns) {
        w->next_ping_ns = now_ns + o->config.ping_interval_ns;
        enum gr_status st = send_ping(o, worker, 0, now_ns);
        (void)st; /* as many as can be are on their way: the oldest decides */
    }
    return GR_MIN(w->next_ping_ns, silence_ends_ns(o, w));
}

/* This process was stopped or starved meanwhile: the workers' answers may not have been read yet. */
static void forgive_own_absence(struct gr_orch *o, uint64_t now_ns)
{
    for (uint32_t i = 0; i < (uint32_t)o->n_worker_max; i++) {
        o->worker[i].heard_ns = now_ns;
    }
}

/* Workers are looked at when one has come or was pinged, and when the first of them is due. What they say meanwhile
 * only puts that off. */
static uint64_t look_at_workers(struct gr_orch *o, uint64_t now_ns)
{
    uint64_t next_ns = UINT64_MAX;
    for (uint32_t i = 0; i < (uint32_t)o->n_worker_max; i++) {
        if (o->worker[i].joined) {
            const uint64_t at_ns = step_worker(o, i, now_ns);
            next_ns = GR_MIN(next_ns, at_ns);
        }
    }
    return next_ns;
}

uint64_t orch_step_workers(struct gr_orch *o, uint64_t now_ns)
{
    if (o->config.ping_interval_ns == 0) {
        return UINT64_MAX;
    }
    if (now_ns - o->last_step_ns > o->config.ping_interval_ns + o->config.ping_timeout_ns / 2) {
        forgive_own_absence(o, now_ns);
    }
    o->last_step_ns = now_ns;
    if (now_ns >= o->workers_due_ns) {
        const uint64_t due_ns = look_at_workers(o, now_ns);
        o->workers_due_ns = due_ns;
    }
    return o->workers_due_ns;
}

/* ---- looking in ---- */

const struct gr_worker_info *gr_orch_worker(const struct gr_orch *o, uint32_t worker, struct gr_worker_status *out)
{
    if (worker >= (uint32_t)o->n_worker_max || !o->worker[worker].joined) {
        return NULL;
    }
    const struct worker *w = &o->worker[worker];
    if (out != NULL) {
        *out = (struct gr_worker_status){.rounds = w->rounds,
                                         .round_ns = (uint64_t)gr_forecast_present_ns(&w->forecast, w->load.n_active),
                                         .rtt_ns = w->rtt_ns,
                                         .n_session = w->load.n_held,
                                         .n_active = w->load.n_active,
                                         .n_block = w->n_block,
                                         .n_free_block = w->n_free_block,
                                         .draining = w->drained,
                                         .leaving = w->leaving,
                                         .standing = orch_seat_standing(o, worker),
                                         .number = orch_seat_number(o, worker)};
    }
    return &w->info;
}

uint32_t gr_orch_n_refused(const struct gr_orch *o)
{
    return (uint32_t)o->totals.workers_refused;
}
