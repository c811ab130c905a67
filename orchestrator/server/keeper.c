#include "orchestrator/server/keeper.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/session_id.h"
#include "orchestrator/ledger/scribe.h"
#include "orchestrator/machine/place_set.h"
#include "orchestrator/server/outbox.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NOTE_NS GR_S /* how often tokens of turns that go on are noted: what a restart computes again is no more */

struct over {
    uint64_t session, due_ns;
};

struct gr_keeper {
    struct gr_keeper_config c;
    struct gr_scribe *scribe;
    struct gr_outbox *outbox;
    const struct gr_orch *orch; /* borrowed */
    uint64_t last_seq;          /* of what was noted last */
    uint64_t now_ns;            /* when it ran last */
    uint64_t note_ns;           /* when tokens are noted next */
    bool failed;                /* the journal takes nothing any more, and clients were told */
    char why[GR_MSG_TEXT_MAX];  /* the same, for clients */
    char wrong[GR_MSG_TEXT_MAX];
    struct over over[GR_KEEPER_OVER_MAX]; /* oldest first, from `first' on, around the end */
    uint32_t first, n_over;
    struct gr_place_set cut; /* clients that have lost a message */
};

/* ---- life ---- */

static enum gr_status create(struct gr_keeper *k)
{
    const struct gr_outbox_io io = {.ctx = k->c.ctx, .send = k->c.send};
    GR_TRY(gr_scribe_create(k->c.path, k->c.files, k->c.segment_bytes, &k->scribe));
    GR_TRY(gr_outbox_create(k->c.n_client, &io, &k->outbox));
    if (!gr_place_set_create(&k->cut, k->c.n_client)) {
        log_error("out of memory for a journal");
        return GR_ENOMEM;
    }
    return GR_OK;
}

enum gr_status gr_keeper_create(const struct gr_keeper_config *c, struct gr_keeper **out)
{
    struct gr_keeper *k = calloc(1, sizeof(*k));
    if (k == NULL) {
        log_error("out of memory for a journal");
        return GR_ENOMEM;
    }
    k->c = *c;
    snprintf(k->why, sizeof(k->why),
             "the journal of this server has failed (its log says why): no turn begins until it is started again");
    const enum gr_status st = create(k);
    if (st != GR_OK) {
        const enum gr_status ended = gr_keeper_destroy(k, UINT64_MAX);
        (void)ended; /* nothing was noted */
        return st;
    }
    *out = k;
    return GR_OK;
}

enum gr_status gr_keeper_destroy(struct gr_keeper *k, uint64_t deadline_ns)
{
    if (k == NULL) {
        return GR_OK;
    }
    const enum gr_status st = gr_scribe_destroy(k->scribe, deadline_ns);
    gr_outbox_destroy(k->outbox);
    gr_place_set_destroy(&k->cut);
    free(k);
    return st;
}

/* ---- what is noted ---- */

/* NULL: the journal does not know it, or has given it up. */
static const struct gr_ledger_session *known(const struct gr_keeper *k, uint64_t session)
{
    const struct gr_ledger_session *s = gr_ledger_find(gr_scribe_ledger(k->scribe), session);
    return s != NULL && s->state != GR_LEDGER_DAMAGED ? s : NULL;
}

static bool put(struct gr_keeper *k, const struct gr_msg *m)
{
    return gr_scribe_note(k->scribe, m, &k->last_seq) == GR_OK;
}

/* The final tokens of a turn that the journal lacks. */
static bool put_tokens(struct gr_keeper *k, const struct gr_ledger_session *s)
{
    struct gr_session_info info;
    const uint32_t from = s->text.len;
    if (s->state != GR_LEDGER_TURN || !gr_orch_session_info(k->orch, s->id, 0, &info) || info.n_token <= from) {
        return true;
    }
    const struct gr_transcript *t = gr_orch_text(k->orch, s->id);
    const struct gr_msg m = {
        .type = GR_MSG_COMMIT,
        .session = s->id,
        .commit = {.epoch = info.epoch,
                   .ids = {.p = t->token + from, .n = info.n_token - from},
                   .keep_len = from,
                   .final_len = info.n_token,
                   .hash = info.n_token == t->len ? t->hash : gr_transcript_hash_at(t, info.n_token)}};
    return put(k, &m);
}

