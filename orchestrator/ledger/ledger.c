#include "orchestrator/ledger/ledger.h"

#include "common/base/grow.h"
#include "common/base/log.h"
#include "common/base/session_id.h"
#include "orchestrator/machine/session_index.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct gr_ledger {
    struct gr_ledger_session **session; /* owned: (n) owned ones */
    uint32_t n;
    size_t cap;
    struct gr_session_index index; /* places in it */
};

enum gr_status gr_ledger_create(struct gr_ledger **out)
{
    struct gr_ledger *l = calloc(1, sizeof(*l));
    if (l == NULL || !gr_session_index_create(&l->index, GR_LEDGER_SESSION_MAX)) {
        log_error("out of memory for a ledger of sessions");
        gr_ledger_destroy(l);
        return GR_ENOMEM;
    }
    *out = l;
    return GR_OK;
}

static void destroy_session(struct gr_ledger_session *s)
{
    gr_transcript_finish(&s->text);
    free(s->answer);
    free(s);
}

void gr_ledger_destroy(struct gr_ledger *l)
{
    if (l != NULL) {
        for (uint32_t i = 0; i < l->n; i++) {
            destroy_session(l->session[i]);
        }
        free(l->session);
        gr_session_index_destroy(&l->index);
        free(l);
    }
}

/* ---- sessions come and go ---- */

static struct gr_ledger_session *find(const struct gr_ledger *l, uint64_t session)
{
    const int place = gr_session_index_find(&l->index, session);
    return place >= 0 ? l->session[place] : NULL;
}

static enum gr_status make_room(struct gr_ledger *l)
{
    if (l->n == GR_LEDGER_SESSION_MAX) {
        log_error("the journal has more than %u sessions that were not closed: begin another one in an empty folder",
                  GR_LEDGER_SESSION_MAX);
        return GR_ELIMIT;
    }
    struct gr_ledger_session **bigger = gr_grow(l->session, &l->cap, l->n + 1u, sizeof(*bigger));
    if (bigger == NULL) {
        log_error("out of memory for %u sessions of a journal", l->n + 1u);
        return GR_ENOMEM;
    }
    l->session = bigger;
    return GR_OK;
}

static enum gr_status add(struct gr_ledger *l, uint64_t session, struct gr_ledger_session **out)
{
    GR_TRY(make_room(l));
    struct gr_ledger_session *s = calloc(1, sizeof(*s));
    if (s == NULL) {
        log_error("out of memory for a session of a journal");
        return GR_ENOMEM;
    }
    s->id = session;
    gr_session_index_add(&l->index, session, (int)l->n);
    l->session[l->n++] = s;
    *out = s;
    return GR_OK;
}

/* The last one takes its place. */
static void drop(struct gr_ledger *l, struct gr_ledger_session *s)
{
    const int place = gr_session_index_find(&l->index, s->id);
    struct gr_ledger_session *last = l->session[--l->n];
    gr_session_index_remove(&l->index, s->id);
    if (last != s) {
        l->session[place] = last;
        gr_session_index_add(&l->index, last->id, place);
    }
    destroy_session(s);
}

/* ---- what messages say ---- */

/* Pairs of kind and length, which are all of the ids. */
static bool segments_fit(const struct gr_msg_open *m)
{
    uint64_t n = 0;
    bool fits = m->segments.n >= 2 && m->segments.n % 2 == 0;
    for (uint32_t i = 0; fits && i < m->segments.n; i += 2) {
        const int32_t kind = m->segments.p[i], len = m->segments.p[i + 1];
        fits = kind >= GR_SEGMENT_PROMPT && kind <= GR_SEGMENT_APPENDED && len > 0;
        n += (uint64_t)len;
    }
    return fits && n == m->ids.n;
}

/* A text that is too long is one that does not fit. */
static enum gr_status add_ids(struct gr_ledger_session *s, int32_t kind, const int32_t *ids, uint32_t n)
{
    const enum gr_status st = gr_transcript_add(&s->text, (enum gr_segment_kind)kind, ids, n);
    return st == GR_ELIMIT ? GR_EINVAL : st;
}

