/* graft-bench gates: holds results against a file of gates (gates_file.h), stored ones (--results) or measured now:
 * --micro runs the short commands, each several times in turn; the median of a cell counts. Only where all of their
 * gates are met does --then-full run the long ones, once. Exit status 1: a gate is missed, or its cell is not there.
 * --all runs the long ones whatever the short ones say, for a whole picture; --only runs those that are named.
 * Results belong to a command by their file's name: NAME.json, NAME.2.json ... are runs of command NAME; --save writes
 * them so. */
#include "bench/bench.h"
#include "bench/gates_file.h"
#include "bench/graft_run.h"
#include "bench/paths.h"
#include "common/base/log.h"
#include "common/base/out_file.h"
#include "common/process/program.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

#define N_RUN_MAX GR_GATE_RUN_MAX

struct results {
    json_t *run[N_RUN_MAX]; /* owned: what the command printed */
    int n;
    bool failed; /* a run of it ended with an error */
};

enum outcome { MET, MISSED, NO_RESULT, NOT_MEASURED };

struct judged {
    enum outcome outcome;
    double median, low, high;
};

struct gates {
    struct gr_bench_options o;
    const char *path;
    bool chosen[GR_GATE_COMMAND_MAX];
    struct gr_gates_file file;
    struct results results[GR_GATE_COMMAND_MAX];
};

/* ---- stored results ---- */

/* The command of that name; -1: none. */
static int find_command(const struct gates *g, const char *name, size_t len)
{
    for (int i = 0; i < g->file.n_command; i++) {
        if (strlen(g->file.command[i].name) == len && strncmp(g->file.command[i].name, name, len) == 0) {
            return i;
        }
    }
    return -1;
}

/* Place of the command whose results a file holds, by its name up to the first dot. -1: none (logged). */
static int command_of(const struct gates *g, const char *path)
{
    const char *slash = strrchr(path, '/');
    const char *name = slash != NULL ? slash + 1 : path;
    const size_t len = strcspn(name, ".");
    const int i = find_command(g, name, len);
    if (i >= 0) {
        return i;
    }
    log_error("--results %s: %s has no command \"%.*s\"; the file is to be called as the command is", path, g->path,
              (int)len, name);
    return -1;
}

static enum gr_status add_run(struct results *r, const char *name, json_t *rows)
{
    if (r->n == N_RUN_MAX) {
        log_error("more than %d results of command %s", N_RUN_MAX, name);
        json_decref(rows);
        return GR_ELIMIT;
    }
    r->run[r->n++] = rows;
    return GR_OK;
}

/* Of what a benchmark printed: an object with its provenance, or the rows alone, as it was once. A reference of its
 * own; NULL: there are none. */
static json_t *rows_of(const json_t *printed)
{
    const json_t *rows = json_is_object(printed) ? json_object_get(printed, "rows") : printed;
    return json_is_array(rows) ? json_incref((json_t *)(uintptr_t)rows) : NULL;
}

static enum gr_status load_results(struct gates *g, const char *path)
{
    json_error_t error;
    if (access(path, R_OK) != 0) {
        log_error("--results %s: %s", path, strerror(errno));
        return GR_EIO;
    }
    const int command = command_of(g, path);
    if (command < 0) {
        return GR_EINVAL;
    }
    json_t *saved = json_load_file(path, 0, &error);
    json_t *rows = rows_of(saved);
    if (rows == NULL || json_array_size(rows) == 0) {
        log_error("--results %s: %s", path,
                  saved == NULL ? error.text : "no rows; what a benchmark prints with -o json is wanted");
        json_decref(rows);
        json_decref(saved);
        return GR_EFORMAT;
    }
    json_decref(saved);
    return add_run(&g->results[command], g->file.command[command].name, rows);
}

/* ---- measuring ---- */

static enum gr_status save(const struct gates *g, const struct gr_gate_command *c, int i_run, const json_t *rows)
{
    char path[PATH_MAX];
    const int n = i_run == 0 ? snprintf(path, sizeof(path), "%s/%s.json", g->o.save, c->name)
                             : snprintf(path, sizeof(path), "%s/%s.%d.json", g->o.save, c->name, i_run + 1);
    struct gr_out_file o;
    if (n >= (int)sizeof(path)) {
        log_error("--save: %s is too long", path);
        return GR_ELIMIT;
    }
    GR_TRY(gr_out_file_open("--save", path, 0666, false, &o));
    return gr_out_file_close(&o, json_dumpf(rows, o.f, JSON_INDENT(1)) == 0, NULL);
}

