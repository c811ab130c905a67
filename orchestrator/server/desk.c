#include "orchestrator/server/desk.h"

#include "common/base/log.h"
#include "common/base/session_id.h"
#include "orchestrator/machine/place_set.h"
#include "orchestrator/machine/session_index.h"
#include "orchestrator/machine/transcript.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NOBODY UINT32_MAX
#define N_SESSION (GR_ORCH_SESSION_MAX + 1) /* one more than there are sessions: the one that is being opened */

/* A session that a client opened. The machine's user pointer. */
struct session {
    bool used, opened, in_turn, keep_open;
    bool cut;    /* its client has ended the turn: FINISHED says so */
    bool unkept; /* the journal did not take the beginning of its turn: it ends */
    uint64_t session;
    uint32_t client; /* whose turn it is; NOBODY */
    uint32_t closer; /* who waits for CLOSED; NOBODY */
};

struct gr_desk {
    struct gr_orch *orch;
    struct gr_desk_io io;
    bool draining;
    struct gr_desk_clients clients;
    uint32_t asking;            /* the client whose message is being worked on; NOBODY */
    const struct gr_msg *begun; /* OPEN or APPEND of the turn that is beginning, as it is journalled; NULL */
    uint32_t *generation;       /* of each client number: replies to one that is gone reach no other */
    struct session session[N_SESSION];
    struct gr_place_set vacant;    /* of these those that are not used */
    struct gr_session_index index; /* the others by their numbers, which those that are being opened have not yet */
};

enum gr_status gr_desk_create(struct gr_orch *orch, const struct gr_desk_clients *clients, const struct gr_desk_io *io,
                              struct gr_desk **out)
{
    struct gr_desk *d = calloc(1, sizeof(*d));
    if (d == NULL) {
        log_error("out of memory");
        return GR_ENOMEM;
    }
    *d = (struct gr_desk){.orch = orch,
                          .io = *io,
                          .clients = *clients,
                          .asking = NOBODY,
                          .generation = calloc(clients->n, sizeof(*d->generation))};
    if (d->generation == NULL || !gr_place_set_create(&d->vacant, N_SESSION) ||
        !gr_session_index_create(&d->index, N_SESSION)) {
        log_error("out of memory");
        gr_desk_destroy(d);
        return GR_ENOMEM;
    }
    for (uint32_t i = 0; i < N_SESSION; i++) {
        gr_place_set_put(&d->vacant, i, true);
    }
    *out = d;
    return GR_OK;
}

void gr_desk_destroy(struct gr_desk *d)
{
    if (d != NULL) {
        free(d->generation);
        gr_place_set_destroy(&d->vacant);
        gr_session_index_destroy(&d->index);
        free(d);
    }
}

void gr_desk_drain(struct gr_desk *d)
{
    d->draining = true;
}

/* ---- answers ---- */

static void send_to(const struct gr_desk *d, uint32_t client, const struct gr_msg *m)
{
    if (client != NOBODY) {
        d->io.send(d->io.ctx, client, m);
    }
}

__attribute__((format(printf, 5, 6))) static void send_error(const struct gr_desk *d, uint32_t client, uint64_t session,
                                                             enum gr_status st, const char *fmt, ...)
{
    struct gr_msg m = {.type = GR_MSG_ERROR, .session = session, .error = {.code = (uint32_t)-st}};
    va_list args;
    va_start(args, fmt);
    vsnprintf(m.error.text, sizeof(m.error.text), fmt, args);
    va_end(args);
    send_to(d, client, &m);
}

static void send_opened(const struct gr_desk *d, const struct session *s, uint64_t session, uint64_t now_ns)
{
    struct gr_session_info info = {0};
    (void)gr_orch_session_info(d->orch, session, now_ns, &info);
    send_to(d, s->client,
            &(struct gr_msg){.type = GR_MSG_OPENED,
                             .session = session,
                             .opened = {.epoch = info.epoch, .usable_len = info.n_token, .turn = info.turn}});
}

