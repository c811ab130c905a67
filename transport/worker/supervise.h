/* --supervise: the worker program runs as a small parent that starts the real worker, and starts it again, with
 * back-off and a new incarnation, when a signal killed it, its device failed or its orchestrator went away, and,
 * once it has joined an orchestrator, also when it fails by itself. A worker that was drained, or that fails before it
 * has ever joined (a configuration error), ends its supervisor with the same status. */
#ifndef GR_TRANSPORT_WORKER_SUPERVISE_H
#define GR_TRANSPORT_WORKER_SUPERVISE_H

#include "common/base/status.h"

#include <stdbool.h>

/* Looks for --supervise among the arguments. */
bool gr_supervise_wanted(int argc, char **argv);
/* The parent; name: target or draft. Runs until the worker is done or SIGINT or SIGTERM comes (which end the worker,
 * too). Returns the exit status of the process. */
int gr_supervise_run(const char *name, int argc, char **argv);
/* Exit status of a worker process whose run ended with st: 0 when it was drained or, unsupervised, its orchestrator is
 * gone; GR_CHILD_EXIT_AGAIN (children.h) for GR_ECUDA. */
int gr_supervise_exit_status(enum gr_status st);

#endif
