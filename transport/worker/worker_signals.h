/* SIGINT and SIGTERM of a worker process: it ends in order, with status 0, as its orchestrator's DRAIN makes it. A
 * second signal ends it at once. */
#ifndef GR_TRANSPORT_WORKER_WORKER_SIGNALS_H
#define GR_TRANSPORT_WORKER_WORKER_SIGNALS_H

#include "transport/worker/worker_io.h"

/* Before the first thread. Until a loop runs, a signal ends the process as it stands. */
void gr_worker_signals_catch(void);
/* gr_worker_io_run(), which a signal ends as gr_worker_io_stop() does. */
GR_NODISCARD enum gr_status gr_worker_signals_run(struct gr_worker_io *w);

#endif