static enum gr_status add_segments(struct gr_ledger_session *s, const struct gr_msg_open *m)
{
    uint32_t at = 0;
    for (uint32_t i = 0; i < m->segments.n; i += 2) {
        const uint32_t n = (uint32_t)m->segments.p[i + 1];
        GR_TRY(add_ids(s, m->segments.p[i], m->ids.p + at, n));
        at += n;
    }
    return GR_OK;
}

static enum gr_status add_answer(struct gr_ledger_session *s, const struct gr_msg_long *answer)
{
    if (answer->n == 0) {
        return GR_OK;
    }
    s->answer = strndup(answer->p, answer->n);
    if (s->answer == NULL) {
        log_error("out of memory for a session of a journal");
    }
    return s->answer != NULL ? GR_OK : GR_ENOMEM;
}

static void fill_open(struct gr_ledger_session *s, const struct gr_msg_open *m)
{
    s->state = GR_LEDGER_TURN;
    s->epoch = m->epoch;
    s->turn = 1;
    s->turn_len = s->text.len;
    s->tokenizer_fingerprint = m->tokenizer_fingerprint;
    memcpy(s->model, m->model, sizeof(s->model));
    memcpy(s->trace_id, m->trace_id, sizeof(s->trace_id));
    gr_wishes_copy(&s->wishes, &m->wishes);
}

static enum gr_status on_open(struct gr_ledger *l, const struct gr_msg *m)
{
    struct gr_ledger_session *s = NULL;
    if (!segments_fit(&m->open) || gr_turn_wishes_wrong(&m->open.wishes.turn) != NULL) {
        return GR_EINVAL;
    }
    GR_TRY(add(l, m->session, &s));
    enum gr_status st = add_segments(s, &m->open);
    st = st == GR_OK ? add_answer(s, &m->open.answer) : st;
    if (st != GR_OK) {
        drop(l, s);
        return st;
    }
    fill_open(s, &m->open);
    return GR_OK;
}

static enum gr_status on_kept(struct gr_ledger_session *s, const struct gr_msg_kept *m)
{
    if (m->turn < 1 || m->turn_base > m->turn_len || m->turn_len > s->text.len || m->epoch < s->epoch) {
        return GR_EINVAL;
    }
    s->epoch = m->epoch;
    s->turn = m->turn;
    s->turn_base = m->turn_base;
    s->turn_len = m->turn_len;
    s->model_fingerprint = m->model_fingerprint;
    memcpy(s->numerics_id, m->numerics_id, sizeof(s->numerics_id));
    return GR_OK;
}

static enum gr_status on_append(struct gr_ledger_session *s, const struct gr_msg_append *m)
{
    const bool fits = s->state == GR_LEDGER_IDLE && m->keep_len >= 1 && m->keep_len <= s->text.len && m->ids.n >= 1 &&
                      gr_transcript_fits(&s->text, m->keep_len, GR_SEGMENT_APPENDED, m->ids.n) &&
                      gr_turn_wishes_wrong(&m->wishes) == NULL &&
                      gr_transcript_hash_at(&s->text, m->keep_len) == m->hash;
    if (!fits) {
        return GR_EINVAL;
    }
    gr_transcript_cut(&s->text, m->keep_len);
    GR_TRY(add_ids(s, GR_SEGMENT_APPENDED, m->ids.p, m->ids.n));
    s->state = GR_LEDGER_TURN;
    s->turn++;
    s->turn_base = m->keep_len;
    s->turn_len = s->text.len;
    s->finish = GR_FINISH_NONE;
    s->error[0] = '\0';
    gr_turn_wishes_copy(&s->wishes.turn, &m->wishes);
    return GR_OK;
}

/* Final tokens of the turn, which follow those that were noted. */
static enum gr_status on_commit(struct gr_ledger_session *s, const struct gr_msg_commit *m)
{
    if (s->state != GR_LEDGER_TURN || m->keep_len != s->text.len || m->final_len != m->keep_len + m->ids.n) {
        return GR_EINVAL;
    }
    GR_TRY(add_ids(s, GR_SEGMENT_GENERATED, m->ids.p, m->ids.n));
    if (s->text.hash != m->hash) {
        gr_transcript_cut(&s->text, m->keep_len);
        return GR_EINVAL;
    }
    return GR_OK;
}

