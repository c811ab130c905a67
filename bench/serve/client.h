/* HTTP to an endpoint, by libcurl: single requests, and a load of streamed ones at their times, on as many connections
 * as are wanted at once. One thread. In a build without libcurl all of it is GR_EUNSUPPORTED (logged). */
#ifndef GR_BENCH_SERVE_CLIENT_H
#define GR_BENCH_SERVE_CLIENT_H

#include "bench/serve/answer.h"

struct gr_client;

/* Texts are borrowed as long as the client lives. */
struct gr_client_config {
    const char *base_url;  /* http://HOST:PORT */
    const char *key;       /* NULL: none */
    const char *authority; /* file of certificates that vouch for an https endpoint; NULL: the system's */
};

struct gr_load {
    const char *path;        /* of each POST */
    const char *const *body; /* (n_body) JSON texts; request i sends body i % n_body */
    int n_body;
    const double *at_s; /* (n) when each is to be sent, in seconds after the beginning, ascending */
    int n;
    int at_once;        /* on their way, at most: others wait, and are sent in turn */
    uint64_t stop_ns;   /* after the beginning: none is sent any more; UINT64_MAX: never */
    int64_t timeout_ms; /* of a request */
};

GR_NODISCARD enum gr_status gr_client_open(const struct gr_client_config *config, struct gr_client **out);
void gr_client_close(struct gr_client *c); /* NULL is legal */
/* The body of a GET, owned by the caller. GR_EIO: no answer, or another status than 200: the reason is in why. */
GR_NODISCARD enum gr_status gr_client_get(struct gr_client *c, const char *path, char **text_out,
                                          char why[static GR_ANSWER_SAID_MAX]);
/* answer: (n) zeroes. Returns when the last one has ended. GR_ENOMEM, GR_EIO: of this machine, not of the endpoint. */
GR_NODISCARD enum gr_status gr_client_load(struct gr_client *c, const struct gr_load *load, struct gr_answer *answer,
                                           struct gr_gaps *gaps, uint64_t *duration_ns_out);

#endif
