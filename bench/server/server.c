/* graft-bench server: a real `graft serve', whose workers and clients are this process. No model runs, so that one
 * machine has 64 workers, 512 clients and 4,096 sessions, and what is measured is the CPU time of the server alone.
 *
 * A row: workers join, clients come, all sessions are opened, and every session gets a token a round, the targets'
 * rounds spread evenly over the time. Then those that only look come as well, as many as there is room for, and real
 * `graft ping' and `graft worker list' beside them, while all sessions go on; at last every text ends. Each token of
 * each session is checked. */
#include "bench/bench.h"
#include "bench/server/stub_clients.h"
#include "bench/server/stub_targets.h"
#include "bench/sweep/crew.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/process/child_args.h"
#include "common/process/program.h"
#include "orchestrator/server/hub.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define SETTLE_NS (50 * GR_MS)
#define PATIENCE_NS (120 * GR_S) /* for anything that is waited for */
#define N_LOOKER (GR_CLIENT_MAX - GR_CLIENT_TURN_MAX)
#define LOOKER_INCARNATION 10000 /* past those of clients */
#define N_LOOK 4                 /* that each asks for, one after the other */

struct point {
    const struct gr_bench_options *o; /* borrowed */
    struct gr_crew crew;
    char address[GR_CREW_ADDRESS_MAX], graft[PATH_MAX];
    uint8_t key[GR_KEY_BYTES];
    int server;
    struct gr_bus bus;
    struct gr_stub_targets targets;
    struct gr_stub_clients clients;
    struct gr_stub_looker looker[N_LOOKER + 1];
    int n_looker;
    uint64_t round_ns; /* from a session's token to the next */
    /* of the rounds that go on */
    uint64_t begin_ns, i_round;
};

struct row {
    int n_target, n_client, n_session;
    double open_us;                   /* CPU time of the server for an opening */
    double commit_us, rate;           /* for a COMMIT; COMMITs a second */
    double ping_ms, list_ms, tool_ms; /* the longest answers: to a PING, to a LIST, of a real client that lists */
    int n_listed, n_over;
};

/* ---- the server ---- */

static enum gr_status tell(enum gr_status st, const char *why)
{
    if (st != GR_OK && why[0] != '\0') {
        log_error("%s", why);
    }
    return st;
}

static enum gr_status start_server(struct point *p)
{
    char why[GR_CREW_WHY_MAX] = "";
    return tell(gr_crew_serve(&p->crew, "server", NULL, &p->server, p->address, why), why);
}

/* CPU time of the server so far, ns, when it has done what there is to do: of a process that runs the clock shows the
 * last tick. */
static enum gr_status settle(struct point *p, double *out)
{
    const uint64_t end_ns = gr_clock_ns() + SETTLE_NS;
    const pid_t pid = p->crew.member[p->server].pid;
    struct timespec t;
    clockid_t clock = 0;
    while (gr_clock_ns() < end_ns) {
        GR_TRY(gr_bus_pump(&p->bus, GR_MS));
    }
    if (clock_getcpuclockid(pid, &clock) != 0 || clock_gettime(clock, &t) != 0) {
        log_error("the server's CPU time is not told: has it ended?");
        return GR_EIO;
    }
    *out = 1e9 * (double)t.tv_sec + (double)t.tv_nsec;
    return GR_OK;
}

/* ---- rounds ---- */

static void begin_rounds(struct point *p)
{
    p->begin_ns = gr_clock_ns();
    p->i_round = 0;
}

static uint64_t due_ns(const struct point *p)
{
    return p->begin_ns + p->i_round * p->round_ns / (uint64_t)p->targets.n_target;
}

/* The targets' rounds that are due, and what comes until the next one. */
static enum gr_status run_once(struct point *p)
{
    uint64_t now_ns = gr_clock_ns();
    for (int i = 0; i < p->targets.n_target && due_ns(p) <= now_ns; i++) {
        const int target = (int)(p->i_round++ % (uint64_t)p->targets.n_target);
        GR_TRY(gr_stub_targets_round(&p->targets, target, false));
        GR_TRY(gr_bus_pump(&p->bus, 0));
        now_ns = gr_clock_ns();
    }
    return gr_bus_pump(&p->bus, due_ns(p) > now_ns ? due_ns(p) - now_ns : 0);
}

/* Is what was waited for there? */
typedef bool is_there(const struct point *p);

