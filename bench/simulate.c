/* graft-bench simulate: the real state machines of a whole fleet on a virtual clock (bench/simulate/fleet.h), with
 * costs that were measured (bench/costs_file.h). It tells what a number of workers would make of a number of sessions,
 * and what would limit them first. */
#include "bench/bench.h"
#include "bench/costs_file.h"
#include "bench/paths.h"
#include "bench/texts_file.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/process/program.h"
#include "bench/simulate/fleet.h"
#include "bench/simulate/orch_cost.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_FLEET_MAX 16
#define N_MODE 2

struct size {
    int n_target, n_draft;
};

struct bench {
    struct gr_bench_options o;
    struct gr_costs_file file;
    struct size fleet[N_FLEET_MAX];
    int n_fleet;
};

/* A run, and how long the simulation of it took. */
struct run {
    struct size size;
    int n_session;
    bool trees;
    struct gr_fleet_result r;
    double wall_s;
};

/* ---- running ---- */

static struct gr_fleet_config config_of(const struct bench *b, const struct run *run)
{
    const struct gr_bench_options *o = &b->o;
    return (struct gr_fleet_config){
        .costs = &b->file.costs,
        .seed = (uint64_t)o->simulate_seed,
        .n_target = run->size.n_target,
        .n_draft = run->trees ? run->size.n_draft : 0,
        .n_slot = (int)o->slots,
        .shared = o->one_device,
        .ahead = o->ahead == 0 ? !o->one_device : o->ahead == 1,
        .n_node = !run->trees          ? -1
                  : o->tree == GR_AUTO ? 0
                                       : (int)o->tree,
        .n_session = run->n_session,
        .n_prompt = (int)o->simulate_prompt,
        .n_new = (int)o->simulate_max_tokens,
        .n_warm = (int)o->warm_groups,
        .n_group = (int)o->groups,
        .run_ns = (uint64_t)(1e9 * o->seconds),
        .warm_ns = (uint64_t)(0.25e9 * o->seconds),
        .mean_life_s = o->mean_life,
        .restart_ns = 5 * GR_S,
        .notice_ns = GR_MS,
    };
}

static enum gr_status run_one(const struct bench *b, struct run *run)
{
    const struct gr_fleet_config config = config_of(b, run);
    const uint64_t begin_ns = gr_clock_ns();
    struct gr_fleet *f = NULL;
    enum gr_status st = gr_fleet_create(&config, &f);
    if (st == GR_OK) {
        st = gr_fleet_run(f, &run->r);
    }
    gr_fleet_destroy(f);
    run->wall_s = 1e-9 * (double)(gr_clock_ns() - begin_ns);
    return st;
}

/* ---- the table ---- */

static const char *const columns[] = {"targets",
                                      "drafters",
                                      "sessions",
                                      "mode",
                                      "tok/s",
                                      "x plain",
                                      "decode tok/s",
                                      "mean acceptance length",
                                      "tokens per round",
                                      "sessions/pass",
                                      "rows/pass",
                                      "targets busy %",
                                      "drafters busy %",
                                      "links busy %",
                                      "orchestrator busy %",
                                      "its wait us",
                                      "limit",
                                      "ns/message",
                                      "ns/COMMIT",
                                      "us/placement",
                                      "losses",
                                      "failed",
                                      "simulated s",
                                      "wall s"};

#define LATE_NS 1e8 /* messages that wait for so long: the orchestrator does not keep up, while targets run on */

/* Which of them is busiest. */
static const char *limit_of(const struct run *run)
{
    const struct gr_fleet_result *r = &run->r;
    const struct {
        const char *name;
        double busy;
    } all[] = {{"targets", r->target_busy},
               {"drafters", run->trees ? r->draft_busy : 0.0},
               {"links", r->link_busy_most},
               {"orchestrator", r->orch_busy}};
    size_t best = 0;
    if (r->mean_wait_ns > LATE_NS) {
        return "orchestrator";
    }
    for (size_t i = 1; i < GR_ARRAY_LEN(all); i++) {
        best = all[i].busy > all[best].busy ? i : best;
    }
    return all[best].name;
}

