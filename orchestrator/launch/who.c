#include "orchestrator/launch/who.h"

#include "common/base/log.h"
#include "common/base/parse.h"
#include "orchestrator/launch/node_list.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#define RANK_MAX (1 << 20) /* what is more is no number of a rank */

/* The variables of a launcher. A set is complete where all that it has of the first four are there, but for what it may
 * do without. */
struct set {
    enum gr_ranks source;
    const char *name;
    const char *rank, *size, *local_rank, *local_size;
    const char *also; /* must be there too: without it the others are not this launcher's, or of a whole job */
    bool may_lack_local;
};

static const struct set sets[] = {
    {GR_RANKS_TORCHRUN, "torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", NULL, false},
    {GR_RANKS_OMPI, "ompi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", NULL, false},
    {GR_RANKS_PMIX, "pmix", "PMIX_RANK", NULL, NULL, NULL, "PMIX_NAMESPACE", true},
    {GR_RANKS_PMI, "pmi", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", NULL, true},
    {GR_RANKS_SLURM, "slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", NULL, "SLURM_STEP_ID", false},
};

const char *gr_env_get(char *const *env, const char *name)
{
    const size_t len = strlen(name);
    for (; *env != NULL; env++) {
        if (strncmp(*env, name, len) == 0 && (*env)[len] == '=') {
            return *env + len + 1;
        }
    }
    return NULL;
}

const char *gr_ranks_name(enum gr_ranks source)
{
    for (size_t i = 0; i < GR_ARRAY_LEN(sets); i++) {
        if (sets[i].source == source) {
            return sets[i].name;
        }
    }
    return source == GR_RANKS_NONE ? "none" : "auto";
}

/* ---- one set ---- */

static bool is_missing(char *const *env, const char *name)
{
    return name != NULL && gr_env_get(env, name) == NULL;
}

/* The first variable that the set lacks, or NULL: it is complete. */
static const char *lacks(char *const *env, const struct set *s)
{
    if (is_missing(env, s->rank)) {
        return s->rank;
    }
    if (is_missing(env, s->size)) {
        return s->size;
    }
    if (is_missing(env, s->also)) {
        return s->also;
    }
    return !s->may_lack_local && is_missing(env, s->local_rank) ? s->local_rank : NULL;
}

/* Absent: it stays as it is. min: 1 of what counts ranks, as 0 stands for what is not said. */
static enum gr_status read_number(char *const *env, const char *name, int min, int *out)
{
    const char *text = name != NULL ? gr_env_get(env, name) : NULL;
    int64_t n = 0;
    if (text == NULL) {
        return GR_OK;
    }
    if (!gr_parse_int(text, min, RANK_MAX, &n)) {
        log_error("%s=%s is no number of %s; --ranks names another source, or none", name, text,
                  min > 0 ? "ranks" : "a rank");
        return GR_EINVAL;
    }
    *out = (int)n;
    return GR_OK;
}

/* small < large, where both are said. */
static enum gr_status check_below(const struct gr_who *w, const char *small_name, int small, const char *large_name,
                                  int large)
{
    if (small < 0 || large == 0 || small < large) {
        return GR_OK;
    }
    log_error("%s=%d is not below %s=%d, and both are of %s; --ranks names another source, or none", small_name, small,
              large_name, large, gr_ranks_name(w->source));
    return GR_EINVAL;
}

bool gr_who_is_het(char *const *env)
{
    const char *size = gr_env_get(env, "SLURM_HET_SIZE");
    return size != NULL && strcmp(size, "1") != 0;
}

/* Slurm says the ranks of a host in a list by nodes, and in a heterogeneous job each component has its own. */
static enum gr_status read_slurm(char *const *env, struct gr_who *w)
{
    const char *tasks = gr_env_get(env, "SLURM_STEP_TASKS_PER_NODE");
    const char *nodes = gr_env_get(env, "SLURM_STEP_NODELIST");
    int node = -1, n_node = 0;
    GR_TRY(read_number(env, "SLURM_NODEID", 0, &node));
    GR_TRY(read_number(env, "SLURM_STEP_NUM_NODES", 1, &n_node));
    if (nodes == NULL || gr_node_list_at(nodes, 0, w->first, sizeof(w->first)) != GR_OK) {
        w->first[0] = '\0';
    }
    if (gr_who_is_het(env)) {
        w->size = 0;
        return GR_OK;
    }
    w->one_host = n_node == 1;
    if (tasks != NULL && node >= 0) {
        w->local_size = GR_MAX(gr_tasks_per_node_at(tasks, node), 0);
    }
    return GR_OK;
}

static void say(char *const *env, const struct set *s, struct gr_who *w)
{
    const char *names[] = {s->rank, s->size, s->local_rank};
    size_t at = 0;
    for (size_t i = 0; i < GR_ARRAY_LEN(names) && at < sizeof(w->said); i++) {
        const char *value = names[i] != NULL ? gr_env_get(env, names[i]) : NULL;
        if (value != NULL) {
            at +=
                (size_t)snprintf(w->said + at, sizeof(w->said) - at, "%s%s=%.20s", at > 0 ? ", " : "", names[i], value);
        }
    }
}

static enum gr_status read_set(char *const *env, const struct set *s, struct gr_who *w)
{
    w->source = s->source;
    w->local_rank = -1;
    GR_TRY(read_number(env, s->rank, 0, &w->rank));
    GR_TRY(read_number(env, s->size, 1, &w->size));
    GR_TRY(read_number(env, s->local_rank, 0, &w->local_rank));
    GR_TRY(read_number(env, s->local_size, 1, &w->local_size));
    if (s->source == GR_RANKS_SLURM) {
        GR_TRY(read_slurm(env, w));
    } else {
        w->one_host = w->local_size > 0 && w->local_size == w->size;
    }
    say(env, s, w);
    GR_TRY(check_below(w, s->rank, w->rank, s->size, w->size));
    const char *ranks_of_host = s->local_size != NULL ? s->local_size : "SLURM_STEP_TASKS_PER_NODE";
    GR_TRY(check_below(w, s->local_rank, w->local_rank, ranks_of_host, w->local_size));
    GR_TRY(check_below(w, s->local_rank, w->local_rank, s->size, w->size));
    if (w->size > 0 && w->local_size > w->size) {
        log_error("%s=%d is more than %s=%d, and both are of %s", ranks_of_host, w->local_size, s->size, w->size,
                  s->name);
        return GR_EINVAL;
    }
    return GR_OK;
}

/* ---- several sets ---- */

/* Its processes are started inside what others have started: it may differ from them. mpiexec of MPICH says which
 * process of a host it is; the PMI of srun does not. */
static bool nests(char *const *env, const struct set *s)
{
    return s->source == GR_RANKS_TORCHRUN || (s->source == GR_RANKS_PMI && gr_env_get(env, s->local_rank) != NULL);
}

/* mpirun's daemons are a Slurm step of their own, whose variables its ranks inherit. Its PMIx is its own. */
static bool must_agree(char *const *env, const struct set *inner, const struct set *outer)
{
    if (nests(env, inner)) {
        return false;
    }
    return inner->source != GR_RANKS_OMPI || outer->source == GR_RANKS_PMIX;
}

/* inner_size: the variable that inner's size is of, which may be a third set's. */
static enum gr_status compare(const struct set *si, const struct gr_who *inner, const char *inner_size,
                              const struct set *so, const struct gr_who *outer)
{
    if (inner->size == 1 && outer->size > 1) {
        log_error("%s=1 and %s=%d: %s has made a world of its own for each rank; give --ranks %s, or repair the "
                  "launcher (srun --mpi=none)",
                  inner_size, so->size, outer->size, si->name, so->name);
        return GR_EINVAL;
    }
    if (inner->rank != outer->rank) {
        log_error("%s=%d and %s=%d disagree; name one by --ranks %s or --ranks %s", si->rank, inner->rank, so->rank,
                  outer->rank, si->name, so->name);
        return GR_EINVAL;
    }
    if (inner->size > 0 && outer->size > 0 && inner->size != outer->size) {
        log_error("%s=%d and %s=%d disagree; name one by --ranks %s or --ranks %s", inner_size, inner->size, so->size,
                  outer->size, si->name, so->name);
        return GR_EINVAL;
    }
    return GR_OK;
}

/* What a set does not say, and the launcher around it does: PMIx no size by environment, the PMI of srun no place on a
 * host. Both count the same ranks. */
static void learn(struct gr_who *w, const struct gr_who *outer)
{
    w->size = w->size == 0 ? outer->size : w->size;
    if (w->local_size == 0) {
        w->local_size = outer->local_size;
        w->one_host = outer->one_host;
    }
    w->local_rank = w->local_rank < 0 ? outer->local_rank : w->local_rank;
    if (w->first[0] == '\0') {
        memcpy(w->first, outer->first, sizeof(w->first));
    }
}

/* What stands further out than the chosen set. */
static enum gr_status look_outside(char *const *env, size_t chosen, struct gr_who *w)
{
    const char *size_name = sets[chosen].size;
    for (size_t i = chosen + 1; i < GR_ARRAY_LEN(sets); i++) {
        struct gr_who outer = {.rank = 0};
        if (lacks(env, &sets[i]) != NULL) {
            continue;
        }
        GR_TRY(read_set(env, &sets[i], &outer));
        if (must_agree(env, &sets[chosen], &sets[i])) {
            GR_TRY(compare(&sets[chosen], w, size_name, &sets[i], &outer));
            size_name = w->size == 0 ? sets[i].size : size_name;
            learn(w, &outer);
        } else if (w->beside[0] == '\0') {
            snprintf(w->beside, sizeof(w->beside), "%s=%d is an outer launcher's", sets[i].rank, outer.rank);
        }
    }
    return GR_OK;
}

/* From sets that count the same ranks; a source that was named goes before those that differ. */
static void learn_alike(char *const *env, size_t chosen, struct gr_who *w)
{
    char unheard[400];
    gr_log_hold(unheard, sizeof(unheard));
    for (size_t i = chosen + 1; i < GR_ARRAY_LEN(sets); i++) {
        struct gr_who outer = {.rank = 0};
        if (must_agree(env, &sets[chosen], &sets[i]) && lacks(env, &sets[i]) == NULL &&
            read_set(env, &sets[i], &outer) == GR_OK &&
            compare(&sets[chosen], w, sets[chosen].size, &sets[i], &outer) == GR_OK) {
            learn(w, &outer);
        }
    }
    gr_log_hold(NULL, 0);
}

static enum gr_status take_asked(enum gr_ranks wanted, char *const *env, struct gr_who *w)
{
    for (size_t i = 0; i < GR_ARRAY_LEN(sets); i++) {
        const char *missing = lacks(env, &sets[i]);
        if (sets[i].source != wanted) {
            continue;
        }
        if (missing != NULL) {
            log_error("--ranks %s: the variable %s is not set; has %s started this process?", sets[i].name, missing,
                      sets[i].name);
            return GR_EINVAL;
        }
        GR_TRY(read_set(env, &sets[i], w));
        learn_alike(env, i, w);
    }
    return GR_OK;
}

static enum gr_status take_innermost(char *const *env, struct gr_who *w)
{
    for (size_t i = 0; i < GR_ARRAY_LEN(sets); i++) {
        if (lacks(env, &sets[i]) == NULL) {
            GR_TRY(read_set(env, &sets[i], w));
            return look_outside(env, i, w);
        }
    }
    return GR_OK;
}

/* ---- names ---- */

static const char *or_empty(const char *text)
{
    return text != NULL ? text : "";
}

/* It stands in names of files and in JSON. */
static void make_plain(char *name)
{
    for (; *name != '\0'; name++) {
        if (!isalnum((unsigned char)*name) && strchr(".-_", *name) == NULL) {
            *name = '_';
        }
    }
}

static const char *first_of(const char *a, const char *b)
{
    return a != NULL ? a : b;
}

static void name_job(char *const *env, struct gr_who *w)
{
    char *job = w->job;
    const char *again = gr_env_get(env, "SLURM_RESTART_COUNT");
    switch (w->source) {
    case GR_RANKS_SLURM:
        snprintf(job, sizeof(w->job), "slurm-%.20s.%.20s-r%.10s", or_empty(gr_env_get(env, "SLURM_JOB_ID")),
                 or_empty(gr_env_get(env, "SLURM_STEP_ID")), again != NULL ? again : "0");
        break;
    case GR_RANKS_OMPI:
        snprintf(job, sizeof(w->job), "ompi-%.60s",
                 or_empty(first_of(gr_env_get(env, "OMPI_MCA_ess_base_jobid"), gr_env_get(env, "PMIX_NAMESPACE"))));
        break;
    case GR_RANKS_TORCHRUN:
        snprintf(job, sizeof(w->job), "torchrun-%.40s-%.8s-r%.8s", or_empty(gr_env_get(env, "TORCHELASTIC_RUN_ID")),
                 or_empty(gr_env_get(env, "MASTER_PORT")), or_empty(gr_env_get(env, "TORCHELASTIC_RESTART_COUNT")));
        break;
    case GR_RANKS_PMIX:
        snprintf(job, sizeof(w->job), "pmix-%.60s", or_empty(gr_env_get(env, "PMIX_NAMESPACE")));
        break;
    case GR_RANKS_PMI:
        snprintf(job, sizeof(w->job), "pmi-%.60s", or_empty(gr_env_get(env, "PMI_JOBID")));
        break;
    default:
        snprintf(job, sizeof(w->job), "none");
        break;
    }
    make_plain(job);
}

enum gr_status gr_who_am_i(enum gr_ranks wanted, char *const *env, const char *host, struct gr_who *out)
{
    struct gr_who w = {.source = GR_RANKS_NONE, .size = 1, .local_size = 1, .one_host = true};
    if (wanted != GR_RANKS_NONE) {
        struct gr_who found = {.source = GR_RANKS_NONE};
        GR_TRY(wanted == GR_RANKS_AUTO ? take_innermost(env, &found) : take_asked(wanted, env, &found));
        w = found.source != GR_RANKS_NONE ? found : w;
    }
    const char *node = gr_env_get(env, "SLURMD_NODENAME");
    snprintf(w.host, sizeof(w.host), "%s", node != NULL && wanted != GR_RANKS_NONE ? node : host);
    make_plain(w.host);
    name_job(env, &w);
    *out = w;
    return GR_OK;
}
