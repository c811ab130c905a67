/* The life of the machine, and what others may look at. */
#include "orchestrator/machine/orch.h"

#include "common/base/log.h"
#include "orchestrator/machine/orch_internal.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- life ---- */

static bool take_memory(struct gr_orch *o)
{
    const size_t n_worker = (size_t)o->n_worker_max;
    o->worker = calloc(n_worker, sizeof(*o->worker));
    o->place = calloc(n_worker, sizeof(*o->place));
    o->excess = calloc(n_worker, sizeof(*o->excess));
    o->chunk = calloc((size_t)o->n_session_cap / ORCH_CHUNK, sizeof(struct session *));
    return o->worker != NULL && o->place != NULL && o->excess != NULL && o->chunk != NULL && orch_queue_create(o) &&
           orch_seats_create(o) && gr_session_index_create(&o->index, (uint32_t)o->n_session_cap) &&
           orch_books_create(&o->books, o->n_session_cap) && orch_prefix_create(o);
}

enum gr_status gr_orch_create_sized(const struct gr_orch_io *io, int n_worker_max, int n_session_max,
                                    struct gr_orch **out)
{
    GR_ASSERT(n_worker_max > 0 && n_worker_max <= GR_ORCH_WORKER_CAP);
    GR_ASSERT(n_session_max > 0 && n_session_max <= GR_ORCH_SESSION_CAP);
    struct gr_orch *o = calloc(1, sizeof(*o));
    if (o == NULL) {
        log_error("no memory for the orchestrator");
        return GR_ENOMEM;
    }
    o->io = *io;
    orch_place_begin(o);
    o->n_worker_max = n_worker_max;
    o->n_session_cap = (n_session_max + ORCH_CHUNK - 1) / ORCH_CHUNK * ORCH_CHUNK;
    o->config.n_session_max = (uint32_t)n_session_max;
    if (!take_memory(o)) {
        log_error("out of memory for %d workers and %d sessions", n_worker_max, n_session_max);
        gr_orch_destroy(o);
        return GR_ENOMEM;
    }
    *out = o;
    return GR_OK;
}

enum gr_status gr_orch_create(const struct gr_orch_io *io, struct gr_orch **out)
{
    return gr_orch_create_sized(io, GR_ORCH_WORKER_MAX, GR_ORCH_SESSION_MAX, out);
}

void gr_orch_configure(struct gr_orch *o, const struct gr_orch_config *config)
{
    o->config = *config;
    o->seats.first_number = o->seats.next_number = config->first_number;
    if (o->config.n_session_max == 0 || o->config.n_session_max > (uint32_t)o->n_session_cap) {
        o->config.n_session_max = (uint32_t)o->n_session_cap;
    }
}

void gr_orch_destroy(struct gr_orch *o)
{
    if (o == NULL) {
        return;
    }
    for (int i = 0; i < o->n_place; i++) {
        gr_transcript_finish(&orch_at(o, i)->turn.transcript);
    }
    for (int i = 0; i < o->n_place / ORCH_CHUNK; i++) {
        free(o->chunk[i]);
    }
    gr_session_index_destroy(&o->index);
    orch_books_destroy(&o->books);
    orch_prefix_destroy(o);
    free((void *)o->chunk);
    orch_queue_destroy(o);
    orch_seats_destroy(o);
    free(o->worker);
    free(o->place);
    free(o->excess);
    free(o);
}

struct session *orch_find(const struct gr_orch *o, uint64_t id)
{
    const int place = gr_session_index_find(&o->index, id);
    return place >= 0 ? orch_at(o, place) : NULL;
}

void orch_log_about(uint32_t worker, const struct session *s, uint32_t round)
{
    struct gr_log_subject about = {.worker = worker, .round = round};
    if (s != NULL) {
        about.session = s->id;
        about.epoch = s->epoch;
        snprintf(about.trace_id, sizeof(about.trace_id), "%s", s->trace_id);
    }
    gr_log_about(&about);
}

/* ---- looking in ---- */

const struct gr_session_metrics *gr_orch_metrics(const struct gr_orch *o, uint64_t session)
{
    const struct session *s = orch_find(o, session);
    return s != NULL ? &s->metrics : NULL;
}

uint32_t gr_orch_n_in_state(const struct gr_orch *o, enum gr_session_state state)
{
    return o->states.n[state];
}

const struct gr_totals *gr_orch_totals(const struct gr_orch *o)
{
    return &o->totals;
}

void gr_orch_handed_over(struct gr_orch *o, uint64_t ns, uint32_t n)
{
    gr_histogram_add(&o->totals.hand_over, ns, n);
}

const int32_t *gr_orch_tokens(const struct gr_orch *o, uint64_t session, uint32_t *n_out)
{
    const struct session *s = orch_find(o, session);
    if (s == NULL) {
        return NULL;
    }
    *n_out = s->turn.final_len - s->turn.len;
    return s->turn.transcript.token + s->turn.len;
}

const struct gr_transcript *gr_orch_text(const struct gr_orch *o, uint64_t session)
{
    const struct session *s = orch_find(o, session);
    return s != NULL ? &s->turn.transcript : NULL;
}

bool gr_orch_fill_kept(const struct gr_orch *o, uint64_t session, struct gr_msg_kept *out)
{
    const struct session *s = orch_find(o, session);
    if (s != NULL) {
        out->epoch = s->epoch;
        out->model_fingerprint = s->model.fingerprint;
        out->turn = s->turn.number;
        out->turn_base = s->turn.base;
        out->turn_len = s->turn.len;
        snprintf(out->numerics_id, sizeof(out->numerics_id), "%s", s->numerics_id);
    }
    return s != NULL;
}

static void describe(const struct session *s, uint64_t now_ns, struct gr_session_info *out)
{
    *out = (struct gr_session_info){.id = s->id,
                                    .state = s->state,
                                    .epoch = s->epoch,
                                    .n_token = s->turn.final_len,
                                    .turn = s->turn.number,
                                    .turn_len = s->turn.len,
                                    .specpv = s->specpv,
                                    .n_fallback = s->turn.n_fallback,
                                    .n_reopen = s->turn.n_reopen,
                                    .place = s->state == GR_SESSION_WAITING ? s->turn.place : 0,
                                    .keep_open = s->request.wishes.keep_open,
                                    .target = s->at.target,
                                    .drafter = s->with.drafter,
                                    .drafter_failed = s->with.failed,
                                    .idle_ns = s->state == GR_SESSION_IDLE ? now_ns - s->turn.idle_since_ns : 0};
    snprintf(out->undrafted, sizeof(out->undrafted), "%s", s->with.why);
}

bool gr_orch_session_info(const struct gr_orch *o, uint64_t session, uint64_t now_ns, struct gr_session_info *out)
{
    const struct session *s = orch_find(o, session);
    if (s != NULL) {
        describe(s, now_ns, out);
    }
    return s != NULL;
}

bool gr_orch_session_at(const struct gr_orch *o, int i, uint64_t now_ns, struct gr_session_info *out)
{
    if (i < 0 || i >= o->n_place || orch_at(o, i)->state == GR_SESSION_FREE) {
        return false;
    }
    describe(orch_at(o, i), now_ns, out);
    return true;
}

int gr_orch_n_session(const struct gr_orch *o)
{
    return o->n_session;
}

int gr_orch_n_turn(const struct gr_orch *o)
{
    return (int)o->books.open.n;
}
