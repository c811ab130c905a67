/* `graft serve`: the orchestrator as a process of its own, for workers and clients, until a signal ends it. */
#include "common/base/address.h"
#include "common/process/children.h"
#include "common/process/joined.h"
#include "common/process/program.h"
#include "common/process/supervise.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/out_file.h"
#include "orchestrator/cli/commands.h"
#include "orchestrator/cli/expect.h"
#include "orchestrator/server/desk.h"
#include "orchestrator/server/hub.h"
#include "orchestrator/server/keeper.h"
#include "orchestrator/cli/remote.h"
#include "orchestrator/cli/serve_http.h"
#include "orchestrator/cli/serve_models.h"
#include "orchestrator/cli/spawn.h"
#include "orchestrator/cli/yaml_config.h"
#include "transport/connect/cluster.h"
#include "transport/connect/secrecy.h"
#include "transport/connect/reach.h"
#include "transport/own.h"

#include <arpa/inet.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#define GRACE_MS 3000 /* children that have not ended so long after they were told to are killed */
#define NEVER UINT64_MAX
#define DISK_LEAST_NS (2 * GR_S) /* the journal's disk is waited for so long at the end, whoever is in haste */
#define READER_MS 100 /* how often a ready file that is a FIFO is looked at for its reader: nothing else tells */

/* The rule of --quarantine (docs/outages.md). */
#define QUARANTINE_WINDOW (60 * GR_S)
#define QUARANTINE_PAUSE_MIN GR_S
#define QUARANTINE_PAUSE_MAX (60 * GR_S)

enum teller { BY_SIGNAL, BY_CLIENT, N_TELLER };

struct serve {
    struct gr_options o;
    struct gr_serve_models models;
    struct gr_plan plan;
    struct gr_hub *hub;
    struct gr_desk *desk;
    struct gr_keeper *keeper; /* NULL: there is no journal */
    uint64_t keeper_due_ns;   /* gr_keeper_run() is to be called then; NEVER */
    int poll_fd;              /* readable when a signal, a request or the journal is to be looked at */
    struct gr_serve_http http;
    struct gr_children children;
    struct gr_out_place ready; /* the ready file that was put in place */
    bool ready_due;            /* its FIFO has no reader yet */
    struct gr_expect expect;
    uint64_t expect_end_ns; /* who is expected must be here by then; NEVER: they were, or nobody is */
    uint64_t drain_end_ns;  /* turns are finished until then; NEVER */
    uint64_t disk_end_ns;   /* the journal's disk is waited for until then; 0: nobody has waited yet */
    uint64_t idle_since_ns; /* no turn and no client since then; 0: not so, or there was no turn yet */
    bool served;            /* there was a turn */
    bool draining;
    bool told_by[N_TELLER]; /* to end; if the same one says it again, it ends at once */
    bool at_once, failed, bad_value;
};

/* ---- the workers that were started here ---- */

/* The targets are the first children. */
static int n_target_child(const struct serve *s)
{
    return GR_MIN(s->children.n, s->plan.crew.target.n);
}

/* NULL: it has not joined. */
static const struct gr_worker_info *worker_of_child(const struct serve *s, int child, struct gr_worker_status *status)
{
    const uint32_t pid = (uint32_t)s->children.child[child].pid;
    for (uint32_t i = 0; pid != 0 && i < GR_ORCH_WORKER_MAX; i++) {
        const struct gr_worker_info *info = gr_orch_worker(gr_hub_orch(s->hub), i, status);
        if (info != NULL && info->role == GR_WORKER_TARGET && info->pid == pid) {
            return info;
        }
    }
    return NULL;
}

/* The session's target has brought tokens. */
static void note_progress(struct serve *s, uint64_t session)
{
    struct gr_session_info info;
    const bool is_here = gr_orch_session_info(gr_hub_orch(s->hub), session, 0, &info) && info.target >= 0;
    const struct gr_worker_info *w = is_here ? gr_orch_worker(gr_hub_orch(s->hub), (uint32_t)info.target, NULL) : NULL;
    for (int i = 0; w != NULL && i < n_target_child(s); i++) {
        if ((uint32_t)s->children.child[i].pid == w->pid) {
            gr_children_progress(&s->children, i);
        }
    }
}

