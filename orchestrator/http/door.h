/* Who is let in: the rules that a request's line and headers are held against before its body is read. Pure.
 *
 * A page of another site can make a browser ask an endpoint on loopback, by a name of its own that leads there or with
 * a body that needs no leave: so the name is checked there, and a body has to be JSON, which needs leave that is never
 * given. With keys everything but open pages needs one, and who has none is not told which pages there are. */
#ifndef GR_ORCHESTRATOR_HTTP_DOOR_H
#define GR_ORCHESTRATOR_HTTP_DOOR_H

#include "orchestrator/http/api_error.h"
#include "orchestrator/http/api_keys.h"
#include "orchestrator/http/bodies.h"
#include "orchestrator/http/guests.h"
#include "orchestrator/http/pages.h"

#define GR_HTTP_HEAD_MAX (64u << 10) /* bytes of a request's headers */
#define GR_HTTP_PATH_MAX (8u << 10)  /* bytes of its path */

struct gr_door {
    bool on_loopback;        /* its listener: names are checked */
    const char *const *host; /* borrowed, (n_host): other names that are taken there */
    int n_host;
    const struct gr_api_keys *keys; /* borrowed; NULL: none is needed */
};

/* What is looked at. Texts are borrowed; NULL: there is no such header. */
struct gr_visit {
    const struct gr_page *page; /* at its path; NULL: none is */
    const char *path, *method, *host, *type, *coding, *length, *authorization;
    int n_authorization; /* headers of that name */
    int n_host;
    bool needs_host;  /* its version is 1.1 or later */
    bool nul_in_path; /* path ends before it */
    bool is_chunked, lengths_differ;
    bool odd_name;        /* one of its headers is gr_header_is_odd() */
    const char *transfer; /* a Transfer-Encoding that is not chunked */
    const char *request_id, *trace_parent;
    int n_request_id, n_trace_parent;
    size_t head_bytes; /* of all headers */
    enum gr_guest_excess excess;
};

struct gr_admission {
    struct gr_api_owner owner;
    struct gr_api_error error; /* http_status 0: it is let in */
    bool ends;                 /* what follows on the connection is no request */
};

void gr_door_ask(const struct gr_door *d, const struct gr_visit *v, struct gr_admission *out);
/* localhost, 127.0.0.1 or [::1], or one of the names, each alone or with a port. */
bool gr_door_knows_host(const struct gr_door *d, const char *host);
/* A name that others may read as another one: it has a blank, or begins with the name of a header that says where the
 * body ends. (The library makes one name of such a header, if it has no value, and of a line after it that begins with
 * a blank.) */
bool gr_header_is_odd(const char *name);
/* application/json, with parameters or without. */
bool gr_type_is_json(const char *type);

#endif
