/* What a worker is up to, as /metrics and /v1/graft/fleet say it. */
#ifndef GR_ORCHESTRATOR_HTTP_WORKER_STATE_H
#define GR_ORCHESTRATOR_HTTP_WORKER_STATE_H

#include "orchestrator/machine/orch.h"

enum gr_http_worker_state {
    GR_HTTP_WORKER_SERVING,
    GR_HTTP_WORKER_QUARANTINED, /* on trial, too */
    GR_HTTP_WORKER_DRAINING,    /* turns end with it */
    GR_HTTP_WORKER_DRAINED,
    GR_HTTP_WORKER_LEAVING
};
#define GR_HTTP_N_WORKER_STATE 5

enum gr_http_worker_state gr_http_worker_state_of(const struct gr_worker_status *s);
/* One word: of a label, or a value in JSON. */
const char *gr_http_worker_state_name(enum gr_http_worker_state state);

#endif