/* A command that fails is a result, too: its gates are not met. */
static enum gr_status run_command(struct gates *g, int i)
{
    const struct gr_gate_command *c = &g->file.command[i];
    struct results *r = &g->results[i];
    const char *argv[GR_GATE_ARG_MAX + 4] = {gr_program_sibling("graft-bench")};
    int n = 1;
    for (int k = 0; k < c->n_arg; k++) {
        argv[n++] = c->arg[k];
    }
    argv[n++] = "-o";
    argv[n++] = "json";
    fprintf(stderr, "# command %s, run %d\n", c->name, r->n + 1);
    json_t *printed = gr_bench_run_json(argv);
    json_t *rows = rows_of(printed);
    if (rows == NULL) {
        log_error("command %s %s", c->name,
                  printed == NULL ? "failed (its error is above)" : "printed JSON without rows");
        json_decref(printed);
        r->failed = true;
        return GR_OK;
    }
    const enum gr_status st = g->o.save != NULL ? save(g, c, r->n, printed) : GR_OK;
    json_decref(printed);
    GR_TRY(add_run(r, c->name, rows));
    return st;
}

/* Commands that are measured: those of --only; without it all. */
static enum gr_status choose_commands(struct gates *g)
{
    for (int i = 0; i < g->file.n_command; i++) {
        g->chosen[i] = g->o.only == NULL;
    }
    for (const char *at = g->o.only; at != NULL;) {
        const size_t len = strcspn(at, ",");
        const int i = find_command(g, at, len);
        if (i < 0) {
            log_error("--only: %s has no command \"%.*s\"", g->path, (int)len, at);
            return GR_EINVAL;
        }
        g->chosen[i] = true;
        at = at[len] == ',' ? at + len + 1 : NULL;
    }
    return GR_OK;
}

static enum gr_status run_commands(struct gates *g, bool micro, int n_repeat)
{
    for (int rep = 0; rep < n_repeat; rep++) {
        for (int i = 0; i < g->file.n_command; i++) {
            if (g->file.command[i].micro == micro && g->chosen[i] && !g->results[i].failed) {
                GR_TRY(run_command(g, i));
            }
        }
    }
    return GR_OK;
}

/* ---- judging ---- */

static struct judged judge(const struct gates *g, const struct gr_gate *gate)
{
    const struct results *r = &g->results[gate->command];
    double value[N_RUN_MAX];
    if (r->failed || r->n == 0) {
        return (struct judged){.outcome = r->failed ? NO_RESULT : NOT_MEASURED};
    }
    for (int i = 0; i < r->n; i++) {
        if (gr_gate_cell(gate, r->run[i], g->file.command[gate->command].name, &value[i]) != GR_OK) {
            return (struct judged){.outcome = NO_RESULT};
        }
    }
    struct judged j = {.median = gr_median(value, r->n)}; /* sorts */
    j.low = value[0];
    j.high = value[r->n - 1];
    j.outcome = gr_gate_is_met(gate, j.median) ? MET : MISSED;
    return j;
}

static void print_gate(struct gr_table *t, const struct gates *g, const struct gr_gate *gate, const struct judged *j)
{
    static const char *const names[] = {"met", "MISSED", "NO RESULT", "not measured"};
    const bool measured = j->outcome == MET || j->outcome == MISSED;
    const double value[] = {j->median, j->low, j->high};
    gr_table_text(t, gate->name);
    gr_table_text(t, g->file.command[gate->command].name);
    gr_table_text(t, gate->column);
    for (size_t i = 0; i < GR_ARRAY_LEN(value); i++) {
        if (measured) {
            gr_table_number(t, value[i], 3);
        } else {
            gr_table_none(t);
        }
    }
    gr_table_text(t, gate->at_most ? "at most" : "at least");
    gr_table_number(t, gate->limit, 3);
    gr_table_text(t, names[j->outcome]);
}

/* Gates that are missed, or have no result; of short commands only, or of all. */
static int count_missed(const struct gates *g, const struct judged *j, bool micro_only)
{
    int n = 0;
    for (int i = 0; i < g->file.n_gate; i++) {
        const bool counts = !micro_only || g->file.command[g->file.gate[i].command].micro;
        n += counts && (j[i].outcome == MISSED || j[i].outcome == NO_RESULT);
    }
    return n;
}