/* What has to be in the journal now, and is not: nothing more of the session may follow it. */
static bool required(struct gr_keeper *k, const struct gr_ledger_session *s, bool noted)
{
    if (!noted) {
        gr_scribe_give_up(k->scribe, s->id);
    }
    return noted;
}

static bool is_same(const struct gr_ledger_session *s, const struct gr_msg_kept *m)
{
    return s->epoch == m->epoch && s->turn == m->turn && s->turn_base == m->turn_base && s->turn_len == m->turn_len &&
           s->model_fingerprint == m->model_fingerprint && strcmp(s->numerics_id, m->numerics_id) == 0;
}

/* What was generated so far stands with the numerics that it came from. */
static bool put_kept(struct gr_keeper *k, const struct gr_ledger_session *s)
{
    struct gr_msg m = {.type = GR_MSG_KEPT, .session = s->id};
    if (!gr_orch_fill_kept(k->orch, s->id, &m.kept) || is_same(s, &m.kept)) {
        return true;
    }
    return required(k, s, put_tokens(k, s)) && put(k, &m);
}

static bool put_append(struct gr_keeper *k, const struct gr_ledger_session *s, const struct gr_msg *m)
{
    struct gr_msg a = *m;
    a.append.keep_len = m->append.keep_len > 0 ? m->append.keep_len : s->text.len;
    a.append.hash = a.append.keep_len <= s->text.len ? gr_transcript_hash_at(&s->text, a.append.keep_len) : 0;
    return put(k, &a);
}

/* Who closed it meanwhile has done so. */
static void close_oldest(struct gr_keeper *k)
{
    const struct gr_ledger_session *s = known(k, k->over[k->first].session);
    if (s != NULL && s->state == GR_LEDGER_OVER) {
        (void)put(k, &(struct gr_msg){.type = GR_MSG_CLOSED, .session = s->id}); /* logged */
    }
    k->first = (k->first + 1) % GR_KEEPER_OVER_MAX;
    k->n_over--;
}

static void add_over(struct gr_keeper *k, uint64_t session)
{
    if (k->n_over == GR_KEEPER_OVER_MAX) {
        close_oldest(k);
    }
    k->over[(k->first + k->n_over++) % GR_KEEPER_OVER_MAX] =
        (struct over){.session = session, .due_ns = k->now_ns + k->c.over_ns};
}

static bool put_finished(struct gr_keeper *k, const struct gr_ledger_session *s, const struct gr_msg *m)
{
    struct gr_msg f = *m;
    const bool was_over = s->state == GR_LEDGER_OVER;
    if (!required(k, s, put_tokens(k, s))) {
        return false;
    }
    f.finished.n_token = GR_MIN(m->finished.n_token, s->text.len);
    const bool noted = put(k, &f);
    if (noted && !was_over && s->state == GR_LEDGER_OVER) {
        add_over(k, s->id);
    }
    return noted;
}

static bool note(void *ctx, const struct gr_msg *m)
{
    struct gr_keeper *k = ctx;
    const struct gr_ledger_session *s = known(k, m->session);
    if (m->type == GR_MSG_OPEN) {
        return put(k, m);
    }
    if (s == NULL) {
        return false;
    }
    switch (m->type) {
    case GR_MSG_KEPT:
        return put_kept(k, s);
    case GR_MSG_APPEND:
        return put_append(k, s, m);
    case GR_MSG_FINISHED:
        return put_finished(k, s, m);
    default:
        return put(k, m);
    }
}

static void hold(void *ctx, uint32_t client)
{
    struct gr_keeper *k = ctx;
    if (!k->failed) {
        gr_outbox_wait(k->outbox, client, k->last_seq);
    }
}

static void forget(void *ctx, uint32_t client)
{
    struct gr_keeper *k = ctx;
    gr_outbox_forget(k->outbox, client);
    gr_place_set_put(&k->cut, client, false);
}