/* Also of a turn that has ended already, whose text is cut after its end. */
static enum gr_status on_finished(struct gr_ledger_session *s, const struct gr_msg_finished *m)
{
    const uint32_t least = GR_MAX(s->turn_base, 1u);
    if (m->n_token < least || m->n_token > s->text.len || m->finish == GR_FINISH_NONE) {
        return GR_EINVAL;
    }
    gr_transcript_cut(&s->text, m->n_token);
    s->turn_len = GR_MIN(s->turn_len, m->n_token);
    s->state = s->wishes.keep_open ? GR_LEDGER_IDLE : GR_LEDGER_OVER;
    s->epoch = GR_MAX(s->epoch, m->epoch);
    s->finish = (enum gr_finish)m->finish;
    memcpy(s->error, m->text, sizeof(s->error));
    return GR_OK;
}

static enum gr_status on_closed(struct gr_ledger *l, struct gr_ledger_session *s)
{
    drop(l, s);
    return GR_OK;
}

enum gr_status gr_ledger_apply(struct gr_ledger *l, const struct gr_msg *m)
{
    struct gr_ledger_session *s = find(l, m->session);
    if (m->session == 0 || (s == NULL) != (m->type == GR_MSG_OPEN) || (s != NULL && s->state == GR_LEDGER_DAMAGED)) {
        return GR_EINVAL;
    }
    switch (m->type) {
    case GR_MSG_OPEN:
        return on_open(l, m);
    case GR_MSG_KEPT:
        return on_kept(s, &m->kept);
    case GR_MSG_APPEND:
        return on_append(s, &m->append);
    case GR_MSG_COMMIT:
        return on_commit(s, &m->commit);
    case GR_MSG_FINISHED:
        return on_finished(s, &m->finished);
    case GR_MSG_CLOSED:
        return on_closed(l, s);
    default:
        return GR_EINVAL;
    }
}

void gr_ledger_count(struct gr_ledger *l, uint64_t session, uint64_t seq)
{
    struct gr_ledger_session *s = find(l, session);
    if (s != NULL) {
        s->n_record++;
        s->last_seq = seq;
    }
}

void gr_ledger_take_back(struct gr_ledger *l, uint64_t session, uint32_t len)
{
    struct gr_ledger_session *s = find(l, session);
    if (s != NULL && s->state == GR_LEDGER_TURN) {
        gr_transcript_cut(&s->text, len);
    }
}

/* ---- records that are read ---- */

static enum gr_status damage(struct gr_ledger *l, uint64_t session)
{
    struct gr_ledger_session *s = find(l, session);
    if (s == NULL) {
        GR_TRY(add(l, session, &s));
    }
    gr_transcript_finish(&s->text);
    s->state = GR_LEDGER_DAMAGED;
    s->turn_base = s->turn_len = 0;
    return GR_OK;
}

void gr_ledger_damage(void *ledger, uint64_t session)
{
    enum gr_status st = damage(ledger, session);
    (void)st; /* logged; the session is then one that is not there */
}

void gr_ledger_give_up(struct gr_ledger *l, uint64_t session)
{
    struct gr_ledger_session *s = find(l, session);
    if (s != NULL && s->state != GR_LEDGER_DAMAGED) {
        gr_ledger_damage(l, session);
        s->unwritten = true;
    }
}

static enum gr_status take_body(struct gr_ledger *l, const struct gr_record *r)
{
    struct gr_msg m;
    if ((r->kind & ~GR_RECORD_ENDS) != GR_LEDGER_KIND || gr_msg_decode(r->body, r->n_body, &m) != GR_OK) {
        return GR_EINVAL;
    }
    const enum gr_status st = m.session == r->session ? gr_ledger_apply(l, &m) : GR_EINVAL;
    gr_msg_finish(&m);
    return st;
}

enum gr_status gr_ledger_take(void *ledger, const struct gr_record *r)
{
    struct gr_ledger *l = ledger;
    const struct gr_ledger_session *s = find(l, r->session);
    if (s != NULL && s->state == GR_LEDGER_DAMAGED) {
        return GR_OK;
    }
    const enum gr_status st = take_body(l, r);
    if (st == GR_EINVAL) {
        log_warn("journal: session %" GR_SESSION_ID_PRI
                 " is not served: its record %llu does not fit those before it, or is of another version of graft",
                 r->session, (unsigned long long)r->number);
        return damage(l, r->session);
    }
    gr_ledger_count(l, r->session, r->seq);
    return st;
}

