/* Processes, links and connections of the simulation, and what happens to them: they die, come back, break off, stall.
 */
#include "tests/sim/sim_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- channels: delayed, never reordered ---- */

static void push_in_order(struct sim *s, struct event e, const uint8_t *bytes, size_t len, uint64_t *last_ns,
                          uint64_t delay_max)
{
    const uint64_t drawn = s->now_ns + sim_draw(s, delay_max);
    e.at_ns = *last_ns = GR_MAX(*last_ns, drawn);
    if (len > 0) {
        e.bytes = malloc(len);
        GR_ASSERT(e.bytes != NULL);
        memcpy(e.bytes, bytes, len);
        e.len = len;
        if (s->config.on_sent != NULL) {
            const struct sim_sent sent = {.now_ns = s->now_ns,
                                          .is_frame = e.what == EVENT_FRAME,
                                          .to = "TDO"[e.at],
                                          .bytes = e.bytes,
                                          .len = len};
            s->config.on_sent(s->config.sent_arg, &sent);
        }
    }
    sim_push(s, e);
}

static size_t encode(const struct gr_msg *m, const uint8_t **bytes)
{
    static uint8_t buffer[GR_MSG_BYTES_MAX];
    size_t len = 0;
    enum gr_status st = gr_msg_encode(m, buffer, sizeof(buffer), &len);
    GR_ASSERT(st == GR_OK);
    *bytes = buffer;
    return len;
}

static void msg_to_orch(struct sim *s, enum role from, const struct gr_msg *m)
{
    const uint8_t *bytes = NULL;
    const size_t len = encode(m, &bytes);
    struct sim_worker *w = &s->worker[from];
    if (w->mute) {
        return;
    }
    s->n_to_orch += from == TARGET;
    push_in_order(s, (struct event){.what = EVENT_MSG, .at = ORCH, .worker = w->number, .peer = from}, bytes, len,
                  &w->to_orch_ns, s->config.msg_delay_ns);
}

static void msg_from_target(void *ctx, const struct gr_msg *m)
{
    msg_to_orch(ctx, TARGET, m);
}

static void msg_from_draft(void *ctx, const struct gr_msg *m)
{
    msg_to_orch(ctx, DRAFT, m);
}

void sim_send_from_orch(void *ctx, uint32_t worker, const struct gr_msg *m)
{
    struct sim *s = ctx;
    for (int role = TARGET; role <= DRAFT; role++) {
        struct sim_worker *w = &s->worker[role];
        if (w->number == worker && w->alive && !w->mute) { /* else it goes nowhere: the loss is on its way */
            const uint8_t *bytes = NULL;
            const size_t len = encode(m, &bytes);
            push_in_order(s, (struct event){.what = EVENT_MSG, .at = (enum role)role, .life = w->life}, bytes, len,
                          &w->from_orch_ns, s->config.msg_delay_ns);
        }
    }
}

static bool commit_room(void *ctx, int n)
{
    const struct sim *s = ctx;
    return s->config.commit_room == 0 ||
           s->n_to_orch + n <= s->config.commit_room; /* a delivery is an event: it wakes */
}

/* ---- frames ---- */

static uint8_t *frame_begin(struct sim *s, enum role from, uint32_t peer, enum gr_frame_class class, uint32_t bytes)
{
    GR_ASSERT(bytes <= FRAME_MAX);
    if (!s->conn.used || s->conn.id != peer || !s->conn.open_at[from]) {
        return NULL; /* as a worker's edge does for a connection that it has lost */
    }
    if (s->config.no_credit_one_in > 0 && sim_draw(s, (uint64_t)s->config.no_credit_one_in - 1) == 0) {
        sim_push(s, (struct event){.at_ns = s->now_ns + 1 + sim_draw(s, s->config.frame_delay_ns), .what = EVENT_WAKE});
        return NULL;
    }
    s->frame_class = class;
    return s->frame;
}

