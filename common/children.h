/* Child processes of an orchestrator or a supervisor: spawn, watch, restart with back-off, end. A child lives in its
 * own process group (ctrl-C of the terminal does not reach it) and is killed by the kernel when its parent dies. */
#ifndef GR_COMMON_CHILDREN_H
#define GR_COMMON_CHILDREN_H

#include "common/status.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define GR_CHILD_MAX 4
#define GR_CHILD_ARG_MAX 64

struct gr_child {
    const char *name;                 /* for messages */
    char *argv[GR_CHILD_ARG_MAX + 1]; /* owned strings, NULL-terminated */
    pid_t pid;                        /* 0: not running */
    int n_short;                      /* deaths in a row after a short life */
    int exit_status;                  /* of the last end that was no signal */
    uint64_t start_ns, restart_ns;    /* restart_ns: not before; 0: not to be started */
};

/* Exit status of a child whose device failed: another process may do better, so it is taken as killed. */
#define GR_CHILD_EXIT_AGAIN 4

enum gr_child_event { GR_CHILD_NONE, GR_CHILD_KILLED, GR_CHILD_FAILED, GR_CHILD_ENDED };

struct gr_children {
    struct gr_child child[GR_CHILD_MAX];
    int n;
    int signal_fd; /* SIGCHLD, SIGINT, SIGTERM: readable when something came */
    char key_hex[65];
};

/* Blocks SIGCHLD, SIGINT and SIGTERM for the process and reads them from signal_fd. */
/* key_hex: handed to the children as GRAFT_KEY; NULL: they inherit the environment as it is. */
GR_NODISCARD enum gr_status gr_children_init(struct gr_children *c, const char *key_hex);
/* argv: NULL-terminated, copied. */
GR_NODISCARD enum gr_status gr_children_start(struct gr_children *c, const char *name, const char *const *argv,
                                              int *index_out);
/* Reads one signal. *interrupted_out: SIGINT or SIGTERM came. Returns what happened to a child, if anything; KILLED: by
 * a signal, or ended with GR_CHILD_EXIT_AGAIN (it will be started again by gr_children_restart), FAILED: another exit
 * status than 0. */
enum gr_child_event gr_children_poll(struct gr_children *c, bool *interrupted_out, int *index_out);
/* A child that ended by itself is to be started again, with the same back-off. */
void gr_children_revive(struct gr_children *c, int index, uint64_t now_ns);
/* Sends a signal to all that run. */
void gr_children_signal(const struct gr_children *c, int signal_number);
/* Starts killed children whose back-off is over. Returns ms until the next one is due, -1: none. */
int gr_children_restart(struct gr_children *c, uint64_t now_ns);
/* Ends all: waits up to grace_ms for them to exit by themselves, then kills. Frees. */
void gr_children_finish(struct gr_children *c, int grace_ms);

#endif