static void print_row(struct gr_table *t, const struct run *run, double plain)
{
    const struct gr_fleet_result *r = &run->r;
    const struct gr_fleet_real *real = &r->real;
    const double speed = gr_ratio((double)r->n_token, r->seconds);
    gr_table_number(t, run->size.n_target, 0);
    gr_table_number(t, run->size.n_draft, 0);
    gr_table_number(t, run->n_session, 0);
    gr_table_text(t, run->trees ? "trees" : "plain");
    gr_table_number(t, speed, 0);
    gr_table_number(t, gr_ratio(speed, plain), 2);
    gr_table_number(t, gr_ratio((double)r->all_token, r->all_seconds), 0);
    gr_table_number(t, r->n_draft > 0 ? 1.0 + (double)r->n_accepted / (double)r->n_draft : 1.0, 2);
    gr_table_number(t, 1.0 + gr_ratio((double)r->n_accepted, (double)r->n_round), 2);
    gr_table_number(t, gr_ratio((double)r->n_pass_seq, (double)r->n_pass), 1);
    gr_table_number(t, gr_ratio((double)r->n_pass_row, (double)r->n_pass), 1);
    gr_table_number(t, 100.0 * r->target_busy, 1);
    gr_table_number(t, 100.0 * r->draft_busy, 1);
    gr_table_number(t, 100.0 * r->link_busy, 2);
    gr_table_number(t, 100.0 * r->orch_busy, 1);
    gr_table_number(t, 1e-3 * r->mean_wait_ns, 1);
    gr_table_text(t, limit_of(run));
    gr_table_number(t, gr_ratio(real->message_ns, (double)real->n_message), 0);
    gr_table_number(t, gr_ratio(real->message_ns + real->step_ns, (double)real->n_commit), 0);
    gr_table_number(t, 1e-3 * gr_ratio(real->place_ns, (double)real->n_place), 2);
    gr_table_number(t, (double)r->n_loss, 0);
    gr_table_number(t, (double)r->n_failed, 0);
    gr_table_number(t, r->virtual_seconds, 2);
    gr_table_number(t, run->wall_s, 1);
}

/* Plain decoding first, if it is asked for: trees are compared with it. */
static enum gr_status run_size(const struct bench *b, struct gr_table *t, struct size size, int n_session)
{
    double plain = 0.0;
    for (int trees = 0; trees < N_MODE; trees++) {
        bool wanted = false;
        for (int i = 0; i < b->o.decoding.n; i++) {
            wanted = wanted || b->o.decoding.value[i] == (trees ? GR_BENCH_TREES : GR_BENCH_PLAIN);
        }
        if (!wanted || (trees && size.n_draft == 0)) {
            continue;
        }
        struct run run = {.size = size, .n_session = n_session, .trees = trees != 0};
        GR_TRY(run_one(b, &run));
        plain = trees ? plain : gr_ratio((double)run.r.n_token, run.r.seconds);
        print_row(t, &run, plain);
        fflush(stdout);
    }
    return GR_OK;
}

static enum gr_status run_all(const struct bench *b)
{
    struct gr_table t;
    char note[768];
    snprintf(
        note, sizeof(note),
        "%s; simulated: %s%s%d prompt tokens and %d new ones a session, seed %d; busy: share of the time, the mean of "
        "all; "
        "its wait: of a message for the orchestrator; ns/message, ns/COMMIT (messages and looks around), us/placement: "
        "CPU time that its machine took on the computer that simulated",
        b->file.about, b->o.one_device ? "both models by turns on one device, " : "",
        b->o.free_orchestrator ? "an orchestrator that takes no time, " : "", (int)b->o.simulate_prompt,
        (int)b->o.simulate_max_tokens, (int)b->o.simulate_seed);
    gr_table_begin(&t, gr_bench_format(&b->o), stdout, "simulate", note, columns, (int)GR_ARRAY_LEN(columns));
    for (int i = 0; i < b->n_fleet; i++) {
        for (int k = 0; k < b->o.simulate_sessions.n; k++) {
            GR_TRY(run_size(b, &t, b->fleet[i], (int)b->o.simulate_sessions.value[k]));
        }
    }
    gr_table_end(&t);
    return GR_OK;
}