static const char *refuses(void *ctx)
{
    const struct gr_keeper *k = ctx;
    return gr_keeper_has_failed(k) ? k->why : NULL;
}

/* NULL: its text can be told. Not where the next process would tell another one: what the disk did not take before the
 * journal failed is in this process alone. */
static const char *why_unreadable(const struct gr_keeper *k, const struct gr_ledger_session *s)
{
    const struct gr_journal *j = gr_scribe_journal(k->scribe);
    if (s == NULL) {
        return "it is not open here, and no answer of it is kept";
    }
    if (s->unwritten || (gr_journal_has_failed(j) && s->last_seq > gr_journal_synced(j))) {
        return "the journal did not take what became of it last, so that is not told; a server that is started again "
               "on the journal has it as it was before";
    }
    return s->state == GR_LEDGER_DAMAGED
               ? "records of it in the journal are damaged or lost, so its text cannot be told"
               : NULL;
}

static const char *read_text(void *ctx, uint64_t session, struct gr_msg *out)
{
    struct gr_keeper *k = ctx;
    const struct gr_ledger_session *s = gr_ledger_find(gr_scribe_ledger(k->scribe), session);
    const char *wrong = why_unreadable(k, s);
    if (wrong != NULL) {
        snprintf(k->wrong, sizeof(k->wrong), "session %" GR_SESSION_ID_PRI ": %s", session, wrong);
        return k->wrong;
    }
    out->read_text.epoch = s->epoch;
    out->read_text.turn = s->turn;
    out->read_text.turn_len = s->turn_len;
    out->read_text.in_turn = s->state == GR_LEDGER_TURN;
    out->read_text.finish = (uint32_t)s->finish;
    out->read_text.ids = (struct gr_msg_ids){.p = s->text.token, .n = s->text.len};
    memcpy(out->read_text.text, s->error, sizeof(out->read_text.text));
    return NULL;
}

struct gr_desk_keeper gr_keeper_serve(struct gr_keeper *k, const struct gr_orch *orch)
{
    k->orch = orch;
    return (struct gr_desk_keeper){
        .ctx = k, .refuses = refuses, .note = note, .hold = hold, .forget = forget, .read = read_text};
}

/* ---- answers ---- */

static bool fill_answer(const struct gr_keeper *k, const struct gr_ledger_session *s, struct gr_kept_answer *out)
{
    if (why_unreadable(k, s) != NULL || s->answer == NULL ||
        (s->state != GR_LEDGER_TURN && s->state != GR_LEDGER_OVER)) {
        return false;
    }
    *out = (struct gr_kept_answer){.session = s->id,
                                   .note = s->answer,
                                   .in_turn = s->state == GR_LEDGER_TURN,
                                   .epoch = s->epoch,
                                   .turn = s->turn,
                                   .turn_len = s->turn_len,
                                   .finish = s->finish,
                                   .error = s->error,
                                   .ids = s->text.token,
                                   .n_ids = s->text.len};
    return true;
}

bool gr_keeper_answer(const struct gr_keeper *k, uint64_t session, struct gr_kept_answer *out)
{
    return fill_answer(k, gr_ledger_find(gr_scribe_ledger(k->scribe), session), out);
}

/* ---- what comes back ---- */

static void end_in_error(struct gr_keeper *k, const struct gr_ledger_session *s, const char *why)
{
    struct gr_msg m = {.type = GR_MSG_FINISHED,
                       .session = s->id,
                       .finished = {.epoch = s->epoch, .finish = GR_FINISH_ERROR, .n_token = s->text.len}};
    log_warn("session %" GR_SESSION_ID_PRI ": its turn ends: %s", s->id, why);
    snprintf(m.finished.text, sizeof(m.finished.text), "%s", why);
    (void)put_finished(k, s, &m); /* logged; the next process tries again */
}

struct tally {
    uint32_t n_turn, n_idle, n_over, n_damaged;
};

