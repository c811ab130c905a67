/* A session's ways from state to state: opened, appended to, re-opened, attached, ended. Says what workers are told;
 * the parts that it changes have their own files (orch_turn.c, orch_home.c, orch_with.c). */
#include "common/base/log.h"
#include "common/base/session_id.h"
#include "orchestrator/machine/orch_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void send_to(struct gr_orch *o, int worker, const struct gr_msg *m)
{
    o->io.send(o->io.ctx, (uint32_t)worker, m);
}

static uint32_t n_generated(const struct session *s)
{
    return s->turn.transcript.len - s->turn.len;
}

static bool wants_draft(const struct gr_orch *o, const struct session *s)
{
    return s->request.wishes.want_draft && !o->config.disable_multi_token;
}

void orch_specpv_ask(const struct gr_orch *o, struct session *s)
{
    s->specpv = o->config.disable_specpv ? GR_SPECPV_OFF : s->request.wishes.specpv;
}

void orch_specpv_opened(struct session *s, enum gr_specpv_mode mode)
{
    s->specpv = mode == s->specpv ? mode : GR_SPECPV_OFF; /* it fell back: the target told why */
}

static bool at_context_limit(const struct gr_orch *o, const struct session *s, int target)
{
    const uint32_t n_ctx_max = o->worker[target].info.n_ctx_max;
    return n_ctx_max > 0 && s->turn.transcript.len >= n_ctx_max && n_generated(s) > 0;
}

static bool other_tokenizer(const struct gr_orch *o, const struct session *s, int target)
{
    const uint64_t ours = s->request.tokenizer_fingerprint;
    return gr_orch_differ(ours, o->worker[target].info.tokenizer_fingerprint);
}

/* A text is one target's own, bit for bit, only where all of it comes from one order of sums. False: the turn has
 * failed. */
static bool accept_numerics(struct gr_orch *o, struct session *s, int target)
{
    const char *its = o->worker[target].info.numerics_id;
    char text[GR_MSG_TEXT_MAX + 32]; /* it is cut where it is sent */
    if (orch_same_numerics(s, &o->worker[target].info)) {
        return true;
    }
    snprintf(text, sizeof(text), "the text so far is of a target that computes as %s, the one there is now as %s",
             s->numerics_id, its);
    if (o->config.require_same_numerics) {
        const size_t n = strlen(text);
        snprintf(text + n, sizeof(text) - n, "; --require-same-numerics forbids to go on there");
        orch_fail_turn(o, s, GR_FINISH_ERROR, text);
        return false;
    }
    orch_fall_back(o, s, GR_FALLBACK_NUMERICS, text);
    return true;
}

/* What a target is told: what only a drafter or the orchestrator acts on stays out. */
static void wishes_for_target(const struct gr_orch *o, struct session *s, struct gr_wishes *w)
{
    gr_wishes_copy(w, &s->request.wishes);
    w->turn.max_tokens -= n_generated(s);
    w->turn.min_tokens -= GR_MIN(w->turn.min_tokens, n_generated(s));
    w->want_draft = wants_draft(o, s) && orch_has_drafter(o, s, s->at.target);
    w->single_token = w->single_token || o->config.force_single_token;
    orch_specpv_ask(o, s);
    w->specpv = s->specpv;
    if (s->specpv == GR_SPECPV_OFF) {
        w->specpv_params = (struct gr_specpv_params){0};
        w->draft_depth = 0;
    } else {
        w->draft_depth = gr_wishes_depth(w);
    }
    w->tree_shape = w->draft_top_k = 0;
    w->draft_ahead = GR_AHEAD_OFF;
    w->transport[0] = '\0';
    w->keep_open = w->queues = false;
    w->priority = 0;
    w->turn.timeout_ns = 0;
}

static void send_open(struct gr_orch *o, struct session *s)
{
    struct gr_transcript *t = &s->turn.transcript;
    struct gr_msg m = {.type = GR_MSG_OPEN,
                       .session = s->id,
                       .open = {.epoch = s->epoch,
                                .ids = {.p = t->token, .n = t->len},
                                .segments = {.p = t->segment, .n = 2 * t->n_segment}}};
    wishes_for_target(o, s, &m.open.wishes);
    orch_opening(s);
    orch_home_open_sent(s, m.open.wishes.want_draft);
    send_to(o, s->at.target, &m);
    if (o->io.on_placed != NULL) {
        o->io.on_placed(o->io.ctx, s->id, s->request.user);
    }
}

