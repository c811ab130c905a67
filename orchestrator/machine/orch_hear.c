/* What workers say, and what follows from it for the session that it is about. */
#include "common/base/log.h"
#include "common/base/session_id.h"
#include "common/rules/hash.h"
#include "orchestrator/machine/orch_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define ROUNDS_KNOWN 16 /* after so many rounds of an epoch its workers are known to work */

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

/* The turn has come to its end, or so far that its workers do what they are to do. */
static void note_success(struct gr_orch *o, const struct session *s, const struct gr_msg_commit *m)
{
    const bool ends = m->finish == GR_FINISH_STOP || m->finish == GR_FINISH_LENGTH;
    if (m->round != ROUNDS_KNOWN && !ends) {
        return;
    }
    orch_seat_succeeded(o, (uint32_t)s->at.home);
    if (s->with.drafter >= 0 && s->with.attached_ns != 0) {
        orch_seat_succeeded(o, (uint32_t)s->with.drafter);
    }
}

static void refuse_commit(struct gr_orch *o, struct session *s, const struct gr_msg_commit *c)
{
    o->totals.transcript_mismatches++;
    orch_seat_failed(o, (uint32_t)s->at.home, GR_FAILURE_TURN);
    log_error("session %" GR_SESSION_ID_PRI " round %u: COMMIT does not extend the transcript (expected_prefix_len %u, "
              "keep_len %u, %u tokens)",
              s->id, c->round, s->turn.transcript.len, c->keep_len, c->ids.n);
    orch_close(o, s, GR_FINISH_ERROR, "the target's tokens do not extend the transcript");
}

/* The tokens become the text's, and all counts know of them. n_shown: how many of them are final now. */
static void count_commit(struct gr_orch *o, struct session *s, const struct gr_msg *m, uint64_t now_ns,
                         uint32_t n_shown)
{
    const struct gr_msg_commit *c = &m->commit;
    gr_metrics_take(&s->metrics, m, now_ns);
    gr_totals_take(&o->totals, m, s->metrics.transport);
    if (c->round == 0 || c->finish != GR_FINISH_NONE) { /* the last token has no KV yet */
        orch_prefix_computed(o, s, GR_MAX(c->final_len, 1) - 1);
    }
    orch_count_round(o, s, c);
    orch_count_cached(o, s, c->n_cached);
    orch_count_shown(o, s, n_shown);
}

/* Its client may stop the turn, and begin the next one, whenever it is told something: the session is looked for anew.
 */
static struct session *find_turn(const struct gr_orch *o, uint64_t id, uint32_t turn)
{
    struct session *s = orch_find(o, id);
    return s != NULL && s->turn.number == turn ? s : NULL;
}

static void tell_commit(struct gr_orch *o, struct session *s, const struct gr_msg *m, uint32_t shown_len)
{
    const uint64_t id = s->id;
    const uint32_t turn = s->turn.number;
    const bool ends = m->commit.finish != GR_FINISH_NONE &&
                      m->commit.finish != GR_FINISH_ERROR; /* an ERROR follows, which tells why */
    report(o, s, m);
    s = find_turn(o, id, turn);
    if (o->io.on_tokens != NULL && s != NULL && s->turn.final_len > shown_len) {
        o->io.on_tokens(o->io.ctx, id, s->request.user, s->turn.transcript.token + shown_len,
                        s->turn.final_len - shown_len);
        s = find_turn(o, id, turn);
    }
    if (s != NULL && s->state == GR_SESSION_RUNNING && ends) {
        orch_end_turn(o, s, (enum gr_finish)m->commit.finish, "");
    }
}

static void on_commit(struct gr_orch *o, struct session *s, const struct gr_msg *m, uint64_t now_ns)
{
    const struct gr_msg_commit *c = &m->commit;
    if (s->state != GR_SESSION_RUNNING || c->epoch != s->epoch) {
        return; /* of a turn that is over, or of a target that lost the session, while it was on its way */
    }
    if (!commit_fits(s, c)) {
        refuse_commit(o, s, c);
        return;
    }
    const uint32_t n_withdrawn = s->turn.transcript.len - c->keep_len, shown_len = s->turn.final_len;
    note_success(o, s, c);
    o->totals.withdrawn_tokens += n_withdrawn;
    gr_metrics_drop(&s->metrics, n_withdrawn);
    const enum gr_status st = orch_text_commit(s, c);
    if (st != GR_OK) { /* GR_ELIMIT: longer than what could be opened again */
        const bool full = st == GR_ELIMIT;
        orch_cut_turn(o, s, UINT32_MAX, full ? GR_FINISH_LENGTH : GR_FINISH_ERROR, full ? "" : "out of memory");
        return;
    }
    count_commit(o, s, m, now_ns, s->turn.final_len - shown_len);
    tell_commit(o, s, m, shown_len);
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
        log_debug("session %" GR_SESSION_ID_PRI ": %u tokens need not be computed again", s->id, m->opened.usable_len);
    }
    orch_specpv_opened(s, (enum gr_specpv_mode)m->opened.specpv);
    if (!s->turn.has_run) {
        orch_count_taken(o, s);
    }
    orch_running(s);
    report_attached(o, s);
    orch_attach(o, s);
}

