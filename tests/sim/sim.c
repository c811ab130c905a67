#include "tests/sim/sim.h"

#include "common/rules/hash.h"
#include "common/base/log.h"
#include "tests/sim/sim_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint64_t sim_draw(struct sim *s, uint64_t max)
{
    s->rng = gr_mix64(s->rng + GR_HASH_GOLDEN);
    return max == 0 ? 0 : s->rng % (max + 1);
}

void sim_push(struct sim *s, struct event e)
{
    gr_events_push(s->events, e.at_ns, &e);
}

/* ---- the client ---- */

static int request_of(const struct sim *s, uint64_t session)
{
    for (int i = 0; i < s->n_request; i++) {
        if (s->session[i] == session) {
            return i;
        }
    }
    GR_ASSERT(false);
    return -1;
}

static void keep(struct sim_script *t, const int32_t *id, uint32_t n)
{
    t->transcript = realloc(t->transcript, (t->len + n) * sizeof(*t->transcript));
    GR_ASSERT(t->transcript != NULL);
    memcpy(t->transcript + t->len, id, n * sizeof(*id));
    t->len += n;
}

static uint32_t turn_limit(const struct sim *s, int i)
{
    const struct sim_script *t = &s->script[i];
    return t->at == 0 ? s->stop_after[i] : t->turn[t->at - 1].stop_after;
}

/* Says that it has what it wants of its turn. False: the session is gone. */
static bool stop(struct sim *s, int i, uint32_t turn, uint32_t limit)
{
    const enum gr_status st = gr_orch_stop(s->orch, s->session[i], turn, limit, GR_FINISH_STOP);
    GR_ASSERT(st == GR_OK || st == GR_ENOTFOUND);
    return st == GR_OK;
}

static void on_tokens(void *ctx, uint64_t session, void *user, const int32_t *id, uint32_t n)
{
    struct sim *s = ctx;
    (void)user;
    const int i = request_of(s, session);
    struct sim_result *r = &s->result[i];
    struct sim_script *t = &s->script[i];
    const uint32_t limit = turn_limit(s, i);
    const uint32_t turn = (uint32_t)t->at + 1;
    if (t->stopping) {
        return;
    }
    const uint32_t n_before = r->n_token - t->turn_begin;
    const bool stops = limit > 0 && n_before + n >= limit;
    n = stops ? limit - n_before : n;
    r->token = realloc(r->token, (r->n_token + n) * sizeof(*r->token));
    GR_ASSERT(r->token != NULL);
    memcpy(r->token + r->n_token, id, n * sizeof(*id));
    r->n_token += n;
    keep(t, id, n);
    if (stops && s->config.stop_ns > 0) {
        t->stopping = true;
        t->stop_turn = turn;
        t->stop_limit = limit;
        sim_push(s, (struct event){.at_ns = s->now_ns + 1 + sim_draw(s, s->config.stop_ns),
                                   .what = EVENT_STOP,
                                   .at = ORCH,
                                   .worker = (uint32_t)i});
    } else if (stops) {
        stop(s, i, turn, limit);
    }
}

/* They follow the tokens that became final without a gap; only the first turn asks for them. */
static void on_report(void *ctx, uint64_t session, void *user, const struct gr_msg *m)
{
    struct sim *s = ctx;
    const struct gr_msg_commit *c = &m->commit;
    (void)user;
    if (m->type != GR_MSG_COMMIT || c->logprobs.n == 0) {
        return;
    }
    const int i = request_of(s, session);
    struct sim_result *r = &s->result[i];
    const uint32_t n = c->logprobs.n - c->logprob_ids.n;
    GR_ASSERT(c->logprob_from == s->n_prompt[i] + r->n_logprob_token);
    GR_ASSERT(c->logprob_from + n == c->final_len);
    r->logprob = realloc(r->logprob, (r->n_logprob + c->logprobs.n) * sizeof(*r->logprob));
    r->logprob_id = realloc(r->logprob_id, (r->n_logprob_id + c->logprob_ids.n + 1) * sizeof(*r->logprob_id));
    GR_ASSERT(r->logprob != NULL && r->logprob_id != NULL);
    memcpy(r->logprob + r->n_logprob, c->logprobs.p, c->logprobs.n * sizeof(float));
    if (c->logprob_ids.n > 0) {
        memcpy(r->logprob_id + r->n_logprob_id, c->logprob_ids.p, c->logprob_ids.n * sizeof(int32_t));
    }
    r->n_logprob_token += n;
    r->n_logprob += c->logprobs.n;
    r->n_logprob_id += c->logprob_ids.n;
}