/* A target that nobody asks for anything does not end without fruit. */
static void note_idle(struct serve *s)
{
    for (int i = 0; i < n_target_child(s); i++) {
        struct gr_worker_status status;
        if (worker_of_child(s, i, &status) != NULL && status.n_active == 0 && gr_children_joined(&s->children, i)) {
            gr_children_progress(&s->children, i);
        }
    }
}

/* Does a target run, or come back, beside this child? */
static bool has_other_target(const struct serve *s, int child)
{
    bool other = false;
    for (int i = 0; i < n_target_child(s); i++) {
        const struct gr_child *k = &s->children.child[i];
        other = other || (i != child && (k->pid != 0 || k->restart_ns != 0));
    }
    return other;
}

/* ---- wiring: hub <-> desk <-> machine ---- */

static void deliver(void *ctx, uint32_t client, const struct gr_msg *m)
{
    struct serve *s = ctx;
    if (gr_serve_http_has(&s->http, client)) {
        gr_serve_http_on_msg(&s->http, client, m, gr_clock_ns());
    } else {
        gr_hub_send_client(s->hub, client, m);
    }
}

static void send_client(void *ctx, uint32_t client, const struct gr_msg *m)
{
    const struct serve *s = ctx;
    if (s->keeper != NULL) {
        gr_keeper_send(s->keeper, client, m);
    } else {
        deliver(ctx, client, m);
    }
}

/* What it was to be told is lost. */
static void on_words_lost(void *ctx, uint32_t client, const char *why)
{
    gr_desk_fail_client(((struct serve *)ctx)->desk, client, why);
}

/* A client of the control link shares KV with the others of it: a salt is what the server says. What tells an answer
 * again is the endpoint's. */
static enum gr_status on_client_msg(void *ctx, uint32_t client, const struct gr_msg *m, uint64_t now_ns)
{
    if (m->type == GR_MSG_OPEN && m->open.wishes.salt[0] != '\0') {
        log_error("client %u names a salt, which only the server does", client);
        return GR_EPROTO;
    }
    if (m->type == GR_MSG_OPEN && m->open.answer.n > 0) {
        log_error("client %u says what its answer is, which only the endpoint does", client);
        return GR_EPROTO;
    }
    return gr_desk_on_msg(((struct serve *)ctx)->desk, client, m, now_ns);
}

static void on_client_lost(void *ctx, uint32_t client, uint64_t now_ns)
{
    (void)now_ns;
    gr_desk_on_client_lost(((struct serve *)ctx)->desk, client);
}

static void on_report(void *ctx, uint64_t session, void *user, const struct gr_msg *m)
{
    struct serve *s = ctx;
    if (m->type == GR_MSG_COMMIT && m->commit.ids.n > 0 && n_target_child(s) > 0) {
        note_progress(s, session);
    }
    gr_desk_on_report(s->desk, session, user, m);
}

static void on_done(void *ctx, uint64_t session, void *user, enum gr_finish finish, const char *text)
{
    gr_desk_on_done(((struct serve *)ctx)->desk, session, user, finish, text);
}

static void on_closed(void *ctx, uint64_t session, void *user, const char *why)
{
    gr_desk_on_closed(((struct serve *)ctx)->desk, session, user, why);
}

static void on_placed(void *ctx, uint64_t session, void *user)
{
    gr_desk_on_placed(((struct serve *)ctx)->desk, session, user);
}

static void on_pong(void *ctx, uint32_t worker, uint64_t cookie, uint64_t rtt_ns, const struct gr_msg *pong)
{
    gr_desk_on_pong(((struct serve *)ctx)->desk, worker, cookie, rtt_ns, pong);
}

/* ---- ends ---- */

static void begin_drain(struct serve *s)
{
    s->draining = true;
    gr_joined_tell_end();
    gr_desk_drain(s->desk);
    const int n = gr_orch_n_turn(gr_hub_orch(s->hub));
    if (n > 0) {
        fprintf(stderr, "finishing %d turn%s; a second signal ends at once\n", n, n == 1 ? "" : "s");
    }
}

static void drain(struct serve *s)
{
    if (!s->draining) {
        begin_drain(s);
    }
}

/* The turns have a limit. A client's `graft stop' and a signal to the whole job say the same, and not that there is
 * haste. */
static void end_by(struct serve *s, enum teller who)
{
    if (s->told_by[who]) {
        s->at_once = true;
        return;
    }
    drain(s);
    if (!s->told_by[BY_SIGNAL] && !s->told_by[BY_CLIENT]) {
        s->drain_end_ns = gr_clock_ns() + (uint64_t)s->o.drain_timeout;
    }
    s->told_by[who] = true;
}

