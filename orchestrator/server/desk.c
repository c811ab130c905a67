#include "common/base/log.h"
#include "common/base/session_id.h"
#include "orchestrator/machine/transcript.h"
#include "orchestrator/server/desk_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum gr_status gr_desk_create(struct gr_orch *orch, const struct gr_desk_clients *clients, const struct gr_desk_io *io,
                              struct gr_desk **out)
{
    struct gr_desk *d = calloc(1, sizeof(*d));
    if (d == NULL) {
        log_error("no memory for clients' sessions");
        return GR_ENOMEM;
    }
    *d = (struct gr_desk){.orch = orch,
                          .io = *io,
                          .clients = *clients,
                          .asking = GR_DESK_NOBODY,
                          .generation = calloc(clients->n, sizeof(*d->generation))};
    if (d->generation == NULL || !gr_place_set_create(&d->vacant, GR_DESK_SESSION_MAX) ||
        !gr_session_index_create(&d->index, GR_DESK_SESSION_MAX)) {
        log_error("no memory for clients' sessions");
        gr_desk_destroy(d);
        return GR_ENOMEM;
    }
    for (uint32_t i = 0; i < GR_DESK_SESSION_MAX; i++) {
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

static void send_opened(const struct gr_desk *d, const struct gr_desk_session *s, uint64_t session, uint64_t now_ns)
{
    struct gr_session_info info = {0};
    (void)gr_orch_session_info(d->orch, session, now_ns, &info);
    gr_desk_send(d, s->client,
                 &(struct gr_msg){.type = GR_MSG_OPENED,
                                  .session = session,
                                  .opened = {.epoch = info.epoch, .usable_len = info.n_token, .turn = info.turn}});
}

/* ---- what is journalled ---- */

/* False: it was not written. s: whose clients, beside the one that asks, are told of it; NULL: nobody's. */
static bool note(const struct gr_desk *d, const struct gr_desk_session *s, const struct gr_msg *m)
{
    if (d->io.keeper.note == NULL) {
        return true;
    }
    const bool noted = d->io.keeper.note(d->io.keeper.ctx, m);
    gr_desk_hold(d, d->asking);
    if (s != NULL) {
        gr_desk_hold(d, s->client);
        gr_desk_hold(d, s->closer);
    }
    return noted;
}

static bool note_placed(const struct gr_desk *d, const struct gr_desk_session *s, uint64_t session)
{
    return note(d, s, &(struct gr_msg){.type = GR_MSG_KEPT, .session = session});
}

static bool note_begun(const struct gr_desk *d, const struct gr_desk_session *s, uint64_t session)
{
    struct gr_msg m;
    if (d->begun == NULL || d->io.keeper.note == NULL) {
        return true;
    }
    m = *d->begun;
    m.session = session;
    return note(d, s, &m) && note_placed(d, s, session);
}

static struct gr_desk_session *find(struct gr_desk *d, uint64_t session)
{
    const int place = gr_session_index_find(&d->index, session);
    return place >= 0 ? &d->session[place] : NULL;
}

/* Its turn has begun: its client is told so when that is journalled. */
static void tell_begun(struct gr_desk *d, struct gr_desk_session *s, uint64_t session, uint64_t now_ns)
{
    s->opened = true;
    if (note_begun(d, s, session)) {
        send_opened(d, s, session, now_ns);
        return;
    }
    gr_desk_send_error(d, s->client, d->begun->session, GR_EIO,
                       "the journal could not take the turn; the server's log says why");
    s->unkept = true;
    s->client = GR_DESK_NOBODY;
}

/* The call that began its turn returns, and it is not over. */
static void begin(struct gr_desk *d, struct gr_desk_session *s, uint64_t session, uint64_t now_ns)
{
    tell_begun(d, s, session, now_ns);
    if (s->unkept) {
        enum gr_status st = gr_orch_close(d->orch, session);
        (void)st; /* it is there */
    }
}

/* ---- sessions come and go ---- */

static struct gr_desk_session *take_session(struct gr_desk *d)
{
    const int place = gr_place_set_next(&d->vacant, 0);
    GR_ASSERT(place >= 0);
    gr_place_set_put(&d->vacant, (uint32_t)place, false);
    return &d->session[place];
}

static void give_number(struct gr_desk *d, struct gr_desk_session *s, uint64_t session)
{
    s->session = session;
    gr_session_index_add(&d->index, session, (int)(s - d->session));
}

static void release(struct gr_desk *d, struct gr_desk_session *s)
{
    s->used = false;
    gr_place_set_put(&d->vacant, (uint32_t)(s - d->session), true);
    if (s->session != 0) {
        gr_session_index_remove(&d->index, s->session);
    }
}

/* ---- turns ---- */

static const char *const draining_text = "the orchestrator is shutting down; it takes no more requests";

static void fill_request(struct gr_session_request *q, const struct gr_msg_open *m, struct gr_desk_session *s)
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
    gr_desk_send_error(d, client, session, GR_AGAIN,
                       "%u clients are connected, which is as many as may have turns: try again later",
                       d->clients.look_begin);
    return false;
}

/* False: this orchestrator takes no turns any more, and has said so. */
static bool takes_turns(const struct gr_desk *d, uint32_t client, uint64_t session)
{
    const char *refused = gr_desk_why_refused(d);
    if (d->draining) {
        gr_desk_send_error(d, client, session, GR_EDRAINING, "%s", draining_text);
    } else if (refused != NULL) {
        gr_desk_send_error(d, client, session, GR_EIO, "%s", refused);
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
        gr_desk_send_error(d, client, 0, GR_EINVAL, "%s", wrong);
        return;
    }
    struct gr_desk_session *s = take_session(d);
    *s = (struct gr_desk_session){.used = true,
                                  .in_turn = true,
                                  .keep_open = m->open.wishes.keep_open,
                                  .client = client,
                                  .closer = GR_DESK_NOBODY};
    fill_request(&q, &m->open, s);
    struct gr_msg begun = *m;
    begun.open.epoch = 1;
    gr_wishes_copy(&begun.open.wishes, &q.wishes);
    d->begun = &begun;
    const enum gr_status st = gr_orch_submit(d->orch, &q, now_ns, &session);
    if (st != GR_OK) {
        release(d, s);
        gr_desk_send_error(d, client, 0, st, "%s", gr_orch_why(d->orch));
    } else if (s->used && !s->opened) { /* else it is over already, and the client knows */
        give_number(d, s, session);
        begin(d, s, session, now_ns);
    }
    d->begun = NULL;
}

static void on_append(struct gr_desk *d, uint32_t client, const struct gr_msg *m, uint64_t now_ns)
{
    struct gr_desk_session *s = find(d, m->session);
    struct gr_session_info info;
    if (!may_have_turns(d, client, m->session) || !takes_turns(d, client, m->session)) {
        return;
    }
    if (s == NULL || !gr_orch_session_info(d->orch, m->session, now_ns, &info)) {
        gr_desk_send_error(d, client, m->session, GR_ENOTFOUND,
                           "no session %" GR_SESSION_ID_PRI " is open here; `graft session list' tells which are",
                           m->session);
        return;
    }
    if (m->append.epoch != 0 && m->append.epoch != info.epoch) {
        gr_desk_send_error(d, client, m->session, GR_EINVAL, "session %" GR_SESSION_ID_PRI " is in epoch %u, not %u",
                           m->session, info.epoch, m->append.epoch);
        return;
    }
    struct gr_turn_request t = {.keep_len = m->append.keep_len > 0 ? m->append.keep_len : UINT32_MAX,
                                .hash = m->append.hash,
                                .ids = m->append.ids.p,
                                .n_ids = m->append.ids.n,
                                .user = s};
    gr_turn_wishes_copy(&t.wishes, &m->append.wishes);
    const struct gr_desk_session before = *s;
    s->client = client;
    s->in_turn = true;
    s->opened = s->cut = false;
    d->begun = m;
    const enum gr_status st = gr_orch_append(d->orch, m->session, &t, now_ns);
    if (st != GR_OK) {
        *s = before;
        gr_desk_send_error(d, client, m->session, st, "%s", gr_orch_why(d->orch));
    } else if (s->used && !s->opened) {
        begin(d, s, m->session, now_ns);
    }
    d->begun = NULL;
}

enum gr_status gr_desk_restore(struct gr_desk *d, const struct gr_restored_session *r, uint64_t now_ns)
{
    struct gr_restored_session q = *r;
    struct gr_desk_session *s = take_session(d);
    *s = (struct gr_desk_session){.used = true,
                                  .opened = true,
                                  .in_turn = r->in_turn,
                                  .keep_open = r->wishes->keep_open,
                                  .client = GR_DESK_NOBODY,
                                  .closer = GR_DESK_NOBODY};
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
    struct gr_desk_session *s = find(d, session);
    if (s == NULL || !s->in_turn || s->client != GR_DESK_NOBODY) {
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
static void tell_finished(const struct gr_desk *d, const struct gr_desk_session *s, uint32_t client, struct gr_msg *m)
{
    if (!note(d, s, m)) {
        m->finished.finish = GR_FINISH_ERROR;
        snprintf(m->finished.text, sizeof(m->finished.text),
                 "the journal could not take the turn's end: a server that is started again on it has the turn go on");
    }
    gr_desk_send(d, client, m);
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
        gr_desk_send(d, client, &end);
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
    struct gr_desk_session *s = find(d, m->session);
    struct gr_session_info info = {0};
    if (s == NULL || !gr_orch_session_info(d->orch, m->session, now_ns, &info)) {
        cut_past(d, client, m);
        return;
    }
    const bool is_own = m->truncate.turn != 0 && m->truncate.turn == info.turn &&
                        (m->truncate.epoch == 0 || m->truncate.epoch == info.epoch);
    if (!is_own || (s->in_turn && s->client != client)) {
        gr_desk_send_error(d, client, m->session, GR_EINVAL,
                           "session %" GR_SESSION_ID_PRI
                           " is not cut where turn %u stopped: it is in turn %u by now, which "
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
    struct gr_desk_session *s = find(d, m->session);
    const struct gr_msg closed = {.type = GR_MSG_CLOSED, .session = m->session};
    if (s == NULL && d->io.keeper.note != NULL && note(d, NULL, &closed)) { /* its answer could still be read */
        gr_desk_send(d, client, &closed);
        return;
    }
    if (s == NULL || s->closer != GR_DESK_NOBODY) {
        gr_desk_send_error(d, client, m->session, s == NULL ? GR_ENOTFOUND : GR_EINVAL,
                           s == NULL ? "no session %" GR_SESSION_ID_PRI " is open here"
                                     : "session %" GR_SESSION_ID_PRI " is being closed already",
                           m->session);
        return;
    }
    s->closer = client;
    enum gr_status st = gr_orch_close(d->orch, m->session); /* the session may be gone when it returns */
    (void)st;
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
        gr_desk_on_read(d, client, m);
        return GR_OK;
    case GR_MSG_REFRESH:
        gr_desk_on_refresh(d, client, m);
        return GR_OK;
    case GR_MSG_PURGE:
        gr_desk_on_purge(d, client);
        return GR_OK;
    case GR_MSG_LIST:
        gr_desk_on_list(d, client, now_ns);
        return GR_OK;
    case GR_MSG_DRAIN_WORKER:
        gr_desk_on_drain_worker(d, client, m, now_ns);
        return GR_OK;
    case GR_MSG_PING:
        gr_desk_on_ping(d, client, m, now_ns);
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
    d->asking = GR_DESK_NOBODY;
    return st;
}

void gr_desk_on_client_lost(struct gr_desk *d, uint32_t client)
{
    d->generation[client]++;
    for (int i = 0; i < GR_DESK_SESSION_MAX; i++) {
        struct gr_desk_session *s = &d->session[i];
        if (s->used && s->closer == client) {
            s->closer = GR_DESK_NOBODY;
        }
        if (s->used && s->client == client) {
            s->client = GR_DESK_NOBODY;
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
    for (int i = 0; i < GR_DESK_SESSION_MAX; i++) {
        struct gr_desk_session *s = &d->session[i];
        if (s->used && s->in_turn) {
            struct gr_msg m = finished(d, s->session, GR_FINISH_ERROR, s->cut, why);
            tell_finished(d, s, s->client, &m);
            s->in_turn = false;
            s->client = GR_DESK_NOBODY;
        }
    }
}

void gr_desk_fail_client(struct gr_desk *d, uint32_t client, const char *why)
{
    for (int i = 0; i < GR_DESK_SESSION_MAX; i++) {
        struct gr_desk_session *s = &d->session[i];
        if (s->used && s->client == client) {
            gr_desk_send_error(d, client, s->session, GR_EIO, "%s", why);
            s->client = GR_DESK_NOBODY;
            enum gr_status st = gr_orch_close(d->orch, s->session);
            (void)st; /* it is in its turn */
        }
    }
}

/* ---- what the machine reports ---- */

void gr_desk_on_report(void *desk, uint64_t session, void *user, const struct gr_msg *m)
{
    const struct gr_desk_session *s = user;
    (void)session;
    gr_desk_send(desk, s->client, m);
}

void gr_desk_on_done(void *desk, uint64_t session, void *user, enum gr_finish finish, const char *text)
{
    struct gr_desk *d = desk;
    struct gr_desk_session *s = user;
    give_number(d, s, session);
    if (!s->opened) { /* it ended within the call that began it */
        tell_begun(d, s, session, 0);
    }
    struct gr_msg m = finished(d, session, finish, s->cut, text);
    if (s->in_turn) { /* else it was told as given up, and stays so */
        tell_finished(d, s, s->client, &m);
    }
    s->in_turn = false;
    s->client = GR_DESK_NOBODY;
    if (!s->keep_open) {
        gr_desk_on_closed(desk, session, user, text);
    }
}

void gr_desk_on_closed(void *desk, uint64_t session, void *user, const char *why)
{
    struct gr_desk_session *s = user;
    const struct gr_msg m = {.type = GR_MSG_CLOSED, .session = session};
    const bool is_gone = s->keep_open || s->closer != GR_DESK_NOBODY; /* else its answer can be read for a while */
    (void)why;
    if (is_gone && !note(desk, s, &m)) {
        gr_desk_send_error(
            desk, s->closer, session, GR_EIO,
            "the session is closed, but the journal could not take that: a server that is started again on it "
            "has the session again");
    } else {
        gr_desk_send(desk, s->closer, &m);
    }
    release(desk, s);
}

void gr_desk_on_placed(void *desk, uint64_t session, void *user)
{
    const struct gr_desk_session *s = user;
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
        gr_desk_send(d, client, &m);
    }
}
