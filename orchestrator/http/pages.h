/* What is at which path: requests that readers take, and pages that are made at once of what is known of the fleet.
 * Pure. */
#ifndef GR_ORCHESTRATOR_HTTP_PAGES_H
#define GR_ORCHESTRATOR_HTTP_PAGES_H

#include "orchestrator/http/http_counts.h"
#include "orchestrator/http/readers.h"
#include "orchestrator/http/server.h"

struct gr_page_fleet {
    const struct gr_http_state *state;
    const struct gr_http_counts *http;
    const struct gr_served *served;
    int n_served;
    uint64_t now_ns;   /* gr_clock_ns() */
    int64_t tls_end_s; /* gr_tls_end_s() */
};

enum gr_page_return { GR_RETURN_NONE, GR_RETURN_STREAM, GR_RETURN_STOP };

struct gr_page_header {
    const char *name, *value;
};

struct gr_page {
    const char *path; /* with `*' for any one part */
    bool post;        /* a body, for readers; else GET */
    bool open;        /* needs no key */
    bool always;      /* is there for connections in excess, too */
    enum gr_read_what read;
    enum gr_page_return back; /* who comes back to a session, which the path names; GR_RETURN_NONE: not so */
    /* malloc; NULL: out of memory. Status 200 and JSON, unless it says otherwise. */
    char *(*make)(const struct gr_page_fleet *f, int *http_status, const char **type);
    const struct gr_page_header *header; /* of its response, up to one without a name; NULL: none but the usual ones */
};

/* Doubled slashes, and one at the end, do not count. NULL: there is nothing. */
const struct gr_page *gr_page_find(const char *path);
/* The session that the path of such a page names. False: none can be called so. */
bool gr_page_session(const char *path, uint64_t *out);
/* Pages and, for NULL, all other paths together, from 0. */
int gr_page_number(const struct gr_page *page);
/* A name for each number: the path, or "other". */
const char *gr_page_path(int i);

#endif