static void on_stop(void *ctx)
{
    end_by(ctx, BY_CLIENT);
}

/* How long the journal's disk is waited for at the end: as long as turns are, and a little longer where their time is
 * over. */
static uint64_t disk_end_ns(struct serve *s)
{
    const uint64_t now_ns = gr_clock_ns();
    if (s->disk_end_ns == 0) {
        const uint64_t end_ns = s->drain_end_ns != NEVER ? s->drain_end_ns : now_ns + (uint64_t)s->o.drain_timeout;
        s->disk_end_ns = s->at_once ? now_ns + DISK_LEAST_NS : GR_MAX(end_ns, now_ns + DISK_LEAST_NS);
    }
    return s->disk_end_ns;
}

/* What clients are told leaves. */
static void let_leave(struct serve *s)
{
    if (s->keeper != NULL) {
        s->failed = gr_keeper_flush(s->keeper, gr_clock_ns(), disk_end_ns(s)) != GR_OK || s->failed;
    }
    gr_hub_pump(s->hub, 0, -1);
}

/* Turns that run are over for their clients, who are told why; the status is 1. */
static void fail_all(struct serve *s, const char *why)
{
    log_error("%s", why);
    gr_desk_fail_turns(s->desk, why);
    let_leave(s);
    s->failed = true;
}

/* ---- start ---- */

/* Many hosts have their own name for loopback in /etc/hosts: who serves there by name means to be reached. */
static void warn_of_loopback(const struct serve *s)
{
    struct gr_address a;
    struct in6_addr unused;
    const bool parsed = gr_address_parse("--control", s->o.control, 0, &a) == GR_OK;
    const bool name = parsed && inet_pton(AF_INET, a.host, &unused) != 1 && inet_pton(AF_INET6, a.host, &unused) != 1;
    if (name && !gr_own_is_told() && strcmp(a.host, "localhost") != 0 && gr_reach_is_loopback(gr_hub_address(s->hub))) {
        log_warn(
            "--control %s: this host has %s for its name (/etc/hosts), where no other host reaches it; if others are "
            "to come, give its address, or `:%u' for all of them",
            s->o.control, gr_hub_address(s->hub), a.port);
    }
}

/* With --interface an address that nobody has named is that; the port stays. */
static const char *listens_at(const struct serve *s)
{
    const bool named = s->o.values.source[GR_OPTION_control] != GR_FROM_DEFAULT;
    return s->o.interface != NULL && !named ? gr_address_port_of(GR_SERVE_ADDRESS) : s->o.control;
}

/* Where numbers of workers begin: above all that orchestrators gave before. */
static uint64_t wall_clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * GR_S + (uint64_t)t.tv_nsec;
}

static enum gr_status open_door(struct serve *s, const uint8_t *key)
{
    struct gr_hub_config c = {.listen = listens_at(s),
                              .tells = true,
                              .io = {.ctx = s,
                                     .on_report = on_report,
                                     .on_done = on_done,
                                     .on_closed = on_closed,
                                     .on_placed = on_placed,
                                     .on_pong = on_pong},
                              .on_client_msg = on_client_msg,
                              .on_client_lost = on_client_lost};
    char cluster[GR_CLUSTER_BYTES];
    gr_cluster_use(s->o.cluster);
    gr_secrecy_use(s->o.control_encryption);
    GR_TRY(gr_cluster_name(true, cluster));
    c.cluster = cluster;
    c.secrecy = (uint32_t)s->o.control_encryption;
    memcpy(c.key, key, sizeof(c.key));
    GR_TRY(gr_hub_create(&c, &s->hub));
    warn_of_loopback(s);
    gr_orch_configure(gr_hub_orch(s->hub),
                      &(struct gr_orch_config){.session_ttl_ns = (uint64_t)s->o.session_ttl,
                                               .ping_interval_ns = GR_PING_INTERVAL_NS,
                                               .ping_timeout_ns = GR_PING_TIMEOUT_NS,
                                               .queue_timeout_ns = (uint64_t)s->o.queue_timeout,
                                               .quarantine = {.n_failure = (uint32_t)s->o.quarantine,
                                                              .window_ns = QUARANTINE_WINDOW,
                                                              .pause_min_ns = QUARANTINE_PAUSE_MIN,
                                                              .pause_max_ns = QUARANTINE_PAUSE_MAX},
                                               .first_number = wall_clock_ns(),
                                               .n_queue_max = (uint32_t)s->o.queue_max,
                                               .force_single_token = s->o.force_single_token,
                                               .disable_multi_token = s->o.disable_multi_token,
                                               .disable_specpv = s->o.disable_specpv,
                                               .require_same_numerics = s->o.require_same_numerics});
    struct gr_desk_io io = {.ctx = s, .send = send_client, .on_stop = on_stop};
    if (s->keeper != NULL) {
        io.keeper = gr_keeper_serve(s->keeper, gr_hub_orch(s->hub));
    }
    const struct gr_desk_clients clients = {
        .n = GR_DESK_CLIENTS, .look_begin = GR_CLIENT_TURN_MAX, .look_end = GR_CLIENT_MAX};
    GR_TRY(gr_desk_create(gr_hub_orch(s->hub), &clients, &io, &s->desk));
    if (s->keeper != NULL) {
        gr_keeper_restore(s->keeper, s->desk, gr_clock_ns());
    }
    return GR_OK;
}

