/* What clients ask of the machine: sessions, turns, stops, refreshes. */
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/session_id.h"
#include "orchestrator/machine/orch_internal.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TIMEOUT_MAX_NS (365 * 86400 * GR_S) /* longer limits of a turn are taken for this */

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
    for (int i = 0; i < ORCH_CHUNK; i++) {
        orch_books_add_place(&o->books, o->n_place++);
    }
    return true;
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
    if (o->books.vacant.n == 0 && !add_places(o)) {
        return refuse(o, GR_ENOMEM, "out of memory for another session; there are %d", o->n_session);
    }
    *place_out = orch_books_vacant(&o->books);
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
        return refuse(o, GR_ELIMIT,
                      "session %" GR_SESSION_ID_PRI ": a session has at most %d segments of text: open a new one",
                      s->id, GR_TRANSCRIPT_SEGMENT_MAX);
    }
    const enum gr_status st = orch_text_put(s, keep_len, kind, ids, n);
    if (st != GR_OK) {
        return refuse(o, st, "out of memory for %u tokens", n);
    }
    return GR_OK;
}

/* Turns that one with these wishes would wait after; of one that does not queue, none. */
static uint32_t n_before(const struct gr_orch *o, const struct gr_wishes *w)
{
    return w->queues ? orch_n_queued(o) : 0;
}

/* A turn that would wait is not taken where as many wait as may. */
static enum gr_status check_queue(struct gr_orch *o, uint32_t n_queued)
{
    const uint32_t most = o->config.n_queue_max;
    if (most == 0 || n_queued < most) {
        return GR_OK;
    }
    return refuse(o, GR_AGAIN, "%u requests wait already, which is as many as may (--queue-max): try again later",
                  most);
}

static void begin_turn(struct gr_orch *o, struct session *s, uint32_t base)
{
    const uint64_t timeout_ns = s->request.wishes.turn.timeout_ns;
    orch_turn_begin(s, base, o->now_ns, timeout_ns > 0 ? o->now_ns + GR_MIN(timeout_ns, TIMEOUT_MAX_NS) : 0);
    orch_count_begun(o, s);
    orch_with_failed(s, false);
    orch_with_avoid_none(s);
    orch_home_ask_all(s);
    orch_queue_join(o, s);
}

/* Others that wait already come first. */
static void open_or_queue(struct gr_orch *o, struct session *s, uint32_t n_queued)
{
    if (n_queued > 0) {
        orch_wait(s, o->now_ns);
        orch_look_at_queue(o);
    } else {
        orch_open(o, s);
    }
}

/* Of random ones the first that nobody has. */
static uint64_t new_id(const struct gr_orch *o)
{
    if (o->io.new_id == NULL) {
        return o->last_id + 1;
    }
    uint64_t id = 0;
    while (id == 0 || orch_find(o, id) != NULL) {
        id = o->io.new_id(o->io.ctx);
    }
    return id;
}

static struct session *begin_session(struct gr_orch *o, int place, uint64_t id, uint32_t epoch)
{
    struct session *s = orch_at(o, place);
    *s = (struct session){
        .id = id, .epoch = epoch, .at = {.target = -1, .home = -1}, .with = {.drafter = -1, .stats_from = -1}};
    orch_books_begin(&o->books, s, place);
    orch_load_begin(o, s);
    return s;
}

/* Nobody has heard of it. */
static void drop_begun(struct session *s)
{
    gr_transcript_finish(&s->turn.transcript);
    orch_books_leave(s);
    memset(s, 0, sizeof(*s));
}

static void enter(struct gr_orch *o, struct session *s, int place)
{
    o->last_id = GR_MAX(o->last_id, s->id);
    o->n_session++;
    gr_session_index_add(&o->index, s->id, place);
}