void orch_note_numerics(struct session *s, const char *numerics_id)
{
    snprintf(s->numerics_id, sizeof(s->numerics_id), "%s", numerics_id);
}

void orch_open(struct gr_orch *o, struct session *s)
{
    char text[GR_MSG_TEXT_MAX];
    orch_wait(s, o->now_ns);
    if (orch_model_bind(o, s, text) == GR_EINVAL) { /* several, and it has waited for any */
        orch_fail_turn(o, s, GR_FINISH_ERROR, text);
        return;
    }
    const int target = orch_place_target(o, s);
    if (target < 0 || (s->request.wishes.queues && !orch_has_room(o, target))) {
        return;
    }
    if (s->turn.is_restored && !orch_same_numerics(s, &o->worker[target].info)) {
        return; /* its own target may be on its way back */
    }
    if (at_context_limit(o, s, target)) {
        orch_end_turn(o, s, GR_FINISH_LENGTH, "");
        return;
    }
    if (other_tokenizer(o, s, target)) {
        snprintf(text, sizeof(text),
                 "the client's tokenizer has fingerprint %016" PRIx64 ", the target's %016" PRIx64
                 ": give the client the target's model folder",
                 s->request.tokenizer_fingerprint, o->worker[target].info.tokenizer_fingerprint);
        orch_fail_turn(o, s, GR_FINISH_UNSERVED, text);
        return;
    }
    if (!accept_numerics(o, s, target)) {
        return;
    }
    orch_note_numerics(s, o->worker[target].info.numerics_id);
    orch_seat_used(o, (uint32_t)target);
    orch_home_choose(s, target);
    send_open(o, s);
}

void orch_reopen(struct gr_orch *o, struct session *s)
{
    orch_drop_provisional(s);
    orch_detach(o, s);
    s->epoch++;
    orch_with_new_epoch(s);
    o->totals.reopens++;
    orch_turn_reopened(s);
    if (s->at.target < 0) {
        orch_open(o, s);
        return;
    }
    /* It may still hold the session, in a pass that a TRUNCATE has not ended yet: CLOSED tells that this is over. */
    orch_opening(s);
    if (!s->at.open_after_close) {
        orch_home_close_sent(s);
        send_to(o, s->at.target, &(struct gr_msg){.type = GR_MSG_CLOSE, .session = s->id});
    }
}

bool orch_lacks_draft(const struct gr_orch *o, const struct session *s)
{
    return wants_draft(o, s) && !s->at.has_draft && orch_has_drafter(o, s, s->at.target);
}

void orch_open_over(struct gr_orch *o, struct session *s)
{
    s->epoch++;
    orch_with_new_epoch(s);
    send_open(o, s);
    orch_home_over(s, true);
}

void orch_append_turn(struct gr_orch *o, struct session *s)
{
    struct gr_transcript *t = &s->turn.transcript;
    struct gr_msg m = {.type = GR_MSG_APPEND,
                       .session = s->id,
                       .append = {.epoch = s->epoch,
                                  .keep_len = s->turn.base,
                                  .hash = gr_transcript_hash_at(t, s->turn.base),
                                  .ids = {.p = t->token + s->turn.base, .n = s->turn.len - s->turn.base}}};
    gr_turn_wishes_copy(&m.append.wishes, &s->request.wishes.turn);
    m.append.wishes.timeout_ns = 0;
    orch_opening(s);
    orch_home_append_sent(s);
    send_to(o, s->at.target, &m);
}

/* ---- drafters ---- */

static bool is_on_gpu(const struct gr_worker_info *worker)
{
    return strncmp(worker->numerics_id, "cuda", 4) == 0;
}

/* Growing on while the target verifies costs the target nothing unless both run on the CPUs of one host, or on one GPU:
 * then they are one process (plan.c). */
static bool ahead_pays(const struct gr_worker_info *target, const struct gr_worker_info *drafter)
{
    const bool one_host = target->host_id[0] == '\0' || strcmp(target->host_id, drafter->host_id) == 0;
    const bool on_gpu = is_on_gpu(target) || is_on_gpu(drafter);
    const bool one_gpu = is_on_gpu(target) && is_on_gpu(drafter) && target->pid == drafter->pid;
    return !one_host || (on_gpu && !one_gpu);
}