static enum gr_status open_journal(struct serve *s)
{
    const struct gr_keeper_config c = {.path = s->o.journal,
                                       .over_ns = (uint64_t)s->o.journal_keep,
                                       .n_client = GR_DESK_CLIENTS,
                                       .ctx = s,
                                       .send = deliver,
                                       .lost = on_words_lost};
    return s->o.journal != NULL ? gr_keeper_create(&c, &s->keeper) : GR_OK;
}

static bool watch_fd(const struct serve *s, int fd)
{
    struct epoll_event e = {.events = EPOLLIN};
    return fd < 0 || epoll_ctl(s->poll_fd, EPOLL_CTL_ADD, fd, &e) == 0;
}

static enum gr_status watch_all(struct serve *s)
{
    s->poll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (s->poll_fd < 0 || !watch_fd(s, s->children.signal_fd) || !watch_fd(s, gr_serve_http_fd(&s->http)) ||
        !watch_fd(s, s->keeper != NULL ? gr_keeper_fd(s->keeper) : -1)) {
        log_error("no descriptor could be had for what the server waits for");
        return GR_ELIMIT;
    }
    return GR_OK;
}

/* A FIFO is written as soon as it has a reader. */
static enum gr_status write_ready_file(struct serve *s)
{
    struct gr_out_file o;
    if (s->o.ready_file == NULL) {
        return GR_OK;
    }
    const enum gr_status st = gr_out_file_try("--ready-file", s->o.ready_file, 0666, false, &o);
    s->ready_due = st == GR_AGAIN;
    if (st != GR_OK) {
        return s->ready_due ? GR_OK : st;
    }
    const bool whole = fprintf(o.f, "%s\n", gr_hub_reach(s->hub)) > 0;
    return gr_out_file_close(&o, whole, &s->ready);
}

static void tell_serving(const struct serve *s)
{
    const char *at = gr_hub_address(s->hub), *reach = gr_hub_reach(s->hub);
    const bool same = strcmp(at, reach) == 0;
    fprintf(stderr, "serving on %s%s%s\n", at, same ? "" : ", which others reach at ", same ? "" : reach);
}

/* Who is started here and who is expected (--expect): with all of them the endpoint is ready. */
static void tell_wanted(struct serve *s)
{
    const bool draft = s->o.spawn && !s->plan.colocated;
    const uint32_t n_target = s->o.spawn ? (uint32_t)s->plan.crew.target.n : 0;
    const uint32_t n_draft = draft ? (uint32_t)s->plan.crew.draft.n : 0;
    gr_serve_http_want(&s->http, GR_MAX(s->expect.n_target, n_target), GR_MAX(s->expect.n_draft, n_draft));
}

