/* The orchestrator's one thread, which takes up what has come batch by batch, and its clients. */
#include "bench/simulate/fleet_internal.h"

#include "common/base/log.h"
#include "common/rules/hash.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PING_INTERVAL_NS 1000000000ull /* as the hub's */
#define PING_TIMEOUT_NS 5000000000ull
#define BATCH_MAX 64 /* messages of one worker, as the hub's; here of all of them together */
#define BATCH_DONE 1 /* in `conn` of an event: the orchestrator is done with what it took up */

uint64_t fleet_draw(uint64_t *rng, uint64_t n)
{
    *rng = gr_mix64(*rng + GR_HASH_GOLDEN);
    return *rng % n;
}

/* ---- what it really takes ---- */

/* CPU time of this thread: others on the computer do not count. */
static double cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return 1e9 * (double)t.tv_sec + (double)t.tv_nsec;
}

/* Since then, less what it takes to look at the clock. */
static double since(const struct gr_fleet *f, double begin_ns)
{
    return GR_MAX(cpu_ns() - begin_ns - f->clock_ns, 0.0);
}

static double time_clock(void)
{
    double least_ns = 1e9;
    for (int i = 0; i < 100; i++) {
        const double t0 = cpu_ns();
        least_ns = GR_MIN(least_ns, cpu_ns() - t0);
    }
    return least_ns;
}

/* ---- clients ---- */

static void make_request(struct gr_fleet *f, uint32_t i, struct gr_session_request *q)
{
    const struct gr_fleet_config *c = &f->config;
    struct fleet_client *client = &f->client[i];
    for (int k = 0; k < c->n_prompt; k++) {
        f->prompt[k] = (int32_t)fleet_draw(&f->rng, 1000);
    }
    f->prompt[0] = (int32_t)((client->n_session * (uint32_t)c->n_session + i) % GR_SURMISE_TEXT_MAX); /* its text */
    client->n_new = (uint32_t)(c->run_ns == 0 ? c->n_new : c->n_new / 2 + (int)fleet_draw(&f->rng, (uint64_t)c->n_new));
    *q = (struct gr_session_request){.prompt = f->prompt,
                                     .n_prompt = (uint32_t)c->n_prompt,
                                     .wishes = {.turn = {.max_tokens = client->n_new},
                                                .sampling = {.top_p = 1.0f, .seed = i + 1},
                                                .want_draft = c->n_node >= 0 && c->n_draft > 0,
                                                .auto_tree = c->n_node == 0,
                                                .n_node = c->n_node > 0 ? (uint32_t)c->n_node : GR_NODE_MAX,
                                                .draft_depth = GR_DRAFT_DEPTH,
                                                .draft_top_k = GR_DRAFT_TOP_K,
                                                .draft_ahead = c->ahead ? GR_AHEAD_ON : GR_AHEAD_OFF},
                                     .user = client};
}

static void ask(struct gr_fleet *f, uint32_t i)
{
    struct gr_session_request q;
    uint64_t session = 0;
    make_request(f, i, &q);
    f->client[i].n_token = 0;
    f->client[i].n_session++;
    const double t0 = cpu_ns();
    const enum gr_status st = gr_orch_submit(f->orch, &q, f->now_ns, &session);
    const double ns = since(f, t0);
    f->place_ns += ns; /* it is part of a batch */
    f->result.real.place_ns += ns;
    f->result.real.n_place++;
    GR_ASSERT(st == GR_OK);
}

static void ask_all(struct gr_fleet *f)
{
    f->n_first = f->n_over = 0;
    f->n_token = f->over_ns = 0;
    for (int i = 0; i < f->config.n_session; i++) {
        /* Those that go on and on begin one after another, so that they do not end together. */
        const uint64_t late_ns = f->config.run_ns > 0 ? fleet_draw(&f->rng, f->config.warm_ns / 2 + 1) : 0;
        fleet_push(f, f->now_ns + late_ns, (struct fleet_event){.what = FLEET_ASK, .conn = (uint32_t)i});
    }
}

/* The sessions of a group: from the first token of any to the last; and while all of them decode. */
static void count_group(struct gr_fleet *f)
{
    struct gr_fleet_result *r = &f->result;
    if (f->i_group++ >= f->config.n_warm) {
        r->seconds += 1e-9 * (double)(f->last_ns - f->first_ns);
        r->n_token += f->n_token - (uint64_t)f->config.n_session;
        if (f->over_ns > f->all_ns) {
            r->all_seconds += 1e-9 * (double)(f->over_ns - f->all_ns);
            r->all_token += f->over_token - f->all_token;
        }
    }
    if (f->i_group < f->config.n_warm + f->config.n_group) {
        ask_all(f);
    }
}