static void attach_to(struct gr_orch *o, struct session *s, int drafter)
{
    orch_with_not_due(s);
    const struct gr_worker_info *target = &o->worker[s->at.target].info;
    struct gr_msg m = {.type = GR_MSG_ATTACH, .session = s->id, .attach = {.epoch = s->epoch}};
    struct gr_wishes *w = &m.attach.wishes;
    gr_wishes_copy(w, &s->request.wishes);
    if (w->draft_ahead == GR_AHEAD_AUTO) {
        w->draft_ahead = ahead_pays(target, &o->worker[drafter].info) ? GR_AHEAD_ON : GR_AHEAD_OFF;
    }
    snprintf(m.attach.address, sizeof(m.attach.address), "%s", target->address);
    m.attach.incarnation = target->incarnation;
    orch_with_attached(s, drafter);
    send_to(o, drafter, &m);
}

void orch_attach(struct gr_orch *o, struct session *s)
{
    orch_with_not_due(s); /* also where nobody is there to be tried: who joins is */
    if (!wants_draft(o, s) || s->with.drafter >= 0 || s->state != GR_SESSION_RUNNING) {
        return;
    }
    const int drafter = orch_place_drafter(o, s, s->at.target);
    const int useless = drafter < 0 ? orch_useless_drafter(o, s) : -1;
    if (drafter >= 0) {
        orch_seat_used(o, (uint32_t)drafter);
        attach_to(o, s, drafter);
    } else if (useless >= 0) {
        char text[GR_MSG_TEXT_MAX], why[GR_MISFIT_BYTES];
        orch_misfit(&o->worker[useless].info, &o->worker[s->at.target].info, why);
        snprintf(text, sizeof(text),
                 "none of the draft workers that are here is for its model; draft worker %d and target worker %d: %s",
                 useless + 1, s->at.target + 1, why);
        orch_with_broke(s, text);
    }
}

void orch_attach_if_due(struct gr_orch *o, struct session *s)
{
    if (s->with.retry_ns != 0 && o->now_ns >= s->with.retry_ns) {
        orch_attach(o, s);
    }
}

void orch_detach(struct gr_orch *o, struct session *s)
{
    if (s->with.drafter < 0) {
        return;
    }
    const int drafter = s->with.drafter;
    orch_with_detached(s);
    send_to(o, drafter, &(struct gr_msg){.type = GR_MSG_DETACH, .session = s->id});
}

/* To another drafter, where its trees come sooner. */
static bool shed_to_another(struct gr_orch *o, uint32_t drafter)
{
    for (int i = 0; i < o->n_place; i++) {
        struct session *s = orch_at(o, i);
        const bool runs = s->state == GR_SESSION_RUNNING && s->with.drafter == (int)drafter;
        const int to = runs ? orch_freer_drafter(o, s) : -1;
        if (to >= 0) {
            log_info("session %" GR_SESSION_ID_PRI " moves from draft worker %u to %d: its trees come sooner there",
                     s->id, drafter + 1, to + 1);
            orch_detach(o, s);
            attach_to(o, s, to);
            return true;
        }
    }
    return false;
}

/* To none: the session to which trees bring least. Its target hears of it when the drafter has let go. */
static bool shed_to_none(struct gr_orch *o, uint32_t drafter)
{
    struct session *least = NULL;
    char why[GR_MSG_TEXT_MAX];
    for (int i = 0; i < o->n_place; i++) {
        struct session *s = orch_at(o, i);
        const bool runs = s->state == GR_SESSION_RUNNING && s->with.drafter == (int)drafter;
        if (runs && orch_is_better_alone(o, s) && (least == NULL || orch_tree_gain(s) < orch_tree_gain(least))) {
            least = s;
        }
    }
    if (least != NULL) {
        snprintf(why, sizeof(why), "draft worker %u has too much to do: tokens come sooner without its trees",
                 drafter + 1);
        log_info("session %" GR_SESSION_ID_PRI " goes on without a drafter: %s", least->id, why);
        orch_with_shed(least, why);
        orch_detach(o, least);
    }
    return least != NULL;
}