static void finish(struct sim *s, int i, enum gr_finish how, const char *text)
{
    struct sim_result *r = &s->result[i];
    r->done = true;
    r->finish = how;
    strncpy(r->text, text, sizeof(r->text) - 1);
    s->n_done++;
}

/* The turn is over, and the client's word of it is heard. */
static void after_turn(struct sim *s, int i, enum gr_finish how, const char *text)
{
    struct sim_script *t = &s->script[i];
    if (how != GR_FINISH_ERROR && t->at < t->n_turn && !t->closed) { /* the client thinks, and goes on */
        sim_push(s, (struct event){.at_ns = s->now_ns + 1 + sim_draw(s, s->config.client_ns),
                                   .what = EVENT_CLIENT,
                                   .at = ORCH,
                                   .worker = (uint32_t)i});
        return;
    }
    finish(s, i, how, text);
    struct gr_session_info info;
    const bool stays = how != GR_FINISH_ERROR || (gr_orch_session_info(s->orch, s->session[i], s->now_ns, &info) &&
                                                  info.state == GR_SESSION_IDLE); /* a later turn that failed */
    if (stays && t->n_turn > 0 && !t->closed) {
        t->at = how == GR_FINISH_ERROR ? t->n_turn : t->at;
        sim_push(s, (struct event){.at_ns = s->now_ns + 1, .what = EVENT_CLIENT, .at = ORCH, .worker = (uint32_t)i});
    }
}

static void on_done(void *ctx, uint64_t session, void *user, enum gr_finish how, const char *text)
{
    struct sim *s = ctx;
    (void)user;
    const int i = request_of(s, session);
    struct sim_script *t = &s->script[i];
    struct sim_result *r = &s->result[i];
    const struct gr_session_metrics *m = gr_orch_metrics(s->orch, session);
    GR_ASSERT(how != GR_FINISH_CLOSED || t->closed);
    how = how == GR_FINISH_CLOSED ? GR_FINISH_STOP : how; /* it has ended it by itself, as by a cut */
    r->metrics = *m;
    r->turn_n[r->n_turn++] = r->n_token - t->turn_begin;
    if (t->stopping && how != GR_FINISH_ERROR) {
        t->ended = true;
    } else {
        after_turn(s, i, how, text);
    }
}

static void stop_is_heard(struct sim *s, int i)
{
    struct sim_script *t = &s->script[i];
    const bool ended = t->ended;
    t->stopping = t->ended = false; /* on_done is called from within, where the turn has not ended yet */
    const bool is_here = stop(s, i, t->stop_turn, t->stop_limit);
    s->counts.n_crossed += ended && is_here;
    if (ended && !s->result[i].done) {
        after_turn(s, i, GR_FINISH_STOP, "");
    }
}

static bool in_turn(const struct sim *s, int i)
{
    struct gr_session_info info;
    return gr_orch_session_info(s->orch, s->session[i], s->now_ns, &info) && info.state != GR_SESSION_IDLE &&
           info.state != GR_SESSION_CLOSING;
}

static void push_cut(struct sim *s, int i, uint64_t after_ns)
{
    if (after_ns > 0) {
        sim_push(s, (struct event){.at_ns = s->now_ns + after_ns,
                                   .what = EVENT_CUT,
                                   .at = ORCH,
                                   .worker = (uint32_t)i,
                                   .life = (uint32_t)s->script[i].at});
    }
}

