/* Seats: where workers' processes work one after the other. A supervisor, or whoever else starts a worker again, gives
 * each of its processes the same seat; so the next process is known to stand in the place of the last, which is over,
 * and a worker that dies again and again is known to be one. A process without a seat has one of its own while it
 * lives.
 *
 * Each process has a number, greater than those of all that joined before it. The first is the wall clock's time in
 * nanoseconds when the orchestrator began, and no process joins as often as once in a nanosecond, so the numbers of a
 * restarted orchestrator begin above all that were given. A clock that was set back meanwhile is made up for by what
 * workers that come back tell of their own numbers. Decision D-244. */
#include "common/base/clock.h"
#include "common/base/log.h"
#include "orchestrator/machine/orch_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool orch_seats_create(struct gr_orch *o)
{
    o->seats.n_max = 2 * o->n_worker_max; /* those that are taken, and as many that were */
    o->seats.seat = calloc((size_t)o->seats.n_max, sizeof(*o->seats.seat));
    o->seats.due_ns = UINT64_MAX;
    return o->seats.seat != NULL;
}

void orch_seats_destroy(struct gr_orch *o)
{
    free(o->seats.seat);
    o->seats.seat = NULL;
}

static struct orch_seat *seat_of(const struct gr_orch *o, uint32_t worker)
{
    const int seat = o->worker[worker].seat;
    return seat >= 0 && o->seats.n > 0 ? &o->seats.seat[seat] : NULL;
}

/* ---- who has which ---- */

/* What a worker says of its number is believed so far above the first one that is given here: 146 years of a clock that
 * was set back, and far below where numbers would begin anew. */
#define AHEAD_MAX (UINT64_C(1) << 62)

static bool may_have(const struct orch_seats *a, uint64_t number)
{
    return a->next_number == 0 || number < a->next_number || number - a->first_number <= AHEAD_MAX;
}

static int find(const struct orch_seats *a, const struct gr_worker_info *info)
{
    for (int i = 0; i < a->n; i++) {
        const struct orch_seat *t = &a->seat[i];
        const bool named = info->seat[0] != '\0' && t->role == info->role && strcmp(t->name, info->seat) == 0;
        const bool same = info->seat[0] == '\0' && t->name[0] == '\0' && t->process == info->incarnation;
        if (named || same) {
            return i;
        }
    }
    return -1;
}

static bool is_in_use(const struct gr_orch *o, int seat)
{
    const struct worker *w = &o->worker[o->seats.seat[seat].worker];
    return w->joined && w->seat == seat;
}

/* One that nobody has had, or the one that has been out of use for longest. There are more seats than workers. */
static int vacant(struct gr_orch *o)
{
    struct orch_seats *a = &o->seats;
    int oldest = -1;
    if (a->n < a->n_max) {
        return a->n++;
    }
    for (int i = 0; i < a->n; i++) {
        if (!is_in_use(o, i) && (oldest < 0 || a->seat[i].taken_ns < a->seat[oldest].taken_ns)) {
            oldest = i;
        }
    }
    GR_ASSERT(oldest >= 0);
    return oldest;
}

static uint64_t number_for(struct orch_seats *a, uint64_t has)
{
    if (a->next_number == 0) {
        return 0;
    }
    if (has != 0) {
        a->next_number = GR_MAX(a->next_number, has + 1);
        return has;
    }
    return a->next_number++;
}

enum gr_status orch_seat_take(struct gr_orch *o, uint32_t worker, const struct gr_worker_info *info, int *seat_out,
                              char text[GR_MSG_TEXT_MAX])
{
    struct orch_seats *a = &o->seats;
    *seat_out = -1;
    if (info->seat[0] == '\0' && info->incarnation == 0) {
        return GR_OK;
    }
    if (!may_have(a, info->number)) {
        snprintf(text, GR_MSG_TEXT_MAX,
                 "it says that its process has number %" PRIu64 ", and none above %" PRIu64
                 " was given: start it again, so that it gets one",
                 info->number, a->first_number + AHEAD_MAX);
        return GR_EINVAL;
    }
    int i = find(a, info);
    const bool is_old =
        i >= 0 && a->seat[i].process != info->incarnation && info->number != 0 && info->number < a->seat[i].number;
    if (is_old) {
        snprintf(text, GR_MSG_TEXT_MAX,
                 "its seat `%s' belongs to a newer process (number %" PRIu64 ", this one has %" PRIu64 ")", info->seat,
                 a->seat[i].number, info->number);
        return GR_ECANCELED;
    }
    if (i < 0) {
        i = vacant(o);
        a->seat[i] = (struct orch_seat){.role = info->role};
        snprintf(a->seat[i].name, sizeof(a->seat[i].name), "%s", info->seat);
    }
    struct orch_seat *t = &a->seat[i];
    const bool is_same = t->process == info->incarnation;
    t->number = number_for(a, is_same && t->number != 0 ? t->number : info->number);
    t->process = info->incarnation;
    t->taken_ns = o->now_ns;
    t->worker = worker;
    *seat_out = i;
    return GR_OK;
}

