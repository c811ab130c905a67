/* Who starts the workers of a sweep, and on which hosts. */
#include "bench/sweep/sweep.h"

#include "common/base/log.h"
#include "orchestrator/launch/node_list.h"

#include <stdlib.h>
#include <string.h>

#define OWN_STEPS 0xfffffff0ul /* steps from here on are Slurm's own: a batch script, the shell of salloc */

static const char *nodes_of_job(void)
{
    const char *nodes = getenv("SLURM_JOB_NODELIST");
    return nodes != NULL ? nodes : getenv("SLURM_NODELIST");
}

static enum gr_bench_launcher choose(const struct gr_sweep *s)
{
    const char *nodes = nodes_of_job();
    if (s->o.launcher != GR_BENCH_BY_AUTO) {
        return (enum gr_bench_launcher)s->o.launcher;
    }
    return nodes != NULL && nodes[0] != '\0' ? GR_BENCH_BY_SRUN
           : s->o.host_names != NULL         ? GR_BENCH_BY_MPIRUN
                                             : GR_BENCH_BY_NONE;
}

static enum gr_status take_allocation(struct gr_sweep *s)
{
    const char *nodes = nodes_of_job();
    enum gr_status st = GR_OK;
    if (nodes == NULL || nodes[0] == '\0') {
        log_error("--launcher srun: this is no allocation of Slurm (SLURM_JOB_NODELIST); begin with salloc or sbatch");
        return GR_EINVAL;
    }
    for (int i = 0; i < GR_SWEEP_HOST_MAX && st == GR_OK; i++) {
        st = gr_node_list_at(nodes, i, s->host[i], sizeof(s->host[i]));
        s->site.n_host += st == GR_OK;
    }
    if (st != GR_OK && st != GR_ENOTFOUND) {
        log_error("SLURM_JOB_NODELIST=%s is no list of nodes", nodes);
        return GR_EINVAL;
    }
    return GR_OK;
}

static enum gr_status take_names(struct gr_sweep *s, const char *names)
{
    for (const char *at = names;;) {
        const size_t len = strcspn(at, ",");
        if (len == 0 || len >= sizeof(s->host[0]) || s->site.n_host == GR_SWEEP_HOST_MAX) {
            log_error("--host-names %s: up to %d names are wanted, with commas between them", names, GR_SWEEP_HOST_MAX);
            return GR_EINVAL;
        }
        memcpy(s->host[s->site.n_host], at, len);
        s->host[s->site.n_host++][len] = '\0';
        if (at[len] == '\0') {
            return GR_OK;
        }
        at += len + 1;
    }
}

/* A launcher inside a step finds no room beside what the step itself holds, or waits for it for ever. */
static enum gr_status check_step(const struct gr_sweep *s)
{
    const char *step = getenv("SLURM_STEP_ID");
    const char *launcher = s->launcher == GR_BENCH_BY_MPIRUN ? "mpirun" : "srun";
    if (s->launcher == GR_BENCH_BY_NONE || s->o.dry_run || step == NULL || strtoul(step, NULL, 10) >= OWN_STEPS) {
        return GR_OK;
    }
    log_error("--launcher %s: the sweep is in a step of Slurm itself (SLURM_STEP_ID=%s), which holds what its %s would "
              "need; start it without srun, from the shell of salloc or in a batch script",
              launcher, step, launcher);
    return GR_EINVAL;
}

enum gr_status gr_sweep_find_hosts(struct gr_sweep *s)
{
    s->launcher = choose(s);
    s->site.n_host = 0;
    GR_TRY(check_step(s));
    if (s->o.host_names != NULL && s->launcher != GR_BENCH_BY_MPIRUN) {
        log_error("--host-names is for mpirun; %s", s->launcher == GR_BENCH_BY_SRUN
                                                        ? "srun takes the hosts of its allocation"
                                                        : "without a launcher workers are on this host alone");
        return GR_EINVAL;
    }
    if (s->launcher == GR_BENCH_BY_SRUN) {
        return take_allocation(s);
    }
    return take_names(s, s->launcher == GR_BENCH_BY_MPIRUN && s->o.host_names != NULL ? s->o.host_names : "localhost");
}