static enum gr_status submit(struct gr_orch *o, const struct gr_session_request *request, uint64_t now_ns,
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
    const uint32_t n_queued = n_before(o, &request->wishes);
    GR_TRY(check_queue(o, n_queued));
    GR_TRY(take_place(o, &place));
    struct session *s = begin_session(o, place, new_id(o), 1);
    orch_model_wish(s, request->model);
    const enum gr_status st = add_ids(o, s, 0, GR_SEGMENT_PROMPT, request->prompt, request->n_prompt);
    if (st != GR_OK) {
        drop_begun(s);
        return st;
    }
    enter(o, s, place);
    s->request.tokenizer_fingerprint = request->tokenizer_fingerprint;
    s->request.user = request->user;
    gr_wishes_copy(&s->request.wishes, &request->wishes);
    orch_specpv_ask(o, s);
    s->metrics.open_ns = now_ns;
    snprintf(s->trace_id, sizeof(s->trace_id), "%s", request->trace_id != NULL ? request->trace_id : "");
    begin_turn(o, s, 0);
    *session_out = s->id;
    open_or_queue(o, s, n_queued);
    return GR_OK;
}

enum gr_status gr_orch_submit(struct gr_orch *o, const struct gr_session_request *request, uint64_t now_ns,
                              uint64_t *session_out)
{
    const enum gr_status st = submit(o, request, now_ns, session_out);
    if (st != GR_OK) {
        gr_totals_refused(&o->totals, st);
    }
    return st;
}

/* ---- sessions of an earlier process ---- */

/* Tokens from..to of a text, which follow those that it has. */
static enum gr_status put_text(struct session *s, const struct gr_transcript *text, uint32_t from, uint32_t to)
{
    uint32_t at = 0;
    for (uint32_t i = 0; i < text->n_segment; i++) {
        const uint32_t end = at + (uint32_t)text->segment[2 * i + 1];
        const uint32_t first = GR_MAX(at, from), last = GR_MIN(end, to);
        if (first < last) {
            GR_TRY(orch_text_put(s, s->turn.transcript.len, (enum gr_segment_kind)text->segment[2 * i],
                                 text->token + first, last - first));
        }
        at = end;
    }
    return GR_OK;
}

static void fill_restored(struct gr_orch *o, struct session *s, const struct gr_restored_session *r)
{
    orch_model_restore(s, r->model, r->model_fingerprint);
    orch_note_numerics(s, r->numerics_id);
    s->request.tokenizer_fingerprint = r->tokenizer_fingerprint;
    s->request.user = r->user;
    gr_wishes_copy(&s->request.wishes, r->wishes);
    orch_specpv_ask(o, s);
    s->metrics.open_ns = o->now_ns;
    snprintf(s->trace_id, sizeof(s->trace_id), "%s", r->trace_id);
}

/* The end of its turn was not noted, but its last tokens were. */
static enum gr_finish finish_of(const struct gr_restored_session *r)
{
    const uint32_t n = r->text->len - r->turn_len;
    const bool hits = n > 0 && gr_stop_hits(&r->wishes->turn.stop_ids, r->text->token[r->text->len - 1]);
    return hits ? GR_FINISH_STOP : n >= r->wishes->turn.max_tokens ? GR_FINISH_LENGTH : GR_FINISH_NONE;
}

/* The turn waits as one whose target was lost. */
static enum gr_status go_on(struct gr_orch *o, struct session *s, const struct gr_restored_session *r)
{
    begin_turn(o, s, r->turn_base);
    orch_turn_restore(s, r->turn, r->turn_base, r->turn_len);
    const enum gr_status st = put_text(s, r->text, r->turn_len, r->text->len);
    if (st != GR_OK) {
        orch_turn_over(s);
        return st;
    }
    orch_wait(s, o->now_ns);
    return GR_OK;
}

static enum gr_status rest(struct gr_orch *o, struct session *s, const struct gr_restored_session *r)
{
    GR_TRY(put_text(s, r->text, r->turn_len, r->text->len));
    orch_turn_restore(s, r->turn, r->turn_base, r->turn_len);
    orch_idle(s, o->now_ns);
    return GR_OK;
}

