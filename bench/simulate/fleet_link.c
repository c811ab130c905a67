/* Frames on their way over data connections and messages over control links. The bytes keep a sender's end busy, and
 * links keep their order. */
#include "bench/simulate/fleet_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of a worker on the way to the orchestrator: what both processes and the kernel hold of a control link. */
#define QUEUE_BYTES (2 * (uint64_t)GR_MSG_BYTES_MAX)

void fleet_push(struct gr_fleet *f, uint64_t at_ns, struct fleet_event e)
{
    gr_events_push(f->events, GR_MAX(at_ns, f->now_ns), &e);
}

bool fleet_is_void(const struct gr_fleet *f, const struct fleet_event *e)
{
    switch (e->what) {
    case FLEET_TO_ORCH:
    case FLEET_LINK_LOST:
    case FLEET_ORCH:
    case FLEET_ASK:
    case FLEET_START:
        return false;
    default:
        return !f->worker[e->worker].alive || f->worker[e->worker].life != e->life;
    }
}

static struct fleet_event with_bytes(struct fleet_event e, const uint8_t *bytes, size_t len)
{
    e.bytes = malloc(len);
    GR_ASSERT(e.bytes != NULL);
    memcpy(e.bytes, bytes, len);
    e.len = (uint32_t)len;
    return e;
}

/* ---- frames ---- */

static struct fleet_conn *open_at(struct gr_fleet *f, const struct fleet_worker *w, uint32_t conn)
{
    struct fleet_conn *c = conn < f->n_conn ? &f->conn[conn] : NULL;
    const bool ours = c != NULL && (w->is_target ? c->open_at_target && c->target_life == w->life
                                                 : c->open_at_draft && c->draft_life == w->life);
    return ours ? c : NULL;
}

uint8_t *fleet_frame_begin(struct gr_fleet *f, struct fleet_worker *w, uint32_t conn, enum gr_frame_class class,
                           uint32_t bytes)
{
    GR_ASSERT(bytes <= FLEET_FRAME_BYTES);
    w->frame_class = class;
    return open_at(f, w, conn) != NULL ? w->frame : NULL;
}

/* Bytes on the wire. A simulated feature is shorter than a real one. */
static double wire_bytes(const struct gr_fleet *f, const struct fleet_worker *w, uint32_t bytes)
{
    const double row = (double)f->config.costs->feature_bytes / (double)GR_SIM_FEATURE_BYTES;
    return w->frame_class == GR_FRAME_BULK ? (double)bytes * row : (double)bytes;
}

/* Frames of the small class do not wait for the others, which wait for them. */
static uint64_t arrival(struct gr_fleet *f, struct fleet_worker *w, uint32_t bytes)
{
    const struct gr_link_costs *c = &f->config.costs->data;
    const double ns = c->byte_ns * wire_bytes(f, w, bytes);
    uint64_t *lane = w->lane_ns;
    const bool bulk = w->frame_class == GR_FRAME_BULK;
    const uint64_t free_ns = bulk ? GR_MAX(lane[GR_FRAME_SMALL], lane[GR_FRAME_BULK]) : lane[GR_FRAME_SMALL];
    lane[w->frame_class] = GR_MAX(free_ns, f->now_ns) + (uint64_t)ns;
    w->sent_ns += ns;
    return lane[w->frame_class] + (uint64_t)c->latency_ns;
}

void fleet_frame_end(struct gr_fleet *f, struct fleet_worker *w, uint32_t conn, uint32_t bytes)
{
    const struct fleet_conn *c = &f->conn[conn];
    const uint32_t to = w->is_target ? c->draft : c->target;
    const uint32_t life = w->is_target ? c->draft_life : c->target_life;
    const struct fleet_event e = {.what = FLEET_FRAME, .worker = to, .life = life, .conn = conn};
    fleet_push(f, arrival(f, w, bytes), with_bytes(e, w->frame, bytes));
}

/* ---- messages ---- */

static size_t encode(const struct gr_msg *m, const uint8_t **bytes)
{
    static uint8_t buffer[GR_MSG_BYTES_MAX];
    size_t len = 0;
    const enum gr_status st = gr_msg_encode(m, buffer, sizeof(buffer), &len);
    GR_ASSERT(st == GR_OK);
    *bytes = buffer;
    return len;
}

bool fleet_commit_room(struct fleet_worker *w, int n)
{
    w->held_up = w->to_orch_bytes + (uint64_t)n * GR_COMMIT_BYTES > QUEUE_BYTES;
    return !w->held_up;
}

void fleet_taken_up(struct gr_fleet *f, const struct fleet_event *e)
{
    struct fleet_worker *w = &f->worker[e->worker];
    if (w->life != e->life) {
        return;
    }
    w->to_orch_bytes -= e->len;
    if (w->held_up && w->alive) {
        w->held_up = false;
        fleet_push(f, f->now_ns, (struct fleet_event){.what = FLEET_WAKE, .worker = w->index, .life = w->life});
    }
}

