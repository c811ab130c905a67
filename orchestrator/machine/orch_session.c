/* A session's ways from state to state: opened, appended to, re-opened, attached, ended. Says what workers are told;
 * the parts that it changes have their own files (orch_turn.c, orch_home.c, orch_with.c). */
#include "common/base/log.h"
#include "orchestrator/machine/orch_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

int orch_find_worker(const struct gr_orch *o, enum gr_worker_role role)
{
    for (int i = 0; i < GR_ORCH_WORKER_MAX; i++) {
        if (o->worker[i].joined && o->worker[i].info.role == role) {
            return i;
        }
    }
    return -1;
}

static void send_to(struct gr_orch *o, int worker, const struct gr_msg *m)
{
    o->io.send(o->io.ctx, (uint32_t)worker, m);
}

static uint32_t n_generated(const struct entry *e)
{
    return e->turn.transcript.len - e->turn.len;
}

static bool wants_draft(const struct gr_orch *o, const struct entry *e)
{
    return e->request.wishes.want_draft && !o->config.disable_multi_token;
}

void orch_specpv_ask(const struct gr_orch *o, struct entry *e)
{
    e->specpv = o->config.disable_specpv ? GR_SPECPV_OFF : e->request.wishes.specpv;
}

void orch_specpv_opened(struct entry *e, enum gr_specpv_mode mode)
{
    e->specpv = mode == e->specpv ? mode : GR_SPECPV_OFF; /* it fell back: the target told why */
}

static bool at_context_limit(const struct gr_orch *o, const struct entry *e, int target)
{
    const uint32_t n_ctx_max = o->worker[target].info.n_ctx_max;
    return n_ctx_max > 0 && e->turn.transcript.len >= n_ctx_max && n_generated(e) > 0;
}

static bool other_tokenizer(const struct gr_orch *o, const struct entry *e, int target)
{
    const uint64_t ours = e->request.tokenizer_fingerprint;
    const uint64_t its = o->worker[target].info.tokenizer_fingerprint;
    return ours != 0 && its != 0 && ours != its;
}

static bool has_generated(const struct gr_transcript *t)
{
    bool generated = false;
    for (uint32_t i = 0; i < t->n_segment; i++) {
        generated = generated || t->segment[2 * i] == GR_SEGMENT_GENERATED;
    }
    return generated;
}

/* A text is one target's own, bit for bit, only where all of it comes from one order of sums. False: the turn has
 * failed. */
static bool accept_numerics(struct gr_orch *o, struct entry *e, int target)
{
    const char *its = o->worker[target].info.numerics_id;
    char text[GR_MSG_TEXT_MAX];
    if (strcmp(e->numerics_id, its) == 0 || !has_generated(&e->turn.transcript)) {
        return true;
    }
    snprintf(text, sizeof(text), "the text so far is of a target that computes as %s, the one there is now as %s",
             e->numerics_id, its);
    if (o->config.require_same_numerics) {
        const size_t n = strlen(text);
        snprintf(text + n, sizeof(text) - n, "; --require-same-numerics forbids to go on there");
        orch_fail_turn(o, e, text);
        return false;
    }
    orch_fall_back(e, GR_FALLBACK_NUMERICS, text);
    return true;
}

/* What a target is told: what only a drafter or the orchestrator acts on stays out. */
static void wishes_for_target(const struct gr_orch *o, struct entry *e, struct gr_wishes *w)
{
    gr_wishes_copy(w, &e->request.wishes);
    w->turn.max_tokens -= n_generated(e);
    w->want_draft = wants_draft(o, e) && orch_find_worker(o, GR_WORKER_DRAFT) >= 0;
    w->single_token = w->single_token || o->config.force_single_token;
    orch_specpv_ask(o, e);
    w->specpv = e->specpv;
    if (e->specpv == GR_SPECPV_OFF) {
        w->specpv_params = (struct gr_specpv_params){0};
        w->draft_depth = 0;
    } else if (w->tree_shape == GR_SHAPE_CHAIN) {
        w->draft_depth = w->n_node;
    }
    w->tree_shape = w->draft_top_k = 0;
    w->draft_ahead = GR_AHEAD_OFF;
    w->transport[0] = '\0';
    w->keep_open = false;
}

