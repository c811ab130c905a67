#include "bench/simulate/fleet.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/rules/hash.h"
#include "bench/simulate/fleet_internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#define STUCK_NS (60 * GR_S) /* without a token of any session */

/* ---- life ---- */

/* As a target calibrates at its start. */
static void calibrate(const struct gr_target_costs *c, struct gr_cost_table *out)
{
    static const int32_t rows[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 72, 96, 128, 136, 192, 256};
    double ns[GR_ARRAY_LEN(rows)];
    for (size_t i = 0; i < GR_ARRAY_LEN(rows); i++) {
        ns[i] = fleet_pass_ns(c, rows[i], 1, 0.0);
    }
    gr_cost_table_init(out);
    gr_cost_table_calibrate(out, (int)GR_ARRAY_LEN(rows), rows, ns);
}

/* Targets come first; of a pair that shares a device the drafter has the target's. */
static enum gr_status create_workers(struct gr_fleet *f)
{
    const uint32_t n_target = (uint32_t)f->config.n_target;
    for (uint32_t i = 0; i < f->n_worker; i++) {
        struct fleet_worker *w = &f->worker[i];
        w->index = i;
        w->is_target = i < n_target;
        w->device = f->config.shared && !w->is_target ? (i - n_target) % n_target : i;
        GR_TRY(fleet_worker_create(f, w));
    }
    return GR_OK;
}

static void plan_loss(struct gr_fleet *f, const struct fleet_worker *w)
{
    if (f->config.mean_life_s > 0.0) {
        const double u = (double)(fleet_draw(&f->rng, 1u << 30) + 1) / (double)(1u << 30);
        fleet_push(f, f->now_ns + (uint64_t)(-1e9 * f->config.mean_life_s * log(u)),
                   (struct fleet_event){.what = FLEET_LOSE, .worker = w->index, .life = w->life});
    }
}

static enum gr_status check(const struct gr_fleet_config *c)
{
    if (c->n_session > c->n_target * c->n_slot) {
        log_error("%d sessions at once: %d targets have room for %d", c->n_session, c->n_target,
                  c->n_target * c->n_slot);
        return GR_ELIMIT;
    }
    if (c->n_target + c->n_draft > GR_ORCH_WORKER_CAP || c->n_session > GR_ORCH_SESSION_CAP) {
        log_error("%d workers and %d sessions: an orchestrator has room for %d workers and %d sessions",
                  c->n_target + c->n_draft, c->n_session, GR_ORCH_WORKER_CAP, GR_ORCH_SESSION_CAP);
        return GR_ELIMIT;
    }
    return GR_OK;
}

enum gr_status gr_fleet_create(const struct gr_fleet_config *config, struct gr_fleet **out)
{
    GR_TRY(check(config));
    struct gr_fleet *f = calloc(1, sizeof(*f));
    if (f == NULL) {
        log_error("out of memory");
        return GR_ENOMEM;
    }
    *out = f;
    f->config = *config;
    f->n_worker = (uint32_t)(config->n_target + config->n_draft);
    f->rng = gr_mix64(config->seed + 1);
    f->events = gr_events_create(sizeof(struct fleet_event));
    f->worker = calloc(f->n_worker, sizeof(*f->worker));
    f->device = calloc(f->n_worker, sizeof(*f->device));
    f->touched = calloc(f->n_worker, sizeof(*f->touched));
    if (f->events == NULL || f->worker == NULL || f->device == NULL || f->touched == NULL) {
        log_error("out of memory for %u workers", f->n_worker);
        return GR_ENOMEM;
    }
    calibrate(&config->costs->target, &f->cost);
    GR_TRY(create_workers(f));
    for (uint32_t i = 0; i < f->n_worker; i++) {
        plan_loss(f, &f->worker[i]);
    }
    return fleet_orch_create(f);
}

void gr_fleet_destroy(struct gr_fleet *f)
{
    struct fleet_event e;
    uint64_t at_ns = 0;
    if (f == NULL) {
        return;
    }
    while (f->events != NULL && gr_events_pop(f->events, &at_ns, &e)) {
        free(e.bytes);
    }
    for (uint32_t i = 0; f->worker != NULL && i < f->n_worker; i++) {
        fleet_worker_destroy(&f->worker[i]);
        free(f->worker[i].frame);
    }
    if (f->orch != NULL) {
        fleet_orch_destroy(f);
    }
    gr_events_destroy(f->events);
    free(f->worker);
    free(f->device);
    free(f->touched);
    free(f->conn);
    free(f);
}

/* ---- losses ---- */