uint64_t orch_seat_number(const struct gr_orch *o, uint32_t worker)
{
    const struct orch_seat *t = seat_of(o, worker);
    return t != NULL ? t->number : 0;
}

/* ---- who fails too often ---- */

enum gr_quarantine_state orch_seat_standing(const struct gr_orch *o, uint32_t worker)
{
    const struct orch_seat *t = seat_of(o, worker);
    return t != NULL ? t->quarantine.state : GR_QUARANTINE_GOOD;
}

bool orch_seat_is_shunned(const struct gr_orch *o, uint32_t worker)
{
    const struct orch_seat *t = seat_of(o, worker);
    return t != NULL && gr_quarantine_shuns(&t->quarantine, o->worker[worker].load.n_active);
}

/* "target worker 2 (host h, pid 17)" */
static void name_worker(const struct gr_orch *o, uint32_t worker, char out[128])
{
    const struct gr_worker_info *info = &o->worker[worker].info;
    snprintf(out, 128, "%s worker %u (host %s, pid %u)", gr_worker_role_name(info->role), worker + 1,
             info->host[0] != '\0' ? info->host : "?", info->pid);
}

void orch_seat_used(struct gr_orch *o, uint32_t worker)
{
    struct orch_seat *t = seat_of(o, worker);
    char name[128];
    if (t == NULL || t->told || !orch_seat_is_shunned(o, worker)) {
        return;
    }
    t->told = true;
    o->totals.quarantine[GR_QUARANTINE_OVERRULED]++;
    name_worker(o, worker, name);
    log_warn("%s has failed too often, and stays in use: there is no other one that fits", name);
}

static void look_again(struct gr_orch *o, const struct orch_seat *t)
{
    const uint64_t due_ns = gr_quarantine_due_ns(&t->quarantine);
    o->seats.due_ns = GR_MIN(o->seats.due_ns, due_ns);
}

void orch_seat_failed(struct gr_orch *o, uint32_t worker, enum gr_failure kind)
{
    struct orch_seat *t = seat_of(o, worker);
    char name[128];
    if (t == NULL || !gr_quarantine_fail(&t->quarantine, &o->config.quarantine, kind, o->now_ns)) {
        return;
    }
    t->told = false;
    o->totals.quarantine[GR_QUARANTINE_BEGUN]++;
    look_again(o, t);
    name_worker(o, worker, name);
    log_warn("%s is in quarantine for %.1f s: it has failed %u times within %.0f s", name,
             (double)t->quarantine.pause_ns / 1e9, t->quarantine.n_mark, (double)o->config.quarantine.window_ns / 1e9);
}

void orch_seat_succeeded(struct gr_orch *o, uint32_t worker)
{
    struct orch_seat *t = seat_of(o, worker);
    char name[128];
    if (t == NULL || !gr_quarantine_succeed(&t->quarantine)) {
        return;
    }
    o->totals.quarantine[GR_QUARANTINE_ENDED]++;
    orch_look_at_queue(o);
    name_worker(o, worker, name);
    gr_log_notice("%s is out of quarantine: a session has gone well", name);
}

static void step_seat(struct gr_orch *o, struct orch_seat *t)
{
    char name[128];
    if (gr_quarantine_step(&t->quarantine, o->now_ns)) {
        o->totals.quarantine[GR_QUARANTINE_TRIED]++;
        orch_look_at_queue(o);
        name_worker(o, t->worker, name);
        gr_log_notice("%s may be tried again: it gets one session", name);
    }
    look_again(o, t);
}

uint64_t orch_step_seats(struct gr_orch *o)
{
    if (o->now_ns < o->seats.due_ns) {
        return o->seats.due_ns;
    }
    o->seats.due_ns = UINT64_MAX;
    for (int i = 0; i < o->seats.n; i++) {
        step_seat(o, &o->seats.seat[i]);
    }
    return o->seats.due_ns;
}
