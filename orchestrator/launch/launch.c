/* `graft launch`: one rank of a job, whichever launcher has started it. */
#include "orchestrator/launch/launch.h"

#include "common/base/device.h"
#include "common/base/log.h"
#include "common/process/program.h"
#include "common/process/shell_words.h"
#include "orchestrator/cli/remote.h"
#include "orchestrator/cli/yaml_config.h"
#include "orchestrator/launch/ancestor.h"
#include "orchestrator/launch/facts.h"
#include "orchestrator/launch/gpu.h"
#include "orchestrator/launch/job.h"
#include "orchestrator/launch/serve_child.h"
#include "transport/connect/cluster.h"
#include "transport/connect/secrecy.h"
#include "transport/own.h"

#include <assert.h>
#include <signal.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

/* ---- the options ---- */

static int load(struct gr_options *o, int argc, char **argv, struct gr_yaml_config *yaml[2])
{
    gr_options_default(o, GR_CMD_LAUNCH);
    const int status = gr_options_load(o, argc, argv, &yaml[0]);
    if (status < 0 && o->values.source[GR_OPTION_command] == GR_FROM_CLI && o->command.n == 0) {
        log_error("`--' is followed by no command; leave it out for a job that serves until a signal ends it");
        return gr_program_refused(GR_EINVAL);
    }
    if (status >= 0 || o->plan == NULL) {
        return status;
    }
    const int n_target = o->targets.n, n_draft = o->drafts.n; /* of --config */
    const enum gr_status st = gr_yaml_config_load(o->plan, &o->values, &yaml[1]);
    if (st == GR_OK && n_target + n_draft > 0 && (o->targets.n > n_target || o->drafts.n > n_draft)) {
        log_error("--config and --plan %s both have lists of workers (targets, drafts), which say what each rank is; "
                  "one of them is enough",
                  o->plan);
        return gr_program_refused(GR_EINVAL);
    }
    return st == GR_OK ? -1 : gr_program_refused(st == GR_EFORMAT ? GR_EINVAL : st);
}

static bool has_drafter(const struct gr_roles *r)
{
    for (int i = 0; i < r->n; i++) {
        if (r->rank[i].role == GR_LAUNCH_DRAFT) {
            return true;
        }
    }
    return false;
}

/* cuda:local is as many GPUs as the worker has processes; others are named one by one. */
static enum gr_status check_devices(const struct gr_job *j)
{
    const struct gr_devices own = gr_job_devices(j);
    const bool local = own.n == 1 && own.device[0] == GR_DEVICE_LOCAL;
    const char *what = j->roles.rank[j->who.rank].role == GR_LAUNCH_TARGET ? "--target-device" : "--draft-device";
    return local ? GR_OK : gr_devices_check(what, &own, gr_job_tp(j));
}

/* The workers are of different hosts, so that what two of one host may not do says nothing here; whether the shapes of
 * --tuned fit its GPU is the worker's to say. */
static enum gr_status plan_worker(struct gr_job *j)
{
    struct gr_options *o = &j->o;
    const struct gr_devices target = o->target_device, draft = o->draft_device;
    const char *tuned = o->tuned;
    const bool require_tuned = o->require_tuned;
    o->targets.n = o->drafts.n = 0; /* the roles have taken them */
    o->target_device = o->draft_device = (struct gr_devices){.device = {GR_DEVICE_CPU}, .n = 1};
    o->tuned = NULL;
    o->require_tuned = false;
    const enum gr_status st = j->who.rank == 0 ? GR_OK : gr_plan_local(o, &j->plan);
    o->target_device = target;
    o->draft_device = draft;
    o->tuned = tuned;
    o->require_tuned = require_tuned;
    const struct gr_devices own = gr_job_devices(j);
    j->plan.target_tuned = j->plan.draft_tuned = tuned != NULL && gr_devices_on_gpu(&own);
    return st == GR_OK && j->who.rank > 0 ? check_devices(j) : st;
}

/* A head's target is told of the head; without a drafter among the roles there is none, unless each target is to have
 * one in its own process. */
static enum gr_status read_roles(struct gr_job *j)
{
    struct gr_options *o = &j->o;
    GR_TRY(gr_roles_read(o, &j->roles));
    if (o->transport == GR_CHOICE_LOOP && has_drafter(&j->roles)) {
        log_error("--transport loop: target and drafter are of different ranks");
        return GR_EINVAL;
    }
    if (o->transport == GR_CHOICE_LOOP) {
        return gr_roles_check_size(&j->roles, &j->who);
    }
    if (!has_drafter(&j->roles)) {
        o->draft = NULL;
        o->method = GR_UNSET;
    } else if (o->method == GR_METHOD_NONE) {
        log_error("%s has drafters, and --method none has none", j->roles.from);
        return GR_EINVAL;
    }
    return gr_roles_check_size(&j->roles, &j->who);
}