/* e->conn FLEET_NOBODY: the orchestrator knows already. */
static void lose_worker(struct gr_fleet *f, const struct fleet_event *e)
{
    struct fleet_worker *w = &f->worker[e->worker];
    f->result.n_loss++;
    fleet_break_all(f, w);
    if (e->conn != FLEET_NOBODY) {
        const uint64_t last_ns = GR_MAX(w->control_ns, f->now_ns) + (uint64_t)f->config.costs->control.latency_ns;
        fleet_push(f, last_ns + f->config.notice_ns, (struct fleet_event){.what = FLEET_LINK_LOST, .worker = w->index});
    }
    fleet_worker_destroy(w);
    fleet_push(f, f->now_ns + GR_MAX(f->config.restart_ns, 2 * f->config.notice_ns + GR_S),
               (struct fleet_event){.what = FLEET_START, .worker = w->index});
}

static void start_worker(struct gr_fleet *f, const struct fleet_event *e)
{
    struct fleet_worker *w = &f->worker[e->worker];
    const enum gr_status st = fleet_worker_create(f, w);
    GR_ASSERT(st == GR_OK);
    fleet_orch_join(f, w);
    plan_loss(f, w);
}

/* ---- time ---- */

/* It looks for something to do when all that happens at this time has happened. */
static void handle_at_worker(struct gr_fleet *f, const struct fleet_event *e)
{
    struct fleet_worker *w = &f->worker[e->worker];
    if (w->wake_ns <= f->now_ns) {
        w->wake_ns = UINT64_MAX;
    }
    fleet_worker_take(f, w, e);
    if (!w->touched) {
        w->touched = true;
        f->touched[f->n_touched++] = w->index;
    }
}

static void step_touched(struct gr_fleet *f)
{
    for (uint32_t i = 0; i < f->n_touched; i++) {
        struct fleet_worker *w = &f->worker[f->touched[i]];
        w->touched = false;
        if (w->alive) {
            fleet_worker_step(f, w);
        }
    }
    f->n_touched = 0;
}

static void handle(struct gr_fleet *f, const struct fleet_event *e)
{
    switch (e->what) {
    case FLEET_TO_ORCH:
    case FLEET_LINK_LOST:
    case FLEET_ASK:
    case FLEET_ORCH:
        fleet_orch_take(f, e);
        return; /* what it brings is taken up later */
    case FLEET_LOSE:
        lose_worker(f, e);
        break;
    case FLEET_START:
        start_worker(f, e);
        break;
    default:
        handle_at_worker(f, e);
        break;
    }
    free(e->bytes);
}

static bool is_over(const struct gr_fleet *f)
{
    const struct gr_fleet_config *c = &f->config;
    return c->run_ns > 0 ? f->now_ns >= c->run_ns : f->i_group == c->n_warm + c->n_group;
}

/* Of the time so far; what goes on at this moment counts as far as it has come. */
static double busy_share(const struct gr_fleet *f, double busy_ns, uint64_t until_ns)
{
    const double ahead_ns = until_ns > f->now_ns ? (double)(until_ns - f->now_ns) : 0.0;
    return GR_MAX(busy_ns - ahead_ns, 0.0) / GR_MAX((double)f->now_ns, 1.0);
}

static void sum_up(struct gr_fleet *f)
{
    struct gr_fleet_result *r = &f->result;
    const double all_ns = GR_MAX((double)f->now_ns, 1.0);
    r->virtual_seconds = 1e-9 * all_ns;
    r->seconds = f->config.run_ns > 0 ? 1e-9 * (double)(f->config.run_ns - f->config.warm_ns) : r->seconds;
    r->mean_wait_ns = f->n_wait > 0 ? f->wait_sum_ns / (double)f->n_wait : 0.0;
    r->orch_busy = busy_share(f, f->orch_busy_ns, f->orch_until_ns);
    for (uint32_t i = 0; i < f->n_worker; i++) {
        const struct fleet_worker *w = &f->worker[i];
        const double own_ns = f->config.shared ? 0.0 : w->host_ns; /* of a shared device only itself is told */
        const double busy = busy_share(f, f->device[i].busy_ns + own_ns, f->device[i].busy_until_ns);
        r->target_busy += w->is_target ? busy / f->config.n_target : 0.0;
        r->draft_busy += w->is_target ? 0.0 : busy / f->config.n_draft;
        r->link_busy += w->sent_ns / all_ns / f->n_worker;
        r->link_busy_most = GR_MAX(r->link_busy_most, w->sent_ns / all_ns);
    }
}

enum gr_status gr_fleet_run(struct gr_fleet *f, struct gr_fleet_result *out)
{
    struct fleet_event e;
    uint64_t at_ns = 0;
    while (!is_over(f) && gr_events_pop(f->events, &at_ns, &e)) {
        f->now_ns = GR_MAX(at_ns, f->now_ns);
        f->result.n_event++;
        if (fleet_is_void(f, &e)) {
            free(e.bytes);
        } else {
            handle(f, &e);
        }
        if (gr_events_next_ns(f->events) > f->now_ns) {
            step_touched(f);
        }
        if (f->now_ns > f->progress_ns + STUCK_NS) {
            log_error("no session has had a token for 60 simulated seconds, at %.1f s", 1e-9 * (double)f->now_ns);
            return GR_ETIMEDOUT;
        }
    }
    sum_up(f);
    *out = f->result;
    return GR_OK;
}