void sim_cut_and_close(struct sim *s, int i, uint64_t cut_ns, uint64_t close_ns)
{
    push_cut(s, i, cut_ns);
    if (close_ns > 0) {
        sim_push(s,
                 (struct event){.at_ns = s->now_ns + close_ns, .what = EVENT_CLOSE, .at = ORCH, .worker = (uint32_t)i});
    }
}

/* What has come so far stays. */
static void cut_turn(struct sim *s, int i, uint32_t turn)
{
    struct sim_result *r = &s->result[i];
    if (s->script[i].at == (int)turn && in_turn(s, i)) {
        s->counts.n_cut++;
        r->cut[r->n_turn] = true;
        const enum gr_status st = gr_orch_stop(s->orch, s->session[i], turn + 1, UINT32_MAX, GR_FINISH_STOP);
        GR_ASSERT(st == GR_OK);
    }
}

static void close_session(struct sim *s, int i)
{
    struct sim_result *r = &s->result[i];
    const bool turn = in_turn(s, i);
    if (s->script[i].closed || r->done) {
        return;
    }
    if (turn) {
        r->cut[r->n_turn] = true;
    }
    s->script[i].closed = true;
    if (gr_orch_close(s->orch, s->session[i]) == GR_OK) {
        s->counts.n_close++;
    }
    if (!turn && !r->done && r->n_turn > 0 &&
        s->script[i].at == r->n_turn - 1) { /* it was idle: nobody is told of an end */
        finish(s, i, GR_FINISH_STOP, "");
    }
}

void sim_refresh(struct sim *s, int i, uint64_t after_ns)
{
    sim_push(s,
             (struct event){.at_ns = s->now_ns + after_ns, .what = EVENT_REFRESH, .at = ORCH, .worker = (uint32_t)i});
}

static void refresh(struct sim *s, int i)
{
    uint32_t n = 0;
    struct gr_session_info info;
    if (gr_orch_session_info(s->orch, s->session[i], s->now_ns, &info) && info.specpv != GR_SPECPV_OFF &&
        !s->config.orch.disable_specpv) {
        const enum gr_status st = gr_orch_refresh(s->orch, s->session[i], &n);
        GR_ASSERT(st == GR_OK);
    }
}

/* The session is over before the client comes back. */
static void expired(struct sim *s, int i)
{
    GR_ASSERT(s->config.orch.session_ttl_ns > 0);
    s->script[i].closed = true;
    s->counts.n_expired++;
    if (!s->result[i].done) {
        finish(s, i, GR_FINISH_STOP, "");
    }
}

static void next_turn(struct sim *s, int i)
{
    struct sim_script *t = &s->script[i];
    struct gr_session_info info;
    if (t->closed) {
        return;
    }
    if (!gr_orch_session_info(s->orch, s->session[i], s->now_ns, &info)) {
        expired(s, i);
        return;
    }
    if (t->at == t->n_turn) {
        enum gr_status st = gr_orch_close(s->orch, s->session[i]);
        GR_ASSERT(st == GR_OK);
        return;
    }
    const struct sim_turn *turn = &t->turn[t->at++];
    uint64_t hash = 0;
    t->len -= GR_MIN(turn->drop, t->len - 1);
    for (uint32_t k = 0; k < t->len; k++) {
        hash = gr_hash_extend(hash, t->transcript[k]);
    }
    const struct gr_turn_request request = {.keep_len = turn->keep_all ? UINT32_MAX : t->len,
                                            .hash = hash,
                                            .ids = turn->ids,
                                            .n_ids = turn->n_ids,
                                            .wishes = {.max_tokens = turn->max_tokens}};
    t->turn_begin = s->result[i].n_token;
    keep(t, turn->ids, turn->n_ids);
    s->counts.n_turn++;
    push_cut(s, i, turn->cut_ns);
    enum gr_status st = gr_orch_append(s->orch, s->session[i], &request, s->now_ns);
    GR_ASSERT(st == GR_OK);
}

