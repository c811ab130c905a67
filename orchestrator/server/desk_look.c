/* The requests to the desk that are no turns: lists, texts, refreshes, purges, drains of workers, pings. */
#include "orchestrator/machine/transcript.h"
#include "orchestrator/server/desk_internal.h"

#include <string.h>

static void list_session(const struct gr_desk *d, uint32_t client, const struct gr_session_info *info)
{
    const struct gr_session_metrics *s = gr_orch_metrics(d->orch, info->id);
    gr_desk_send(d, client,
                 &(struct gr_msg){.type = GR_MSG_SESSION,
                                  .session = info->id,
                                  .listed_session = {.epoch = info->epoch,
                                                     .state = info->state,
                                                     .keep_open = info->keep_open,
                                                     .n_token = info->n_token,
                                                     .n_round = s->rounds,
                                                     .n_tree = s->num_drafts,
                                                     .n_drafted = s->num_draft_tokens,
                                                     .n_hit_token = s->num_accepted_tokens,
                                                     .idle_ns = info->idle_ns,
                                                     .target = (uint32_t)(info->target + 1),
                                                     .drafter = (uint32_t)(info->drafter + 1),
                                                     .specpv = info->specpv,
                                                     .n_partial = s->partial_since_refresh,
                                                     .n_refresh = s->full_refreshes,
                                                     .n_checked = s->drift_checked,
                                                     .n_drifted = s->drift_mismatches,
                                                     .place = info->place,
                                                     .wait_ns = s->wait_ns,
                                                     .verify_ns = s->verify_ns,
                                                     .host_ns = s->host_ns,
                                                     .draft_ns = s->draft_ns}});
}

static void list_worker(const struct gr_desk *d, uint32_t client, uint32_t worker, const struct gr_worker_info *info,
                        const struct gr_worker_status *status)
{
    struct gr_msg m = {.type = GR_MSG_WORKER,
                       .listed_worker = {.worker = worker + 1,
                                         .pid = info->pid,
                                         .n_session = status->n_session,
                                         .n_active = status->n_active,
                                         .n_slot = info->n_slot,
                                         .draining = status->draining,
                                         .leaving = status->leaving,
                                         .standing = status->standing,
                                         .number = status->number,
                                         .role = info->role == GR_WORKER_TARGET ? 2 : 3,
                                         .n_vocab = info->n_vocab,
                                         .n_ctx_max = info->n_ctx_max,
                                         .rtt_ns = status->rtt_ns,
                                         .model_fingerprint = info->model_fingerprint,
                                         .tokenizer_fingerprint = info->tokenizer_fingerprint}};
    memcpy(m.listed_worker.address, info->address, sizeof(m.listed_worker.address));
    memcpy(m.listed_worker.numerics_id, info->numerics_id, sizeof(m.listed_worker.numerics_id));
    memcpy(m.listed_worker.host, info->host, sizeof(m.listed_worker.host));
    memcpy(m.listed_worker.seat, info->seat, sizeof(m.listed_worker.seat));
    memcpy(m.listed_worker.peer, info->peer, sizeof(m.listed_worker.peer));
    memcpy(m.listed_worker.model, info->model, sizeof(m.listed_worker.model));
    gr_desk_send(d, client, &m);
}

void gr_desk_on_list(const struct gr_desk *d, uint32_t client, uint64_t now_ns)
{
    struct gr_msg end = {.type = GR_MSG_LISTED, .listed = {.journal_failed = gr_desk_why_refused(d) != NULL}};
    for (int i = 0; i < GR_ORCH_SESSION_MAX; i++) {
        struct gr_session_info info;
        if (gr_orch_session_at(d->orch, i, now_ns, &info)) {
            list_session(d, client, &info);
            end.listed.n_session++;
        }
    }
    for (uint32_t i = 0; i < GR_ORCH_WORKER_MAX; i++) {
        struct gr_worker_status status;
        const struct gr_worker_info *info = gr_orch_worker(d->orch, i, &status);
        if (info != NULL) {
            list_worker(d, client, i, info, &status);
            end.listed.n_worker++;
        }
    }
    gr_desk_send(d, client, &end);
}

