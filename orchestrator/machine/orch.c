#include "orchestrator/machine/orch.h"

#include "common/base/clock.h"
#include "common/rules/hash.h"
#include "common/base/log.h"
#include "orchestrator/machine/orch_internal.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STATS_PATIENCE_NS GR_S              /* for the statistics of a session that is over */
#define TIMEOUT_MAX_NS (365 * 86400 * GR_S) /* longer limits of a turn are taken for this */

/* ---- life ---- */

static bool take_memory(struct gr_orch *o)
{
    const size_t n_worker = (size_t)o->n_worker_max;
    o->worker = calloc(n_worker, sizeof(*o->worker));
    o->place = calloc(n_worker, sizeof(*o->place));
    o->excess = calloc(n_worker, sizeof(*o->excess));
    o->chunk = calloc((size_t)o->n_session_cap / ORCH_CHUNK, sizeof(struct session *));
    return o->worker != NULL && o->place != NULL && o->excess != NULL && o->chunk != NULL && orch_queue_create(o) &&
           gr_session_index_create(&o->index, (uint32_t)o->n_session_cap);
}

enum gr_status gr_orch_create_sized(const struct gr_orch_io *io, int n_worker_max, int n_session_max,
                                    struct gr_orch **out)
{
    GR_ASSERT(n_worker_max > 0 && n_worker_max <= GR_ORCH_WORKER_CAP);
    GR_ASSERT(n_session_max > 0 && n_session_max <= GR_ORCH_SESSION_CAP);
    struct gr_orch *o = calloc(1, sizeof(*o));
    if (o == NULL) {
        log_error("out of memory");
        return GR_ENOMEM;
    }
    o->io = *io;
    o->next_id = 1;
    o->last_target = o->last_drafter = -1;
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
    free((void *)o->chunk);
    orch_queue_destroy(o);
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

/* ---- what clients ask for ---- */

static enum gr_status refuse(struct gr_orch *o, enum gr_status st, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

static enum gr_status refuse(struct gr_orch *o, enum gr_status st, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(o->why, sizeof(o->why), fmt, args);
    va_end(args);
    log_error("%s", o->why);
    return st;
}

const char *gr_orch_why(const struct gr_orch *o)
{
    return o->why;
}

static struct session *least_recently_used(struct gr_orch *o)
{
    struct session *oldest = NULL;
    for (int i = 0; i < o->n_place; i++) {
        struct session *s = orch_at(o, i);
        if (s->state == GR_SESSION_IDLE && (oldest == NULL || s->turn.idle_since_ns < oldest->turn.idle_since_ns)) {
            oldest = s;
        }
    }
    return oldest;
}

/* A chunk more of free places. False: out of memory. */
static bool add_places(struct gr_orch *o)
{
    struct session *chunk = calloc(ORCH_CHUNK, sizeof(*chunk));
    if (chunk == NULL) {
        return false;
    }
    o->chunk[o->n_place / ORCH_CHUNK] = chunk;
    o->n_place += ORCH_CHUNK;
    return true;
}

static int free_place(const struct gr_orch *o)
{
    int place = 0;
    while (place < o->n_place && orch_at(o, place)->state != GR_SESSION_FREE) {
        place++;
    }
    return place;
}

/* GR_AGAIN: all are in a turn. */
static enum gr_status take_place(struct gr_orch *o, int *place_out)
{
    if ((uint32_t)o->n_session >= o->config.n_session_max) {
        struct session *oldest = least_recently_used(o);
        if (oldest == NULL) {
            return refuse(o, GR_AGAIN, "all %u sessions of the orchestrator are in a turn: wait for one to end",
                          o->config.n_session_max);
        }
        orch_drop_idle(o, oldest, "least recently used, and room was needed for another session");
    }
    *place_out = free_place(o);
    if (*place_out == o->n_place && !add_places(o)) {
        return refuse(o, GR_ENOMEM, "out of memory for another session; there are %d", o->n_session);
    }
    return GR_OK;
}

/* A text that no target could go on with is refused before anything is sent. */
static enum gr_status check_len(struct gr_orch *o, uint64_t model, uint64_t tokenizer, uint64_t n_before,
                                uint64_t n_new)
{
    const uint32_t n_ctx_max = orch_longest_context(o, model, tokenizer);
    const uint64_t limit = n_ctx_max > 0 ? GR_MIN((uint64_t)n_ctx_max, GR_TRANSCRIPT_LEN_MAX) : GR_TRANSCRIPT_LEN_MAX;
    if (n_before + n_new < limit) {
        return GR_OK;
    }
    if (n_before == 0) {
        return refuse(o, GR_ELIMIT,
                      "the prompt has %" PRIu64 " tokens, the context holds %" PRIu64 " and one must be "
                      "generated",
                      n_new, limit);
    }
    return refuse(o, GR_ELIMIT,
                  "the session has %" PRIu64 " tokens and %" PRIu64 " would be appended; the context "
                  "holds %" PRIu64 " and one must be generated",
                  n_before, n_new, limit);
}

/* The turn's ids after the first keep_len tokens of the transcript, the rest of which is forgotten. Nothing is when
 * there is no room. */
static enum gr_status add_ids(struct gr_orch *o, struct session *s, uint32_t keep_len, enum gr_segment_kind kind,
                              const int32_t *ids, uint32_t n)
{
    if (!gr_transcript_fits(&s->turn.transcript, keep_len, kind, n)) {
        return refuse(o, GR_ELIMIT, "session %" PRIu64 ": a session has at most %d segments of text: open a new one",
                      s->id, GR_TRANSCRIPT_SEGMENT_MAX);
    }
    const enum gr_status st = orch_text_put(s, keep_len, kind, ids, n);
    if (st != GR_OK) {
        return refuse(o, st, "out of memory for %u tokens", n);
    }
    return GR_OK;
}

/* A turn that would wait is not taken where as many wait as may. */
static enum gr_status check_queue(struct gr_orch *o, const struct gr_wishes *w)
{
    const uint32_t most = o->config.n_queue_max;
    if (!w->queues || most == 0 || orch_n_queued(o) < most) {
        return GR_OK;
    }
    return refuse(o, GR_AGAIN, "%u requests wait already, which is as many as may (--queue-max): try again later",
                  most);
}

static void begin_turn(struct gr_orch *o, struct session *s, uint32_t base)
{
    const uint64_t timeout_ns = s->request.wishes.turn.timeout_ns;
    orch_turn_begin(s, base, timeout_ns > 0 ? o->now_ns + GR_MIN(timeout_ns, TIMEOUT_MAX_NS) : 0);
    orch_with_failed(s, false);
    orch_with_avoid_none(s);
    orch_home_ask_all(s);
    orch_queue_join(o, s);
}

/* Others that wait already come first. */
static void open_or_queue(struct gr_orch *o, struct session *s)
{
    if (s->request.wishes.queues && orch_n_queued(o) > 0) {
        orch_wait(s, o->now_ns);
        orch_look_at_queue(o);
    } else {
        orch_open(o, s);
    }
}

enum gr_status gr_orch_submit(struct gr_orch *o, const struct gr_session_request *request, uint64_t now_ns,
                              uint64_t *session_out)
{
    char text[GR_MSG_TEXT_MAX];
    uint64_t model = 0;
    int place = 0;
    o->now_ns = now_ns;
    const enum gr_status known = orch_model_choose(o, request->model, request->tokenizer_fingerprint, &model, text);
    if (known != GR_OK && known != GR_AGAIN) {
        return refuse(o, known, "%s", text);
    }
    GR_TRY(check_len(o, model, request->tokenizer_fingerprint, 0, request->n_prompt));
    GR_TRY(check_queue(o, &request->wishes));
    GR_TRY(take_place(o, &place));
    struct session *s = orch_at(o, place);
    *s = (struct session){
        .id = o->next_id, .epoch = 1, .at = {.target = -1, .home = -1}, .with = {.drafter = -1, .stats_from = -1}};
    orch_load_begin(s, o->worker);
    orch_model_wish(s, request->model);
    const enum gr_status st = add_ids(o, s, 0, GR_SEGMENT_PROMPT, request->prompt, request->n_prompt);
    if (st != GR_OK) {
        gr_transcript_finish(&s->turn.transcript);
        memset(s, 0, sizeof(*s));
        return st;
    }
    o->next_id++;
    o->n_session++;
    gr_session_index_add(&o->index, s->id, place);
    s->request.tokenizer_fingerprint = request->tokenizer_fingerprint;
    s->request.user = request->user;
    gr_wishes_copy(&s->request.wishes, &request->wishes);
    orch_specpv_ask(o, s);
    s->metrics.open_ns = now_ns;
    begin_turn(o, s, 0);
    *session_out = s->id;
    open_or_queue(o, s);
    return GR_OK;
}

static enum gr_status check_turn(struct gr_orch *o, const struct session *s, const struct gr_turn_request *turn,
                                 uint32_t keep_len)
{
    if (s->state != GR_SESSION_IDLE) {
        return refuse(o, GR_EINVAL, "session %" PRIu64 " is %s: wait for its turn to end", s->id,
                      s->state == GR_SESSION_CLOSING ? "being closed" : "in a turn");
    }
    if (turn->n_ids < 1) {
        return refuse(o, GR_EINVAL, "session %" PRIu64 ": a turn appends at least one token", s->id);
    }
    const char *wrong = gr_turn_wishes_wrong(&turn->wishes);
    if (wrong != NULL) {
        return refuse(o, GR_EINVAL, "session %" PRIu64 ": %s", s->id, wrong);
    }
    if (keep_len < 1 || keep_len > s->turn.transcript.len) {
        return refuse(o, GR_EINVAL, "session %" PRIu64 " has %u tokens; %u of them cannot be kept", s->id,
                      s->turn.transcript.len, keep_len);
    }
    if (turn->keep_len != UINT32_MAX && gr_transcript_hash_at(&s->turn.transcript, keep_len) != turn->hash) {
        return refuse(o, GR_EINVAL,
                      "session %" PRIu64 ": its first %u tokens are not the ones that are to be kept "
                      "(the prefix hashes differ)",
                      s->id, keep_len);
    }
    return check_len(o, s->model.fingerprint, s->request.tokenizer_fingerprint, keep_len, turn->n_ids);
}

enum gr_status gr_orch_append(struct gr_orch *o, uint64_t session, const struct gr_turn_request *turn, uint64_t now_ns)
{
    struct session *s = orch_find(o, session);
    o->now_ns = now_ns;
    if (s == NULL) {
        return refuse(o, GR_ENOTFOUND, "no session %" PRIu64 " is open here", session);
    }
    const uint32_t keep_len = turn->keep_len == UINT32_MAX ? s->turn.transcript.len : turn->keep_len;
    GR_TRY(check_turn(o, s, turn, keep_len));
    GR_TRY(check_queue(o, &s->request.wishes));
    GR_TRY(add_ids(o, s, keep_len, GR_SEGMENT_APPENDED, turn->ids, turn->n_ids));
    gr_turn_wishes_copy(&s->request.wishes.turn, &turn->wishes);
    s->request.user = turn->user;
    begin_turn(o, s, keep_len);
    const bool is_held = s->at.target >= 0 && !s->at.open_after_close && orch_is_taking(&o->worker[s->at.target]);
    if (is_held && orch_lacks_draft(o, s)) {
        orch_open_over(o, s);
    } else if (is_held) {
        orch_append_turn(o, s);
    } else {
        orch_reopen(o, s);
    }
    return GR_OK;
}

/* n_keep of the turn's generated tokens stay; its target, which goes idle with the turn or is idle already, follows. */
static void cut_text(struct gr_orch *o, struct session *s, uint32_t n_keep)
{
    orch_drop_provisional(s);
    const uint32_t n_generated = s->turn.transcript.len - GR_MIN(s->turn.transcript.len, s->turn.len);
    const uint32_t n_cut = n_generated - GR_MIN(n_generated, n_keep);
    gr_metrics_drop(&s->metrics, n_cut);
    orch_text_cut(s, s->turn.transcript.len - n_cut);
    gr_metrics_cut(&s->metrics, s->turn.transcript.len);
    const bool is_news = n_cut > 0 || s->state != GR_SESSION_IDLE;
    if (is_news && s->request.wishes.keep_open && s->at.target >= 0 && s->state != GR_SESSION_CLOSING) {
        const struct gr_msg m = {.type = GR_MSG_TRUNCATE,
                                 .session = s->id,
                                 .truncate = {.epoch = s->epoch, .keep_len = s->turn.transcript.len}};
        o->io.send(o->io.ctx, (uint32_t)s->at.target, &m);
    }
}

static void cut_turn(struct gr_orch *o, struct session *s, uint32_t n_keep, enum gr_finish finish, const char *text)
{
    cut_text(o, s, n_keep);
    orch_end_turn(o, s, finish, text);
}

enum gr_status gr_orch_stop(struct gr_orch *o, uint64_t session, uint32_t turn, uint32_t n_keep, enum gr_finish finish)
{
    struct session *s = orch_find(o, session);
    if (s == NULL) {
        return GR_ENOTFOUND;
    }
    if (turn != 0 && turn != s->turn.number) {
        return GR_EINVAL;
    }
    if (s->state == GR_SESSION_IDLE || s->state == GR_SESSION_CLOSING) { /* the end of the turn and this crossed */
        cut_text(o, s, n_keep);
        if (s->turn.finish == GR_FINISH_LENGTH || s->turn.finish == GR_FINISH_CLOSED) {
            orch_turn_finish_as(s, finish);
        }
    } else {
        cut_turn(o, s, n_keep, finish, "stopped by the client");
    }
    return GR_OK;
}

enum gr_status gr_orch_close(struct gr_orch *o, uint64_t session)
{
    struct session *s = orch_find(o, session);
    if (s == NULL) {
        return refuse(o, GR_ENOTFOUND, "no session %" PRIu64 " is open here", session);
    }
    orch_close(o, s, GR_FINISH_CLOSED, "closed by a client");
    return GR_OK;
}

static void send_refresh(struct gr_orch *o, const struct session *s, uint32_t *n)
{
    if (s->state == GR_SESSION_RUNNING && s->specpv != GR_SPECPV_OFF) {
        o->io.send(o->io.ctx, (uint32_t)s->at.target, &(struct gr_msg){.type = GR_MSG_REFRESH, .session = s->id});
        ++*n;
    }
}

enum gr_status gr_orch_refresh(struct gr_orch *o, uint64_t session, uint32_t *n_out)
{
    const struct session *s = session != 0 ? orch_find(o, session) : NULL;
    *n_out = 0;
    if (session != 0 && s == NULL) {
        return refuse(o, GR_ENOTFOUND, "no session %" PRIu64 " is open here", session);
    }
    if (s != NULL && s->specpv == GR_SPECPV_OFF) {
        return refuse(o, GR_EUNSUPPORTED, "session %" PRIu64 ": SpecPV is off: there is no partial view to refresh",
                      session);
    }
    for (int i = 0; i < o->n_place; i++) {
        if (session == 0 || orch_at(o, i) == s) {
            send_refresh(o, orch_at(o, i), n_out);
        }
    }
    return GR_OK;
}

uint32_t gr_orch_purge(struct gr_orch *o)
{
    uint32_t n = 0;
    for (int i = 0; i < o->n_place; i++) {
        if (orch_at(o, i)->state == GR_SESSION_IDLE) {
            orch_drop_idle(o, orch_at(o, i), "purged");
            n++;
        }
    }
    return n;
}

/* ---- what workers say ---- */

/* What is final stays so, and only exact SpecPV has tokens that are not. */
static bool lengths_fit(const struct session *s, const struct gr_msg_commit *m, bool exact)
{
    const uint32_t len = s->turn.transcript.len;
    const uint64_t new_len = (uint64_t)m->keep_len + m->ids.n;
    if (!exact) {
        return m->keep_len == len && m->ids.n >= 1 && m->final_len == new_len;
    }
    const bool ends = m->finish != GR_FINISH_NONE;
    return m->keep_len >= s->turn.final_len && m->keep_len <= len && m->final_len >= s->turn.final_len &&
           m->final_len <= new_len && (m->ids.n >= 1 || ends) && (!ends || m->final_len == new_len);
}

/* The expected prefix length and hash are checked on every COMMIT: a target that went astray is caught here. */
static bool commit_fits(const struct session *s, const struct gr_msg_commit *m)
{
    const struct gr_transcript *t = &s->turn.transcript;
    if (!lengths_fit(s, m, s->specpv == GR_SPECPV_EXACT || s->specpv == GR_SPECPV_AUTO)) {
        return false;
    }
    uint64_t hash = m->keep_len == t->len ? t->hash : gr_transcript_hash_at(t, m->keep_len);
    for (uint32_t i = 0; i < m->ids.n; i++) {
        hash = gr_hash_extend(hash, m->ids.p[i]);
    }
    const uint32_t n_left = s->request.wishes.turn.max_tokens - (m->keep_len - s->turn.len);
    return m->ids.n <= n_left && hash == m->hash && m->n_accepted <= m->n_draft && m->finish <= GR_FINISH_ERROR;
}

static void report(const struct gr_orch *o, const struct session *s, const struct gr_msg *m)
{
    if (o->io.on_report != NULL && s->turn.is_open) {
        o->io.on_report(o->io.ctx, s->id, s->request.user, m);
    }
}

static void on_commit(struct gr_orch *o, struct session *s, const struct gr_msg *m, uint64_t now_ns)
{
    if (s->state != GR_SESSION_RUNNING || m->commit.epoch != s->epoch) {
        return; /* of a turn that is over, or of a target that lost the session, while it was on its way */
    }
    if (!commit_fits(s, &m->commit)) {
        log_error("session %" PRIu64 " round %u: COMMIT does not extend the transcript (expected_prefix_len %u, "
                  "keep_len %u, %u tokens)",
                  s->id, m->commit.round, s->turn.transcript.len, m->commit.keep_len, m->commit.ids.n);
        orch_close(o, s, GR_FINISH_ERROR, "the target's tokens do not extend the transcript");
        return;
    }
    gr_metrics_drop(&s->metrics, s->turn.transcript.len - m->commit.keep_len);
    const uint32_t shown_len = s->turn.final_len;
    gr_transcript_cut(&s->turn.transcript, m->commit.keep_len);
    const enum gr_status st =
        gr_transcript_add(&s->turn.transcript, GR_SEGMENT_GENERATED, m->commit.ids.p, m->commit.ids.n);
    if (st != GR_OK) { /* GR_ELIMIT: longer than what could be opened again */
        cut_turn(o, s, UINT32_MAX, st == GR_ELIMIT ? GR_FINISH_LENGTH : GR_FINISH_ERROR, "out of memory");
        return;
    }
    gr_metrics_take(&s->metrics, m, now_ns);
    const uint64_t id = s->id;
    const uint32_t turn = s->turn.number;
    orch_text_show(s, m->commit.final_len);
    report(o, s, m);
    s = orch_find(o, id); /* the client may have stopped it, and begun the next turn */
    if (o->io.on_tokens != NULL && s != NULL && s->turn.number == turn && s->turn.final_len > shown_len) {
        o->io.on_tokens(o->io.ctx, id, s->request.user, s->turn.transcript.token + shown_len,
                        s->turn.final_len - shown_len);
    }
    s = orch_find(o, id);
    const bool ends = m->commit.finish != GR_FINISH_NONE &&
                      m->commit.finish != GR_FINISH_ERROR; /* an ERROR follows, which tells why */
    if (s != NULL && s->state == GR_SESSION_RUNNING && s->turn.number == turn && ends) {
        orch_end_turn(o, s, (enum gr_finish)m->commit.finish, "");
    }
}

/* A turn of a session whose drafter stayed attached hears of it, as the turn did that saw ATTACHED itself. */
static void report_attached(const struct gr_orch *o, const struct session *s)
{
    struct gr_msg m = {.type = GR_MSG_ATTACHED, .session = s->id, .attached = {.epoch = s->epoch}};
    if (s->with.drafter >= 0 && s->metrics.transport[0] != '\0') {
        snprintf(m.attached.transport, sizeof(m.attached.transport), "%s", s->metrics.transport);
        report(o, s, &m);
    }
}

static void on_opened(struct gr_orch *o, struct session *s, const struct gr_msg *m)
{
    if (!orch_home_answered(s)) { /* an answer of an earlier epoch is one, too */
        return;
    }
    if (s->at.n_reply_owed > 0 || m->opened.epoch != s->epoch || s->state != GR_SESSION_OPENING) {
        return; /* to a request of a turn that was stopped meanwhile */
    }
    if (m->opened.cache_hit != 0) {
        log_debug("session %" PRIu64 ": %u tokens need not be computed again", s->id, m->opened.usable_len);
    }
    orch_specpv_opened(s, (enum gr_specpv_mode)m->opened.specpv);
    orch_running(s);
    report_attached(o, s);
    orch_attach(o, s);
}

static void on_evicted(struct gr_orch *o, struct session *s)
{
    if (s->state == GR_SESSION_IDLE) {
        orch_home_forgot(s); /* the next turn opens the session again */
        orch_detach(o, s);
    } else if (s->state == GR_SESSION_RUNNING) {
        orch_home_forgot(s);
        orch_reopen(o, s);
    } else if (s->state == GR_SESSION_OPENING && s->at.append_sent) {
        orch_home_evicted(s); /* the two crossed: ERROR answers the APPEND, or the target is lost before it does */
    }
}

/* What a drafter says of itself, with where it is: of several hosts' drafters one may lack a way. */
static void name_drafter(const struct gr_orch *o, uint32_t worker, const char *said, char out[2 * GR_MSG_TEXT_MAX])
{
    const struct gr_worker_info *info = &o->worker[worker].info;
    if (info->host[0] != '\0') {
        snprintf(out, 2 * GR_MSG_TEXT_MAX, "worker %u (host %s, address %s): %s", worker + 1, info->host, info->peer,
                 said);
    } else {
        snprintf(out, 2 * GR_MSG_TEXT_MAX, "%s", said);
    }
}

static void attach_if_due(struct gr_orch *o, struct session *s)
{
    if (s->with.retry_ns != 0 && o->now_ns >= s->with.retry_ns) {
        orch_attach(o, s);
    }
}

/* Another drafter that fits it, at once; else this one again later, if that may help. */
static void seek_drafter(struct gr_orch *o, struct session *s, uint32_t worker, bool again, bool broke)
{
    if (!again) {
        orch_with_avoid(s, worker);
    } else if (!broke || s->with.n_retry > 1) { /* one that stood is tried again once, at once */
        orch_with_pass_over(s, worker);
    }
    if (orch_another_drafter_fits(o, s, worker)) {
        orch_attach(o, s);
    } else if (again) {
        orch_with_pass_over_none(s);
        attach_if_due(o, s);
    }
}

static bool sends_elsewhere(const struct gr_msg *m)
{
    return m->error.code == (uint32_t)-GR_EDRAINING;
}

/* A drafter that is to end has not failed: nothing is counted, and another one is asked at once. */
static void draft_elsewhere(struct gr_orch *o, struct session *s, uint32_t worker, const char *why)
{
    orch_leave(o, worker);
    orch_with_broke(s, why);
    orch_detach(o, s);
    orch_attach(o, s);
}

static void on_drafter_error(struct gr_orch *o, struct session *s, uint32_t worker, const struct gr_msg *m)
{
    if ((int)worker != s->with.drafter) {
        return; /* it was detached already: DRAFT_STATS follows */
    }
    char text[2 * GR_MSG_TEXT_MAX];
    name_drafter(o, worker, m->error.text, text);
    if (sends_elsewhere(m)) {
        draft_elsewhere(o, s, worker, text);
        return;
    }
    const bool broke = m->error.code == (uint32_t)-GR_ECLOSED; /* else it never stood */
    const bool again = broke || m->error.code == (uint32_t)-GR_AGAIN;
    if (broke || s->with.n_retry == 0 || !again) { /* one that is not to be had is one fall-back, however often tried */
        orch_fall_back(s, GR_FALLBACK_DRAFTER_ERROR, text);
    }
    orch_with_broke(s, text);
    if (again) {
        orch_with_retry(s, broke, o->now_ns);
    }
    /* It may be about an attachment that another has replaced: let go of that one, too, and start over. */
    orch_detach(o, s);
    orch_with_failed(s, s->with.failed || !again || s->metrics.transport[0] == '\0');
    seek_drafter(o, s, worker, again, broke);
}

/* The session has failed at its target, which answers what is on its way there as of an unknown session. Where its turn
 * was over already, or it is being opened anew, nothing else follows from that. */
static void on_session_failed(struct gr_orch *o, struct session *s, const struct gr_msg *m)
{
    if (s->state == GR_SESSION_RUNNING) {
        orch_home_forgot(s);
        orch_fail_turn(o, s, m->error.text);
    } else {
        on_evicted(o, s);
    }
}

/* A session of a target that had no room for this one is being closed: its slot is free when the pass that it is in is
 * done. */
static bool is_slot_coming(const struct gr_orch *o, const struct session *waiting)
{
    bool coming = false;
    for (int i = 0; i < o->n_place; i++) {
        const struct session *s = orch_at(o, i);
        coming = coming || (s->state == GR_SESSION_CLOSING && s->at.wait_closed && s->at.target >= 0 &&
                            orch_set_has(&waiting->at.refused, s->at.target));
    }
    return coming;
}

/* The target has no room for the session: another one may, or a slot of those that were asked is about to be free. A
 * turn that has run, whose target was lost, waits for the next slot that is free anywhere. */
static bool find_other_room(struct gr_orch *o, struct session *s)
{
    orch_home_refused(s);
    const bool waits = s->turn.has_run || s->request.wishes.queues || is_slot_coming(o, s);
    orch_home_forgot(s);
    if (orch_another_fits(o, s)) {
        orch_open(o, s);
        return true;
    }
    if (waits) {
        orch_home_ask_all(s);
        orch_wait(s, o->now_ns);
    }
    return waits;
}

/* Its target is to end, and holds nothing of it. */
static void open_elsewhere(struct gr_orch *o, struct session *s)
{
    log_info("session %" PRIu64 ": target worker %d is to end; it is opened elsewhere", s->id, s->at.target + 1);
    orch_home_forgot(s);
    orch_home_sent_elsewhere(s);
    orch_open(o, s);
}

static void on_target_error(struct gr_orch *o, struct session *s, const struct gr_msg *m)
{
    if (sends_elsewhere(m)) { /* as its DRAIN does, which came before */
        orch_leave(o, (uint32_t)s->at.home);
    }
    if (m->error.ended != 0) {
        on_session_failed(o, s, m);
        return;
    }
    const bool answers = orch_home_answered(s);
    if (answers && s->at.n_reply_owed > 0) {
        return; /* to a request of a turn that was stopped; the answer that counts is still to come */
    }
    if (s->state == GR_SESSION_CLOSING || s->state == GR_SESSION_IDLE || s->at.open_after_close) {
        return; /* CLOSED follows; or the next APPEND will show what the target still holds */
    }
    if (s->state == GR_SESSION_OPENING && (s->at.append_sent || s->at.opened_over)) {
        orch_home_over(s, false);
        log_info("session %" PRIu64 ": the target does not go on with it (%s); opening it again", s->id, m->error.text);
        if (s->at.evicted) {
            orch_home_forgot(s); /* no CLOSE is needed first */
        }
        orch_reopen(o, s);
    } else if (s->state == GR_SESSION_OPENING && sends_elsewhere(m)) {
        open_elsewhere(o, s);
    } else if (s->state != GR_SESSION_OPENING || m->error.code != (uint32_t)-GR_ELIMIT || !find_other_room(o, s)) {
        orch_home_forgot(s);
        orch_fail_turn(o, s, m->error.text);
    }
}

static void on_closed(struct gr_orch *o, struct session *s)
{
    if (s->state == GR_SESSION_CLOSING) {
        orch_home_wait_closed(s, false);
        orch_finish_if_released(o, s);
        orch_open_waiting(o);
        return;
    }
    if (!s->at.open_after_close) {
        return;
    }
    orch_home_closed(s);
    if (s->state == GR_SESSION_OPENING) { /* and not stopped meanwhile */
        orch_open(o, s);
    }
}

static void on_stats(struct gr_orch *o, struct session *s, const struct gr_msg *m)
{
    gr_metrics_take(&s->metrics, m, 0);
    report(o, s, m);
    orch_with_stats(s);
    if (s->with.shed && s->at.target >= 0 && s->state != GR_SESSION_CLOSING) { /* no frame of it follows */
        o->io.send(o->io.ctx, (uint32_t)s->at.target, &(struct gr_msg){.type = GR_MSG_DETACH, .session = s->id});
    }
    orch_finish_if_released(o, s);
}

static void from_target(struct gr_orch *o, struct session *s, const struct gr_msg *m, uint64_t now_ns)
{
    if (m->type == GR_MSG_OPENED) {
        on_opened(o, s, m);
    } else if (m->type == GR_MSG_COMMIT) {
        on_commit(o, s, m, now_ns);
    } else if (m->type == GR_MSG_PROGRESS) {
        report(o, s, m);
    } else if (m->type == GR_MSG_EVICTED) {
        on_evicted(o, s);
    } else if (m->type == GR_MSG_ERROR) {
        on_target_error(o, s, m);
    } else if (m->type == GR_MSG_CLOSED) {
        on_closed(o, s);
    }
}

static void from_drafter(struct gr_orch *o, struct session *s, uint32_t worker, const struct gr_msg *m)
{
    if (m->type == GR_MSG_ATTACHED) {
        orch_with_stands(s, o->now_ns);
        gr_metrics_take(&s->metrics, m, 0);
        report(o, s, m);
    } else if (m->type == GR_MSG_ERROR) {
        on_drafter_error(o, s, worker, m);
    } else if (m->type == GR_MSG_DRAFT_TROUBLE) {
        gr_metrics_take(&s->metrics, m, 0);
        report(o, s, m);
    } else if (m->type == GR_MSG_DRAFT_STATS) {
        on_stats(o, s, m);
    }
}

static bool is_from_worker(enum gr_msg_type type)
{
    return type == GR_MSG_OPENED || type == GR_MSG_CLOSED || type == GR_MSG_COMMIT || type == GR_MSG_PROGRESS ||
           type == GR_MSG_EVICTED || type == GR_MSG_ATTACHED || type == GR_MSG_DRAFT_STATS || type == GR_MSG_ERROR ||
           type == GR_MSG_DRAFT_TROUBLE || type == GR_MSG_PONG || type == GR_MSG_DRAIN;
}

static enum gr_status take_msg(struct gr_orch *o, uint32_t worker, const struct gr_msg *m, uint64_t now_ns)
{
    o->now_ns = now_ns;
    orch_heard(o, worker, now_ns);
    if (!is_from_worker(m->type)) {
        log_error("worker %u sent %s, which is not a worker's message", worker + 1, gr_msg_name(m->type));
        return GR_EPROTO;
    }
    if (m->type == GR_MSG_PONG) {
        orch_on_pong(o, worker, m, now_ns);
        return GR_OK;
    }
    if (m->type == GR_MSG_DRAIN) {
        orch_leave(o, worker);
        return GR_OK;
    }
    struct session *s = orch_find(o, m->session);
    if (s == NULL) {
        return GR_OK; /* about a session that is over */
    }
    if ((int)worker == s->at.home) {
        from_target(o, s, m, now_ns);
    } else if ((int)worker == s->with.drafter || (int)worker == s->with.stats_from) {
        from_drafter(o, s, worker, m);
    }
    return GR_OK;
}

enum gr_status gr_orch_on_msg(struct gr_orch *o, uint32_t worker, const struct gr_msg *m, uint64_t now_ns)
{
    GR_ASSERT(worker < (uint32_t)o->n_worker_max);
    gr_log_about(worker + 1, m->session);
    const enum gr_status st = take_msg(o, worker, m, now_ns);
    gr_log_about(0, 0);
    return st;
}

/* ---- time ---- */

/* What keeps targets from taking the turn, beside that there are none; empty: nothing. */
static const char *why_none_takes(const struct gr_orch *o, const struct session *s)
{
    bool drained = false, leaving = s->at.sent_elsewhere;
    for (int i = 0; i < o->n_worker_max; i++) {
        const struct worker *w = &o->worker[i];
        const bool is_target = w->joined && w->info.role == GR_WORKER_TARGET;
        drained = drained || (is_target && w->drained);
        leaving = leaving || (is_target && w->leaving);
    }
    return drained   ? "; `graft worker list' tells which are drained"
           : leaving ? "; the one that was here is to end"
                     : "";
}

static void give_turn_up(struct gr_orch *o, struct session *s)
{
    char text[GR_MSG_TEXT_MAX], name[GR_MODEL_NAME_MAX];
    const uint64_t waited_s = o->config.queue_timeout_ns / GR_S;
    orch_model_name(o, s, name);
    snprintf(text, sizeof(text), "no target%s%s%s: none %s for %" PRIu64 " s (--queue-timeout)%s",
             name[0] != '\0' ? " of model `" : "", name, name[0] != '\0' ? "'" : "",
             gr_orch_n_worker(o, GR_WORKER_TARGET) == 0 ? "was there" : "has taken this turn", waited_s,
             why_none_takes(o, s));
    log_warn("session %" PRIu64 ": %s; its turn is given up", s->id, text);
    orch_fail_turn(o, s, text);
}

/* What time brings to a session in one state; when it is to be looked at again. */

/* A turn whose time is over ends with what there is of its text. */
static void time_out(struct gr_orch *o, struct session *s)
{
    char text[GR_MSG_TEXT_MAX];
    const bool waits = s->state == GR_SESSION_WAITING && !s->turn.has_run;
    snprintf(text, sizeof(text), "the turn has taken longer than the %.1f s that it was given (timeout)%s",
             (double)s->request.wishes.turn.timeout_ns / 1e9, waits ? "; it was still waiting for a slot" : "");
    gr_log_about(0, s->id);
    log_info("session %" PRIu64 ": %s", s->id, text);
    gr_log_about(0, 0);
    cut_turn(o, s, UINT32_MAX, GR_FINISH_TIMEOUT, text);
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
    return UINT64_MAX;
}

/* An attachment that is due. */
static uint64_t step_running(struct gr_orch *o, struct session *s)
{
    if (s->with.drafter >= 0) {
        return UINT64_MAX;
    }
    attach_if_due(o, s);
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

static uint64_t step_sessions(struct gr_orch *o)
{
    uint64_t next_ns = UINT64_MAX;
    for (int i = 0; i < o->n_place; i++) {
        const uint64_t at_ns = step_session(o, orch_at(o, i));
        next_ns = GR_MIN(next_ns, at_ns);
    }
    return next_ns;
}

uint64_t gr_orch_step(struct gr_orch *o, uint64_t now_ns)
{
    o->now_ns = now_ns;
    const uint64_t worker_ns = orch_step_workers(o, now_ns);
    orch_open_due(o);
    const uint64_t session_ns = step_sessions(o);
    const uint64_t places_ns = orch_tell_places(o);
    orch_let_go(o);
    return GR_MIN(worker_ns, GR_MIN(session_ns, places_ns));
}

/* ---- looking in ---- */

const struct gr_session_metrics *gr_orch_metrics(const struct gr_orch *o, uint64_t session)
{
    const struct session *s = orch_find(o, session);
    return s != NULL ? &s->metrics : NULL;
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
    int n = 0;
    for (int i = 0; i < o->n_place; i++) {
        n += orch_at(o, i)->turn.is_open;
    }
    return n;
}