static void judge_all(const struct gates *g, struct judged *j)
{
    for (int i = 0; i < g->file.n_gate; i++) {
        j[i] = judge(g, &g->file.gate[i]);
    }
}

static enum gr_status print_all(const struct gates *g, const struct judged *j, enum gr_table_format format)
{
    static const char *const columns[] = {"gate", "command", "column", "median", "low",
                                          "high", "must be", "limit",  "outcome"};
    struct gr_table t;
    char note[512];
    int n_not_measured = 0;
    snprintf(note, sizeof(note), "gates of %s, meant for: %s; median, lowest and highest of the runs", g->path,
             g->file.machine[0] != '\0' ? g->file.machine : "any machine");
    gr_table_begin(&t, format, stdout, "gates", note, columns, (int)GR_ARRAY_LEN(columns));
    for (int i = 0; i < g->file.n_gate; i++) {
        print_gate(&t, g, &g->file.gate[i], &j[i]);
        n_not_measured += j[i].outcome == NOT_MEASURED;
    }
    gr_table_end(&t);
    const int n_missed = count_missed(g, j, false);
    fprintf(stderr, "# %d gates: %d met, %d missed, %d not measured\n", g->file.n_gate,
            g->file.n_gate - n_missed - n_not_measured, n_missed, n_not_measured);
    return n_missed == 0 ? GR_OK : GR_EMISMATCH;
}

static enum gr_status check(struct gates *g, enum gr_table_format format)
{
    static struct judged j[GR_GATE_MAX];
    GR_TRY(choose_commands(g));
    if (g->o.micro) {
        GR_TRY(run_commands(g, true, (int)g->o.repeat));
    }
    judge_all(g, j);
    const int n_missed = count_missed(g, j, true);
    if (g->o.then_full && n_missed > 0) {
        log_error("%d gates of short commands are missed: the long commands are not run", n_missed);
    } else if (g->o.then_full || g->o.all) {
        GR_TRY(run_commands(g, false, 1));
        judge_all(g, j);
    }
    return print_all(g, j, format);
}

/* ---- options ---- */

static enum gr_status take_results(struct gates *g)
{
    for (int i = 0; i < g->o.results.n; i++) {
        GR_TRY(load_results(g, g->o.results.word[i]));
    }
    return GR_OK;
}

/* Which options go together; NULL: these do. */
static const char *contradiction(const struct gr_bench_options *o)
{
    if (o->micro == (o->results.n > 0)) {
        return "gates: either --results FILE, of results that are there, or --micro, to measure, is wanted";
    }
    if ((o->then_full || o->all) && !o->micro) {
        return "--then-full, --all: the long commands run after --micro";
    }
    if (o->then_full && o->all) {
        return "--then-full and --all: the first runs the long commands where no gate is missed, the second always";
    }
    if ((o->only != NULL || o->save != NULL) && !o->micro) {
        return "--only, --save: nothing is measured without --micro";
    }
    return NULL;
}

static void finish(struct gates *g)
{
    for (int i = 0; i < g->file.n_command; i++) {
        for (int k = 0; k < g->results[i].n; k++) {
            json_decref(g->results[i].run[k]);
        }
    }
    gr_gates_free(&g->file);
}

int gr_bench_gates(int argc, char **argv)
{
    static struct gates g;
    const int status = gr_bench_options_read(&g.o, GR_BENCH_GATES, argc, argv);
    if (status >= 0) {
        return status;
    }
    const char *wrong = contradiction(&g.o);
    if (wrong != NULL) {
        log_error("%s", wrong);
        return 2;
    }
    g.path = gr_bench_path_of(&g.o, GR_BENCH_OPTION_gates);
    enum gr_status st = gr_gates_load(g.path, &g.file);
    if (st == GR_OK && g.o.save != NULL) { /* before anything is measured, which takes minutes */
        st = gr_bench_make_folder(g.o.save);
    }
    st = st == GR_OK ? take_results(&g) : st;
    st = st == GR_OK ? check(&g, gr_bench_format(&g.o)) : st;
    finish(&g);
    return st == GR_OK ? 0 : gr_program_refused(st);
}
