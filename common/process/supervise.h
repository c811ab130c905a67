/* --supervise: the program runs as a small parent that starts the real one, and starts it again, with back-off, when a
 * signal killed it or its device failed, and, once it has joined an orchestrator or, as one, serves, also when it fails
 * by itself. One that was told to end or to drain, by a signal or by `graft stop', or that fails before that (a
 * configuration error), ends its supervisor with the same status, 1 if a signal killed it. A worker waits for an
 * orchestrator that goes away without limit, unless --rejoin-timeout sets one: then it ends, and its supervisor with
 * it. */
#ifndef GR_COMMON_PROCESS_SUPERVISE_H
#define GR_COMMON_PROCESS_SUPERVISE_H

#include "common/base/status.h"

#include <stdbool.h>

/* This process is the child of a supervisor. */
bool gr_supervise_is_child(void);
/* What this process starts is not. */
void gr_supervise_forget(void);
/* Looks for --supervise among the arguments. */
bool gr_supervise_wanted(int argc, char **argv);
/* Who is supervised. */
struct gr_supervised {
    const char *program; /* beside this one: "graft-target" */
    const char *verb;    /* its first word; NULL: none */
    const char *name;    /* for messages: "target worker" */
    bool rereads;        /* it reads files again by SIGHUP, and does not end */
};

/* The parent, whose argv the child gets without --supervise. Runs until the child is done. What asks it to end or to
 * drain it hands on to the child, whose end is then its own. Returns the exit status of the process. */
int gr_supervise_run(const struct gr_supervised *what, int argc, char **argv);
/* Exit status of a worker process whose run ended with st: 0 when it was drained, GR_EXIT_ORCHESTRATOR_LOST
 * (children.h) when its orchestrator stayed away for too long, GR_CHILD_EXIT_AGAIN for GR_ECUDA. */
int gr_supervise_exit_status(enum gr_status st);

#endif