void sim_add_turn(struct sim *s, int i, const struct sim_turn *turn)
{
    GR_ASSERT(s->script[i].n_turn < N_TURN_SIM);
    s->script[i].turn[s->script[i].n_turn++] = *turn;
}

/* ---- life ---- */

struct sim *sim_create(const struct sim_config *config)
{
    struct sim *s = calloc(1, sizeof(*s));
    GR_ASSERT(s != NULL);
    s->config = *config;
    s->rng = config->seed;
    s->events = gr_events_create(sizeof(struct event));
    GR_ASSERT(s->events != NULL);
    const struct gr_orch_io io = {.ctx = s,
                                  .send = sim_send_from_orch,
                                  .on_report = on_report,
                                  .on_tokens = on_tokens,
                                  .on_done = on_done,
                                  .drop = sim_drop};
    enum gr_status st = gr_orch_create(&io, &s->orch);
    GR_ASSERT(st == GR_OK);
    gr_orch_configure(s->orch, &config->orch);
    sim_start_worker(s, TARGET);
    if (config->draft_lm == NULL && (config->make_lm == NULL || config->faults.draft_joins_ns == UINT64_MAX)) {
        return s;
    }
    if (config->faults.draft_joins_ns == 0) {
        sim_start_worker(s, DRAFT);
    } else {
        sim_push(s, (struct event){.what = EVENT_START, .at = DRAFT, .at_ns = config->faults.draft_joins_ns});
    }
    return s;
}

void sim_destroy(struct sim *s)
{
    struct event e;
    uint64_t at_ns = 0;
    while (gr_events_pop(s->events, &at_ns, &e)) {
        free(e.bytes);
    }
    gr_events_destroy(s->events);
    for (int i = 0; i < s->n_request; i++) {
        free(s->result[i].token);
        free(s->result[i].logprob);
        free(s->result[i].logprob_id);
        free(s->script[i].transcript);
    }
    sim_end_worker(s, TARGET);
    sim_end_worker(s, DRAFT);
    gr_orch_destroy(s->orch);
    free(s);
}

int sim_submit(struct sim *s, const struct gr_session_request *request)
{
    GR_ASSERT(s->n_request < N_SESSION_SIM);
    enum gr_status st = gr_orch_submit(s->orch, request, s->now_ns, &s->session[s->n_request]);
    GR_ASSERT(st == GR_OK);
    keep(&s->script[s->n_request], request->prompt, request->n_prompt);
    s->n_prompt[s->n_request] = request->n_prompt;
    return s->n_request++;
}

void sim_stop_after(struct sim *s, int i, uint32_t n)
{
    s->stop_after[i] = n;
}

void sim_on_pass(struct sim *s, void (*fn)(struct sim *s, void *arg), void *arg)
{
    s->on_pass = fn;
    s->on_pass_arg = arg;
}

/* ---- running ---- */

static void deliver_msg(struct sim *s, const struct event *e)
{
    struct gr_msg m;
    enum gr_status st = gr_msg_decode(e->bytes, e->len, &m);
    GR_ASSERT(st == GR_OK);
    log_debug("sim: %.3f ms: %s to the %s: session %llu", (double)s->now_ns / 1e6, gr_msg_name(m.type),
              e->at == TARGET  ? "target"
              : e->at == DRAFT ? "drafter"
                               : "orchestrator",
              (unsigned long long)m.session);
    if (e->at != ORCH && m.type == GR_MSG_DRAIN) {
        sim_let_go(s, e->at);
    } else if (e->at == TARGET) {
        gr_target_on_msg(s->target, &m, s->now_ns);
    } else if (e->at == DRAFT) {
        gr_drafter_on_msg(s->drafter, &m, s->now_ns);
    } else {
        s->counts.n_elsewhere += m.type == GR_MSG_ERROR && m.error.code == (uint32_t)-GR_EDRAINING;
        s->n_error += e->peer == TARGET && m.type == GR_MSG_ERROR;
        s->n_to_orch -= e->peer == TARGET;
        st = gr_orch_on_msg(s->orch, e->worker, &m, s->now_ns);
        GR_ASSERT(st == GR_OK);
    }
    gr_msg_finish(&m);
}