static enum gr_status start(struct serve *s)
{
    uint8_t key[GR_KEY_BYTES];
    char key_hex[2 * GR_KEY_BYTES + 1];
    GR_TRY(gr_expect_parse(s->o.expect, &s->expect));
    GR_TRY(s->o.spawn ? gr_plan_local(&s->o, &s->plan) : gr_plan_no_workers(&s->o));
    GR_TRY(s->o.spawn ? gr_plan_check_models(&s->o, &s->plan) : GR_OK);
    GR_TRY(gr_remote_key(&s->o, key));
    sodium_bin2hex(key_hex, sizeof(key_hex), key, sizeof(key));
    GR_TRY(gr_own_use(s->o.interface, false));
    gr_own_tell();
    gr_program_hear_drains();
    if (gr_serve_http_has_files(&s->o)) {
        gr_program_reload_by_hangup();
    }
    GR_TRY(gr_children_init(&s->children, key_hex)); /* a long journal takes time, and signals wait meanwhile */
    GR_TRY(open_journal(s));
    GR_TRY(open_door(s, key));
    GR_TRY(gr_serve_http_open(&s->http, &s->o, &s->models, gr_hub_orch(s->hub), s->desk, s->keeper));
    GR_TRY(watch_all(s));
    tell_wanted(s);
    if (s->o.spawn) {
        GR_TRY(gr_spawn_workers(&s->children, &s->o, &s->plan, gr_hub_address(s->hub), s->o.n_session));
    }
    tell_serving(s);
    s->expect_end_ns = s->o.expect != NULL ? gr_clock_ns() + (uint64_t)s->o.within : NEVER;
    GR_TRY(write_ready_file(s));
    gr_joined_tell(); /* to a supervisor: what ends it from now on is no error of its command line */
    return GR_OK;
}

/* ---- until a signal ---- */

/* The others go on without a target that ends again and again; what one says of its command line is true of all. */
static void give_up(struct serve *s, int child)
{
    const struct gr_child *k = &s->children.child[child];
    char text[320];
    if (k->why[0] != '\0' && has_other_target(s, child)) {
        log_error("%s; it is given up, and the other targets go on", k->why);
        return;
    }
    if (k->why[0] != '\0') {
        snprintf(text, sizeof(text), "%s", k->why);
    } else {
        snprintf(text, sizeof(text), "the %s ended with status %d; see its lines above", k->name, k->exit_status);
    }
    fail_all(s, text);
    s->bad_value = k->exit_status == GR_EXIT_USAGE;
}

static void watch_children(struct serve *s)
{
    note_idle(s);
    for (;;) {
        int index = -1;
        int signal_number = 0;
        const enum gr_child_event e = gr_children_poll(&s->children, &signal_number, &index);
        if (gr_program_reloaded_by(signal_number)) {
            gr_serve_http_reload(&s->http);
        } else if (gr_program_drained_by(signal_number)) {
            drain(s);
        } else if (signal_number != 0) {
            end_by(s, BY_SIGNAL);
        }
        if (e == GR_CHILD_NONE) {
            return;
        }
        if (e == GR_CHILD_GIVEN_UP) {
            give_up(s, index);
        }
    }
}

static void watch_expected(struct serve *s, uint64_t now_ns)
{
    char missing[96], text[192];
    if (s->expect_end_ns == NEVER) {
        return;
    }
    if (gr_expect_met(&s->expect, gr_hub_orch(s->hub), missing, sizeof(missing))) {
        s->expect_end_ns = NEVER;
    } else if (now_ns >= s->expect_end_ns) {
        snprintf(text, sizeof(text), "after %d s (--within) only %s had joined (--expect %s)",
                 (int)(s->o.within / (int64_t)GR_S), missing, s->o.expect);
        fail_all(s, text);
    }
}

static void watch_drain(struct serve *s, uint64_t now_ns)
{
    const int n = gr_orch_n_turn(gr_hub_orch(s->hub));
    char text[192];
    if (n == 0 || s->failed) {
        return;
    }
    if (s->at_once) {
        fail_all(s, "the orchestrator was told to end at once");
    } else if (now_ns >= s->drain_end_ns) {
        snprintf(text, sizeof(text), "the orchestrator ends; its turns are given up after %d s (--drain-timeout)%s",
                 (int)(s->o.drain_timeout / (int64_t)GR_S),
                 gr_orch_n_worker(gr_hub_orch(s->hub), GR_WORKER_TARGET) == 0 ? ": there is no target" : "");
        fail_all(s, text);
    }
}

static bool ends_when_idle(const struct serve *s)
{
    return s->o.values.source[GR_OPTION_exit_when_idle] != GR_FROM_DEFAULT;
}

