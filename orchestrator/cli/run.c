/* `graft run`: one turn from prompt to text. With workers of its own it starts the target and the draft worker as child
 * processes (or both in one, for --transport loop), streams, and cleans up whatever happens; with --connect it asks a
 * running orchestrator (connect.h). */
#include "common/process/children.h"
#include "common/process/program.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "orchestrator/cli/commands.h"
#include "orchestrator/cli/connect.h"
#include "orchestrator/cli/generate.h"
#include "orchestrator/server/hub.h"
#include "orchestrator/cli/report.h"
#include "orchestrator/cli/spawn.h"
#include "orchestrator/cli/yaml_config.h"

#include <inttypes.h>

#define DRAFTER_START_NS (60 * GR_S) /* a drafter that is not here so long after the start is not waited for */
#define STOP_MS 2000                 /* children that have not ended so long after they were told to are killed */

struct run {
    struct gr_options o;
    struct gr_plan plan;
    struct gr_generation g;
    struct gr_hub *hub;
    struct gr_children children;
    int target_child, draft_child; /* -1: none */
    bool target_joined, draft_joined, draft_failed;
    uint64_t session, start_ns;
};

/* ---- what the generation asks for ---- */

static enum gr_status engine_submit(void *ctx, const struct gr_session_request *request)
{
    struct run *r = ctx;
    return gr_orch_submit(gr_hub_orch(r->hub), request, gr_clock_ns(), &r->session);
}

static void engine_stop(void *ctx, uint32_t n_keep)
{
    struct run *r = ctx;
    enum gr_status st = gr_orch_stop(gr_hub_orch(r->hub), r->session, 0, n_keep, GR_FINISH_STOP);
    (void)st; /* the session has one turn, and is gone with it */
}

static void on_report(void *ctx, uint64_t session, void *user, const struct gr_msg *m)
{
    struct run *r = ctx;
    (void)session;
    (void)user;
    if (m->type == GR_MSG_COMMIT && m->commit.ids.n > 0) {
        gr_children_progress(&r->children, r->target_child);
    }
    gr_generation_take(&r->g, m);
}

static void on_done(void *ctx, uint64_t session, void *user, enum gr_finish finish, const char *text)
{
    struct run *r = ctx;
    struct gr_session_info info = {0};
    (void)user;
    (void)gr_orch_session_info(gr_hub_orch(r->hub), session, 0, &info);
    gr_generation_end(&r->g, finish, text, info.n_fallback, info.n_reopen);
}

static void on_join(void *ctx, const struct gr_msg *m)
{
    struct run *r = ctx;
    if (m->join.role == GR_ROLE_TARGET) {
        r->target_joined = true;
    } else {
        r->draft_joined = true;
    }
}

static void on_lost(void *ctx, enum gr_worker_role role)
{
    struct run *r = ctx;
    if (role == GR_WORKER_TARGET) {
        r->target_joined = false;
    } else {
        r->draft_joined = false;
    }
}

static void on_refused(void *ctx, const char *text)
{
    struct run *r = ctx;
    (void)text; /* logged by who refused */
    gr_generation_fail(&r->g, "");
}

/* ---- the session ---- */

static enum gr_status start_all(struct run *r)
{
    struct gr_hub_config c = {.listen = r->o.control,
                              .io = {.ctx = r, .on_report = on_report, .on_done = on_done},
                              .on_join = on_join,
                              .on_lost = on_lost,
                              .on_refused = on_refused};
    char key_hex[2 * GR_KEY_BYTES + 1];
    GR_TRY(gr_key_random(c.key, key_hex));
    GR_TRY(gr_hub_create(&c, &r->hub));
    gr_orch_configure(gr_hub_orch(r->hub),
                      &(struct gr_orch_config){.ping_interval_ns = GR_PING_INTERVAL_NS,
                                               .ping_timeout_ns = GR_PING_TIMEOUT_NS,
                                               .require_same_numerics = r->o.require_same_numerics});
    GR_TRY(gr_children_init(&r->children, key_hex));
    return gr_spawn_workers(&r->children, &r->o, &r->plan, gr_hub_address(r->hub), 1, &r->target_child,
                            &r->draft_child);
}

/* The session opens when both workers are there, or when the drafter will not come soon. */
static bool workers_ready(const struct run *r)
{
    const bool patience = gr_clock_ns() - r->start_ns < DRAFTER_START_NS;
    return r->target_joined && (!r->plan.wishes.want_draft || r->draft_joined || r->draft_failed || !patience);
}