static void deliver_frame(struct sim *s, const struct event *e)
{
    size_t len = e->len;
    if (s->on_frame != NULL) {
        s->on_frame(s, s->on_frame_arg, e->at == TARGET, e->bytes, &len);
    }
    const enum gr_status st = e->at == TARGET ? gr_target_on_frame(s->target, e->peer, e->bytes, len, s->now_ns)
                                              : gr_drafter_on_frame(s->drafter, e->peer, e->bytes, len, s->now_ns);
    if (st != GR_OK) {
        GR_ASSERT(s->on_frame != NULL);
        s->n_lost++;
        s->conn.open_at[TARGET] = s->conn.open_at[DRAFT] = false;
        gr_target_on_peer_lost(s->target, e->peer);
        gr_drafter_on_peer_lost(s->drafter, e->peer, GR_ECLOSED, NULL);
    }
}

static void deliver(struct sim *s, const struct event *e)
{
    switch (e->what) {
    case EVENT_FRAME:
        deliver_frame(s, e);
        break;
    case EVENT_MSG:
        deliver_msg(s, e);
        break;
    case EVENT_PASS_DONE:
        gr_target_on_pass_done(s->target, s->pass, s->now_ns);
#ifdef GR_DEBUG
        GR_ASSERT(gr_target_check(s->target));
#endif
        if (s->on_pass != NULL) {
            s->on_pass(s, s->on_pass_arg);
        }
        break;
    case EVENT_JOB_DONE:
        gr_drafter_on_job_done(s->drafter, s->job, s->now_ns);
        break;
    case EVENT_PEER_READY:
        sim_conn_ready(s, e);
        break;
    case EVENT_PEER_LOST:
        sim_conn_lost(s, e);
        break;
    case EVENT_LINK_LOST:
        sim_link_lost(s, e);
        break;
    case EVENT_START:
        sim_start_worker(s, e->at);
        break;
    case EVENT_CLIENT:
        next_turn(s, (int)e->worker);
        break;
    case EVENT_STOP:
        stop_is_heard(s, (int)e->worker);
        break;
    case EVENT_CUT:
        cut_turn(s, (int)e->worker, e->life);
        break;
    case EVENT_CLOSE:
        close_session(s, (int)e->worker);
        break;
    case EVENT_REFRESH:
        refresh(s, (int)e->worker);
        break;
    case EVENT_UNMUTE:
        sim_unmute(s, e);
        break;
    case EVENT_WAKE:
        break;
    }
}

static void check(const struct sim *s)
{
    GR_ASSERT(s->target == NULL || gr_target_check(s->target));
    GR_ASSERT(s->drafter == NULL || gr_drafter_check(s->drafter));
}

/* The machines look for something to do; returns when one wants to be called again. */
static uint64_t step(struct sim *s)
{
    uint64_t wake_ns = UINT64_MAX;
    if (s->target != NULL) {
        wake_ns = gr_target_step(s->target, s->now_ns);
    }
    if (s->drafter != NULL) {
        wake_ns = GR_MIN(wake_ns, gr_drafter_step(s->drafter, s->now_ns));
    }
    if (gr_orch_n_session(s->orch) > 0) { /* when all is over nobody pings */
        const bool stalled = s->now_ns < s->stalled_until_ns;
        wake_ns = GR_MIN(wake_ns, stalled ? s->stalled_until_ns : gr_orch_step(s->orch, s->now_ns));
    }
    return wake_ns;
}