/* ---- the orchestrator alone ---- */

#define N_ROUND 101

static enum gr_status measure_orchestrator(const struct bench *b)
{
    static const char *const names[] = {"targets", "sessions", "ns/COMMIT", "ns/round"};
    struct gr_table t;
    gr_table_begin(
        &t, gr_bench_format(&b->o), stdout, "simulate",
        "the orchestrator's machine alone, fed with COMMITs of one token: CPU time of a session and round, medians of "
        "101 rounds; ns/COMMIT: it looks around once a round; ns/round: after each target's batch, as a server does",
        names, (int)GR_ARRAY_LEN(names));
    for (int i = 0; i < b->n_fleet; i++) {
        for (int k = 0; k < b->o.simulate_sessions.n; k++) {
            const int n_target = b->fleet[i].n_target;
            const int n_session = (int)b->o.simulate_sessions.value[k];
            struct gr_orch_cost c;
            GR_TRY(gr_orch_cost_measure(n_target, n_session, N_ROUND, &c));
            gr_table_number(&t, n_target, 0);
            gr_table_number(&t, n_session, 0);
            gr_table_number(&t, c.commit_ns, 0);
            gr_table_number(&t, c.round_ns, 0);
        }
    }
    gr_table_end(&t);
    return GR_OK;
}

/* ---- options ---- */

/* T+D,T+D,... */
static enum gr_status read_fleets(struct bench *b, const char *text)
{
    while (b->n_fleet < N_FLEET_MAX) {
        struct size *s = &b->fleet[b->n_fleet];
        int n = 0;
        if (sscanf(text, "%4d+%4d%n", &s->n_target, &s->n_draft, &n) != 2 || s->n_target < 1 || s->n_draft < 0 ||
            (text[n] != '\0' && text[n] != ',')) {
            break;
        }
        b->n_fleet++;
        if (text[n] == '\0') {
            return GR_OK;
        }
        text += n + 1;
    }
    log_error("--fleets: at most %d sizes TARGETS+DRAFTERS with commas between them, as 1+1,3+1; not at `%s'",
              N_FLEET_MAX, text);
    return GR_EINVAL;
}

int gr_bench_simulate(int argc, char **argv)
{
    static struct bench b;
    const int status = gr_bench_options_read(&b.o, GR_BENCH_SIMULATE, argc, argv);
    if (status >= 0) {
        return status;
    }
    enum gr_status st = read_fleets(&b, b.o.fleets);
    if (st == GR_OK && b.o.orchestrator) {
        st = measure_orchestrator(&b);
        return st == GR_OK ? 0 : gr_program_refused(st);
    }
    if (st == GR_OK) {
        st = gr_costs_file_load(gr_bench_path_of(&b.o, GR_BENCH_OPTION_costs), &b.file);
    }
    if (b.o.free_orchestrator) {
        b.file.costs.orch = (struct gr_orch_costs){0};
    }
    if (st == GR_OK && b.o.texts != NULL) {
        st = gr_texts_file_load(gr_bench_path_of(&b.o, GR_BENCH_OPTION_texts), &b.file.costs.texts);
    }
    if (st == GR_OK) {
        st = run_all(&b);
    }
    free(b.file.costs.texts.row);
    return st == GR_OK ? 0 : gr_program_refused(st);
}
