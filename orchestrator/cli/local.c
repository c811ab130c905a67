#include "orchestrator/cli/local.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/process/program.h"
#include "orchestrator/cli/spawn.h"

#include "transport/connect/cluster.h"
#include "transport/connect/secrecy.h"

#include <poll.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <unistd.h>

#define DRAFTER_START_NS (60 * GR_S) /* a drafter that is not here so long after the start is not waited for */
#define STOP_MS 2000                 /* children that have not ended so long after they were told to are killed */

/* ---- what the generations ask for ---- */

static enum gr_status engine_submit(void *ctx, const struct gr_session_request *request)
{
    struct gr_local_turn *t = ctx;
    struct gr_session_request q = *request;
    q.user = t;
    const bool forks = t->fork_of != NULL && t->g->phase == GR_PHASE_TEXT; /* what is compared with shares nothing */
    q.wishes.fork_of = forks ? t->fork_of->session : 0;
    t->session = 0;
    return gr_orch_submit(gr_hub_orch(t->l->hub), &q, gr_clock_ns(), &t->session);
}

static enum gr_status engine_append(void *ctx, const struct gr_turn_request *turn)
{
    struct gr_local_turn *t = ctx;
    struct gr_turn_request q = *turn;
    q.user = t;
    return gr_orch_append(gr_hub_orch(t->l->hub), t->session, &q, gr_clock_ns());
}

static void engine_stop(void *ctx, uint32_t n_keep)
{
    struct gr_local_turn *t = ctx;
    enum gr_status st = gr_orch_stop(gr_hub_orch(t->l->hub), t->session, 0, n_keep, GR_FINISH_STOP);
    (void)st; /* the turn may be over, and its session gone with it */
}

/* A session that was let go of may still say something; a new one's number is not known before submit returns. */
static bool is_of_turn(const struct gr_local_turn *t, uint64_t session)
{
    return t->g != NULL && t->g->phase != GR_PHASE_OVER && (t->session == 0 || t->session == session);
}

static void on_report(void *ctx, uint64_t session, void *user, const struct gr_msg *m)
{
    struct gr_local *l = ctx;
    const struct gr_local_turn *t = user;
    if (!is_of_turn(t, session)) {
        return;
    }
    if (m->type == GR_MSG_COMMIT && m->commit.ids.n > 0) {
        gr_children_progress(&l->children, l->target_child);
    }
    gr_generation_take(t->g, m);
}

static void on_done(void *ctx, uint64_t session, void *user, enum gr_finish finish, const char *text)
{
    struct gr_local *l = ctx;
    const struct gr_local_turn *t = user;
    struct gr_session_info info = {0};
    if (!is_of_turn(t, session)) {
        return;
    }
    (void)gr_orch_session_info(gr_hub_orch(l->hub), session, 0, &info);
    memcpy(t->g->undrafted, info.undrafted, sizeof(t->g->undrafted));
    gr_generation_end(t->g, finish, text, info.n_fallback, info.n_reopen);
}

static void on_join(void *ctx, const struct gr_msg *m)
{
    struct gr_local *l = ctx;
    if (m->join.role == GR_ROLE_TARGET) {
        l->target_joined = true;
    } else {
        l->draft_joined = true;
    }
}

static void on_lost(void *ctx, enum gr_worker_role role)
{
    struct gr_local *l = ctx;
    if (role == GR_WORKER_TARGET) {
        l->target_joined = false;
    } else {
        l->draft_joined = false;
    }
}

static void on_refused(void *ctx, const char *text)
{
    struct gr_local *l = ctx;
    (void)text; /* logged by who refused */
    l->gone = true;
    gr_generation_fail(l->g, "");
}

/* ---- the session ---- */

