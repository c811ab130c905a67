/* --supervise: the worker program runs as a small parent that starts the real worker, and starts it again, with
 * back-off and a new incarnation, when a signal killed it or its device failed, and, once it has joined an
 * orchestrator, also when it fails by itself. A worker that was drained, or that fails before it has ever joined (a
 * configuration error), ends its supervisor with the same status. An orchestrator that goes away is waited for without
 * limit, unless --rejoin-timeout sets one: then the worker ends, and its supervisor with it. */
#ifndef GR_TRANSPORT_WORKER_SUPERVISE_H
#define GR_TRANSPORT_WORKER_SUPERVISE_H

#include "common/base/status.h"

#include <stdbool.h>

/* This process is the worker of a supervisor. */
bool gr_supervise_is_child(void);
/* Looks for --supervise among the arguments. */
bool gr_supervise_wanted(int argc, char **argv);
/* The parent; name: target or draft. Runs until the worker is done. What asks it to end or to drain (worker_signals.h)
 * it hands on to the worker, whose end is then its own. Returns the exit status of the process. */
int gr_supervise_run(const char *name, int argc, char **argv);
/* Exit status of a worker process whose run ended with st: 0 when it was drained, GR_EXIT_ORCHESTRATOR_LOST
 * (children.h) when its orchestrator stayed away for too long, GR_CHILD_EXIT_AGAIN for GR_ECUDA. */
int gr_supervise_exit_status(enum gr_status st);

#endif
