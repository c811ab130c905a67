/* A fleet as a job of several ranks: `graft launch' under mpirun or srun. Rank 0 is the orchestrator and runs the
 * clients when all workers are up; their end is the job's. Ranks are in the order of hosts, so that both launchers can
 * be told where each is to be: mpirun by a part of its command for every host, srun by the list of hosts of an
 * arbitrary distribution. */
#include "bench/sweep/line.h"
#include "common/base/device.h"
#include "common/base/log.h"
#include "common/process/program.h"
#include "transport/connect/bootstrap.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WORD_MAX ((2 * GR_CHILD_ARG_MAX + 8) * GR_SWEEP_HOST_MAX + 64) /* of the whole command */
#define EXTRA_MAX 32                                                   /* words of --launcher-options */
#define GRACE_S 60                                                     /* for the job to end after its clients */
#define ROLES_MAX 1024                                                 /* bytes of the roles' text */

struct job {
    const char *word[WORD_MAX + 1]; /* NULL after the last */
    int n;
    struct gr_line rank;    /* what each rank runs, but for the roles' own */
    struct gr_line clients; /* after `--' */
    char roles[ROLES_MAX], hosts[GR_SWEEP_HOST_MAX * 80 + 512], number[2 * GR_SWEEP_HOST_MAX + 4][128];
    int n_number;
    int n_rank[GR_SWEEP_HOST_MAX]; /* of each host, the orchestrator's among those of the first */
    char extra[GR_LINE_WORDS_MAX + 1], dir[PATH_MAX];
};

static void add(struct job *j, const char *word)
{
    GR_ASSERT(j->n < WORD_MAX);
    j->word[j->n++] = word;
}

static const char *number(struct job *j, const char *prefix, const char *middle, int n)
{
    char *text = j->number[j->n_number++];
    snprintf(text, sizeof(j->number[0]), "%s%s%d", prefix, middle, n);
    return text;
}

/* ---- who is where ---- */

static void add_role(struct job *j, const char *role)
{
    const size_t at = strlen(j->roles);
    snprintf(j->roles + at, sizeof(j->roles) - at, "%s%s:1", at > 0 ? "," : "", role);
}

static void place(const struct gr_sweep *s, const struct gr_fleet *f, struct job *j)
{
    struct gr_place place[GR_FLEET_WORKER_MAX];
    const bool fits = gr_fleet_place(f, &s->site, place, NULL);
    GR_ASSERT(fits); /* the plan has placed it */
    add_role(j, "serve");
    j->n_rank[0] = 1;
    for (int h = 0; h < f->n_host; h++) {
        for (int i = 0; i < f->n_target + f->n_draft; i++) {
            if (place[i].host == h) {
                add_role(j, i < f->n_target ? "target" : "draft");
                j->n_rank[h]++;
            }
        }
    }
}

/* ---- the words ---- */

static void build_rank(const struct gr_sweep *s, const struct gr_sweep_life *l, struct job *j)
{
    const struct gr_fleet *f = l->fleet;
    const bool on_gpu = s->o.devices.device[0] != GR_DEVICE_CPU;
    struct gr_child_args *a = &j->rank.args;
    gr_line_begin(&j->rank, "graft");
    gr_child_args_add_flag(a, "launch", true);
    gr_child_args_add(a, "--roles", j->roles);
    gr_child_args_add(a, "--model", s->model);
    gr_child_args_add(a, "--draft", l->bare ? NULL : s->draft);
    gr_child_args_add(a, "--target-device", on_gpu ? "cuda:local" : "cpu");
    gr_child_args_add(a, "--draft-device", on_gpu ? "cuda:local" : "cpu");
    gr_child_args_add_number(a, "--sessions", s->n_slot);
    gr_child_args_add_number(a, "--max-model-len", s->n_ctx_max);
    gr_child_args_add(a, "--geometry", s->o.geometry);
    gr_child_args_add(a, "--transport",
                      l->bare    ? NULL
                      : f->whole ? "loop"
                                 : gr_bench_choice(&s->o, GR_BENCH_OPTION_transport));
    gr_child_args_add_number(a, "--start-within", s->o.within);
    if (f->tp > 1) {
        gr_child_args_add_number(a, "--tensor-parallel-size", f->tp);
    }
    if (s->site.device_cpu > 0) {
        gr_child_args_add_number(a, "--threads", s->site.device_cpu);
        gr_child_args_add_number(a, "--draft-threads", s->site.device_cpu);
    }
    if (on_gpu) {
        gr_child_args_add(a, "--tuned", s->o.tuned);
        gr_child_args_add_flag(a, "--require-tuned", s->o.require_tuned);
    }
    if (gr_bench_is_given(&s->o, GR_BENCH_OPTION_draft_context)) {
        gr_child_args_add_number(a, "--draft-context", s->o.draft_context);
    }
    gr_line_words(&j->rank, s->o.worker_options);
    if (f->n_host > 1) { /* the folder of --save, which all hosts see */
        gr_child_args_add(a, "--job-dir", j->dir);
    }
}