static void restore_one(struct gr_keeper *k, struct gr_desk *d, uint64_t session, struct tally *n)
{
    const struct gr_ledger_session *s = gr_ledger_find(gr_scribe_ledger(k->scribe), session);
    struct gr_restored_session r;
    if (s->state == GR_LEDGER_TURN && !gr_ledger_goes_on(s)) {
        end_in_error(k, s, "under lossy SpecPV what was told of it cannot be computed again");
    } else if (s->state == GR_LEDGER_OVER) {
        add_over(k, session);
    }
    n->n_damaged += s->state == GR_LEDGER_DAMAGED;
    n->n_over += s->state == GR_LEDGER_OVER;
    if (gr_ledger_fill_restored(s, &r)) {
        n->n_turn += r.in_turn;
        n->n_idle += !r.in_turn;
        if (gr_desk_restore(d, &r, k->now_ns) != GR_OK) {
            log_error("session %" GR_SESSION_ID_PRI " of the journal is not served (the line above says why)", session);
        }
    }
}

/* The table may change its order while sessions come back. */
static uint64_t *all_numbers(const struct gr_ledger *l, uint32_t n)
{
    uint64_t *session = malloc(GR_MAX(n, 1u) * sizeof(*session));
    for (uint32_t i = 0; session != NULL && i < n; i++) {
        session[i] = gr_ledger_at(l, i)->id;
    }
    return session;
}

void gr_keeper_restore(struct gr_keeper *k, struct gr_desk *d, uint64_t now_ns)
{
    struct tally n = {0};
    const uint32_t n_session = gr_ledger_n(gr_scribe_ledger(k->scribe));
    uint64_t *session = all_numbers(gr_scribe_ledger(k->scribe), n_session);
    k->now_ns = now_ns;
    if (session == NULL) {
        log_error("out of memory for %u sessions of a journal", n_session);
        return;
    }
    for (uint32_t i = 0; i < n_session; i++) {
        restore_one(k, d, session[i], &n);
    }
    free(session);
    if (n_session > 0) {
        gr_log_notice(
            "journal %s: %u turns go on, %u sessions are idle, %u answers can be read, %u sessions are damaged",
            k->c.path, n.n_turn, n.n_idle, n.n_over, n.n_damaged);
    }
}

void gr_keeper_each_answer(const struct gr_keeper *k, void *ctx,
                           void (*on_answer)(void *ctx, const struct gr_kept_answer *a))
{
    const struct gr_ledger *l = gr_scribe_ledger(k->scribe);
    const uint32_t n = gr_ledger_n(l);
    uint64_t *session = all_numbers(l, n);
    if (session == NULL) {
        log_error("out of memory for %u sessions of a journal", n);
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        struct gr_kept_answer a;
        if (gr_keeper_answer(k, session[i], &a)) {
            on_answer(ctx, &a);
        }
    }
    free(session);
}

/* ---- what clients are told ---- */

struct loss {
    struct gr_keeper *k;
    const char *why;
};

/* Of what a client waits for and the desk has done with: it hears of it as an error. An error that
 * waits is told as it is. */
static void tell_loss(void *ctx, uint32_t client, const struct gr_msg *m)
{
    const struct loss *l = ctx;
    struct gr_msg e = {.type = GR_MSG_ERROR, .session = m->session, .error = {.code = -GR_EIO}};
    if (m->type == GR_MSG_FINISHED) {
        e = *m;
        e.finished.finish = GR_FINISH_ERROR;
        snprintf(e.finished.text, sizeof(e.finished.text), "%s", l->why);
    } else if (m->type == GR_MSG_ERROR) {
        e = *m;
    } else if (m->type != GR_MSG_CLOSED && m->type != GR_MSG_TEXT) {
        return;
    } else {
        snprintf(e.error.text, sizeof(e.error.text), "%s", l->why);
    }
    l->k->c.send(l->k->c.ctx, client, &e);
}

static const char too_slow[] = "what was to be told of the turn has waited for the journal's disk for too long";

/* Nothing overtakes what was lost. */
void gr_keeper_send(struct gr_keeper *k, uint32_t client, const struct gr_msg *m)
{
    const bool is_cut = gr_place_set_next(&k->cut, client) == (int)client;
    if (is_cut || gr_outbox_put(k->outbox, client, m, 0) != GR_OK) {
        struct loss l = {.k = k, .why = too_slow};
        gr_place_set_put(&k->cut, client, true);
        tell_loss(&l, client, m);
    }
}