/* The session to which trees bring most. */
static void take_back(struct gr_orch *o, uint32_t drafter)
{
    struct session *most = NULL;
    for (int i = 0; i < o->n_place; i++) {
        struct session *s = orch_at(o, i);
        if (s->state == GR_SESSION_RUNNING && orch_may_take_back(o, s, (int)drafter) &&
            (most == NULL || orch_tree_gain(s) > orch_tree_gain(most))) {
            most = s;
        }
    }
    if (most != NULL) {
        log_info("session %" GR_SESSION_ID_PRI " has a drafter again: draft worker %u has less to do", most->id,
                 drafter + 1);
        attach_to(o, most, (int)drafter);
    }
}

void orch_balance(struct gr_orch *o, uint32_t drafter)
{
    if (!shed_to_another(o, drafter) && !shed_to_none(o, drafter)) {
        take_back(o, drafter);
    }
}

/* ---- ends ---- */

static void forget(struct gr_orch *o, struct session *s)
{
    if (s->load.verifies > 0) { /* CLOSED may have come before its drafter's statistics: its slot counted until now */
        orch_look_at_queue(o);
    }
    orch_load_leave(s);
    orch_books_leave(s);
    gr_session_index_remove(&o->index, s->id);
    o->n_session--;
    gr_transcript_finish(&s->turn.transcript);
    memset(s, 0, sizeof(*s));
}

/* The client may look at the session while it is told, and ask for a new one: it is emptied afterwards. */
static void report_end(struct gr_orch *o, struct session *s, bool was_in_turn)
{
    void *user = s->request.user;
    orch_turn_over(s);
    if (was_in_turn) {
        orch_count_ended(o, s, s->turn.finish);
        o->io.on_done(o->io.ctx, s->id, user, s->turn.finish, s->turn.text);
    }
    if (s->request.wishes.keep_open && o->io.on_closed != NULL) {
        o->io.on_closed(o->io.ctx, s->id, user, s->turn.text);
    }
    forget(o, s);
}

void orch_finish_if_released(struct gr_orch *o, struct session *s)
{
    if (s->state == GR_SESSION_CLOSING && !s->at.wait_closed && s->with.n_stats_owed == 0) {
        report_end(o, s, s->turn.is_open);
    }
}

void orch_close(struct gr_orch *o, struct session *s, enum gr_finish finish, const char *text)
{
    if (s->state == GR_SESSION_CLOSING) {
        return;
    }
    orch_drop_provisional(s);
    orch_closing(s);
    orch_turn_finish_as(s, finish);
    orch_turn_say(s, text);
    orch_home_wait_closed(s, s->at.target >= 0);
    orch_detach(o, s);
    if (s->at.target >= 0) {
        send_to(o, s->at.target, &(struct gr_msg){.type = GR_MSG_CLOSE, .session = s->id});
    }
    orch_finish_if_released(o, s);
}

void orch_drop_idle(struct gr_orch *o, struct session *s, const char *why)
{
    log_info("session %" GR_SESSION_ID_PRI " is closed: %s", s->id, why);
    orch_turn_say(s, why);
    orch_closing(s); /* what the client asks for from within on_closed does not find it */
    orch_detach(o, s);
    if (s->at.target >= 0) {
        send_to(o, s->at.target, &(struct gr_msg){.type = GR_MSG_CLOSE, .session = s->id});
    }
    report_end(o, s, false);
}

/* ---- moves ---- */

/* Its target lets go of it; the next turn is opened where it fits best. */
static void leave_home(struct gr_orch *o, struct session *s)
{
    orch_detach(o, s);
    orch_home_close_sent(s);
    send_to(o, s->at.target, &(struct gr_msg){.type = GR_MSG_CLOSE, .session = s->id});
}

static bool is_drained(const struct gr_orch *o, int worker)
{
    return worker >= 0 && o->worker[worker].drained;
}

static bool fits_elsewhere(const struct gr_orch *o, const struct session *s)
{
    return s->at.target >= 0 && orch_another_drafter_fits(o, s, (uint32_t)s->with.drafter);
}