static void handle(struct sim *s, struct event *e)
{
    if (e->at == ORCH && s->now_ns < s->stalled_until_ns) {
        e->at_ns = s->stalled_until_ns; /* it waits in the socket */
        sim_push(s, *e);
        return;
    }
    if (!sim_is_void(s, e)) {
        deliver(s, e);
        if (s->config.check_every_event) {
            check(s);
        }
        sim_maybe_fault(s, e);
    }
    free(e->bytes);
}

bool sim_run(struct sim *s, uint64_t limit_ns)
{
    while (s->n_done < s->n_request || gr_events_n(s->events) > 0 || gr_orch_n_session(s->orch) > 0) {
        const uint64_t wake_ns = step(s);
        const uint64_t next_ns = gr_events_next_ns(s->events);
        struct event e;
        uint64_t at_ns = 0;
        if (GR_MIN(wake_ns, next_ns) == UINT64_MAX) {
            return false;
        }
        if (wake_ns < next_ns) {
            s->now_ns = GR_MAX(wake_ns, s->now_ns);
        } else if (gr_events_pop(s->events, &at_ns, &e)) {
            s->now_ns = GR_MAX(at_ns, s->now_ns);
            handle(s, &e);
        }
        if (s->now_ns > limit_ns) {
            return false;
        }
    }
    check(s);
    return true;
}

void sim_dump(const struct sim *s)
{
    struct gr_session_info info;
    fprintf(stderr, "# at %.3f ms: %zu events; target %s, draft %s; %d requests, %d done\n", (double)s->now_ns / 1e6,
            gr_events_n(s->events), s->worker[TARGET].alive ? "alive" : "dead",
            s->worker[DRAFT].alive ? "alive" : "dead", s->n_request, s->n_done);
    for (int i = 0; i < GR_ORCH_SESSION_MAX; i++) {
        const int32_t *token = NULL;
        const struct gr_kv_table *table = NULL;
        int32_t len = -1;
        int32_t kv_len = -1;
        if (!gr_orch_session_at(s->orch, i, s->now_ns, &info)) {
            continue;
        }
        const bool held = s->target != NULL && gr_target_peek(s->target, info.id, &token, &len, &kv_len, &table);
        fprintf(stderr,
                "# session %llu: orchestrator state %d, epoch %u, %u tokens, target %d, drafter %d; at the target "
                "%s: %d tokens, %d of KV\n",
                (unsigned long long)info.id, info.state, info.epoch, info.n_token, info.target, info.drafter,
                held ? "held" : "unknown", len, kv_len);
    }
}

const struct sim_result *sim_result(const struct sim *s, int i)
{
    return &s->result[i];
}

const struct gr_target_counters *sim_target_counters(const struct sim *s)
{
    return gr_target_counters(s->target);
}

const struct gr_drafter_counters *sim_drafter_counters(const struct sim *s)
{
    return gr_drafter_counters(s->drafter);
}

struct gr_target *sim_target(struct sim *s)
{
    return s->target;
}

struct gr_drafter *sim_drafter(struct sim *s)
{
    return s->drafter;
}

bool sim_is_linked(const struct sim *s, bool target)
{
    return !s->worker[target ? TARGET : DRAFT].mute;
}

void sim_on_frame(struct sim *s, void (*fn)(struct sim *s, void *arg, bool to_target, uint8_t *bytes, size_t *len),
                  void *arg)
{
    s->on_frame = fn;
    s->on_frame_arg = arg;
}

const struct gr_pass *sim_pass(const struct sim *s)
{
    return s->pass;
}

uint64_t sim_session(const struct sim *s, int i)
{
    return s->session[i];
}

uint64_t sim_now_ns(const struct sim *s)
{
    return s->now_ns;
}

int sim_n_error(const struct sim *s)
{
    return s->n_error;
}

int sim_n_lost(const struct sim *s)
{
    return s->n_lost;
}

const struct sim_counts *sim_counts(const struct sim *s)
{
    return &s->counts;
}

const struct gr_totals *sim_totals(const struct sim *s)
{
    return gr_orch_totals(s->orch);
}
