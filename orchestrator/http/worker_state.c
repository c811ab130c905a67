#include "orchestrator/http/worker_state.h"

enum gr_http_worker_state gr_http_worker_state_of(const struct gr_worker_status *s)
{
    return s->leaving                          ? GR_HTTP_WORKER_LEAVING
           : s->draining && s->n_active > 0    ? GR_HTTP_WORKER_DRAINING
           : s->draining                       ? GR_HTTP_WORKER_DRAINED
           : s->standing != GR_QUARANTINE_GOOD ? GR_HTTP_WORKER_QUARANTINED
                                               : GR_HTTP_WORKER_SERVING;
}

const char *gr_http_worker_state_name(enum gr_http_worker_state state)
{
    static const char *const name[GR_HTTP_N_WORKER_STATE] = {[GR_HTTP_WORKER_SERVING] = "serving",
                                                             [GR_HTTP_WORKER_QUARANTINED] = "quarantine",
                                                             [GR_HTTP_WORKER_DRAINING] = "draining",
                                                             [GR_HTTP_WORKER_DRAINED] = "drained",
                                                             [GR_HTTP_WORKER_LEAVING] = "leaving"};
    return name[state];
}