/* ---- what is journalled ---- */

static void hold(const struct gr_desk *d, uint32_t client)
{
    if (client != NOBODY) {
        d->io.keeper.hold(d->io.keeper.ctx, client);
    }
}

/* False: it was not written. s: whose clients, beside the one that asks, are told of it; NULL: nobody's. */
static bool note(const struct gr_desk *d, const struct session *s, const struct gr_msg *m)
{
    if (d->io.keeper.note == NULL) {
        return true;
    }
    const bool noted = d->io.keeper.note(d->io.keeper.ctx, m);
    hold(d, d->asking);
    if (s != NULL) {
        hold(d, s->client);
        hold(d, s->closer);
    }
    return noted;
}

static bool note_placed(const struct gr_desk *d, const struct session *s, uint64_t session)
{
    return note(d, s, &(struct gr_msg){.type = GR_MSG_KEPT, .session = session});
}

static bool note_begun(const struct gr_desk *d, const struct session *s, uint64_t session)
{
    struct gr_msg m;
    if (d->begun == NULL || d->io.keeper.note == NULL) {
        return true;
    }
    m = *d->begun;
    m.session = session;
    return note(d, s, &m) && note_placed(d, s, session);
}

static struct session *find(struct gr_desk *d, uint64_t session)
{
    const int place = gr_session_index_find(&d->index, session);
    return place >= 0 ? &d->session[place] : NULL;
}

/* Its turn has begun: its client is told so when that is journalled. */
static void tell_begun(struct gr_desk *d, struct session *s, uint64_t session, uint64_t now_ns)
{
    s->opened = true;
    if (note_begun(d, s, session)) {
        send_opened(d, s, session, now_ns);
        return;
    }
    send_error(d, s->client, d->begun->session, GR_EIO,
               "the journal could not take the turn; the server's log says why");
    s->unkept = true;
    s->client = NOBODY;
}

/* The call that began its turn returns, and it is not over. */
static void begin(struct gr_desk *d, struct session *s, uint64_t session, uint64_t now_ns)
{
    tell_begun(d, s, session, now_ns);
    if (s->unkept) {
        enum gr_status st = gr_orch_close(d->orch, session);
        (void)st; /* it is there */
    }
}

/* ---- sessions come and go ---- */

static struct session *take_session(struct gr_desk *d)
{
    const int place = gr_place_set_next(&d->vacant, 0);
    GR_ASSERT(place >= 0);
    gr_place_set_put(&d->vacant, (uint32_t)place, false);
    return &d->session[place];
}

static void give_number(struct gr_desk *d, struct session *s, uint64_t session)
{
    s->session = session;
    gr_session_index_add(&d->index, session, (int)(s - d->session));
}

static void release(struct gr_desk *d, struct session *s)
{
    s->used = false;
    gr_place_set_put(&d->vacant, (uint32_t)(s - d->session), true);
    if (s->session != 0) {
        gr_session_index_remove(&d->index, s->session);
    }
}

/* ---- turns ---- */

static const char *const draining_text = "the orchestrator is shutting down; it takes no more requests";

static void fill_request(struct gr_session_request *q, const struct gr_msg_open *m, struct session *s)
{
    q->prompt = m->ids.p;
    q->n_prompt = m->ids.n;
    q->tokenizer_fingerprint = m->tokenizer_fingerprint;
    q->model = m->model;
    q->trace_id = m->trace_id;
    q->user = s;
    gr_wishes_copy(&q->wishes, &m->wishes);
    q->wishes.draft_depth = q->wishes.draft_depth > 0 ? q->wishes.draft_depth : GR_DRAFT_DEPTH;
    q->wishes.draft_top_k = q->wishes.draft_top_k > 0 ? q->wishes.draft_top_k : GR_DRAFT_TOP_K;
}

/* False: it may only look, and has been told so. */
static bool may_have_turns(const struct gr_desk *d, uint32_t client, uint64_t session)
{
    if (client < d->clients.look_begin || client >= d->clients.look_end) {
        return true;
    }
    send_error(d, client, session, GR_AGAIN,
               "%u clients are connected, which is as many as may have turns: try again later", d->clients.look_begin);
    return false;
}