void orch_vacate(struct gr_orch *o, struct session *s)
{
    const bool is_idle = s->state == GR_SESSION_IDLE;
    const bool in_turn = s->state == GR_SESSION_RUNNING || s->state == GR_SESSION_OPENING;
    if (is_idle && is_drained(o, s->at.target) && !s->at.open_after_close) {
        leave_home(o, s);
    } else if (is_idle && is_drained(o, s->with.drafter)) {
        orch_detach(o, s);
    } else if (in_turn && is_drained(o, s->with.drafter) && fits_elsewhere(o, s)) {
        orch_detach(o, s);
        orch_attach(o, s); /* of one that is being opened: when it is */
    }
}

static void go_idle(struct gr_orch *o, struct session *s)
{
    orch_idle(s, o->now_ns);
    orch_vacate(o, s);
    orch_look_at_queue(o);
}

void orch_end_turn(struct gr_orch *o, struct session *s, enum gr_finish finish, const char *text)
{
    if (!s->request.wishes.keep_open) {
        orch_close(o, s, finish, text);
        return;
    }
    orch_drop_provisional(s);
    char copy[GR_MSG_TEXT_MAX]; /* text may lie in the session, which the client may change from within on_done */
    snprintf(copy, sizeof(copy), "%s", text);
    orch_count_ended(o, s, finish);
    go_idle(o, s);
    o->io.on_done(o->io.ctx, s->id, s->request.user, finish, copy);
}

void orch_fail_turn(struct gr_orch *o, struct session *s, enum gr_finish finish, const char *text)
{
    if (!s->request.wishes.keep_open || s->turn.base == 0) {
        orch_close(o, s, finish, text);
        return;
    }
    orch_drop_provisional(s);
    if (n_generated(s) == 0) {
        orch_text_cut(s, s->turn.base); /* the ids that were refused */
    }
    orch_detach(o, s);
    orch_home_forgot(s);
    orch_end_turn(o, s, finish, text);
}

/* Does what one of the two takes go to the other as well? */
static bool are_alike(const struct gr_worker_info *a, const struct gr_worker_info *b)
{
    const bool is_target = a->role == GR_WORKER_TARGET;
    return a->role == b->role && !gr_orch_differ(a->tokenizer_fingerprint, b->tokenizer_fingerprint) &&
           (is_target ? !gr_orch_differ(a->model_fingerprint, b->model_fingerprint)
                      : (a->feature_width > 0) == (b->feature_width > 0) &&
                            !gr_orch_differ(a->fc_fingerprint, b->fc_fingerprint));
}

static bool has_share(const struct gr_orch *o, int worker, const struct gr_worker_info *like)
{
    const struct worker *w = &o->worker[worker];
    return w->joined && !w->drained && !orch_seat_is_shunned(o, (uint32_t)worker) && are_alike(&w->info, like);
}

/* How many sessions each worker that is like this one has above its share, which is the same for all. */
static void find_excess(const struct gr_orch *o, const struct gr_worker_info *like, uint32_t *excess)
{
    uint32_t n_held = 0;
    uint32_t n_worker = 0;
    for (int i = 0; i < o->n_worker_max; i++) {
        const bool counts = has_share(o, i, like);
        n_held += counts ? o->worker[i].load.n_held : 0;
        n_worker += counts;
    }
    const uint32_t share = n_worker > 0 ? (n_held + n_worker - 1) / n_worker : 0;
    for (int i = 0; i < o->n_worker_max; i++) {
        const bool counts = has_share(o, i, like);
        const uint32_t held = counts ? o->worker[i].load.n_held : 0;
        excess[i] = held - GR_MIN(held, share);
    }
}

void orch_spread_idle(struct gr_orch *o, uint32_t worker)
{
    const struct gr_worker_info *like = &o->worker[worker].info;
    const bool is_target = like->role == GR_WORKER_TARGET;
    uint32_t *excess = o->excess;
    find_excess(o, like, excess);
    for (int i = 0; i < o->n_place; i++) {
        struct session *s = orch_at(o, i);
        const int at = is_target ? s->at.target : s->with.drafter;
        if (s->state != GR_SESSION_IDLE || at < 0 || s->at.open_after_close || excess[at] == 0) {
            continue;
        }
        excess[at]--;
        if (is_target) {
            leave_home(o, s);
        } else {
            orch_detach(o, s);
        }
    }
}
