/* What the files of a sweep share. plan.h, capacity.h and point.h are pure; crew.h has the processes, store.h the
 * results; sweep.c goes through the plan. */
#ifndef GR_BENCH_SWEEP_SWEEP_H
#define GR_BENCH_SWEEP_SWEEP_H

#include "bench/options/options.h"
#include "bench/sweep/crew.h"
#include "bench/sweep/plan.h"
#include "bench/sweep/store.h"

#include <limits.h>

#define GR_SWEEP_HOST_MAX 64

struct gr_sweep {
    struct gr_bench_options o;
    enum gr_bench_launcher launcher; /* never auto */
    struct gr_sweep_axes axes;
    struct gr_sweep_site site;
    char host[GR_SWEEP_HOST_MAX][80]; /* names, (site.n_host); unused without a launcher */
    struct gr_sweep_plan plan;
    const char *model, *draft; /* folders */
    bool draft_is_head;
    int n_slot;           /* sessions that each worker has room for */
    int n_ctx_max;        /* positions of a session */
    uint64_t prompt_hash; /* of all prompts' ids */
    struct gr_store store;
};

/* One life of a fleet: the runs that are to be measured, and those that were. */
struct gr_sweep_life {
    const struct gr_fleet *fleet;
    int repeat;
    struct gr_option_list sessions; /* those that are to be measured */
    bool plain, trees;              /* modes */
    bool bare;                      /* whole, and without drafters: for plain decoding alone */
    char dir[PATH_MAX - 64];        /* of its processes' files */
    json_t *rows;                   /* owned: an array of what the clients printed */
    char why[GR_CREW_WHY_MAX];      /* not all of it was measured */
};

/* Starts the fleet on this host, each worker on its devices and CPUs, has the clients measure, ends it. GR_OK: whatever
 * could be measured is in l->rows, and why not all, in l->why. Else the sweep is to end. */
GR_NODISCARD enum gr_status gr_sweep_live_here(struct gr_sweep *s, struct gr_sweep_life *l);
/* The same by `graft launch' under mpirun or srun. */
GR_NODISCARD enum gr_status gr_sweep_live_launched(struct gr_sweep *s, struct gr_sweep_life *l);
/* Prints the commands of a life instead. */
void gr_sweep_tell_here(const struct gr_sweep *s, const struct gr_sweep_life *l);
void gr_sweep_tell_launched(const struct gr_sweep *s, const struct gr_sweep_life *l);

/* Who starts workers, and on which hosts: launcher, site.n_host, host. GR_EINVAL: logged. */
GR_NODISCARD enum gr_status gr_sweep_find_hosts(struct gr_sweep *s);
/* What was measured where and how: equal for runs that may stand side by side. Owned by the caller; NULL: no memory. */
json_t *gr_sweep_about(const struct gr_sweep *s);

/* Table, capacity and pictures of what the store has: to standard output as --format says, and into the folder. */
GR_NODISCARD enum gr_status gr_sweep_report(const struct gr_sweep *s);

#endif