static void send_open(struct gr_orch *o, struct entry *e)
{
    struct gr_transcript *t = &e->turn.transcript;
    struct gr_msg m = {.type = GR_MSG_OPEN,
                       .session = e->id,
                       .open = {.epoch = e->epoch,
                                .ids = {.p = t->token, .n = t->len},
                                .segments = {.p = t->segment, .n = 2 * t->n_segment}}};
    wishes_for_target(o, e, &m.open.wishes);
    orch_opening(e);
    orch_home_open_sent(e, m.open.wishes.want_draft);
    send_to(o, e->at.target, &m);
}

void orch_open(struct gr_orch *o, struct entry *e)
{
    const int target = orch_find_worker(o, GR_WORKER_TARGET);
    char text[GR_MSG_TEXT_MAX];
    orch_wait(e);
    if (target < 0) {
        return;
    }
    if (at_context_limit(o, e, target)) {
        orch_end_turn(o, e, GR_FINISH_LENGTH, "");
        return;
    }
    if (other_tokenizer(o, e, target)) {
        snprintf(text, sizeof(text),
                 "the client's tokenizer has fingerprint %016" PRIx64 ", the target's %016" PRIx64
                 ": give the client the target's model folder",
                 e->request.tokenizer_fingerprint, o->worker[target].info.tokenizer_fingerprint);
        orch_fail_turn(o, e, text);
        return;
    }
    if (!accept_numerics(o, e, target)) {
        return;
    }
    snprintf(e->numerics_id, sizeof(e->numerics_id), "%s", o->worker[target].info.numerics_id);
    orch_home_choose(e, target);
    send_open(o, e);
}

void orch_reopen(struct gr_orch *o, struct entry *e)
{
    orch_drop_provisional(e);
    orch_detach(o, e);
    e->epoch++;
    orch_with_new_epoch(e);
    orch_turn_reopened(e);
    if (e->at.target < 0) {
        orch_open(o, e);
        return;
    }
    /* It may still hold the session, in a pass that a TRUNCATE has not ended yet: CLOSED tells that this is over. */
    orch_opening(e);
    if (!e->at.open_after_close) {
        orch_home_close_sent(e);
        send_to(o, e->at.target, &(struct gr_msg){.type = GR_MSG_CLOSE, .session = e->id});
    }
}

bool orch_lacks_draft(const struct gr_orch *o, const struct entry *e)
{
    return wants_draft(o, e) && !e->at.has_draft && orch_find_worker(o, GR_WORKER_DRAFT) >= 0;
}

void orch_open_over(struct gr_orch *o, struct entry *e)
{
    e->epoch++;
    orch_with_new_epoch(e);
    send_open(o, e);
    orch_home_over(e, true);
}