/* False: this orchestrator takes no turns any more, and has said so. */
static bool takes_turns(const struct gr_desk *d, uint32_t client, uint64_t session)
{
    const char *refused = d->io.keeper.refuses != NULL ? d->io.keeper.refuses(d->io.keeper.ctx) : NULL;
    if (d->draining) {
        send_error(d, client, session, GR_EDRAINING, "%s", draining_text);
    } else if (refused != NULL) {
        send_error(d, client, session, GR_EIO, "%s", refused);
    }
    return !d->draining && refused == NULL;
}

/* NULL: may be tried; else what is wrong with it. The target checks what only it knows. */
static const char *check_open(const struct gr_msg *m)
{
    if (m->session != 0 || m->open.epoch != 0) {
        return "OPEN of a client asks for a new session: session and epoch are 0; APPEND goes on with one";
    }
    if (m->open.segments.n != 2 || m->open.segments.p[0] != 0 || (uint32_t)m->open.segments.p[1] != m->open.ids.n) {
        return "OPEN of a client has one segment, the prompt";
    }
    return gr_turn_wishes_wrong(&m->open.wishes.turn);
}

static void on_open(struct gr_desk *d, uint32_t client, const struct gr_msg *m, uint64_t now_ns)
{
    struct gr_session_request q;
    uint64_t session = 0;
    if (!may_have_turns(d, client, 0) || !takes_turns(d, client, 0)) {
        return;
    }
    const char *wrong = check_open(m);
    if (wrong != NULL) {
        send_error(d, client, 0, GR_EINVAL, "%s", wrong);
        return;
    }
    struct session *s = take_session(d);
    *s = (struct session){
        .used = true, .in_turn = true, .keep_open = m->open.wishes.keep_open, .client = client, .closer = NOBODY};
    fill_request(&q, &m->open, s);
    struct gr_msg begun = *m;
    begun.open.epoch = 1;
    gr_wishes_copy(&begun.open.wishes, &q.wishes);
    d->begun = &begun;
    const enum gr_status st = gr_orch_submit(d->orch, &q, now_ns, &session);
    if (st != GR_OK) {
        release(d, s);
        send_error(d, client, 0, st, "%s", gr_orch_why(d->orch));
    } else if (s->used && !s->opened) { /* else it is over already, and the client knows */
        give_number(d, s, session);
        begin(d, s, session, now_ns);
    }
    d->begun = NULL;
}

static void on_append(struct gr_desk *d, uint32_t client, const struct gr_msg *m, uint64_t now_ns)
{
    struct session *s = find(d, m->session);
    struct gr_session_info info;
    if (!may_have_turns(d, client, m->session) || !takes_turns(d, client, m->session)) {
        return;
    }
    if (s == NULL || !gr_orch_session_info(d->orch, m->session, now_ns, &info)) {
        send_error(d, client, m->session, GR_ENOTFOUND,
                   "no session %" GR_SESSION_ID_PRI " is open here; `graft session list' tells which are", m->session);
        return;
    }
    if (m->append.epoch != 0 && m->append.epoch != info.epoch) {
        send_error(d, client, m->session, GR_EINVAL, "session %" GR_SESSION_ID_PRI " is in epoch %u, not %u",
                   m->session, info.epoch, m->append.epoch);
        return;
    }
    struct gr_turn_request t = {.keep_len = m->append.keep_len > 0 ? m->append.keep_len : UINT32_MAX,
                                .hash = m->append.hash,
                                .ids = m->append.ids.p,
                                .n_ids = m->append.ids.n,
                                .user = s};
    gr_turn_wishes_copy(&t.wishes, &m->append.wishes);
    const struct session before = *s;
    s->client = client;
    s->in_turn = true;
    s->opened = s->cut = false;
    d->begun = m;
    const enum gr_status st = gr_orch_append(d->orch, m->session, &t, now_ns);
    if (st != GR_OK) {
        *s = before;
        send_error(d, client, m->session, st, "%s", gr_orch_why(d->orch));
    } else if (s->used && !s->opened) {
        begin(d, s, m->session, now_ns);
    }
    d->begun = NULL;
}