static void lose_clients(struct gr_keeper *k, const char *why)
{
    for (int i = gr_place_set_next(&k->cut, 0); i >= 0; i = gr_place_set_next(&k->cut, (uint32_t)i + 1)) {
        struct loss l = {.k = k, .why = why};
        gr_outbox_drop(k->outbox, (uint32_t)i, tell_loss, &l);
        gr_place_set_put(&k->cut, (uint32_t)i, false);
        k->c.lost(k->c.ctx, (uint32_t)i, why);
    }
}

/* What is held never becomes durable. */
static void fail(struct gr_keeper *k)
{
    k->failed = true;
    log_error("journal %s has failed: no turn begins here any more, and what becomes of those that run is not written; "
              "start this server again when the disk takes writes",
              k->c.path);
    for (uint32_t i = 0; i < k->c.n_client; i++) {
        if (gr_outbox_holds(k->outbox, i)) {
            gr_place_set_put(&k->cut, i, true);
        }
    }
    lose_clients(k, k->why);
}

/* ---- how it is ---- */

bool gr_keeper_has_failed(const struct gr_keeper *k)
{
    return gr_journal_has_failed(gr_scribe_journal(k->scribe));
}

uint64_t gr_keeper_waits_since(const struct gr_keeper *k)
{
    return gr_journal_waits_since(gr_scribe_journal(k->scribe));
}

/* ---- time ---- */

int gr_keeper_fd(const struct gr_keeper *k)
{
    return gr_journal_fd(gr_scribe_journal(k->scribe));
}

static uint64_t close_over(struct gr_keeper *k)
{
    while (k->n_over > 0 && k->over[k->first].due_ns <= k->now_ns) {
        close_oldest(k);
    }
    return k->n_over > 0 ? k->over[k->first].due_ns : UINT64_MAX;
}

/* Nobody waits for these records: where the disk is behind, they are left for another time. Returns when the next are
 * due; UINT64_MAX: no turn goes on. */
static uint64_t put_running(struct gr_keeper *k)
{
    const struct gr_ledger *l = gr_scribe_ledger(k->scribe);
    struct gr_journal *j = gr_scribe_journal(k->scribe);
    bool some = false;
    if (k->now_ns < k->note_ns) {
        return k->note_ns;
    }
    for (uint32_t i = 0; i < gr_ledger_n(l); i++) {
        const struct gr_ledger_session *s = gr_ledger_at(l, i);
        some = some || s->state == GR_LEDGER_TURN;
        if (gr_journal_has_room(j)) {
            (void)put_tokens(k, s); /* logged */
        }
    }
    k->note_ns = k->now_ns + NOTE_NS;
    return some ? k->note_ns : UINT64_MAX;
}

uint64_t gr_keeper_run(struct gr_keeper *k, uint64_t now_ns)
{
    struct gr_journal *j = gr_scribe_journal(k->scribe);
    uint64_t count = 0;
    const ssize_t got = read(gr_journal_fd(j), &count, sizeof(count));
    (void)got; /* whether it was readable or not */
    k->now_ns = now_ns;
    lose_clients(k, too_slow);
    gr_outbox_synced(k->outbox, gr_journal_synced(j));
    if (gr_journal_has_failed(j) && !k->failed) {
        fail(k);
    }
    if (k->failed) {
        return UINT64_MAX;
    }
    const uint64_t over_ns = close_over(k), note_ns = put_running(k);
    return GR_MIN(over_ns, note_ns);
}

enum gr_status gr_keeper_flush(struct gr_keeper *k, uint64_t now_ns, uint64_t deadline_ns)
{
    const enum gr_status st = gr_journal_wait(gr_scribe_journal(k->scribe), k->last_seq, deadline_ns);
    (void)gr_keeper_run(k, now_ns);
    return st == GR_ETIMEDOUT ? st : GR_OK; /* that it has failed was told */
}