/* --require-rdma: what cannot come any more is an error as soon as it is known. */
static void watch_rdma(struct run *r)
{
    struct gr_generation *g = &r->g;
    struct gr_session_info info = {0};
    if (g->phase == GR_PHASE_OVER || g->failed || g->interrupted != 0 || !gr_generation_lacks_rdma(g)) {
        return;
    }
    if (g->phase == GR_PHASE_START && workers_ready(r) && !r->draft_joined) {
        gr_generation_fail(g, "--require-rdma: there is no drafter; the line above says why");
    } else if (g->phase == GR_PHASE_TEXT && gr_orch_session_info(gr_hub_orch(r->hub), r->session, 0, &info) &&
               info.drafter_failed) {
        gr_generation_fail(g,
                           "--require-rdma: target and drafter cannot be connected by RDMA; the lines above say why");
    }
}

static void give_up(struct run *r, const struct gr_child *k)
{
    if (k->why[0] == '\0') { /* the worker's own line is on standard error already */
        snprintf(r->g.why, sizeof(r->g.why), "the %s worker ended with status %d; its lines on standard error say why",
                 k->name, k->exit_status);
    }
    r->g.bad_value = k->exit_status == GR_EXIT_USAGE;
    gr_generation_fail(&r->g, k->why);
}

static void watch_children(struct run *r)
{
    for (;;) {
        int index = -1;
        int signal_number = 0;
        const enum gr_child_event e = gr_children_poll(&r->children, &signal_number, &index);
        if (signal_number != 0 && r->g.interrupted == 0) {
            r->g.interrupted = signal_number;
            enum gr_status st = gr_orch_stop(gr_hub_orch(r->hub), r->session, 0, UINT32_MAX, GR_FINISH_ERROR);
            (void)st; /* there may be no session yet */
        }
        if (e == GR_CHILD_NONE) {
            return;
        }
        if (e == GR_CHILD_RESTARTED && index == r->draft_child) {
            r->draft_failed = true; /* goes on root-only; a restarted one is attached when it joins */
        }
        if (e == GR_CHILD_GIVEN_UP) {
            give_up(r, &r->children.child[index]);
        }
    }
}

static int nearer(int a_ms, int b_ms)
{
    return a_ms < 0 ? b_ms : b_ms < 0 ? a_ms : GR_MIN(a_ms, b_ms);
}

static void pump_until_over(struct run *r)
{
    struct gr_generation *g = &r->g;
    gr_generation_progress(g, r->plan.wishes.want_draft ? "loading the models" : "loading the model", 0, 0);
    while (g->phase != GR_PHASE_OVER && !g->failed && g->interrupted == 0) {
        const int restart_ms = gr_children_restart(&r->children, gr_clock_ns());
        gr_hub_pump(r->hub, nearer(restart_ms, g->phase == GR_PHASE_START ? 1000 : -1), r->children.signal_fd);
        watch_children(r);
        watch_rdma(r);
        if (g->phase == GR_PHASE_START && !g->failed && g->interrupted == 0 && workers_ready(r)) {
            gr_generation_begin(g);
        }
    }
}

static void stop_workers(struct run *r)
{
    gr_hub_end(r->hub, &r->children, r->target_joined && (r->draft_child < 0 || r->draft_joined), STOP_MS);
}

static int run_local(struct run *r)
{
    gr_generation_init(&r->g, &r->o);
    enum gr_status st = gr_plan_local(&r->o, &r->plan);
    if (st == GR_OK) {
        st = gr_generation_prepare(&r->g, &r->o, &r->plan);
    }
    if (st != GR_OK) {
        return gr_generation_refuse(&r->g, st);
    }
    r->g.engine = (struct gr_engine){.ctx = r, .submit = engine_submit, .stop = engine_stop};
    r->start_ns = gr_clock_ns();
    st = start_all(r);
    if (st == GR_OK) {
        pump_until_over(r);
    }
    stop_workers(r);
    r->g.failed = r->g.failed || st != GR_OK;
    const int status = gr_generation_report(&r->g);
    gr_generation_finish(&r->g);
    return status;
}

int gr_command_run(int argc, char **argv)
{
    struct run r = {.target_child = -1, .draft_child = -1};
    struct gr_yaml_config *yaml = NULL;
    gr_options_default(&r.o, GR_CMD_RUN);
    int status = gr_options_load(&r.o, argc, argv, &yaml);
    if (status < 0 && r.o.connect == NULL && (r.o.session != 0 || r.o.keep)) {
        log_error("--session and --keep need --connect HOST:PORT: sessions live in a running orchestrator");
        status = gr_report_failure(&r.o, 2);
    }
    if (status < 0) {
        status = r.o.connect != NULL ? gr_connect_run(&r.o) : run_local(&r);
    }
    gr_yaml_config_destroy(yaml);
    return status;
}