enum gr_status gr_desk_restore(struct gr_desk *d, const struct gr_restored_session *r, uint64_t now_ns)
{
    struct gr_restored_session q = *r;
    struct session *s = take_session(d);
    *s = (struct session){.used = true,
                          .opened = true,
                          .in_turn = r->in_turn,
                          .keep_open = r->wishes->keep_open,
                          .client = NOBODY,
                          .closer = NOBODY};
    q.user = s;
    const enum gr_status st = gr_orch_restore(d->orch, &q, now_ns);
    if (st != GR_OK) {
        release(d, s);
        return st;
    }
    if (s->used) { /* else its turn was over, and it is gone */
        give_number(d, s, r->id);
    }
    return GR_OK;
}

bool gr_desk_adopt(struct gr_desk *d, uint32_t client, uint64_t session)
{
    struct session *s = find(d, session);
    if (s == NULL || !s->in_turn || s->client != NOBODY) {
        return false;
    }
    s->client = client;
    return true;
}

static struct gr_msg finished(const struct gr_desk *d, uint64_t session, enum gr_finish finish, bool cut,
                              const char *text)
{
    struct gr_session_info info = {0}; /* of a session that is gone, nothing is left */
    (void)gr_orch_session_info(d->orch, session, 0, &info);
    struct gr_msg m = {.type = GR_MSG_FINISHED,
                       .session = session,
                       .finished = {.epoch = info.epoch,
                                    .finish = (uint32_t)finish,
                                    .n_token = info.n_token,
                                    .n_fallback = info.n_fallback,
                                    .n_reopen = info.n_reopen,
                                    .cut = cut}};
    snprintf(m.finished.text, sizeof(m.finished.text), "%s", text);
    memcpy(m.finished.undrafted, info.undrafted, sizeof(info.undrafted));
    return m;
}

/* Journalled, and then told. */
static void tell_finished(const struct gr_desk *d, const struct session *s, uint32_t client, struct gr_msg *m)
{
    if (!note(d, s, m)) {
        m->finished.finish = GR_FINISH_ERROR;
        snprintf(m->finished.text, sizeof(m->finished.text),
                 "the journal could not take the turn's end: a server that is started again on it has the turn go on");
    }
    send_to(d, client, m);
}

/* Is the end of the turn that TRUNCATE names in the journal, as an answer that can be read? */
static bool read_end(const struct gr_desk *d, const struct gr_msg *m, struct gr_msg_read_text *out)
{
    struct gr_msg text = {.type = GR_MSG_TEXT, .session = m->session};
    if (d->io.keeper.read == NULL || d->io.keeper.read(d->io.keeper.ctx, m->session, &text) != NULL) {
        return false;
    }
    *out = text.read_text;
    return !out->in_turn && out->turn == m->truncate.turn &&
           (m->truncate.epoch == 0 || m->truncate.epoch == out->epoch);
}

/* The session is over, and its client has had enough before it heard of that: what it is told now is what the journal
 * has from now on. Where the journal has no such end, this is none either: the next process goes on with the turn. */
static void cut_past(const struct gr_desk *d, uint32_t client, const struct gr_msg *m)
{
    static const char *const unwritten = "the journal does not have the end of this answer";
    struct gr_msg end = finished(d, m->session, GR_FINISH_STOP, true, "");
    struct gr_msg_read_text past;
    if (!read_end(d, m, &past)) {
        end = d->io.keeper.read != NULL ? finished(d, m->session, GR_FINISH_ERROR, true, unwritten) : end;
        send_to(d, client, &end);
        return;
    }
    end.finished.epoch = past.epoch;
    end.finished.n_token = GR_MIN(GR_MAX(m->truncate.keep_len, past.turn_len), past.ids.n);
    tell_finished(d, NULL, client, &end);
}