static enum gr_status wait_for(struct point *p, is_there *there, const char *what)
{
    const uint64_t end_ns = gr_clock_ns() + PATIENCE_NS;
    while (!there(p)) {
        if (gr_clock_ns() > end_ns) {
            log_error("after %d s the server has not %s", (int)(PATIENCE_NS / GR_S), what);
            return GR_ETIMEDOUT;
        }
        GR_TRY(gr_bus_pump(&p->bus, 10 * GR_MS));
    }
    return GR_OK;
}

static bool are_opened(const struct point *p)
{
    return p->clients.n_opened == p->clients.n_session && p->targets.n_open == p->clients.n_session;
}

static bool are_heard(const struct point *p)
{
    return p->clients.n_token == p->targets.n_sent;
}

static bool are_over(const struct point *p)
{
    return p->clients.n_over == p->clients.n_session && p->targets.n_open == 0;
}

static bool are_answered(const struct point *p)
{
    bool all = true;
    for (int i = 0; i < p->n_looker; i++) {
        all = all && p->looker[i].asked_ns == 0;
    }
    return all;
}

/* ---- those that look ---- */

static enum gr_status add_looker(struct point *p)
{
    struct gr_stub_looker *l = &p->looker[p->n_looker];
    GR_TRY(gr_stub_looker_begin(l, &p->bus, LOOKER_INCARNATION + (uint64_t)p->n_looker));
    p->n_looker++;
    return run_once(p);
}

/* Has every target joined? JOIN is not answered, but who has is listed. */
static enum gr_status await_targets(struct point *p)
{
    const uint64_t end_ns = gr_clock_ns() + PATIENCE_NS;
    GR_TRY(gr_stub_looker_begin(&p->looker[0], &p->bus, LOOKER_INCARNATION - 1));
    p->n_looker = 1;
    while (p->looker[0].n_worker < (uint32_t)p->targets.n_target) {
        GR_TRY(gr_stub_looker_ask(&p->looker[0], &p->bus, &(struct gr_msg){.type = GR_MSG_LIST}));
        GR_TRY(wait_for(p, are_answered, "listed its workers"));
        if (gr_clock_ns() > end_ns) {
            log_error("only %u of %d targets have joined", p->looker[0].n_worker, p->targets.n_target);
            return GR_ETIMEDOUT;
        }
    }
    gr_bus_leave(&p->bus, p->looker[0].end);
    p->n_looker = 0;
    return GR_OK;
}

/* All ask at once, and rounds go on meanwhile. */
static enum gr_status ask_all(struct point *p, enum gr_msg_type type)
{
    const uint64_t end_ns = gr_clock_ns() + PATIENCE_NS;
    for (int i = 0; i < p->n_looker; i++) {
        GR_TRY(gr_stub_looker_ask(&p->looker[i], &p->bus, &(struct gr_msg){.type = type}));
    }
    while (!are_answered(p)) {
        if (gr_clock_ns() > end_ns) {
            log_error("after %d s the server has not answered %s", (int)(PATIENCE_NS / GR_S), gr_msg_name(type));
            return GR_ETIMEDOUT;
        }
        GR_TRY(run_once(p));
    }
    return GR_OK;
}

/* With all clients there the one that comes next is told that there is no room, and those that may only look are
 * refused turns. */
static enum gr_status check_full(struct point *p)
{
    int32_t prompt[GR_STUB_PROMPT], segments[2];
    const struct gr_msg open = gr_stub_open(prompt, segments);
    struct gr_stub_looker *extra = &p->looker[p->n_looker];
    GR_TRY(gr_stub_looker_begin(extra, &p->bus, LOOKER_INCARNATION + N_LOOKER));
    p->bus.end[extra->end].may_close = true;
    while (p->bus.end[extra->end].control != NULL) {
        GR_TRY(run_once(p));
    }
    GR_TRY(gr_stub_looker_ask(&p->looker[0], &p->bus, &open));
    while (!are_answered(p)) {
        GR_TRY(run_once(p));
    }
    if (strstr(extra->error, "no more room") == NULL || strstr(p->looker[0].error, "may have turns") == NULL) {
        log_error("a client too many was told `%s', and one that may only look `%s'", extra->error, p->looker[0].error);
        return GR_EPROTO;
    }
    return GR_OK;
}

