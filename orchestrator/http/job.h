/* A request that is being answered: what was asked, and its answers. It is made by the thread that reads the request,
 * handed to the orchestrator's thread (front.h), which alone touches it from then on; what others see of it is its
 * stream. */
#ifndef GR_ORCHESTRATOR_HTTP_JOB_H
#define GR_ORCHESTRATOR_HTTP_JOB_H

#include "orchestrator/http/api_keys.h"
#include "orchestrator/http/ask.h"
#include "orchestrator/http/reply.h"
#include "orchestrator/http/request_names.h"
#include "orchestrator/http/stream.h"
#include "orchestrator/machine/session_metrics.h"

struct gr_job;

/* One answer of a job, a session of the desk. */
struct gr_job_answer {
    struct gr_job *job;
    int index;
    uint32_t client;  /* its number at the desk; 0: none yet */
    uint64_t session; /* 0: not open yet */
    uint32_t turn;
    bool over, stop_sent;
    enum gr_finish finish;
    uint32_t n_told; /* tokens whose values were sent */
    struct gr_turn_text turn_text;
    struct gr_session_metrics metrics;
};

struct gr_job {
    struct gr_api_request request;
    struct gr_api_owner owner;     /* who asked it */
    struct gr_request_names names; /* what he calls it */
    const struct gr_served *model; /* borrowed */
    struct gr_ask ask;
    struct gr_reply reply;
    struct gr_stream *stream;     /* a reference of its own */
    struct gr_job_answer *answer; /* owned, (n_answer) */
    int n_answer, n_opened, n_over;
    bool failed;      /* its response has ended; answers that still run are given up */
    uint64_t said_ns; /* when something was last written */
    struct gr_job *next;
};

/* NULL (logged): there is no memory. */
struct gr_job *gr_job_create(struct gr_stream *stream);
void gr_job_destroy(struct gr_job *j); /* NULL is legal */

#endif
