/* The answer to LIST: the sessions and workers of a running orchestrator, read and shown. */
#ifndef GR_ORCHESTRATOR_CLI_LISTING_H
#define GR_ORCHESTRATOR_CLI_LISTING_H

#include "orchestrator/cli/remote.h"

#include <jansson.h>

struct gr_listing_session {
    uint64_t id;
    struct gr_msg_listed_session is;
};

/* All zeroes: nothing is listed. */
struct gr_listing {
    struct gr_listing_session *session;  /* owned */
    struct gr_msg_listed_worker *worker; /* owned */
    int n_session, n_worker;
    size_t session_max, worker_max; /* that there is memory for */
    bool journal_failed;            /* no turn begins there */
};

#define GR_LISTING_MS 30000 /* how long an answer is waited for, unless something bounds it */

/* Asks, and waits for the whole answer; what was listed before is gone. GR_ETIMEDOUT (logged): nothing of it has come
 * for within_ms; GR_ENOMEM (logged); as gr_remote_recv(). */
GR_NODISCARD enum gr_status gr_listing_read(struct gr_remote *r, int within_ms, struct gr_listing *l);
void gr_listing_finish(struct gr_listing *l);

/* Words and figures of one row. The JSON objects are the caller's. */
const char *gr_listing_role_name(uint32_t role);
const char *gr_listing_session_state(const struct gr_msg_listed_session *m); /* waiting, opening, running, idle, ... */
const char *gr_listing_worker_state(const struct gr_msg_listed_worker *m);   /* serving, draining, leaving */
double gr_listing_acceptance(const struct gr_msg_listed_session *m);         /* mean length; 1: no tree was judged */
json_t *gr_listing_session_json(const struct gr_listing_session *m);
json_t *gr_listing_worker_json(const struct gr_msg_listed_worker *m);

/* These print on standard output and return the exit status. */
int gr_listing_print(const struct gr_listing *l, bool json);         /* sessions, then workers */
int gr_listing_print_workers(const struct gr_listing *l, bool json); /* what they have to do */
int gr_listing_print_session(const struct gr_listing_session *s, bool json);
/* root (taken) on a line. */
int gr_listing_dump(json_t *root);

#endif