void fleet_msg_to_orch(struct gr_fleet *f, struct fleet_worker *w, const struct gr_msg *m)
{
    const struct gr_link_costs *c = &f->config.costs->control;
    const uint8_t *bytes = NULL;
    const size_t len = encode(m, &bytes);
    const struct fleet_event e = {.what = FLEET_TO_ORCH, .worker = w->index, .life = w->life};
    w->to_orch_bytes += len;
    w->control_ns = GR_MAX(w->control_ns, f->now_ns) + (uint64_t)(c->byte_ns * (double)len);
    fleet_push(f, w->control_ns + (uint64_t)c->latency_ns, with_bytes(e, bytes, len));
}

void fleet_msg_from_orch(struct gr_fleet *f, uint32_t worker, const struct gr_msg *m)
{
    const uint8_t *bytes = NULL;
    const size_t len = encode(m, &bytes);
    const struct fleet_event e = {.what = FLEET_MSG, .worker = worker, .life = f->worker[worker].life};
    if (f->n_outbox == f->cap_outbox) {
        f->cap_outbox = 2 * f->cap_outbox + 64;
        f->outbox = realloc(f->outbox, f->cap_outbox * sizeof(*f->outbox));
        GR_ASSERT(f->outbox != NULL);
    }
    f->outbox[f->n_outbox++] = with_bytes(e, bytes, len);
}

void fleet_flush_orch(struct gr_fleet *f, double busy_ns)
{
    const struct gr_link_costs *c = &f->config.costs->control;
    for (size_t i = 0; i < f->n_outbox; i++) {
        busy_ns += c->byte_ns * f->outbox[i].len;
    }
    for (size_t i = 0; i < f->n_outbox; i++) {
        fleet_push(f, f->now_ns + (uint64_t)(busy_ns + c->latency_ns), f->outbox[i]);
    }
    f->n_outbox = 0;
}

/* ---- connections ---- */

void fleet_address(const struct fleet_worker *w, char *out, size_t cap)
{
    snprintf(out, cap, "%u.%u", w->index, w->life);
}

/* The drafter's connection to that life of a target, which is made if it is not there. */
static uint32_t find_conn(struct gr_fleet *f, struct fleet_worker *w, uint32_t target, uint32_t life)
{
    for (uint32_t i = w->first_conn; i != FLEET_NOBODY; i = f->conn[i].next) {
        const struct fleet_conn *c = &f->conn[i];
        if (c->target == target && c->target_life == life && c->open_at_draft) {
            return i;
        }
    }
    if (f->n_conn == f->cap_conn) {
        f->cap_conn = 2 * f->cap_conn + 64;
        f->conn = realloc(f->conn, f->cap_conn * sizeof(*f->conn));
        GR_ASSERT(f->conn != NULL);
    }
    f->conn[f->n_conn] = (struct fleet_conn){.draft = w->index,
                                             .draft_life = w->life,
                                             .target = target,
                                             .target_life = life,
                                             .open_at_draft = true,
                                             .open_at_target = true,
                                             .next = w->first_conn};
    w->first_conn = f->n_conn;
    return f->n_conn++;
}

/* Both ends are open when the drafter hears so. */
uint32_t fleet_connect(struct gr_fleet *f, struct fleet_worker *w, const char *address)
{
    char *end = NULL;
    const uint32_t target = (uint32_t)strtoul(address, &end, 10);
    const uint32_t life = (uint32_t)strtoul(end + 1, NULL, 10);
    const bool there = f->worker[target].alive && f->worker[target].life == life;
    const uint32_t conn = find_conn(f, w, target, life);
    fleet_push(
        f, f->now_ns + 2 * (uint64_t)f->config.costs->data.latency_ns,
        (struct fleet_event){
            .what = there ? FLEET_CONN_READY : FLEET_CONN_LOST, .worker = w->index, .life = w->life, .conn = conn});
    return conn;
}

void fleet_break_all(struct gr_fleet *f, const struct fleet_worker *w)
{
    for (uint32_t i = 0; i < f->n_conn; i++) {
        const struct fleet_conn *c = &f->conn[i];
        const bool ours = w->is_target ? c->target == w->index && c->target_life == w->life
                                       : c->draft == w->index && c->draft_life == w->life;
        if (ours && (w->is_target ? c->open_at_draft : c->open_at_target)) {
            fleet_push(f, f->now_ns + f->config.notice_ns,
                       (struct fleet_event){.what = FLEET_CONN_LOST,
                                            .worker = w->is_target ? c->draft : c->target,
                                            .life = w->is_target ? c->draft_life : c->target_life,
                                            .conn = i});
        }
    }
}