/* Every TRUNCATE is answered: by the FINISHED of its turn, by another one where the turn's end and it have crossed, or
 * by ERROR where it would cut what is not that turn's. */
static void on_truncate(struct gr_desk *d, uint32_t client, const struct gr_msg *m, uint64_t now_ns)
{
    struct session *s = find(d, m->session);
    struct gr_session_info info = {0};
    if (s == NULL || !gr_orch_session_info(d->orch, m->session, now_ns, &info)) {
        cut_past(d, client, m);
        return;
    }
    const bool is_own = m->truncate.turn != 0 && m->truncate.turn == info.turn &&
                        (m->truncate.epoch == 0 || m->truncate.epoch == info.epoch);
    if (!is_own || (s->in_turn && s->client != client)) {
        send_error(d, client, m->session, GR_EINVAL,
                   "session %" GR_SESSION_ID_PRI " is not cut where turn %u stopped: it is in turn %u by now, which "
                   "another client has begun",
                   m->session, m->truncate.turn, info.turn);
        return;
    }
    const bool ends_turn = s->in_turn;
    const uint32_t n_keep = m->truncate.keep_len > info.turn_len ? m->truncate.keep_len - info.turn_len : 0;
    if (ends_turn) {
        s->cut = true;
    }
    enum gr_status st = gr_orch_stop(d->orch, m->session, m->truncate.turn, n_keep, GR_FINISH_STOP);
    (void)st; /* what could be refused was looked at above */
    if (!ends_turn) {
        struct gr_msg end = finished(d, m->session, GR_FINISH_STOP, true, "");
        tell_finished(d, s, client, &end);
    }
}

static void on_close(struct gr_desk *d, uint32_t client, const struct gr_msg *m)
{
    struct session *s = find(d, m->session);
    const struct gr_msg closed = {.type = GR_MSG_CLOSED, .session = m->session};
    if (s == NULL && d->io.keeper.note != NULL && note(d, NULL, &closed)) { /* its answer could still be read */
        send_to(d, client, &closed);
        return;
    }
    if (s == NULL || s->closer != NOBODY) {
        send_error(d, client, m->session, s == NULL ? GR_ENOTFOUND : GR_EINVAL,
                   s == NULL ? "no session %" GR_SESSION_ID_PRI " is open here"
                             : "session %" GR_SESSION_ID_PRI " is being closed already",
                   m->session);
        return;
    }
    s->closer = client;
    enum gr_status st = gr_orch_close(d->orch, m->session); /* the session may be gone when it returns */
    (void)st;
}

/* ---- looking around ---- */