/* What each rank runs. All have the same words, as ranks compare what they were told. */
static void add_rank(struct job *j)
{
    for (int i = 0; i < j->rank.args.n; i++) {
        add(j, j->rank.args.argv[i]);
    }
    add(j, "--");
    for (int i = 0; i < j->clients.args.n; i++) {
        add(j, j->clients.args.argv[i]);
    }
}

static void add_extra(const struct gr_sweep *s, struct job *j)
{
    char *save = NULL;
    snprintf(j->extra, sizeof(j->extra), "%s", s->o.launcher_options != NULL ? s->o.launcher_options : "");
    for (char *w = strtok_r(j->extra, " ", &save); w != NULL; w = strtok_r(NULL, " ", &save)) {
        add(j, w);
    }
}

static void build_mpirun(const struct gr_sweep *s, const struct gr_fleet *f, struct job *j)
{
    add(j, "mpirun");
    add(j, "-x");
    add(j, "GRAFT_KEY");
    add_extra(s, j);
    for (int h = 0; h < f->n_host; h++) {
        if (h > 0) {
            add(j, ":");
        }
        add(j, "-n");
        add(j, number(j, "", "", j->n_rank[h]));
        add(j, "--host");
        add(j, number(j, s->host[h], ":", j->n_rank[h]));
        add_rank(j);
    }
}

static void build_srun(const struct gr_sweep *s, const struct gr_fleet *f, struct job *j)
{
    int n = 0;
    for (int h = 0; h < f->n_host; h++) {
        for (int i = 0; i < j->n_rank[h]; i++) {
            const size_t at = strlen(j->hosts);
            snprintf(j->hosts + at, sizeof(j->hosts) - at, "%s%s", n++ > 0 ? "," : "", s->host[h]);
        }
    }
    add(j, "srun");
    add(j, "--wait=0");
    add(j, "--kill-on-bad-exit=0");
    add(j, "--overlap");
    add(j, "-N");
    add(j, number(j, "", "", f->n_host));
    add(j, "-n");
    add(j, number(j, "", "", n));
    if (s->site.device_cpu > 0) {
        add(j, "-c");
        add(j, number(j, "", "", f->tp * s->site.device_cpu));
    }
    add(j, "-m");
    add(j, "arbitrary");
    add(j, "-w");
    add(j, j->hosts);
    add_extra(s, j);
    add_rank(j);
}

static void build(const struct gr_sweep *s, const struct gr_sweep_life *l, struct job *j)
{
    *j = (struct job){.n = 0};
    if (realpath(l->dir, j->dir) == NULL) { /* ranks may be started in other folders */
        snprintf(j->dir, sizeof(j->dir), "%s", l->dir);
    }
    snprintf(j->dir + strlen(j->dir), sizeof(j->dir) - strlen(j->dir), "/job");
    place(s, l->fleet, j);
    build_rank(s, l, j);
    gr_line_clients(&j->clients, s, l, NULL);
    if (s->launcher == GR_BENCH_BY_MPIRUN) {
        build_mpirun(s, l->fleet, j);
    } else {
        build_srun(s, l->fleet, j);
    }
}

/* ---- running ---- */

enum gr_status gr_sweep_live_launched(struct gr_sweep *s, struct gr_sweep_life *l)
{
    static struct gr_crew c;
    static struct job j;
    uint8_t key[GR_KEY_BYTES];
    char key_hex[2 * GR_KEY_BYTES + 1];
    int index = 0;
    build(s, l, &j);
    GR_TRY(gr_key_random(key, key_hex));
    gr_crew_begin(&c, l->dir, key_hex);
    GR_TRY(gr_crew_start(&c, "clients", j.word, NULL, true, &index));
    const enum gr_status st = gr_crew_wait(&c, index, (int)(s->o.within + s->o.limit) + GRACE_S, l->why);
    gr_crew_end(&c);
    return (st == GR_EINVAL || st == GR_ETIMEDOUT) && l->why[0] != '\0' ? GR_OK : st;
}

void gr_sweep_tell_launched(const struct gr_sweep *s, const struct gr_sweep_life *l)
{
    static struct job j;
    build(s, l, &j);
    gr_words_print(j.word, stdout);
}