/* ---- this rank ---- */

static enum gr_status find_self(struct gr_job *j)
{
#define SAME(name) ((int)GR_CHOICE_RANKS_##name == (int)GR_RANKS_##name)
    static_assert(SAME(AUTO) && SAME(SLURM) && SAME(OMPI) && SAME(PMIX) && SAME(PMI) && SAME(TORCHRUN) && SAME(NONE),
                  "--ranks' choices are enum gr_ranks");
    char host[80] = "?";
    (void)gethostname(host, sizeof(host) - 1);
    GR_TRY(gr_who_am_i((enum gr_ranks)j->o.ranks, j->env, host, &j->who));
    if (j->who.one_host && strcmp(j->who.job, "pmi-") == 0) {
        /* mpiexec gives its jobs no name; each has a daemon of its own on this host. */
        snprintf(j->who.job, sizeof(j->who.job), "pmi-%d", gr_ancestor_without("MPI_LOCALRANKID"));
    }
    return GR_OK;
}

/* What tells machines apart: several of Slurm's nodes may be one machine, in tests. */
static void name_node(struct gr_job *j)
{
    char id[48];
    gr_machine_id(id);
    snprintf(j->self.node, sizeof(j->self.node), "%.47s/%.30s", id, j->who.host);
}

static void introduce(const struct gr_job *j)
{
    const struct gr_who *w = &j->who;
    const struct gr_launch_rank *own = &j->roles.rank[w->rank];
    char place[64] = "";
    if (own->group > 0) {
        snprintf(place, sizeof(place), ", %d of the %d that rank %d leads", own->member, own->group, own->leader);
    }
    dprintf(STDERR_FILENO, "graft launch: rank %d of %d on host %s: %s%s (ranks by %s%s%s%s%s)\n", w->rank, w->size,
            w->host, gr_launch_role_name(own->role), place, gr_ranks_name(w->source), w->said[0] != '\0' ? ": " : "",
            w->said, w->beside[0] != '\0' ? "; " : "", w->beside);
}

static enum gr_status find_gpus(struct gr_job *j)
{
    const bool works = j->roles.rank[j->who.rank].role != GR_LAUNCH_SERVE;
    const struct gr_devices own = gr_job_devices(j);
    j->self.wants_gpu = works && gr_devices_has(&own, GR_DEVICE_LOCAL) ? gr_job_tp(j) : 0;
    return j->self.wants_gpu > 0 && !j->o.dry_run && !j->o.print_command ? gr_launch_gpus(&j->self) : GR_OK;
}

/* The key of GRAFT_KEY and its kin. None: rank 0 draws one. */
static enum gr_status find_key(struct gr_job *j)
{
    const char *variable = getenv("GRAFT_KEY");
    j->with_key = j->o.key_file != NULL || (variable != NULL && variable[0] != '\0');
    return j->with_key ? gr_remote_key(&j->o, j->key) : GR_OK;
}

static enum gr_status keep_environment(struct gr_job *j)
{
    extern char **environ;
    size_t n = 0;
    while (environ[n] != NULL) {
        n++;
    }
    j->env = calloc(n + 1, sizeof(*j->env));
    if (j->env == NULL) {
        log_error("no memory for %zu variables of the environment", n);
        return GR_ENOMEM;
    }
    memcpy(j->env, environ, n * sizeof(*j->env)); /* the strings stay where they are */
    return GR_OK;
}

/* A launcher's daemon that dies takes its ranks along: nobody else would end them. */
static void watch_parent(const struct gr_job *j)
{
    if (j->who.source != GR_RANKS_NONE) {
        prctl(PR_SET_PDEATHSIG, SIGTERM);
    }
}

/* What only this rank can see of itself. */
static enum gr_status check_own(struct gr_job *j)
{
    struct gr_interface_wish wish;
    const bool shown = j->o.dry_run || j->o.print_command; /* perhaps on another host */
    GR_TRY(j->o.interface != NULL ? gr_interface_parse(j->o.interface, &wish) : GR_OK);
    GR_TRY(shown ? GR_OK : gr_own_use(j->o.interface, false));
    GR_TRY(gr_roles_check_own(&j->roles, &j->who, j->o.model != NULL, j->o.draft != NULL));
    GR_TRY(plan_worker(j));
    return find_gpus(j);
}