static void frame_end(struct sim *s, enum role from, uint32_t bytes)
{
    const enum role to = from == TARGET ? DRAFT : TARGET;
    struct event e = {.what = EVENT_FRAME, .at = to, .life = s->worker[to].life, .peer = s->conn.id};
    const bool bulk = s->frame_class == GR_FRAME_BULK;
    uint64_t *last_ns = bulk ? &s->conn.bulk_ns[to] : &s->conn.to_ns[to];
    *last_ns = bulk ? GR_MAX(*last_ns, s->conn.to_ns[to]) : *last_ns;
    push_in_order(s, e, s->frame, bytes, last_ns, s->config.frame_delay_ns);
    if (s->config.faults.copy_frame > 0 && sim_draw(s, (uint64_t)s->config.faults.copy_frame - 1) == 0) {
        uint64_t any_ns = s->now_ns;
        s->counts.n_copy++;
        push_in_order(s, e, s->frame, bytes, &any_ns, s->config.faults.copy_ns);
    }
}

static uint8_t *target_frame_begin(void *ctx, uint32_t peer, enum gr_frame_class class, uint32_t bytes)
{
    return frame_begin(ctx, TARGET, peer, class, bytes);
}

static uint8_t *draft_frame_begin(void *ctx, uint32_t peer, enum gr_frame_class class, uint32_t bytes)
{
    return frame_begin(ctx, DRAFT, peer, class, bytes);
}

static void target_frame_end(void *ctx, uint32_t peer, uint32_t bytes)
{
    (void)peer;
    frame_end(ctx, TARGET, bytes);
}

static void draft_frame_end(void *ctx, uint32_t peer, uint32_t bytes)
{
    (void)peer;
    frame_end(ctx, DRAFT, bytes);
}

/* ---- connections ---- */

/* An address names a life of the target; a connection to a dead one fails. */
static enum gr_status connect_peer(void *ctx, const char *address, uint64_t incarnation, const char *transport,
                                   uint32_t *peer_out)
{
    (void)incarnation;
    struct sim *s = ctx;
    const uint32_t life = (uint32_t)strtoul(address, NULL, 10);
    const bool there = s->worker[TARGET].alive && s->worker[TARGET].life == life;
    (void)transport;
    if (!(s->conn.used && s->conn.open_at[DRAFT] && there)) {
        s->conn = (struct sim_conn){.used = true, .id = s->next_conn++, .open_at = {[TARGET] = false, [DRAFT] = true}};
    }
    *peer_out = s->conn.id;
    sim_push(s, (struct event){.at_ns = s->now_ns + sim_draw(s, s->config.msg_delay_ns),
                               .peer = s->conn.id,
                               .at = DRAFT,
                               .life = s->worker[DRAFT].life,
                               .what = there ? EVENT_PEER_READY : EVENT_PEER_LOST});
    return GR_OK;
}

void sim_conn_ready(struct sim *s, const struct event *e)
{
    if (!s->worker[TARGET].alive) {
        sim_conn_lost(s, e);
        return;
    }
    s->conn.open_at[TARGET] = true;
    gr_drafter_on_peer_ready(s->drafter, e->peer, "sim", s->now_ns);
}

void sim_conn_lost(struct sim *s, const struct event *e)
{
    if (s->conn.id == e->peer) {
        s->conn.open_at[e->at] = false;
    }
    if (e->at == TARGET) {
        gr_target_on_peer_lost(s->target, e->peer);
    } else {
        gr_drafter_on_peer_lost(s->drafter, e->peer, GR_ECLOSED, NULL);
    }
}

/* The end at `role` will notice, after what is on its way. */
static void lose_at(struct sim *s, enum role role)
{
    if (s->conn.used && s->conn.open_at[role] && s->worker[role].alive) {
        s->conn.to_ns[role] = GR_MAX(s->conn.to_ns[role], s->conn.bulk_ns[role]);
        push_in_order(
            s, (struct event){.what = EVENT_PEER_LOST, .at = role, .life = s->worker[role].life, .peer = s->conn.id},
            NULL, 0, &s->conn.to_ns[role], s->config.faults.notice_ns);
    }
}

/* ---- processes ---- */

static uint32_t take_number(struct sim *s)
{
    for (uint32_t i = 0; i < GR_ORCH_WORKER_MAX; i++) {
        if (!s->number_used[i]) {
            s->number_used[i] = true;
            return i;
        }
    }
    GR_ASSERT(false);
    return 0;
}