static enum gr_status check_restored(struct gr_orch *o, const struct gr_restored_session *r)
{
    if (r->id == 0 || orch_find(o, r->id) != NULL) {
        return refuse(o, GR_EINVAL, "session %" GR_SESSION_ID_PRI " is there already", r->id);
    }
    if (r->turn_base > r->turn_len || r->turn_len > r->text->len || r->text->len == 0) {
        return refuse(o, GR_EINVAL, "session %" GR_SESSION_ID_PRI ": its turn does not lie within its text", r->id);
    }
    if ((uint32_t)o->n_session >= o->config.n_session_max) {
        return refuse(o, GR_AGAIN, "session %" GR_SESSION_ID_PRI ": the orchestrator has %u sessions, the most it may",
                      r->id, o->config.n_session_max);
    }
    return GR_OK;
}

enum gr_status gr_orch_restore(struct gr_orch *o, const struct gr_restored_session *r, uint64_t now_ns)
{
    int place = 0;
    o->now_ns = now_ns;
    GR_TRY(check_restored(o, r));
    GR_TRY(take_place(o, &place));
    struct session *s = begin_session(o, place, r->id, r->epoch + r->in_turn);
    fill_restored(o, s, r);
    enum gr_status st = put_text(s, r->text, 0, r->turn_len);
    st = st != GR_OK ? st : r->in_turn ? go_on(o, s, r) : rest(o, s, r);
    if (st != GR_OK) {
        drop_begun(s);
        return st;
    }
    enter(o, s, place);
    const enum gr_finish finish = r->in_turn ? finish_of(r) : GR_FINISH_NONE;
    if (finish != GR_FINISH_NONE) {
        orch_end_turn(o, s, finish, "");
    } else if (r->in_turn) {
        orch_look_at_queue(o);
    }
    return GR_OK;
}

/* ---- turns ---- */

static enum gr_status check_turn(struct gr_orch *o, const struct session *s, const struct gr_turn_request *turn,
                                 uint32_t keep_len)
{
    if (s->state != GR_SESSION_IDLE) {
        return refuse(o, GR_EINVAL, "session %" GR_SESSION_ID_PRI " is %s: wait for its turn to end", s->id,
                      s->state == GR_SESSION_CLOSING ? "being closed" : "in a turn");
    }
    if (turn->n_ids < 1) {
        return refuse(o, GR_EINVAL, "session %" GR_SESSION_ID_PRI ": a turn appends at least one token", s->id);
    }
    const char *wrong = gr_turn_wishes_wrong(&turn->wishes);
    if (wrong != NULL) {
        return refuse(o, GR_EINVAL, "session %" GR_SESSION_ID_PRI ": %s", s->id, wrong);
    }
    if (keep_len < 1 || keep_len > s->turn.transcript.len) {
        return refuse(o, GR_EINVAL, "session %" GR_SESSION_ID_PRI " has %u tokens; %u of them cannot be kept", s->id,
                      s->turn.transcript.len, keep_len);
    }
    if (turn->keep_len != UINT32_MAX && gr_transcript_hash_at(&s->turn.transcript, keep_len) != turn->hash) {
        return refuse(o, GR_EINVAL,
                      "session %" GR_SESSION_ID_PRI ": its first %u tokens are not the ones that are to be kept "
                      "(the prefix hashes differ)",
                      s->id, keep_len);
    }
    return check_len(o, s->model.fingerprint, s->request.tokenizer_fingerprint, keep_len, turn->n_ids);
}

/* Does the target go on with it that holds it? Where a new session would go to another one, it does as well. */
static bool stays_at_home(const struct gr_orch *o, const struct session *s)
{
    return s->at.target >= 0 && !s->at.open_after_close && orch_is_taking(&o->worker[s->at.target]) &&
           !orch_shuns_home(o, s);
}

