/* Child processes of an orchestrator or a supervisor: spawn, watch, restart with back-off, end. A child lives in its
 * own process group (ctrl-C of the terminal does not reach it) and is killed by the kernel when its parent dies. */
#ifndef GR_COMMON_PROCESS_CHILDREN_H
#define GR_COMMON_PROCESS_CHILDREN_H

#include "common/process/restart.h"
#include "common/process/told.h"
#include "common/base/status.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define GR_CHILD_MAX 64      /* children of a process, at most */
#define GR_CHILD_ARG_MAX 128 /* words of a child's command line, at most */

/* Exit statuses of a worker that its parent understands. */
#define GR_EXIT_ORCHESTRATOR_LOST 3 /* its orchestrator stayed away for longer than it was to wait */
#define GR_CHILD_EXIT_AGAIN 4       /* its device or its group failed, or a pass hung: another process may do better */

/* When is a child started again? */
struct gr_child_rule {
    struct gr_restart_rule restart;
    /* Exit status 0, and GR_EXIT_ORCHESTRATOR_LOST, are its end; otherwise they mean that nobody told it to end: it
     * lost its link. */
    bool status_0_ends;
    /* A worker whose seat may have been named outside (GRAFT_SEAT); else each child has one of its own. */
    bool keeps_seat;
};

struct gr_child {
    char *name;  /* for messages, "the NAME is back"; owned */
    char **argv; /* owned, NULL-terminated */
    struct gr_child_rule rule;
    struct gr_restart restart;
    char seat[17];                 /* GRAFT_SEAT of all its lives */
    pid_t pid;                     /* 0: not running */
    int joined_fd;                 /* readable once it has joined, or is to end; owned */
    int exit_status;               /* of the last end that was no signal */
    bool ends;                     /* it has said that its next end is in order, whatever its status */
    int told_end;                  /* the signal by which this process has told it to end; 0: it has not */
    bool silent;                   /* its next life logs nothing until it has joined */
    uint64_t start_ns, restart_ns; /* restart_ns: not before; 0: not to be started */
    char why[256];                 /* after GR_CHILD_GIVEN_UP: the reason; empty: the child itself has told it */
};

/* RESTARTED: it ended and will be started again by gr_children_restart(). GIVEN_UP: it ended and will not; `why' tells.
 * ENDED: by itself, with a status that its rule calls its end. One that has said that it is to end (joined.h) and that
 * is no status of an end is given up. */
enum gr_child_event { GR_CHILD_NONE, GR_CHILD_RESTARTED, GR_CHILD_GIVEN_UP, GR_CHILD_ENDED };

struct gr_children {
    struct gr_child *child; /* owned: room for GR_CHILD_MAX, as whoever has these may live on a small stack */
    int n;
    int signal_fd;       /* SIGCHLD, SIGINT, SIGTERM, SIGHUP, drains: readable when something came */
    struct gr_told told; /* a signal has said that this process is to end */
    char key_hex[65];
};

/* Blocks SIGCHLD, gr_program_endings() and the signals of gr_program_drained_by() for the process and reads them from
 * signal_fd.
 * key_hex: handed to the children as GRAFT_KEY; NULL: they inherit the environment as it is. */
GR_NODISCARD enum gr_status gr_children_init(struct gr_children *c, const char *key_hex);
/* name, argv (NULL-terminated): copied. */
GR_NODISCARD enum gr_status gr_children_start(struct gr_children *c, const char *name, const char *const *argv,
                                              const struct gr_child_rule *rule, int *index_out);
/* Reads the signals that came. *signal_out: the last one but SIGCHLD, if any; else it stays. The first that tells this
 * process to end by its parent, and the first by others, count as one. Returns what happened to a
 * child, if anything. That a child is started again, and that it is back, is logged here; why it was given up is left
 * to the caller. */
enum gr_child_event gr_children_poll(struct gr_children *c, int *signal_out, int *index_out);
/* The child has brought something (a committed token), or nothing was asked of it: its ends so far do not count as
 * fruitless. */
void gr_children_progress(struct gr_children *c, int index);
/* Has the child joined its orchestrator in this life? */
bool gr_children_joined(struct gr_children *c, int index);
/* Has it said that it is to end? Its next end is then its last. */
bool gr_children_ends(const struct gr_children *c, int index);
/* Sends a signal to all that run. Who dies of one that says to end has heeded it, and is given up without a line. */
void gr_children_signal(struct gr_children *c, int signal_number);
/* Starts killed children whose back-off is over. Returns ms until the next one is due, -1: none. */
int gr_children_restart(struct gr_children *c, uint64_t now_ns);
/* Ends all: waits up to grace_ms for them to exit by themselves, or until a signal to this process asks for haste, then
 * kills. Frees. */
void gr_children_finish(struct gr_children *c, int grace_ms);

#endif
