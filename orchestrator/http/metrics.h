/* The page /metrics: every family that there is (metrics.inc), with its samples from what the orchestrator last told
 * and from what the endpoint has counted itself. Pure. */
#ifndef GR_ORCHESTRATOR_HTTP_METRICS_H
#define GR_ORCHESTRATOR_HTTP_METRICS_H

#include "orchestrator/http/exposition.h"
#include "orchestrator/http/http_counts.h"
#include "orchestrator/http/server.h"

/* NULL after the last. */
const struct gr_expo_family *gr_metrics_family(int i);

/* What the page is made of; all is borrowed. */
struct gr_metrics_from {
    const struct gr_http_state *state;
    const struct gr_http_counts *http;
    const char *(*path)(int); /* the name of each path of http */
    uint64_t now_ns;          /* gr_clock_ns() */
    int64_t tls_end_s;        /* gr_tls_end_s() */
};

void gr_metrics_write(FILE *out, const struct gr_metrics_from *from);

#endif