void orch_append_turn(struct gr_orch *o, struct entry *e)
{
    struct gr_transcript *t = &e->turn.transcript;
    struct gr_msg m = {.type = GR_MSG_APPEND,
                       .session = e->id,
                       .append = {.epoch = e->epoch,
                                  .keep_len = e->turn.base,
                                  .hash = gr_transcript_hash_at(t, e->turn.base),
                                  .ids = {.p = t->token + e->turn.base, .n = e->turn.len - e->turn.base}}};
    gr_turn_wishes_copy(&m.append.wishes, &e->request.wishes.turn);
    orch_opening(e);
    orch_home_append_sent(e);
    send_to(o, e->at.target, &m);
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

void orch_attach(struct gr_orch *o, struct entry *e)
{
    const int drafter = orch_find_worker(o, GR_WORKER_DRAFT);
    if (!wants_draft(o, e) || drafter < 0 || e->with.drafter >= 0 || e->state != GR_SESSION_RUNNING) {
        return;
    }
    const struct gr_worker_info *target = &o->worker[e->at.target].info;
    struct gr_msg m = {.type = GR_MSG_ATTACH, .session = e->id, .attach = {.epoch = e->epoch}};
    struct gr_wishes *w = &m.attach.wishes;
    gr_wishes_copy(w, &e->request.wishes);
    if (w->draft_ahead == GR_AHEAD_AUTO) {
        w->draft_ahead = ahead_pays(target, &o->worker[drafter].info) ? GR_AHEAD_ON : GR_AHEAD_OFF;
    }
    snprintf(m.attach.address, sizeof(m.attach.address), "%s", target->address);
    orch_with_attached(e, drafter);
    send_to(o, drafter, &m);
}

void orch_detach(struct gr_orch *o, struct entry *e)
{
    if (e->with.drafter < 0) {
        return;
    }
    const int drafter = e->with.drafter;
    orch_with_detached(e);
    send_to(o, drafter, &(struct gr_msg){.type = GR_MSG_DETACH, .session = e->id});
}

/* ---- ends ---- */

static void forget(struct entry *e)
{
    gr_transcript_finish(&e->turn.transcript);
    memset(e, 0, sizeof(*e));
}

/* The client may look at the session while it is told, and ask for a new one: the entry is emptied afterwards. */
static void report_end(struct gr_orch *o, struct entry *e, bool was_in_turn)
{
    void *user = e->request.user;
    orch_turn_over(e);
    if (was_in_turn) {
        o->io.on_done(o->io.ctx, e->id, user, e->turn.finish, e->turn.text);
    }
    if (e->request.wishes.keep_open && o->io.on_closed != NULL) {
        o->io.on_closed(o->io.ctx, e->id, user, e->turn.text);
    }
    forget(e);
}

void orch_finish_if_released(struct gr_orch *o, struct entry *e)
{
    if (e->state == GR_SESSION_CLOSING && !e->at.wait_closed && e->with.n_stats_owed == 0) {
        report_end(o, e, e->turn.is_open);
    }
}

void orch_close(struct gr_orch *o, struct entry *e, enum gr_finish finish, const char *text)
{
    if (e->state == GR_SESSION_CLOSING) {
        return;
    }
    orch_drop_provisional(e);
    orch_closing(e);
    orch_turn_finish_as(e, finish);
    orch_turn_say(e, text);
    orch_home_wait_closed(e, e->at.target >= 0);
    orch_detach(o, e);
    if (e->at.target >= 0) {
        send_to(o, e->at.target, &(struct gr_msg){.type = GR_MSG_CLOSE, .session = e->id});
    }
    orch_finish_if_released(o, e);
}

void orch_drop_idle(struct gr_orch *o, struct entry *e, const char *why)
{
    log_info("session %" PRIu64 " is closed: %s", e->id, why);
    orch_turn_say(e, why);
    orch_closing(e); /* what the client asks for from within on_closed does not find it */
    orch_detach(o, e);
    if (e->at.target >= 0) {
        send_to(o, e->at.target, &(struct gr_msg){.type = GR_MSG_CLOSE, .session = e->id});
    }
    report_end(o, e, false);
}

static void go_idle(struct gr_orch *o, struct entry *e)
{
    orch_idle(e, o->now_ns);
}

void orch_end_turn(struct gr_orch *o, struct entry *e, enum gr_finish finish, const char *text)
{
    if (!e->request.wishes.keep_open) {
        orch_close(o, e, finish, text);
        return;
    }
    orch_drop_provisional(e);
    char copy[GR_MSG_TEXT_MAX]; /* text may lie in the entry, which the client may change from within on_done */
    snprintf(copy, sizeof(copy), "%s", text);
    go_idle(o, e);
    o->io.on_done(o->io.ctx, e->id, e->request.user, finish, copy);
}

void orch_fail_turn(struct gr_orch *o, struct entry *e, const char *text)
{
    if (!e->request.wishes.keep_open || e->turn.base == 0) {
        orch_close(o, e, GR_FINISH_ERROR, text);
        return;
    }
    orch_drop_provisional(e);
    if (n_generated(e) == 0) {
        orch_text_cut(e, e->turn.base); /* the ids that were refused */
    }
    orch_detach(o, e);
    orch_home_forgot(e);
    orch_end_turn(o, e, GR_FINISH_ERROR, text);
}
