/* A turn at a running orchestrator: `graft run --connect`, `graft session open` and `graft session send`. */
#ifndef GR_ORCHESTRATOR_CLI_CONNECT_H
#define GR_ORCHESTRATOR_CLI_CONNECT_H

#include "common/options/options.h"

/* By the options: --session ID goes on with that session, --keep leaves a new one open. Returns the exit status. */
int gr_connect_run(struct gr_options *o);
/* A new session that stays open; prints its id alone on standard output. */
int gr_connect_open(struct gr_options *o);

#endif