static void list_session(const struct gr_desk *d, uint32_t client, const struct gr_session_info *info)
{
    const struct gr_session_metrics *s = gr_orch_metrics(d->orch, info->id);
    send_to(d, client,
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
    send_to(d, client, &m);
}

static void on_list(const struct gr_desk *d, uint32_t client, uint64_t now_ns)
{
    struct gr_msg end = {.type = GR_MSG_LISTED};
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
    send_to(d, client, &end);
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

static void on_read(const struct gr_desk *d, uint32_t client, const struct gr_msg *m)
{
    struct gr_msg reply = {.type = GR_MSG_TEXT, .session = m->session};
    const char *wrong = read_text(d, m->session, &reply);
    if (d->io.keeper.hold != NULL) { /* an end that it tells of may not be durable yet */
        hold(d, client);
    }
    if (wrong != NULL) {
        send_error(d, client, m->session, GR_ENOTFOUND, "%s", wrong);
    } else {
        send_to(d, client, &reply);
    }
}

/* Session 0: all that have a view. */
static void on_refresh(const struct gr_desk *d, uint32_t client, const struct gr_msg *m)
{
    struct gr_msg reply = {.type = GR_MSG_REFRESHED};
    const enum gr_status st = gr_orch_refresh(d->orch, m->session, &reply.refreshed.n_session);
    if (st != GR_OK) {
        send_error(d, client, m->session, st, "%s", gr_orch_why(d->orch));
    } else {
        send_to(d, client, &reply);
    }
}

static void on_purge(const struct gr_desk *d, uint32_t client)
{
    const uint32_t n = gr_orch_purge(d->orch);
    send_to(d, client, &(struct gr_msg){.type = GR_MSG_PURGED, .purged = {.n_session = n}});
}

/* How many sessions are still in a turn with the worker is told. */
static void on_drain_worker(const struct gr_desk *d, uint32_t client, const struct gr_msg *m, uint64_t now_ns)
{
    struct gr_msg reply = *m;
    struct gr_worker_status status = {0};
    const uint32_t worker = m->drain_worker.worker - 1; /* of 0: none that there may be */
    const enum gr_status st = gr_orch_drain(d->orch, worker, m->drain_worker.undo == 0, now_ns);
    if (st != GR_OK) {
        send_error(d, client, 0, st, "no worker %u has joined; `graft worker list' tells which have",
                   m->drain_worker.worker);
        return;
    }
    (void)gr_orch_worker(d->orch, worker, &status);
    reply.drain_worker.n_session = status.n_active;
    send_to(d, client, &reply);
}

/* worker 0: the orchestrator itself answers. Cookie: the client's generation and number. */
static void on_ping(struct gr_desk *d, uint32_t client, const struct gr_msg *m, uint64_t now_ns)
{
    if (m->ping.worker == 0) {
        send_to(d, client,
                &(struct gr_msg){.type = GR_MSG_PONG, .pong = {.n_session = (uint32_t)gr_orch_n_session(d->orch)}});
        return;
    }
    const uint64_t cookie = (uint64_t)d->generation[client] << 32 | (client + 1);
    const enum gr_status st = gr_orch_ping(d->orch, m->ping.worker - 1, cookie, now_ns);
    if (st != GR_OK) {
        send_error(d, client, 0, st == GR_AGAIN ? GR_ELIMIT : st,
                   st == GR_AGAIN ? "too many pings to worker %u are on their way" : "no worker %u has joined",
                   m->ping.worker);
    }
}

static enum gr_status take_msg(struct gr_desk *d, uint32_t client, const struct gr_msg *m, uint64_t now_ns)
{
    switch (m->type) {
    case GR_MSG_OPEN:
        on_open(d, client, m, now_ns);
        return GR_OK;
    case GR_MSG_APPEND:
        on_append(d, client, m, now_ns);
        return GR_OK;
    case GR_MSG_TRUNCATE:
        on_truncate(d, client, m, now_ns);
        return GR_OK;
    case GR_MSG_CLOSE:
        on_close(d, client, m);
        return GR_OK;
    case GR_MSG_READ:
        on_read(d, client, m);
        return GR_OK;
    case GR_MSG_REFRESH:
        on_refresh(d, client, m);
        return GR_OK;
    case GR_MSG_PURGE:
        on_purge(d, client);
        return GR_OK;
    case GR_MSG_LIST:
        on_list(d, client, now_ns);
        return GR_OK;
    case GR_MSG_DRAIN_WORKER:
        on_drain_worker(d, client, m, now_ns);
        return GR_OK;
    case GR_MSG_PING:
        on_ping(d, client, m, now_ns);
        return GR_OK;
    case GR_MSG_DRAIN:
        if (d->io.on_stop != NULL) {
            d->io.on_stop(d->io.ctx);
            return GR_OK;
        }
        break;
    default:
        break;
    }
    log_error("client %u sent %s, which is not a client's message", client, gr_msg_name(m->type));
    return GR_EPROTO;
}

enum gr_status gr_desk_on_msg(struct gr_desk *d, uint32_t client, const struct gr_msg *m, uint64_t now_ns)
{
    GR_ASSERT(client < d->clients.n);
    d->asking = client;
    const enum gr_status st = take_msg(d, client, m, now_ns);
    d->asking = NOBODY;
    return st;
}

void gr_desk_on_client_lost(struct gr_desk *d, uint32_t client)
{
    d->generation[client]++;
    for (int i = 0; i < N_SESSION; i++) {
        struct session *s = &d->session[i];
        if (s->used && s->closer == client) {
            s->closer = NOBODY;
        }
        if (s->used && s->client == client) {
            s->client = NOBODY;
            if (s->in_turn) {
                log_info("session %" GR_SESSION_ID_PRI ": its client is gone; its turn is cut", s->session);
                enum gr_status st = gr_orch_stop(d->orch, s->session, 0, UINT32_MAX, GR_FINISH_CLOSED);
                (void)st; /* it is in its turn */
            }
        }
    }
    if (d->io.keeper.forget != NULL) {
        d->io.keeper.forget(d->io.keeper.ctx, client);
    }
}

void gr_desk_fail_turns(struct gr_desk *d, const char *why)
{
    for (int i = 0; i < N_SESSION; i++) {
        struct session *s = &d->session[i];
        if (s->used && s->in_turn) {
            struct gr_msg m = finished(d, s->session, GR_FINISH_ERROR, s->cut, why);
            tell_finished(d, s, s->client, &m);
            s->in_turn = false;
            s->client = NOBODY;
        }
    }
}

void gr_desk_fail_client(struct gr_desk *d, uint32_t client, const char *why)
{
    for (int i = 0; i < N_SESSION; i++) {
        struct session *s = &d->session[i];
        if (s->used && s->client == client) {
            send_error(d, client, s->session, GR_EIO, "%s", why);
            s->client = NOBODY;
            enum gr_status st = gr_orch_close(d->orch, s->session);
            (void)st; /* it is in its turn */
        }
    }
}

/* ---- what the machine reports ---- */

void gr_desk_on_report(void *desk, uint64_t session, void *user, const struct gr_msg *m)
{
    const struct session *s = user;
    (void)session;
    send_to(desk, s->client, m);
}

void gr_desk_on_done(void *desk, uint64_t session, void *user, enum gr_finish finish, const char *text)
{
    struct gr_desk *d = desk;
    struct session *s = user;
    give_number(d, s, session);
    if (!s->opened) { /* it ended within the call that began it */
        tell_begun(d, s, session, 0);
    }
    struct gr_msg m = finished(d, session, finish, s->cut, text);
    if (s->in_turn) { /* else it was told as given up, and stays so */
        tell_finished(d, s, s->client, &m);
    }
    s->in_turn = false;
    s->client = NOBODY;
    if (!s->keep_open) {
        gr_desk_on_closed(desk, session, user, text);
    }
}

void gr_desk_on_closed(void *desk, uint64_t session, void *user, const char *why)
{
    struct session *s = user;
    const struct gr_msg m = {.type = GR_MSG_CLOSED, .session = session};
    const bool is_gone = s->keep_open || s->closer != NOBODY; /* else its answer can be read for a while */
    (void)why;
    if (is_gone && !note(desk, s, &m)) {
        send_error(desk, s->closer, session, GR_EIO,
                   "the session is closed, but the journal could not take that: a server that is started again on it "
                   "has the session again");
    } else {
        send_to(desk, s->closer, &m);
    }
    release(desk, s);
}

void gr_desk_on_placed(void *desk, uint64_t session, void *user)
{
    const struct session *s = user;
    if (s->opened) { /* else the beginning of its turn is not journalled yet */
        (void)note_placed(desk, s, session);
    }
}

void gr_desk_on_pong(void *desk, uint32_t worker, uint64_t cookie, uint64_t rtt_ns, const struct gr_msg *pong)
{
    const struct gr_desk *d = desk;
    const uint32_t client = (uint32_t)cookie - 1;
    if (client < d->clients.n && d->generation[client] == (uint32_t)(cookie >> 32)) {
        struct gr_msg m = *pong;
        m.pong.worker = worker + 1;
        m.pong.rtt_ns = rtt_ns;
        send_to(d, client, &m);
    }
}