static void on_tokens(void *ctx, uint64_t session, void *user, const int32_t *id, uint32_t n)
{
    struct gr_fleet *f = ctx;
    struct fleet_client *c = user;
    (void)session;
    (void)id;
    f->progress_ns = f->last_ns = f->now_ns;
    if (f->config.run_ns > 0) {
        f->result.n_token += f->heard_ns >= f->config.warm_ns && f->heard_ns < f->config.run_ns ? n : 0;
        return;
    }
    f->n_token += n;
    if (c->n_token == 0) {
        f->first_ns = f->n_first == 0 ? f->now_ns : f->first_ns;
        f->n_first++;
        f->all_ns = f->now_ns;
        f->all_token = f->n_token;
    }
    c->n_token += n;
    if (c->n_token == c->n_new && f->over_ns == 0) {
        f->over_ns = f->now_ns;
        f->over_token = f->n_token;
    }
}

static void on_report(void *ctx, uint64_t session, void *user, const struct gr_msg *m)
{
    struct gr_fleet *f = ctx;
    (void)session;
    (void)user;
    if (m->type != GR_MSG_COMMIT || m->commit.round == 0) {
        return;
    }
    f->result.n_round++;
    f->result.n_draft += m->commit.n_draft > 0;
    f->result.n_accepted += m->commit.n_accepted;
    for (uint32_t i = 0; i < m->commit.n_accepted; i++) {
        f->result.position[i]++;
    }
}

static void on_done(void *ctx, uint64_t session, void *user, enum gr_finish finish, const char *text)
{
    struct gr_fleet *f = ctx;
    struct fleet_client *c = user;
    (void)session;
    f->result.n_done++;
    if (gr_finish_is_bad(finish)) {
        f->result.n_failed++;
        log_error("a simulated session failed: %s", text);
    }
    if (f->config.run_ns > 0) {
        fleet_push(f, f->now_ns, (struct fleet_event){.what = FLEET_ASK, .conn = (uint32_t)(c - f->client)});
        return;
    }
    f->n_over++;
    if (f->n_over == (uint32_t)f->config.n_session) {
        count_group(f);
    }
}

/* ---- workers as it sees them ---- */

static void send_from_orch(void *ctx, uint32_t worker, const struct gr_msg *m)
{
    fleet_msg_from_orch(ctx, worker, m);
}

/* It takes a silent worker as lost, which then ends. */
static void drop(void *ctx, uint32_t worker)
{
    struct gr_fleet *f = ctx;
    log_warn("the simulated orchestrator gives worker %u up: it is silent", worker);
    fleet_push(f, f->now_ns,
               (struct fleet_event){
                   .what = FLEET_LOSE, .worker = worker, .life = f->worker[worker].life, .conn = FLEET_NOBODY});
}

void fleet_orch_join(struct gr_fleet *f, const struct fleet_worker *w)
{
    struct gr_worker_info info = {.role = w->is_target ? GR_WORKER_TARGET : GR_WORKER_DRAFT,
                                  .incarnation = (uint64_t)w->index << 32 | w->life,
                                  .n_vocab = (uint32_t)w->lm->n_vocab,
                                  .n_ctx_max = (uint32_t)w->lm->n_ctx_max,
                                  .pid = w->device + 1,
                                  .n_slot = (uint32_t)f->config.n_slot};
    fleet_address(w, info.address, sizeof(info.address));
    snprintf(info.host_id, sizeof(info.host_id), "%u", w->device);
    const enum gr_status st = gr_orch_join(f->orch, w->index, &info, f->now_ns);
    GR_ASSERT(st == GR_OK);
}

/* ---- its thread ---- */

static void push_run(struct gr_fleet *f, uint64_t at_ns, bool batch_done)
{
    fleet_push(f, at_ns, (struct fleet_event){.what = FLEET_ORCH, .conn = batch_done ? BATCH_DONE : 0});
}

void fleet_orch_take(struct gr_fleet *f, const struct fleet_event *e)
{
    if (e->what == FLEET_ORCH) {
        f->orch_busy = f->orch_busy && e->conn != BATCH_DONE;
        fleet_orch_run(f);
        return;
    }
    if (f->n_inbox == f->cap_inbox) {
        f->cap_inbox = 2 * f->cap_inbox + 64;
        f->inbox = realloc(f->inbox, f->cap_inbox * sizeof(*f->inbox));
        f->inbox_ns = realloc(f->inbox_ns, f->cap_inbox * sizeof(*f->inbox_ns));
        GR_ASSERT(f->inbox != NULL && f->inbox_ns != NULL);
    }
    if (f->n_inbox == 0 && !f->orch_busy) {
        push_run(f, f->now_ns, false); /* after what comes at the same time */
    }
    f->inbox_ns[f->n_inbox] = f->now_ns;
    f->inbox[f->n_inbox++] = *e;
}

