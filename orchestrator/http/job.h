/* A request that is being answered, or was: what was asked, its answers, and who follows them. It is made by the thread
 * that reads the request, handed to the orchestrator's thread (front.h), which alone touches it from then on; what
 * others see of it are its followers' streams. */
#ifndef GR_ORCHESTRATOR_HTTP_JOB_H
#define GR_ORCHESTRATOR_HTTP_JOB_H

#include "orchestrator/http/api_keys.h"
#include "orchestrator/http/ask.h"
#include "orchestrator/http/once.h"
#include "orchestrator/http/reply.h"
#include "orchestrator/http/request_names.h"
#include "orchestrator/http/stream.h"
#include "orchestrator/machine/session_metrics.h"

#define GR_TOLD_ALL UINT32_MAX /* an answer's tokens, and its end */

struct gr_job;

/* One answer of a job, a session of the desk. */
struct gr_job_answer {
    struct gr_job *job;
    int index;
    uint32_t client;  /* its number at the desk; 0: none yet */
    uint64_t session; /* 0: not open yet */
    uint32_t turn, epoch;
    bool over, stop_sent;
    enum gr_finish finish;
    struct gr_turn_text turn_text;
    struct gr_session_metrics metrics;
};

/* Who is told the answers of a job, at a position of his own. */
struct gr_follower {
    struct gr_stream *stream; /* a reference of its own */
    struct gr_follower *next;
    uint32_t *n_told; /* owned, (n_answer): tokens of each answer; GR_TOLD_ALL */
    uint32_t from;    /* tokens of the first answer that he has already */
    bool ids;         /* his events have names */
    bool begun;       /* his response has a head */
    bool ended;       /* nothing is told him any more */
    uint64_t said_ns; /* when he was last told something */
};

struct gr_job {
    struct gr_api_request request;
    struct gr_api_owner owner;     /* who asked it */
    struct gr_request_names names; /* what he calls it */
    const struct gr_served *model; /* borrowed */
    struct gr_ask ask;
    struct gr_reply reply;
    struct gr_once once;
    bool event_ids;               /* who asked it wants names of events */
    struct gr_stream *stream;     /* of who asked it, a reference of its own; NULL: he follows */
    struct gr_job_answer *answer; /* owned, (n_answer) */
    int n_answer, n_opened, n_over;
    struct gr_follower *follower; /* owned, (n_follower) */
    int n_follower;
    int place;                 /* at which it is found (recall.h); -1: at none */
    bool resumes;              /* it goes on for a while without a follower */
    bool restored;             /* it began in an earlier process */
    bool untended;             /* it began in an earlier process, and goes on to its end without a follower */
    bool failed;               /* its response has ended; answers that still run are given up */
    bool left;                 /* it has failed since nobody follows it */
    struct gr_api_error error; /* how it has failed; http_status 0: nobody is told */
    uint64_t left_ns;          /* since when nobody follows it; 0: somebody does */
    uint64_t over_ns;          /* when it was over */
    size_t n_byte;             /* of memory, when it was over */
    struct gr_job *next;
};

/* NULL (logged): there is no memory. */
struct gr_job *gr_job_create(struct gr_stream *stream);
void gr_job_destroy(struct gr_job *j); /* its followers' streams end; NULL is legal */
/* Nobody follows it, and nobody will: its answers are given up. */
static inline void gr_job_abandon(struct gr_job *j)
{
    j->failed = j->left = true;
}
/* Somebody has come back to it, and may do so again. */
static inline void gr_job_follow_again(struct gr_job *j)
{
    j->resumes = true;
    j->untended = false;
}
/* For each prompt its answers. GR_ENOMEM: logged. */
GR_NODISCARD enum gr_status gr_job_prepare(struct gr_job *j);
/* Somebody more follows; NULL (logged): there is no memory. Takes a reference to the stream. */
struct gr_follower *gr_job_add_follower(struct gr_job *j, struct gr_stream *stream, bool ids, uint32_t from);
/* Those who have ended, and who are gone, follow no more. Returns how many those were. */
int gr_job_drop_followers(struct gr_job *j);
/* Memory that is of no use when it is over is given back. */
void gr_job_trim(struct gr_job *j);
static inline bool gr_job_is_over(const struct gr_job *j)
{
    return j->n_over == j->n_answer;
}

#endif