/* Work that takes ns on the device: how long until it is done, after what runs there. */
static uint64_t run_on_device(struct sim *s, double ns)
{
    const bool shared = s->config.device->shared;
    const uint64_t begin_ns = shared ? GR_MAX(s->now_ns, s->busy_until_ns) : s->now_ns;
    const uint64_t end_ns = begin_ns + 1 + (uint64_t)ns;
    s->busy_until_ns = shared ? end_ns : s->busy_until_ns;
    return end_ns - s->now_ns;
}

static void start_pass(void *ctx, struct gr_pass *pass)
{
    struct sim *s = ctx;
    gr_verifier_run(s->verifier, pass);
    /* On the virtual clock, so that a seed replays. */
    pass->forward_ns = s->config.device != NULL ? run_on_device(s, s->config.device->pass_ns(pass->n_seq, pass->n_row))
                                                : 1 + sim_draw(s, s->config.pass_ns);
    pass->sample_ns = pass->commit_ns = 0;
    s->pass = pass;
    sim_push(s, (struct event){.at_ns = s->now_ns + pass->forward_ns - 1,
                               .what = EVENT_PASS_DONE,
                               .at = TARGET,
                               .life = s->worker[TARGET].life});
}

static void start_job(void *ctx, struct gr_draft_job *job)
{
    struct sim *s = ctx;
    if (s->config.on_job != NULL) {
        s->config.on_job(s->drafter, job);
    }
    gr_grower_run(s->grower, job);
    job->compute_ns =
        s->config.device != NULL ? run_on_device(s, (double)job->compute_ns) : sim_draw(s, s->config.job_ns);
    s->job = job;
    sim_push(s, (struct event){.at_ns = s->now_ns + job->compute_ns,
                               .what = EVENT_JOB_DONE,
                               .at = DRAFT,
                               .life = s->worker[DRAFT].life});
}

static void create_target(struct sim *s, struct gr_lm *lm)
{
    const struct gr_target_config c = {.n_session_max = s->config.n_session_max,
                                       .n_ctx_max = lm->n_ctx_max,
                                       .n_vocab = lm->n_vocab,
                                       .n_row_max = lm->n_row_max,
                                       .n_out_max = lm->n_out_max,
                                       .prefill_chunk = s->config.prefill_chunk,
                                       .n_pool_block = lm->n_pool_block,
                                       .round_deadline_ns = s->config.round_deadline_ns,
                                       .feature_width = gr_lm_ship_width(lm),
                                       .feature_raw = lm->raw_features,
                                       .feature_later = gr_lm_fuses(lm),
                                       .feature_keep = s->config.feature_keep,
                                       .feature_window = s->config.feature_window,
                                       .far = s->config.far,
                                       .admit_tokens = s->config.admit_tokens,
                                       .prefill_share = s->config.prefill_share,
                                       .specpv = s->config.specpv,
                                       .prefix_cache = s->config.prefix_cache,
                                       .prefix_features = s->config.prefix_features && gr_lm_ship_width(lm) > 0,
                                       .kv_identity = {.numerics_id = lm->numerics_id},
                                       .test_corrupt = s->config.specpv_corrupt,
                                       .shares_device = s->config.device != NULL && s->config.device->shared,
                                       .cost = s->config.device != NULL ? s->config.device->cost : NULL};
    const struct gr_target_io io = {.ctx = s,
                                    .frame_begin = target_frame_begin,
                                    .frame_end = target_frame_end,
                                    .send_msg = msg_from_target,
                                    .commit_room = commit_room,
                                    .start_pass = start_pass};
    enum gr_status st = gr_target_create(&c, &io, &s->target);
    GR_ASSERT(st == GR_OK);
    if (c.specpv.n_buffer > 0 && lm->view == NULL) {
        const struct gr_kv_budget most = {.n_sink = (int32_t)c.specpv.n_sink,
                                          .n_retrieval = (int32_t)c.specpv.n_retrieval,
                                          .n_window = (int32_t)c.specpv.n_window};
        st = gr_lm_view_create(lm, &most, c.n_session_max);
        GR_ASSERT(st == GR_OK);
    }
    st = gr_verifier_create(lm, c.n_session_max, &s->verifier);
    GR_ASSERT(st == GR_OK);
}