static enum gr_status append(struct gr_orch *o, uint64_t session, const struct gr_turn_request *turn, uint64_t now_ns)
{
    struct session *s = orch_find(o, session);
    o->now_ns = now_ns;
    if (s == NULL) {
        return refuse(o, GR_ENOTFOUND, "no session %" GR_SESSION_ID_PRI " is open here", session);
    }
    const uint32_t keep_len = turn->keep_len == UINT32_MAX ? s->turn.transcript.len : turn->keep_len;
    GR_TRY(check_turn(o, s, turn, keep_len));
    GR_TRY(check_queue(o, n_before(o, &s->request.wishes)));
    GR_TRY(add_ids(o, s, keep_len, GR_SEGMENT_APPENDED, turn->ids, turn->n_ids));
    gr_turn_wishes_copy(&s->request.wishes.turn, &turn->wishes);
    s->request.user = turn->user;
    begin_turn(o, s, keep_len);
    const bool is_held = stays_at_home(o, s);
    if (is_held) {
        orch_seat_used(o, (uint32_t)s->at.target);
    }
    if (is_held && orch_lacks_draft(o, s)) {
        orch_open_over(o, s);
    } else if (is_held) {
        orch_append_turn(o, s);
    } else {
        orch_reopen(o, s);
    }
    return GR_OK;
}

enum gr_status gr_orch_append(struct gr_orch *o, uint64_t session, const struct gr_turn_request *turn, uint64_t now_ns)
{
    const enum gr_status st = append(o, session, turn, now_ns);
    if (st != GR_OK) {
        gr_totals_refused(&o->totals, st);
    }
    return st;
}

/* n_keep of the turn's generated tokens stay; its target, which goes idle with the turn or is idle already, follows. It
 * is told so before a CLOSE, too: its prefix cache is to have nothing of what comes after them. */
static void cut_text(struct gr_orch *o, struct session *s, uint32_t n_keep)
{
    orch_drop_provisional(s);
    const uint32_t n_generated = s->turn.transcript.len - GR_MIN(s->turn.transcript.len, s->turn.len);
    const uint32_t n_cut = n_generated - GR_MIN(n_generated, n_keep);
    gr_metrics_drop(&s->metrics, n_cut);
    orch_text_cut(s, s->turn.transcript.len - n_cut);
    gr_metrics_cut(&s->metrics, s->turn.transcript.len);
    const bool is_news = n_cut > 0 || s->state != GR_SESSION_IDLE;
    if (is_news && s->at.target >= 0 && s->state != GR_SESSION_CLOSING) {
        const struct gr_msg m = {.type = GR_MSG_TRUNCATE,
                                 .session = s->id,
                                 .truncate = {.epoch = s->epoch, .keep_len = s->turn.transcript.len}};
        o->io.send(o->io.ctx, (uint32_t)s->at.target, &m);
    }
}

void orch_cut_turn(struct gr_orch *o, struct session *s, uint32_t n_keep, enum gr_finish finish, const char *text)
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
        if (s->turn.finish != GR_FINISH_ERROR) {
            orch_turn_finish_as(s, finish);
        }
    } else {
        orch_cut_turn(o, s, n_keep, finish, "stopped by the client");
    }
    return GR_OK;
}

enum gr_status gr_orch_close(struct gr_orch *o, uint64_t session)
{
    struct session *s = orch_find(o, session);
    if (s == NULL) {
        return refuse(o, GR_ENOTFOUND, "no session %" GR_SESSION_ID_PRI " is open here", session);
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
        return refuse(o, GR_ENOTFOUND, "no session %" GR_SESSION_ID_PRI " is open here", session);
    }
    if (s != NULL && s->specpv == GR_SPECPV_OFF) {
        return refuse(o, GR_EUNSUPPORTED,
                      "session %" GR_SESSION_ID_PRI ": SpecPV is off: there is no partial view to refresh", session);
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
