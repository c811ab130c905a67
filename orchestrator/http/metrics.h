/* The page /metrics: every family that there is (metrics.inc), with its samples from what the orchestrator last told
 * and from what the endpoint has counted itself. Pure. */
#ifndef GR_ORCHESTRATOR_HTTP_METRICS_H
#define GR_ORCHESTRATOR_HTTP_METRICS_H

#include "orchestrator/http/exposition.h"
#include "orchestrator/http/http_counts.h"
#include "orchestrator/http/server.h"

/* NULL after the last. */
const struct gr_expo_family *gr_metrics_family(int i);
/* path: the name of each path of http. */
void gr_metrics_write(FILE *out, const struct gr_http_state *s, const struct gr_http_counts *http,
                      const char *(*path)(int));

#endif