static void create_drafter(struct sim *s, struct gr_lm *lm)
{
    const struct gr_drafter_config c = {.n_session_max = s->config.n_session_max,
                                        .n_ctx_max = lm->n_ctx_max,
                                        .n_vocab = lm->to_target != NULL ? lm->n_vocab_target : lm->n_vocab,
                                        .feature_width = gr_lm_ship_width(lm),
                                        .feature_raw = lm->raw_features,
                                        .feature_window = s->config.feature_window,
                                        .feature_context = s->config.feature_context,
                                        .far = lm->far_features ? s->config.draft_far : NULL,
                                        .n_row_max = lm->n_row_max,
                                        .prefill_chunk = s->config.prefill_chunk,
                                        .n_pool_block = lm->n_pool_block};
    const struct gr_drafter_io io = {.ctx = s,
                                     .frame_begin = draft_frame_begin,
                                     .frame_end = draft_frame_end,
                                     .send_msg = msg_from_draft,
                                     .start_job = start_job,
                                     .connect = connect_peer};
    enum gr_status st = gr_drafter_create(&c, &io, &s->drafter);
    GR_ASSERT(st == GR_OK);
    st = gr_grower_create(lm, c.n_session_max, &s->grower);
    GR_ASSERT(st == GR_OK);
    const struct sim_device *device = s->config.device;
    gr_grower_fix_level_ns(s->grower, device != NULL ? device->level_ns : (uint32_t)(s->config.job_ns / 4 + 1),
                           device != NULL ? device->level_row_ns : 1000); /* so that a seed replays */
}

void sim_start_worker(struct sim *s, enum role role)
{
    struct sim_worker *w = &s->worker[role];
    char address[16];
    w->alive = true;
    w->mute = w->dropped = w->leaving = false;
    w->life++;
    w->number = take_number(s);
    w->to_orch_ns = w->from_orch_ns = s->now_ns;
    w->lm_owned = s->config.make_lm != NULL;
    w->lm = w->lm_owned      ? s->config.make_lm(s->config.make_ctx, role == TARGET)
            : role == TARGET ? s->config.target_lm
                             : s->config.draft_lm;
    if (role == TARGET) {
        create_target(s, w->lm);
    } else {
        create_drafter(s, w->lm);
    }
    snprintf(address, sizeof(address), "%u", w->life);
    struct gr_worker_info info = {.role = role == TARGET ? GR_WORKER_TARGET : GR_WORKER_DRAFT};
    memcpy(info.address, address, sizeof(address));
    if (s->config.seats) {
        info.incarnation = w->life;
        snprintf(info.seat, sizeof(info.seat), "the only one");
    }
    enum gr_status st = gr_orch_join(s->orch, w->number, &info, s->now_ns);
    GR_ASSERT(st == GR_OK);
}

void sim_end_worker(struct sim *s, enum role role)
{
    struct sim_worker *w = &s->worker[role];
    if (role == TARGET) {
        gr_target_destroy(s->target);
        gr_verifier_destroy(s->verifier);
        s->target = NULL;
        s->verifier = NULL;
        s->pass = NULL;
    } else {
        gr_drafter_destroy(s->drafter);
        gr_grower_destroy(s->grower);
        s->drafter = NULL;
        s->grower = NULL;
        s->job = NULL;
    }
    if (w->lm_owned) {
        gr_lm_destroy(w->lm);
    }
    w->lm = NULL;
    w->alive = w->lm_owned = false;
}

/* kill -9: what it has sent arrives, then its sockets close; it comes back as a new life. */
static void kill_worker(struct sim *s, enum role role)
{
    struct sim_worker *w = &s->worker[role];
    const enum role other = role == TARGET ? DRAFT : TARGET;
    if (!w->dropped) {
        push_in_order(s, (struct event){.what = EVENT_LINK_LOST, .at = ORCH, .worker = w->number, .peer = role}, NULL,
                      0, &w->to_orch_ns, s->config.faults.notice_ns);
    }
    lose_at(s, other);
    s->conn.open_at[role] = false;
    sim_end_worker(s, role);
    const uint64_t back_ns = s->now_ns + 1 + sim_draw(s, s->config.faults.restart_ns);
    sim_push(s, (struct event){.what = EVENT_START, .at = role, .life = w->life, .at_ns = back_ns});
}

