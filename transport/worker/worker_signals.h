/* What signals ask of a worker process.
 *
 * SIGTERM, SIGINT and SIGHUP (unless nohup has it ignored): the worker leaves in order. It takes no new session, goes
 * on with the turns that it is in, and ends with status 0 when its orchestrator lets it go; after the limit it ends
 * with what it has. A second one ends it at once, by that signal. SIGUSR1 and SIGUSR2: the same without a limit and
 * without haste, as a launcher's word that time is nearly up.
 *
 * A launcher may signal a supervisor and its worker alike, and the supervisor hands on what it gets: what the parent
 * has sent and what others have sent are counted apart. */
#ifndef GR_TRANSPORT_WORKER_WORKER_SIGNALS_H
#define GR_TRANSPORT_WORKER_WORKER_SIGNALS_H

#include "transport/worker/worker_io.h"

/* Before the first thread. Until a loop runs, a signal ends the process as it stands, with status 0. limit_ns: how long
 * the turns may take that it is in. */
void gr_worker_signals_catch(uint64_t limit_ns);
/* From here on this process does what another one says, which lets it go in order: it drains with that one, and a
 * signal that asks it to end leaves it as long as gr_worker_signals_catch() was told, for a group is told to end as a
 * whole. */
void gr_worker_signals_follow(void);
/* gr_worker_io_run(), which a signal ends as gr_worker_io_leave() does. */
GR_NODISCARD enum gr_status gr_worker_signals_run(struct gr_worker_io *w);

#endif
