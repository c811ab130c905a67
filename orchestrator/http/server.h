/* The endpoint: HTTP/1.1 by libmicrohttpd, in threads of its own. Requests to generate go through readers.h to the
 * orchestrator's thread (front.h); all else is answered here, of what the orchestrator last told (gr_http_tell), so
 * that it answers however busy the engine is. */
#ifndef GR_ORCHESTRATOR_HTTP_SERVER_H
#define GR_ORCHESTRATOR_HTTP_SERVER_H

#include "common/options/options.h"
#include "orchestrator/http/front.h"
#include "orchestrator/machine/orch.h"

struct gr_http;

struct gr_http_worker {
    uint32_t number; /* from 1 */
    enum gr_worker_role role;
    uint32_t n_slot; /* sessions that it has room for at a time */
    struct gr_worker_status status;
};

/* The targets of a served model. */
struct gr_http_model {
    uint32_t n_target;
    uint32_t n_taking; /* of these, that are not drained */
    uint32_t n_ctx;    /* of the one that has most; 0: there is none */
};

/* What the orchestrator's thread knows of the fleet. */
struct gr_http_state {
    struct gr_http_model model[GR_SERVED_MODEL_MAX]; /* of each that is served, in their order */
    uint32_t n_target, n_draft;                      /* targets: of served models */
    uint32_t n_target_wanted, n_draft_wanted;        /* with so many it is ready; at least one target of each model */
    uint32_t n_ctx;                                  /* the longest of theirs */
    bool draining;
    uint32_t n_running, n_waiting; /* turns */
    uint32_t n_session[GR_SESSION_CLOSING + 1];
    uint32_t n_worker;
    struct gr_http_worker worker[GR_ORCH_WORKER_MAX]; /* (n_worker) */
    struct gr_totals totals;
    bool has_journal, journal_failed; /* it takes nothing more, so no turn may begin */
    uint64_t journal_since_ns;        /* the oldest record that waits for its sync was added then; 0: none waits */
};

struct gr_http_config {
    const char *listen;             /* HOST:PORT */
    const struct gr_served *served; /* borrowed, (n_served) */
    int n_served;
    const struct gr_wishes *base; /* borrowed: where a request says nothing */
    struct gr_front *front;       /* borrowed */
    bool unknown_pass;
    /* Who is let in, and how (texts are borrowed). */
    bool insecure;            /* without keys other hosts are let in, too */
    const char *api_key_file; /* NULL: no keys */
    bool tls;
    const char *tls_cert, *tls_key;
    const char *const *host; /* (n_host): other names that are taken on loopback */
    int n_host;
    /* Limits (guests.h). */
    int n_connection, n_of_address;
    uint64_t request_ns, idle_ns;
};

/* GR_EIO, GR_EINVAL (logged): the port is taken, a file is not as it must be, ... */
GR_NODISCARD enum gr_status gr_http_create(const struct gr_http_config *c, struct gr_http **out);
const char *gr_http_address(const struct gr_http *h);
void gr_http_tell(struct gr_http *h, const struct gr_http_state *s);
/* Reads the files of keys and certificates again; who is being answered is not cut off. An error (logged): those that
 * were read last stay in use. */
GR_NODISCARD enum gr_status gr_http_reload(struct gr_http *h);
/* After the front's jobs have ended. */
void gr_http_destroy(struct gr_http *h);

#endif
