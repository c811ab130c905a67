/* Worker processes started by the orchestrator: spawn, watch, restart with back-off, end. A child lives in its own
 * process group (ctrl-C of the terminal does not reach it) and is killed by the kernel when its parent dies. */
#ifndef GR_ORCHESTRATOR_CHILDREN_H
#define GR_ORCHESTRATOR_CHILDREN_H

#include "common/status.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define GR_CHILD_MAX 4
#define GR_CHILD_ARG_MAX 40

struct gr_child {
    const char *name;                 /* for messages */
    char *argv[GR_CHILD_ARG_MAX + 1]; /* owned strings, NULL-terminated */
    pid_t pid;                        /* 0: not running */
    int n_start;
    uint64_t start_ns, restart_ns;    /* restart_ns: not before */
};

enum gr_child_event { GR_CHILD_NONE, GR_CHILD_KILLED, GR_CHILD_FAILED, GR_CHILD_ENDED };

struct gr_children {
    struct gr_child child[GR_CHILD_MAX];
    int n;
    int signal_fd; /* SIGCHLD, SIGINT, SIGTERM: readable when something came */
    char key_hex[65];
};

/* Blocks SIGCHLD, SIGINT and SIGTERM for the process and reads them from signal_fd. */
GR_NODISCARD enum gr_status gr_children_init(struct gr_children *c, const char *key_hex);
/* argv: NULL-terminated, copied. */
GR_NODISCARD enum gr_status gr_children_start(struct gr_children *c, const char *name, const char *const *argv,
                                              int *index_out);
/* Reads one signal. *interrupted_out: SIGINT or SIGTERM came. Returns what happened to a child, if anything; KILLED: by
 * a signal (it will be started again by gr_children_restart), FAILED: exit status not 0. */
enum gr_child_event gr_children_poll(struct gr_children *c, bool *interrupted_out, int *index_out);
/* Starts killed children whose back-off is over. Returns ms until the next one is due, -1: none. */
int gr_children_restart(struct gr_children *c, uint64_t now_ns);
/* Ends all: waits up to grace_ms for them to exit by themselves, then kills. Frees. */
void gr_children_finish(struct gr_children *c, int grace_ms);

#endif