static enum gr_status prepare(struct gr_job *j)
{
    GR_TRY(keep_environment(j));
    randombytes_buf(&j->self.incarnation, sizeof(j->self.incarnation));
    GR_TRY(find_self(j));
    watch_parent(j);
    GR_TRY(read_roles(j));
    introduce(j);
    name_node(j);
    j->facts = gr_launch_facts(&j->o, &j->roles, j->env);
    j->unfit = check_own(j);
    return GR_OK;
}

/* ---- what is only shown ---- */

/* As a shell takes it, with its program's bare name. */
static void print_words(const char *const *word)
{
    for (int i = 0; word[i] != NULL; i++) {
        const char *slash = i == 0 ? strrchr(word[i], '/') : NULL;
        fputs(i > 0 ? " " : "", stdout);
        gr_shell_word_print(slash != NULL ? slash + 1 : word[i], stdout);
    }
}

/* ANY: where rank 0 meets the others, which only a job knows. */
static void print_serve(struct gr_job *j)
{
    static struct gr_worker_line line;
    const bool told = j->o.interface != NULL;
    const char *asked = gr_job_control(j);
    char control[GR_WHERE_CONTROL_BYTES];
    snprintf(control, sizeof(control), "%s:%s", told ? "" : "ANY", j->where.ports);
    if (asked != NULL) {
        gr_where_control(&j->where, asked, NULL, control);
    }
    gr_serve_child_line(j, control, &line);
    print_words(line.args.argv);
    for (int i = 0; i < j->o.command.n; i++) {
        fputs(i == 0 ? "; " : " ", stdout);
        gr_shell_word_print(j->o.command.word[i], stdout);
    }
}

static enum gr_status print_worker(struct gr_job *j)
{
    static struct gr_worker_line line;
    char own[32];
    snprintf(own, sizeof(own), "%s:%s", j->o.interface != NULL ? "" : "OWN", j->where.ports);
    const struct gr_job_places at = {
        .join = "RANK0:PORT", .listen = own, .group = "LEADER:PORT", .device = GR_DEVICE_LOCAL};
    GR_TRY(gr_job_line(j, &at, &line));
    print_words(line.args.argv);
    fputs(" --supervise", stdout);
    return GR_OK;
}

/* The rank as a comment: lines of several ranks come in any order. */
static enum gr_status print_command(struct gr_job *j)
{
    if (j->who.rank == 0) {
        print_serve(j);
    } else {
        GR_TRY(print_worker(j));
    }
    printf("  # rank %d on host %s\n", j->who.rank, j->who.host);
    return GR_OK;
}

static int run(struct gr_job *j)
{
    enum gr_status st = prepare(j);
    if (st == GR_OK && (j->who.rank == 0 || j->o.dry_run || j->o.print_command)) {
        st = j->unfit; /* others tell rank 0 */
    }
    st = st == GR_OK ? gr_where_ports(j->o.ports, &j->where) : st;
    if (st != GR_OK || j->o.dry_run) {
        return st == GR_OK ? 0 : gr_program_refused(st);
    }
    if (j->o.print_command) {
        return gr_program_refused(print_command(j)) == 1 ? 0 : 2;
    }
    st = find_key(j);
    st = st == GR_OK ? gr_where_choose(&j->o, &j->who, j->with_key, j->env, &j->where) : st;
    st = st == GR_OK && j->where.dir[0] != '\0' ? gr_job_dir_open(j->where.dir) : st;
    if (st != GR_OK) {
        return gr_program_refused(st);
    }
    return j->who.rank == 0 ? gr_job_lead(j) : gr_job_follow(j);
}

int gr_command_launch(int argc, char **argv)
{
    static struct gr_job j;
    struct gr_yaml_config *yaml[2] = {NULL, NULL};
    j.child = j.children.signal_fd = j.channel.fd = -1;
    gr_log_place();
    int status = load(&j.o, argc, argv, yaml);
    if (status < 0) {
        gr_cluster_use(j.o.cluster); /* of this process, and of those that it starts */
        gr_secrecy_use(j.o.control_encryption);
        status = run(&j);
    }
    free(j.env);
    gr_yaml_config_destroy(yaml[0]);
    gr_yaml_config_destroy(yaml[1]);
    return status;
}