static void watch_idle(struct serve *s, uint64_t now_ns)
{
    const bool in_turn = gr_orch_n_turn(gr_hub_orch(s->hub)) > 0;
    s->served = s->served || in_turn;
    if (!s->served || in_turn || gr_hub_n_client(s->hub) > 0) {
        s->idle_since_ns = 0;
        return;
    }
    s->idle_since_ns = s->idle_since_ns == 0 ? now_ns : s->idle_since_ns;
    if (ends_when_idle(s) && now_ns - s->idle_since_ns >= (uint64_t)s->o.exit_when_idle && !s->draining) {
        begin_drain(s);
    }
}

/* ms until the next of the times that end something; -1: none is set. */
static int next_end_ms(const struct serve *s, uint64_t now_ns)
{
    uint64_t at_ns = GR_MIN(s->expect_end_ns, s->drain_end_ns);
    if (ends_when_idle(s) && s->idle_since_ns != 0) {
        at_ns = GR_MIN(at_ns, s->idle_since_ns + (uint64_t)s->o.exit_when_idle);
    }
    return gr_clock_ms_until(at_ns, now_ns);
}

static void watch_times(struct serve *s)
{
    const uint64_t now_ns = gr_clock_ns();
    watch_expected(s, now_ns);
    watch_drain(s, now_ns);
    watch_idle(s, now_ns);
}

static void pump_until_ended(struct serve *s)
{
    while (!s->failed && !s->at_once && !(s->draining && gr_orch_n_turn(gr_hub_orch(s->hub)) == 0)) {
        const uint64_t now_ns = gr_clock_ns();
        int wait_ms = gr_clock_sooner_ms(gr_children_restart(&s->children, now_ns), next_end_ms(s, now_ns));
        if (s->ready_due) {
            s->failed = write_ready_file(s) != GR_OK;
            wait_ms = gr_clock_sooner_ms(wait_ms, READER_MS);
        }
        if (s->http.http != NULL) {
            wait_ms = gr_clock_sooner_ms(wait_ms, gr_clock_ms_until(s->http.due_ns, now_ns));
        }
        wait_ms = gr_clock_sooner_ms(wait_ms, gr_clock_ms_until(s->keeper_due_ns, now_ns));
        gr_hub_pump(s->hub, wait_ms, s->poll_fd);
        s->keeper_due_ns = s->keeper != NULL ? gr_keeper_run(s->keeper, gr_clock_ns()) : NEVER;
        gr_serve_http_run(&s->http, s->draining, gr_clock_ns());
        watch_children(s);
        watch_times(s);
    }
}

static void finish(struct serve *s)
{
    gr_out_place_remove(&s->ready);
    if (s->desk != NULL) {
        let_leave(s);
    }
    gr_serve_http_close(&s->http);
    gr_hub_end(s->hub, &s->children, !s->at_once, GRACE_MS);
    gr_desk_destroy(s->desk);
    s->failed = gr_keeper_destroy(s->keeper, disk_end_ns(s)) != GR_OK || s->failed;
    if (s->poll_fd >= 0) {
        close(s->poll_fd);
    }
}

int gr_command_serve(int argc, char **argv)
{
    struct serve s = {.poll_fd = -1, .keeper_due_ns = NEVER, .expect_end_ns = NEVER, .drain_end_ns = NEVER};
    struct gr_yaml_config *yaml = NULL;
    gr_options_default(&s.o, GR_CMD_SERVE);
    int status = gr_options_load(&s.o, argc, argv, &yaml);
    if (status < 0 && s.o.make_key != NULL) {
        status = gr_key_make_file(s.o.make_key) == GR_OK ? 0 : 1;
    }
    if (status < 0 && gr_serve_models_read(&s.o, &s.models) != GR_OK) {
        status = GR_EXIT_USAGE;
    }
    if (status < 0 && s.o.supervise && !gr_supervise_is_child()) {
        status = gr_supervise_run(
            &(struct gr_supervised){
                .program = "graft", .verb = "serve", .name = "orchestrator", .rereads = gr_serve_http_has_files(&s.o)},
            argc, argv);
    }
    if (status < 0) {
        gr_supervise_forget();
        gr_joined_inherit();
        gr_log_place();
        const enum gr_status st = start(&s);
        if (st == GR_OK) {
            pump_until_ended(&s);
        }
        finish(&s);
        status = st != GR_OK ? gr_program_refused(st) : s.bad_value ? GR_EXIT_USAGE : s.failed ? 1 : 0;
    }
    gr_yaml_config_destroy(yaml);
    return status;
}
