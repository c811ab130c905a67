/* The fleet as JSON, for who looks at it while it works (docs/http.md): what /metrics has of workers, sessions and
 * rounds, and no user's word and no session's id. Pure. */
#ifndef GR_ORCHESTRATOR_HTTP_FLEET_H
#define GR_ORCHESTRATOR_HTTP_FLEET_H

#include "orchestrator/http/served.h"
#include "orchestrator/http/server.h"

/* The caller's (free). NULL: out of memory. */
char *gr_fleet_json(const struct gr_http_state *s, const struct gr_served *served, int n_served);

#endif