/* `graft WORDS --connect ADDRESS'; how long it took. */
static enum gr_status run_tool(struct point *p, const char *name, const char *const *words, double *ms_out)
{
    static struct gr_child_args a;
    char why[GR_CREW_WHY_MAX] = "";
    int index = 0;
    const uint64_t begin_ns = gr_clock_ns();
    enum gr_status st = GR_ETIMEDOUT;
    gr_child_args_begin(&a, p->graft);
    for (; *words != NULL; words++) {
        gr_child_args_add_flag(&a, *words, true);
    }
    gr_child_args_add(&a, "--connect", p->address);
    GR_TRY(gr_crew_start(&p->crew, name, a.argv, NULL, true, &index));
    while (st == GR_ETIMEDOUT && gr_clock_ns() < begin_ns + PATIENCE_NS) {
        GR_TRY(run_once(p));
        st = gr_crew_wait(&p->crew, index, 0, why);
    }
    *ms_out = GR_MAX(*ms_out, 1e-6 * (double)(gr_clock_ns() - begin_ns));
    return tell(st, why);
}

static enum gr_status look(struct point *p, struct row *r)
{
    static const char *const ping[] = {"ping", NULL}, *const list[] = {"worker", "list", NULL};
    begin_rounds(p);
    while (p->n_looker < N_LOOKER) {
        GR_TRY(add_looker(p));
    }
    if (p->clients.n_client == GR_CLIENT_TURN_MAX) {
        GR_TRY(check_full(p));
    }
    for (int i = 0; i < N_LOOK; i++) {
        GR_TRY(ask_all(p, i % 2 == 0 ? GR_MSG_PING : GR_MSG_LIST));
    }
    for (int i = 0; i < p->n_looker; i++) {
        r->ping_ms = GR_MAX(r->ping_ms, 1e-6 * (double)p->looker[i].ping_ns);
        r->list_ms = GR_MAX(r->list_ms, 1e-6 * (double)p->looker[i].list_ns);
        r->n_listed = (int)p->looker[i].n_session;
    }
    gr_bus_leave(&p->bus, p->looker[--p->n_looker].end); /* a real one takes its place */
    GR_TRY(run_tool(p, "ping", ping, &r->tool_ms));
    return run_tool(p, "list", list, &r->tool_ms);
}

/* ---- a row ---- */

static enum gr_status measure_opening(struct point *p, struct row *r)
{
    double before = 0.0, after = 0.0;
    GR_TRY(settle(p, &before));
    GR_TRY(gr_stub_clients_open(&p->clients));
    GR_TRY(wait_for(p, are_opened, "opened all sessions"));
    GR_TRY(settle(p, &after));
    r->open_us = 1e-3 * (after - before) / r->n_session;
    return GR_OK;
}

static enum gr_status measure_rounds(struct point *p, struct row *r)
{
    double before = 0.0, after = 0.0;
    GR_TRY(settle(p, &before));
    const uint64_t n_before = p->clients.n_token;
    begin_rounds(p);
    while (gr_clock_ns() < p->begin_ns + (uint64_t)(1e9 * p->o->server_seconds)) {
        GR_TRY(run_once(p));
    }
    GR_TRY(wait_for(p, are_heard, "told all tokens"));
    const uint64_t end_ns = gr_clock_ns();
    GR_TRY(settle(p, &after));
    const double n = (double)(p->clients.n_token - n_before);
    r->commit_us = 1e-3 * (after - before) / n;
    r->rate = 1e9 * n / (double)(end_ns - p->begin_ns);
    return GR_OK;
}

static enum gr_status end_all(struct point *p, struct row *r)
{
    for (int i = 0; i < p->targets.n_target; i++) {
        GR_TRY(gr_stub_targets_round(&p->targets, i, true));
    }
    GR_TRY(wait_for(p, are_over, "ended all sessions"));
    r->n_over = p->clients.n_over;
    return GR_OK;
}

static enum gr_status measure(struct point *p, struct row *r)
{
    p->bus = (struct gr_bus){.address = p->address, .key = p->key};
    p->round_ns = (uint64_t)(1e9 * r->n_session / p->o->server_rate);
    GR_TRY(start_server(p));
    GR_TRY(gr_stub_targets_begin(&p->targets, &p->bus, r->n_target, (r->n_session + r->n_target - 1) / r->n_target));
    GR_TRY(await_targets(p));
    GR_TRY(gr_stub_clients_begin(&p->clients, &p->bus, r->n_client, r->n_session));
    GR_TRY(measure_opening(p, r));
    GR_TRY(measure_rounds(p, r));
    GR_TRY(look(p, r));
    return end_all(p, r);
}