static enum gr_status start_all(struct gr_local *l)
{
    struct gr_hub_config c = {.listen = l->o->control,
                              .io = {.ctx = l, .on_report = on_report, .on_done = on_done},
                              .on_join = on_join,
                              .on_lost = on_lost,
                              .on_refused = on_refused};
    char key_hex[2 * GR_KEY_BYTES + 1], cluster[GR_CLUSTER_BYTES];
    gr_cluster_use(l->o->cluster);
    gr_secrecy_use(l->o->control_encryption);
    GR_TRY(gr_cluster_name(true, cluster));
    c.cluster = cluster;
    c.secrecy = (uint32_t)l->o->control_encryption;
    GR_TRY(gr_key_random(c.key, key_hex));
    GR_TRY(gr_hub_create(&c, &l->hub));
    gr_orch_configure(gr_hub_orch(l->hub),
                      &(struct gr_orch_config){.ping_interval_ns = GR_PING_INTERVAL_NS,
                                               .ping_timeout_ns = GR_PING_TIMEOUT_NS,
                                               .require_same_numerics = l->o->require_same_numerics});
    GR_TRY(gr_children_init(&l->children, key_hex));
    GR_TRY(gr_spawn_workers(&l->children, l->o, l->plan, gr_hub_address(l->hub), l->o->n_answer));
    l->target_child = 0;
    l->draft_child = l->children.n > 1 ? 1 : -1;
    return GR_OK;
}

/* The session opens when both workers are there, or when the drafter will not come soon. */
static bool workers_ready(const struct gr_local *l)
{
    const bool patience = gr_clock_ns() - l->start_ns < DRAFTER_START_NS;
    return l->target_joined && (!l->plan->wishes.want_draft || l->draft_joined || l->draft_failed || !patience);
}

/* --require-rdma: what cannot come any more is an error as soon as it is known. */
static void watch_rdma(struct gr_local *l, struct gr_local_turn *t)
{
    struct gr_generation *g = t->g;
    struct gr_session_info info = {0};
    if (g->phase == GR_PHASE_OVER || g->failed || g->interrupted != 0 || !gr_generation_lacks_rdma(g)) {
        return;
    }
    if (g->phase == GR_PHASE_START && workers_ready(l) && !l->draft_joined) {
        gr_generation_fail(g, "--require-rdma: there is no drafter; the line above says why");
    } else if (g->phase == GR_PHASE_TEXT && gr_orch_session_info(gr_hub_orch(l->hub), t->session, 0, &info) &&
               info.drafter_failed) {
        gr_generation_fail(g,
                           "--require-rdma: target and drafter cannot be connected by RDMA; the lines above say why");
    }
}

static void give_up(struct gr_local *l, const struct gr_child *k)
{
    if (k->why[0] == '\0') { /* the worker's own line is on standard error already */
        snprintf(l->g->why, sizeof(l->g->why), "the %s ended with status %d; its lines on standard error say why",
                 k->name, k->exit_status);
    }
    l->gone = true;
    l->g->bad_value = k->exit_status == GR_EXIT_USAGE;
    gr_generation_fail(l->g, k->why);
}

static void stop_interrupted(struct gr_local *l, const struct gr_local_turn *t)
{
    if (t->g->interrupted != 0 && t->g->phase != GR_PHASE_OVER) {
        enum gr_status st = gr_orch_stop(gr_hub_orch(l->hub), t->session, 0, UINT32_MAX, GR_FINISH_ERROR);
        (void)st; /* there may be no session yet */
    }
}

/* Between turns l->g alone takes it. */
static void on_signal(struct gr_local *l, int signal_number)
{
    gr_generation_signal(l->g, signal_number);
    for (int i = 0; i < l->n_turn; i++) {
        struct gr_local_turn *t = &l->turn[i];
        if (t->g != l->g) {
            gr_generation_signal(t->g, signal_number);
        }
        stop_interrupted(l, t);
    }
}

static void watch_children(struct gr_local *l)
{
    for (;;) {
        int index = -1;
        int signal_number = 0;
        const enum gr_child_event e = gr_children_poll(&l->children, &signal_number, &index);
        if (signal_number != 0 && l->g->interrupted == 0) {
            on_signal(l, signal_number);
        }
        if (e == GR_CHILD_NONE) {
            return;
        }
        if (e == GR_CHILD_RESTARTED && index == l->draft_child) {
            l->draft_failed = true; /* goes on root-only; a restarted one is attached when it joins */
        }
        if (e == GR_CHILD_GIVEN_UP) {
            give_up(l, &l->children.child[index]);
        }
    }
}

static bool goes_on(const struct gr_local *l)
{
    bool some = false;
    for (int i = 0; i < l->n_turn; i++) {
        const struct gr_generation *g = l->turn[i].g;
        if (g->failed || g->interrupted != 0) {
            return false;
        }
        some = some || g->phase != GR_PHASE_OVER;
    }
    return some;
}