/* A worker whose control link has gone dead notices at last (keep-alive), and ends; a new life begins. */
void sim_unmute(struct sim *s, const struct event *e)
{
    kill_worker(s, e->at);
}

/* By a signal of its own: what the orchestrator sends meanwhile meets it draining. */
static void drain_worker(struct sim *s, enum role role)
{
    s->worker[role].leaving = true;
    msg_to_orch(s, role, &(struct gr_msg){.type = GR_MSG_DRAIN});
    if (role == TARGET) {
        gr_target_drain(s->target);
    } else {
        gr_drafter_drain(s->drafter);
    }
}

void sim_let_go(struct sim *s, enum role role)
{
    GR_ASSERT(s->worker[role].leaving);
    kill_worker(s, role);
}

void sim_drop(void *ctx, uint32_t worker)
{
    struct sim *s = ctx;
    for (int role = TARGET; role <= DRAFT; role++) {
        struct sim_worker *w = &s->worker[role];
        if (w->number == worker && w->alive) { /* else the loss is on its way, and changes nothing any more */
            w->dropped = w->mute = true;
            s->number_used[worker] = false;
            sim_push(s, (struct event){.what = EVENT_UNMUTE,
                                       .at = (enum role)role,
                                       .life = w->life,
                                       .at_ns = s->now_ns + 1 + sim_draw(s, s->config.faults.notice_ns)});
        }
    }
}

void sim_link_lost(struct sim *s, const struct event *e)
{
    s->number_used[e->worker] = false;
    gr_orch_on_lost(s->orch, e->worker, s->now_ns);
}

bool sim_is_void(const struct sim *s, const struct event *e)
{
    if (e->at == ORCH || e->what == EVENT_START || e->what == EVENT_WAKE) {
        return false;
    }
    const struct sim_worker *w = &s->worker[e->at];
    if (!w->alive || w->life != e->life) {
        return true;
    }
    return e->what == EVENT_FRAME && (e->peer != s->conn.id || !s->conn.open_at[e->at]);
}

/* ---- faults ---- */

static bool strikes(struct sim *s, int one_in)
{
    return one_in > 0 && s->n_fault < s->config.faults.n_max && sim_draw(s, (uint64_t)one_in - 1) == 0;
}

/* When the orchestrator has spoken to it: more may be on its way. */
static void maybe_drain(struct sim *s, const struct event *e)
{
    const struct sim_worker *w = &s->worker[e->at];
    if (s->config.faults.drain > 0 && e->what == EVENT_MSG && w->alive && !w->mute && !w->leaving &&
        sim_draw(s, (uint64_t)s->config.faults.drain - 1) == 0) {
        s->counts.n_drain++;
        drain_worker(s, e->at);
    }
}

void sim_kill_target(struct sim *s)
{
    s->kills_target = true;
}

void sim_maybe_fault(struct sim *s, const struct event *e)
{
    const struct sim_faults *f = &s->config.faults;
    if (s->kills_target) {
        s->kills_target = false;
        s->counts.n_target_kill++;
        kill_worker(s, TARGET);
        return;
    }
    if (e->at != ORCH) {
        maybe_drain(s, e);
    }
    if (e->at == TARGET && s->worker[TARGET].alive && strikes(s, f->kill_target)) {
        s->n_fault++;
        s->counts.n_target_kill++;
        kill_worker(s, TARGET);
    } else if (e->at == DRAFT && s->worker[DRAFT].alive && strikes(s, f->kill_draft)) {
        s->n_fault++;
        s->counts.n_draft_kill++;
        kill_worker(s, DRAFT);
    } else if (e->what == EVENT_FRAME && strikes(s, f->break_conn)) {
        s->n_fault++;
        s->counts.n_break++;
        lose_at(s, TARGET);
        lose_at(s, DRAFT);
    } else if (e->what == EVENT_MSG && e->at != ORCH && s->worker[e->at].alive && strikes(s, f->mute)) {
        s->n_fault++;
        s->counts.n_mute++;
        s->worker[e->at].mute = true; /* until the orchestrator gives it up */
    } else if (e->at == ORCH && strikes(s, f->stall_orch)) {
        s->n_fault++;
        s->counts.n_stall++;
        s->stalled_until_ns = s->now_ns + sim_draw(s, f->stall_ns);
    }
}
