/* Requests of the endpoint that are over, by path and status: one count each. Pure. */
#ifndef GR_ORCHESTRATOR_HTTP_HTTP_COUNTS_H
#define GR_ORCHESTRATOR_HTTP_HTTP_COUNTS_H

#include <stdint.h>

#define GR_HTTP_PATHS 14 /* those of pages.c, and all others together */
#define GR_HTTP_CODES 21

struct gr_http_counts {
    uint64_t n[GR_HTTP_PATHS][GR_HTTP_CODES];
};

/* path: gr_page_number(); http_status 0: none was sent. */
void gr_http_count(struct gr_http_counts *c, int path, int http_status);
/* "200", ...; "none"; "other". */
const char *gr_http_code_name(int i);

#endif