static void hear(struct gr_fleet *f, const struct fleet_event *e)
{
    struct gr_msg m;
    enum gr_status st = gr_msg_decode(e->bytes, e->len, &m);
    GR_ASSERT(st == GR_OK);
    st = gr_orch_on_msg(f->orch, e->worker, &m, f->now_ns);
    GR_ASSERT(st == GR_OK);
    f->result.real.n_message++;
    f->result.real.n_commit += m.type == GR_MSG_COMMIT;
    gr_msg_finish(&m);
}

static void take_up(struct gr_fleet *f, const struct fleet_event *e)
{
    switch (e->what) {
    case FLEET_TO_ORCH:
        hear(f, e);
        fleet_taken_up(f, e);
        break;
    case FLEET_LINK_LOST:
        gr_orch_on_lost(f->orch, e->worker, f->now_ns);
        break;
    case FLEET_ASK:
        ask(f, e->conn);
        break;
    default:
        break;
    }
    free(e->bytes);
}

static void close_up_inbox(struct gr_fleet *f)
{
    f->n_inbox -= f->inbox_at;
    memmove(f->inbox, f->inbox + f->inbox_at, f->n_inbox * sizeof(*f->inbox));
    memmove(f->inbox_ns, f->inbox_ns + f->inbox_at, f->n_inbox * sizeof(*f->inbox_ns));
    f->inbox_at = 0;
}

static double take_batch(struct gr_fleet *f)
{
    const struct gr_orch_costs *c = &f->config.costs->orch;
    /* nothing comes meanwhile: what clients ask for next is an event */
    const size_t n = GR_MIN(f->n_inbox - f->inbox_at, (size_t)BATCH_MAX * f->n_worker);
    for (size_t i = 0; i < n; i++) {
        const size_t at = f->inbox_at + i;
        f->heard_ns = f->now_ns + (uint64_t)(c->message_ns * (double)i);
        f->wait_sum_ns += (double)(f->heard_ns - f->inbox_ns[at]);
        take_up(f, &f->inbox[at]);
    }
    f->n_wait += n;
    f->inbox_at += n;
    if (f->inbox_at > f->n_inbox / 2) {
        close_up_inbox(f);
    }
    return c->message_ns * (double)n + c->step_ns + c->step_session_ns * gr_orch_n_session(f->orch);
}

void fleet_orch_run(struct gr_fleet *f)
{
    if (f->orch_busy || (f->n_inbox == 0 && f->now_ns < f->orch_wake_ns)) {
        return;
    }
    struct gr_fleet_real *real = &f->result.real;
    f->place_ns = 0.0;
    const double t0 = cpu_ns();
    const double busy_ns = take_batch(f);
    real->message_ns += since(f, t0) - f->place_ns;
    const double t1 = cpu_ns();
    const uint64_t wake_ns = gr_orch_step(f->orch, f->now_ns);
    real->step_ns += since(f, t1);
    real->n_step++;
    fleet_flush_orch(f, busy_ns);
    f->orch_busy_ns += busy_ns;
    f->orch_busy = true;
    f->orch_until_ns = f->now_ns + (uint64_t)busy_ns;
    push_run(f, f->orch_until_ns, true);
    if (wake_ns != f->orch_wake_ns && wake_ns != UINT64_MAX) {
        push_run(f, GR_MAX(wake_ns, f->now_ns + 1), false);
    }
    f->orch_wake_ns = wake_ns;
}

enum gr_status fleet_orch_create(struct gr_fleet *f)
{
    const struct gr_orch_io io = {.ctx = f,
                                  .send = send_from_orch,
                                  .on_report = on_report,
                                  .on_tokens = on_tokens,
                                  .on_done = on_done,
                                  .drop = drop};
    GR_TRY(gr_orch_create_sized(&io, (int)f->n_worker, f->config.n_session, &f->orch));
    gr_orch_configure(
        f->orch, &(struct gr_orch_config){.ping_interval_ns = PING_INTERVAL_NS, .ping_timeout_ns = PING_TIMEOUT_NS});
    f->orch_wake_ns = UINT64_MAX;
    f->clock_ns = time_clock();
    f->prompt = calloc((size_t)f->config.n_prompt, sizeof(*f->prompt));
    f->client = calloc((size_t)f->config.n_session, sizeof(*f->client));
    if (f->prompt == NULL || f->client == NULL) {
        log_error("out of memory for %d clients", f->config.n_session);
        return GR_ENOMEM;
    }
    for (uint32_t i = 0; i < f->n_worker; i++) {
        fleet_orch_join(f, &f->worker[i]);
    }
    ask_all(f);
    return GR_OK;
}

void fleet_orch_destroy(struct gr_fleet *f)
{
    for (size_t i = f->inbox_at; i < f->n_inbox; i++) {
        free(f->inbox[i].bytes);
    }
    for (size_t i = 0; i < f->n_outbox; i++) {
        free(f->outbox[i].bytes);
    }
    gr_orch_destroy(f->orch);
    free(f->outbox);
    free(f->inbox);
    free(f->inbox_ns);
    free(f->client);
    free(f->prompt);
}