static enum gr_status make_point(struct point *p, const struct gr_bench_options *o, char dir[PATH_MAX - 64])
{
    char hex[2 * GR_KEY_BYTES + 1];
    const char *tmp = getenv("TMPDIR");
    *p = (struct point){.o = o, .server = -1};
    snprintf(p->graft, sizeof(p->graft), "%s", gr_program_sibling("graft"));
    snprintf(dir, PATH_MAX - 64, "%s/graft-server-XXXXXX", tmp != NULL && tmp[0] != '\0' ? tmp : "/tmp");
    if (mkdtemp(dir) == NULL) {
        log_error("%s: %s", dir, strerror(errno));
        return GR_EIO;
    }
    GR_TRY(gr_key_random(p->key, hex));
    gr_crew_begin(&p->crew, dir, hex);
    return GR_OK;
}

static void remove_dir(const char *dir)
{
    static const char *const names[] = {"ready", "server.log", "ping.log", "ping.out", "list.log", "list.out"};
    char path[PATH_MAX];
    for (size_t i = 0; i < GR_ARRAY_LEN(names); i++) {
        snprintf(path, sizeof(path), "%s/%s", dir, names[i]);
        (void)unlink(path);
    }
    (void)rmdir(dir);
}

static enum gr_status run_row(const struct gr_bench_options *o, struct row *r)
{
    static struct point p;
    char dir[PATH_MAX - 64];
    enum gr_status st = make_point(&p, o, dir);
    if (st == GR_OK) {
        st = measure(&p, r);
        gr_bus_close(&p.bus);
        gr_stub_targets_end(&p.targets);
        gr_stub_clients_end(&p.clients);
        gr_crew_end(&p.crew);
    }
    remove_dir(dir);
    return st;
}

/* ---- the table ---- */

static const char *const columns[] = {"targets", "clients", "sessions",  "us/opening", "COMMITs/s", "us/COMMIT",
                                      "ping ms", "list ms", "client ms", "listed",     "answered"};

static void print_row(struct gr_table *t, const struct row *r)
{
    gr_table_number(t, r->n_target, 0);
    gr_table_number(t, r->n_client, 0);
    gr_table_number(t, r->n_session, 0);
    gr_table_number(t, r->open_us, 1);
    gr_table_number(t, r->rate, 0);
    gr_table_number(t, r->commit_us, 2);
    gr_table_number(t, r->ping_ms, 1);
    gr_table_number(t, r->list_ms, 1);
    gr_table_number(t, r->tool_ms, 1);
    gr_table_number(t, r->n_listed, 0);
    gr_table_number(t, r->n_over, 0);
    fflush(stdout);
}

static enum gr_status run_all(const struct gr_bench_options *o)
{
    struct gr_table t;
    gr_table_begin(
        &t, gr_bench_format(o), stdout, "server",
        "a real server; its workers and clients have no model and are one process: CPU time of the server for "
        "an opening and for a COMMIT (one token); the longest answers to PING and LIST of those that only "
        "look, and of a real `graft ping' or `graft worker list', while all sessions go on; sessions that "
        "were listed, and that got every token and their end",
        columns, (int)GR_ARRAY_LEN(columns));
    for (int i = 0; i < o->server_targets.n; i++) {
        for (int k = 0; k < o->server_sessions.n; k++) {
            const int n_session = (int)o->server_sessions.value[k];
            struct row r = {.n_target = (int)o->server_targets.value[i],
                            .n_client = GR_MIN((int)o->server_clients, n_session),
                            .n_session = n_session};
            GR_TRY(run_row(o, &r));
            print_row(&t, &r);
        }
    }
    gr_table_end(&t);
    return GR_OK;
}

int gr_bench_server(int argc, char **argv)
{
    static struct gr_bench_options o;
    const int status = gr_bench_options_read(&o, GR_BENCH_SERVER, argc, argv);
    if (status >= 0) {
        return status;
    }
    const enum gr_status st = run_all(&o);
    return st == GR_OK ? 0 : gr_program_refused(st);
}