static void on_evicted(struct gr_orch *o, struct session *s)
{
    if (s->at.open_after_close) {
        return; /* it crossed the CLOSE, which is answered all the same; or the target is lost before it does */
    }
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
        orch_attach_if_due(o, s);
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
        orch_fall_back(o, s, GR_FALLBACK_DRAFTER_ERROR, text);
    }
    o->totals.drafter_errors++;
    orch_with_broke(s, text);
    if (again) {
        orch_with_retry(s, broke, o->now_ns);
    }
    /* It may be about an attachment that another has replaced: let go of that one, too, and start over. */
    orch_detach(o, s);
    orch_with_failed(s, s->with.failed || !again || s->metrics.transport[0] == '\0');
    seek_drafter(o, s, worker, again, broke);
}

/* Another target may do better, once in a turn: what fails there as well is the text's or the model's own doing. */
static bool go_elsewhere(struct gr_orch *o, struct session *s)
{
    orch_home_refused(s);
    if (s->turn.has_failed || !orch_another_fits(o, s)) {
        return false;
    }
    orch_turn_failed_once(s);
    orch_home_forgot(s);
    orch_reopen(o, s);
    return true;
}

/* The session has failed at its target, which answers what is on its way there as of an unknown session. Where its turn
 * was over already, or it is being opened anew, nothing else follows from that. */
static void on_session_failed(struct gr_orch *o, struct session *s, const struct gr_msg *m)
{
    if (s->state != GR_SESSION_RUNNING) {
        on_evicted(o, s);
        return;
    }
    const int target = s->at.target;
    o->totals.turns_failed_at_target++;
    orch_seat_failed(o, (uint32_t)target, GR_FAILURE_TURN);
    if (go_elsewhere(o, s)) {
        log_warn("session %" GR_SESSION_ID_PRI
                 " has failed at target worker %d, and its turn goes on at another one: %s",
                 m->session, target + 1, m->error.text);
    } else { /* the text is the turn's own error, which its client tells */
        log_warn("session %" GR_SESSION_ID_PRI " has failed at target worker %d, and its turn with it", s->id,
                 target + 1);
        orch_home_forgot(s);
        orch_fail_turn(o, s, GR_FINISH_ERROR, m->error.text);
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
    log_info("session %" GR_SESSION_ID_PRI ": target worker %d is to end; it is opened elsewhere", s->id,
             s->at.target + 1);
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
        log_info("session %" GR_SESSION_ID_PRI ": the target does not go on with it (%s); opening it again", s->id,
                 m->error.text);
        if (s->at.evicted) {
            orch_home_forgot(s); /* no CLOSE is needed first */
        }
        orch_reopen(o, s);
    } else if (s->state == GR_SESSION_OPENING && sends_elsewhere(m)) {
        open_elsewhere(o, s);
    } else if (s->state != GR_SESSION_OPENING || m->error.code != (uint32_t)-GR_ELIMIT || !find_other_room(o, s)) {
        orch_home_forgot(s);
        orch_fail_turn(o, s, GR_FINISH_ERROR, m->error.text);
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
    gr_totals_take(&o->totals, m, s->metrics.transport);
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
        o->totals.evictions++;
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
        gr_totals_take(&o->totals, m, s->metrics.transport);
        report(o, s, m);
    } else if (m->type == GR_MSG_ERROR) {
        on_drafter_error(o, s, worker, m);
    } else if (m->type == GR_MSG_DRAFT_TROUBLE) {
        gr_metrics_take(&s->metrics, m, 0);
        gr_totals_take(&o->totals, m, s->metrics.transport);
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
    orch_log_about(worker + 1, orch_find(o, m->session), m->type == GR_MSG_COMMIT ? m->commit.round : 0);
    const enum gr_status st = take_msg(o, worker, m, now_ns);
    gr_log_about(NULL);
    return st;
}
