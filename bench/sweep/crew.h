/* The processes of one fleet: started, watched, ended. None is started again: a fleet that loses one is not what was
 * to be measured. Each writes what it says into a file of its own, and is killed by the kernel when this process dies.
 * One crew at a time; one thread. */
#ifndef GR_BENCH_SWEEP_CREW_H
#define GR_BENCH_SWEEP_CREW_H

#include "common/base/status.h"

#include <limits.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define GR_CREW_MAX 72          /* processes: an orchestrator, 64 workers, the clients, and some */
#define GR_CREW_WHY_MAX 320     /* bytes of a reason */
#define GR_CREW_ADDRESS_MAX 256 /* bytes of an address */

struct gr_crew_member {
    char name[32]; /* "target 2": for people, and of its files */
    pid_t pid;     /* 0: it has ended */
    int status;    /* of waitpid(), then */
};

struct gr_crew {
    char dir[PATH_MAX - 64]; /* of their files: NAME.log, and NAME.out of whose output is read */
    char key_hex[65];        /* GRAFT_KEY of all of them */
    struct gr_crew_member member[GR_CREW_MAX];
    int n;
};

/* Blocks SIGCHLD, SIGINT, SIGTERM and SIGHUP for this process: they are waited for. dir: is there. */
void gr_crew_begin(struct gr_crew *c, const char *dir, const char *key_hex);
/* argv: NULL after the last. cpus: NULL: all of this process's. read: its standard output goes into NAME.out. GR_EIO:
 * logged. The environment is this process's without graft's own variables (but GRAFT_LOG) and without those by which
 * launchers tell ranks apart. */
GR_NODISCARD enum gr_status gr_crew_start(struct gr_crew *c, const char *name, const char *const *argv,
                                          const cpu_set_t *cpus, bool read, int *index_out);
/* Those of `own' that are its CPUs number from, ..., from + n - 1; fewer where it has fewer. Pure. */
cpu_set_t gr_crew_cpus(const cpu_set_t *own, int from, int n);
/* Until member `index' has ended. GR_OK: with status 0. GR_EINVAL: otherwise, or another one ended before: why says
 * who, and the last line that it wrote. GR_ETIMEDOUT: neither has happened within limit_s; GR_ECANCELED: a signal came.
 */
GR_NODISCARD enum gr_status gr_crew_wait(struct gr_crew *c, int index, int limit_s, char why[GR_CREW_WHY_MAX]);
/* Until a file is there: as gr_crew_wait(), with GR_OK for that. */
GR_NODISCARD enum gr_status gr_crew_await_file(struct gr_crew *c, const char *path, int limit_s,
                                               char why[GR_CREW_WHY_MAX]);
/* `graft serve' as member `name', at a port of this host that is free: *index_out, and where it listens, when it does.
 * Else as gr_crew_await_file(). cpus: as gr_crew_start() takes them. */
GR_NODISCARD enum gr_status gr_crew_serve(struct gr_crew *c, const char *name, const cpu_set_t *cpus, int *index_out,
                                          char address[GR_CREW_ADDRESS_MAX], char why[GR_CREW_WHY_MAX]);
/* Asks all to end, and kills those that have not after some seconds. */
void gr_crew_end(struct gr_crew *c);
/* The signal of the last GR_ECANCELED; 0: none came. */
int gr_crew_signal(void);

#endif