/* Of a session in its turn the machine knows more than the journal; of one that is over, the journal alone knows. */
static const char *read_text(const struct gr_desk *d, uint64_t session, struct gr_msg *out)
{
    struct gr_session_info info;
    const bool is_here = gr_orch_session_info(d->orch, session, 0, &info);
    const bool in_turn = is_here && info.state != GR_SESSION_IDLE;
    if (!in_turn && d->io.keeper.read != NULL) {
        return d->io.keeper.read(d->io.keeper.ctx, session, out);
    }
    if (!is_here) {
        return "no such session is open here; `graft session list' tells which are";
    }
    out->read_text.epoch = info.epoch;
    out->read_text.turn = info.turn;
    out->read_text.turn_len = GR_MIN(info.turn_len, info.n_token);
    out->read_text.in_turn = in_turn;
    out->read_text.ids = (struct gr_msg_ids){.p = gr_orch_text(d->orch, session)->token, .n = info.n_token};
    return NULL;
}

void gr_desk_on_read(const struct gr_desk *d, uint32_t client, const struct gr_msg *m)
{
    struct gr_msg reply = {.type = GR_MSG_TEXT, .session = m->session};
    const char *wrong = read_text(d, m->session, &reply);
    if (d->io.keeper.hold != NULL) { /* an end that it tells of may not be durable yet */
        gr_desk_hold(d, client);
    }
    if (wrong != NULL) {
        gr_desk_send_error(d, client, m->session, GR_ENOTFOUND, "%s", wrong);
    } else {
        gr_desk_send(d, client, &reply);
    }
}

/* Session 0: all that have a view. */
void gr_desk_on_refresh(const struct gr_desk *d, uint32_t client, const struct gr_msg *m)
{
    struct gr_msg reply = {.type = GR_MSG_REFRESHED};
    const enum gr_status st = gr_orch_refresh(d->orch, m->session, &reply.refreshed.n_session);
    if (st != GR_OK) {
        gr_desk_send_error(d, client, m->session, st, "%s", gr_orch_why(d->orch));
    } else {
        gr_desk_send(d, client, &reply);
    }
}

void gr_desk_on_purge(const struct gr_desk *d, uint32_t client)
{
    const uint32_t n = gr_orch_purge(d->orch);
    gr_desk_send(d, client, &(struct gr_msg){.type = GR_MSG_PURGED, .purged = {.n_session = n}});
}

/* How many sessions are still in a turn with the worker is told. */
void gr_desk_on_drain_worker(const struct gr_desk *d, uint32_t client, const struct gr_msg *m, uint64_t now_ns)
{
    struct gr_msg reply = *m;
    struct gr_worker_status status = {0};
    const uint32_t worker = m->drain_worker.worker - 1; /* of 0: none that there may be */
    const enum gr_status st = gr_orch_drain(d->orch, worker, m->drain_worker.undo == 0, now_ns);
    if (st != GR_OK) {
        gr_desk_send_error(d, client, 0, st, "no worker %u has joined; `graft worker list' tells which have",
                           m->drain_worker.worker);
        return;
    }
    (void)gr_orch_worker(d->orch, worker, &status);
    reply.drain_worker.n_session = status.n_active;
    gr_desk_send(d, client, &reply);
}

/* worker 0: the orchestrator itself answers. Cookie: the client's generation and number. */
void gr_desk_on_ping(const struct gr_desk *d, uint32_t client, const struct gr_msg *m, uint64_t now_ns)
{
    if (m->ping.worker == 0) {
        gr_desk_send(
            d, client,
            &(struct gr_msg){.type = GR_MSG_PONG, .pong = {.n_session = (uint32_t)gr_orch_n_session(d->orch)}});
        return;
    }
    const uint64_t cookie = (uint64_t)d->generation[client] << 32 | (client + 1);
    const enum gr_status st = gr_orch_ping(d->orch, m->ping.worker - 1, cookie, now_ns);
    if (st != GR_OK) {
        gr_desk_send_error(d, client, 0, st == GR_AGAIN ? GR_ELIMIT : st,
                           st == GR_AGAIN ? "too many pings to worker %u are on their way" : "no worker %u has joined",
                           m->ping.worker);
    }
}