static bool has_phase(const struct gr_local *l, enum gr_phase phase)
{
    bool some = false;
    for (int i = 0; i < l->n_turn; i++) {
        some = some || l->turn[i].g->phase == phase;
    }
    return some;
}

/* Each in turn, as long as none fails: the first one's session is known when the others begin. */
static void begin_turns(struct gr_local *l)
{
    for (int i = 0; i < l->n_turn && goes_on(l); i++) {
        if (l->turn[i].g->phase == GR_PHASE_START) {
            gr_generation_begin(l->turn[i].g);
        }
    }
}

static void take_turns(struct gr_local *l, struct gr_generation *const *g, int n)
{
    GR_ASSERT(n >= 1 && n <= GR_ANSWERS_MAX);
    for (int i = 0; i < n; i++) {
        struct gr_local_turn *t = &l->turn[i];
        *t = (struct gr_local_turn){.l = l, .g = g[i], .session = t->session, .fork_of = i > 0 ? &l->turn[0] : NULL};
        g[i]->engine =
            (struct gr_engine){.ctx = t, .submit = engine_submit, .append = engine_append, .stop = engine_stop};
    }
    l->n_turn = n;
}

void gr_local_turns(struct gr_local *l, struct gr_generation *const *g, int n)
{
    struct gr_generation *before = l->g;
    take_turns(l, g, n);
    l->g = g[0];
    if (!workers_ready(l)) {
        gr_generation_progress(l->g, l->plan->wishes.want_draft ? "loading the models" : "loading the model", 0, 0);
    }
    while (goes_on(l)) {
        const int restart_ms = gr_children_restart(&l->children, gr_clock_ns());
        gr_hub_pump(l->hub, gr_clock_sooner_ms(restart_ms, has_phase(l, GR_PHASE_START) ? 1000 : -1),
                    l->children.signal_fd);
        watch_children(l);
        for (int i = 0; i < n; i++) {
            watch_rdma(l, &l->turn[i]);
        }
        if (workers_ready(l)) {
            begin_turns(l);
        }
    }
    for (int i = 0; i < n; i++) {
        l->turn[i].g = NULL;
    }
    l->n_turn = 0;
    l->g = before;
}

void gr_local_turn(struct gr_local *l, struct gr_generation *g)
{
    gr_local_turns(l, &g, 1);
}

/* Readable when fd or a signal is; -1: fd is a file, which always is. */
static int watch_both(int fd, int signal_fd)
{
    struct epoll_event a = {.events = EPOLLIN}, b = {.events = EPOLLIN};
    const int both = epoll_create1(EPOLL_CLOEXEC);
    if (both >= 0 &&
        (epoll_ctl(both, EPOLL_CTL_ADD, fd, &a) != 0 || epoll_ctl(both, EPOLL_CTL_ADD, signal_fd, &b) != 0)) {
        close(both);
        return -1;
    }
    return both;
}

void gr_local_wait(struct gr_local *l, int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    if (poll(&p, 1, 0) != 0) {
        return; /* most bytes of a line that was pasted */
    }
    const int both = watch_both(fd, l->children.signal_fd);
    while (both >= 0 && !l->g->failed && l->g->interrupted == 0 && poll(&p, 1, 0) == 0) {
        gr_hub_pump(l->hub, gr_children_restart(&l->children, gr_clock_ns()), both);
        watch_children(l);
    }
    if (both >= 0) {
        close(both);
    }
}

void gr_local_forget(struct gr_local *l)
{
    if (l->turn[0].session != 0) {
        enum gr_status st = gr_orch_close(gr_hub_orch(l->hub), l->turn[0].session);
        (void)st; /* it may be gone already */
    }
    l->turn[0].session = 0;
}

enum gr_status gr_local_start(struct gr_local *l, const struct gr_options *o, const struct gr_plan *plan,
                              struct gr_generation *g)
{
    *l = (struct gr_local){.o = o, .plan = plan, .g = g, .target_child = -1, .draft_child = -1};
    l->start_ns = gr_clock_ns();
    return start_all(l);
}

void gr_local_stop(struct gr_local *l)
{
    gr_hub_end(l->hub, &l->children, l->target_joined && (l->draft_child < 0 || l->draft_joined), STOP_MS);
}