/* ---- looking in ---- */

const struct gr_ledger_session *gr_ledger_find(const struct gr_ledger *l, uint64_t session)
{
    return find(l, session);
}

const struct gr_ledger_session *gr_ledger_at(const struct gr_ledger *l, uint32_t i)
{
    GR_ASSERT(i < l->n);
    return l->session[i];
}

uint32_t gr_ledger_n(const struct gr_ledger *l)
{
    return l->n;
}

uint32_t gr_ledger_tokens_left(const struct gr_ledger_session *s)
{
    const uint32_t n = s->text.len - s->turn_len, max = s->wishes.turn.max_tokens;
    return s->state == GR_LEDGER_TURN && n < max ? max - n : 0;
}

bool gr_ledger_goes_on(const struct gr_ledger_session *s)
{
    return s->state == GR_LEDGER_TURN && s->wishes.specpv != GR_SPECPV_LOSSY;
}

bool gr_ledger_fill_restored(const struct gr_ledger_session *s, struct gr_restored_session *out)
{
    *out = (struct gr_restored_session){.id = s->id,
                                        .epoch = s->epoch,
                                        .in_turn = s->state == GR_LEDGER_TURN,
                                        .turn = s->turn,
                                        .turn_base = s->turn_base,
                                        .turn_len = s->turn_len,
                                        .text = &s->text,
                                        .tokenizer_fingerprint = s->tokenizer_fingerprint,
                                        .model_fingerprint = s->model_fingerprint,
                                        .model = s->model,
                                        .numerics_id = s->numerics_id,
                                        .trace_id = s->trace_id,
                                        .wishes = &s->wishes};
    return s->state == GR_LEDGER_TURN || s->state == GR_LEDGER_IDLE;
}

/* ---- a session in few words ---- */

static void fill_opening(const struct gr_ledger_session *s, struct gr_msg *m)
{
    *m = (struct gr_msg){.type = GR_MSG_OPEN, .session = s->id};
    m->open.epoch = s->epoch;
    m->open.tokenizer_fingerprint = s->tokenizer_fingerprint;
    m->open.ids = (struct gr_msg_ids){.p = s->text.token, .n = s->text.len};
    m->open.segments = (struct gr_msg_ids){.p = s->text.segment, .n = 2 * s->text.n_segment};
    memcpy(m->open.model, s->model, sizeof(m->open.model));
    memcpy(m->open.trace_id, s->trace_id, sizeof(m->open.trace_id));
    gr_wishes_copy(&m->open.wishes, &s->wishes);
    if (s->answer != NULL) {
        m->open.answer = (struct gr_msg_long){.p = s->answer, .n = (uint32_t)strlen(s->answer)};
    }
}

static void fill_kept(const struct gr_ledger_session *s, struct gr_msg *m)
{
    *m = (struct gr_msg){.type = GR_MSG_KEPT,
                         .session = s->id,
                         .kept = {.epoch = s->epoch,
                                  .model_fingerprint = s->model_fingerprint,
                                  .turn = s->turn,
                                  .turn_base = s->turn_base,
                                  .turn_len = s->turn_len}};
    memcpy(m->kept.numerics_id, s->numerics_id, sizeof(m->kept.numerics_id));
}

static void fill_finished(const struct gr_ledger_session *s, struct gr_msg *m)
{
    *m = (struct gr_msg){.type = GR_MSG_FINISHED,
                         .session = s->id,
                         .finished = {.epoch = s->epoch, .finish = (uint32_t)s->finish, .n_token = s->text.len}};
    memcpy(m->finished.text, s->error, sizeof(m->finished.text));
}

enum gr_status gr_ledger_retell(const struct gr_ledger_session *s, void *ctx,
                                enum gr_status (*say)(void *ctx, const struct gr_msg *m))
{
    struct gr_msg m;
    if (s->state == GR_LEDGER_DAMAGED) {
        return GR_OK;
    }
    fill_opening(s, &m);
    GR_TRY(say(ctx, &m));
    fill_kept(s, &m);
    GR_TRY(say(ctx, &m));
    if (s->state == GR_LEDGER_TURN) {
        return GR_OK;
    }
    fill_finished(s, &m);
    return say(ctx, &m);
}
