/* The endpoint's insides: server.c starts and ends it, exchange.c answers requests. */
#ifndef GR_ORCHESTRATOR_HTTP_SERVER_INTERNAL_H
#define GR_ORCHESTRATOR_HTTP_SERVER_INTERNAL_H

#include "orchestrator/http/answering.h"
#include "orchestrator/http/door.h"
#include "orchestrator/http/guests.h"
#include "orchestrator/http/http_counts.h"
#include "orchestrator/http/listener.h"
#include "orchestrator/http/readers.h"
#include "orchestrator/http/server.h"
#include "orchestrator/http/watch.h"

#include <microhttpd.h>
#include <pthread.h>

struct gr_http {
    struct gr_http_config c;
    struct gr_http_listener listener;
    struct MHD_Daemon *daemon;
    struct gr_readers *readers;
    struct gr_watch *watch;
    struct gr_guests *guests;
    char *too_late;                /* owned: the response to who is too slow */
    struct gr_answering answering; /* exchanges with a stream */
    struct gr_bodies bodies;       /* of requests, until they are read */
    struct gr_http_counts counts;  /* of the library's thread alone */
    pthread_mutex_t lock;          /* of the rest */
    struct gr_http_state state;
    struct gr_door door;
    struct gr_api_keys *keys; /* owned; NULL: none are asked for */
};

/* What the orchestrator last told. Any thread. */
static inline struct gr_http_state gr_http_state_of(struct gr_http *h)
{
    pthread_mutex_lock(&h->lock);
    const struct gr_http_state s = h->state;
    pthread_mutex_unlock(&h->lock);
    return s;
}

/* ---- exchange.c: what the library calls, in its thread; cls is the gr_http ---- */

enum MHD_Result gr_exchange_on_request(void *cls, struct MHD_Connection *c, const char *target, const char *method,
                                       const char *version, const char *data, size_t *n_data, void **kept);
void gr_exchange_on_completed(void *cls, struct MHD_Connection *c, void **kept, enum MHD_RequestTerminationCode code);
void gr_exchange_on_connection(void *cls, struct MHD_Connection *c, void **kept,
                               enum MHD_ConnectionNotificationCode code);
/* A request's line is there. NULL. */
void *gr_exchange_on_line(void *cls, const char *uri, struct MHD_Connection *c);

/* ... and what the watch calls, in its own. */
void gr_exchange_probe(void *who);
void gr_exchange_gone(void *who);

#endif
