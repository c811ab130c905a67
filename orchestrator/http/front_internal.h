/* The front's insides: front.c begins jobs and hears what becomes of them, returns.c has those that are over and who
 * comes back to one. All but what is posted is the orchestrator's thread's. */
#ifndef GR_ORCHESTRATOR_HTTP_FRONT_INTERNAL_H
#define GR_ORCHESTRATOR_HTTP_FRONT_INTERNAL_H

#include "orchestrator/http/front.h"
#include "orchestrator/http/recall.h"

#include <pthread.h>

struct gr_front {
    struct gr_front_config c;
    int fd;
    pthread_mutex_t lock; /* of what is posted */
    struct gr_job *posted, **posted_end;
    struct gr_return *returned, **returned_end; /* owned */
    bool ended;
    struct gr_job *job;                            /* owned: those that are being answered */
    struct gr_job_answer *at[GR_FRONT_ANSWER_MAX]; /* by client number, less first_client */
    struct gr_recall *recall;
    int n_follower; /* of all jobs */
    /* Jobs that are over and can be come back to, oldest first. */
    struct gr_job *kept, **kept_end; /* owned */
    int n_kept;
    size_t kept_bytes;
};

/* ---- returns.c ---- */

/* The answer's turn ends with the tokens that it has. */
void gr_front_stop_answer(struct gr_front *f, struct gr_job_answer *a, uint64_t now_ns);
/* The stream is told the job's answers, those that it has and those that come. False: it was refused. */
bool gr_front_follow(struct gr_front *f, struct gr_job *j, struct gr_stream *stream, bool ids, uint32_t from,
                     uint64_t now_ns);
/* The job of an answer that is found; loaded, if it is over and a journal has it. NULL: it is not kept any more. */
struct gr_job *gr_front_recall(struct gr_front *f, const struct gr_recalled *e, uint64_t now_ns);
/* Is j's request one that came before? Then its stream is answered, j is gone. */
bool gr_front_came_before(struct gr_front *f, struct gr_job *j, uint64_t now_ns);
void gr_front_come_back(struct gr_front *f, const struct gr_return *r, uint64_t now_ns);
/* The job's response has ended, and it is in no list: takes it. */
void gr_front_retire(struct gr_front *f, struct gr_job *j, uint64_t now_ns);
/* Jobs that were kept for long enough are gone. Returns when to call again at the latest; UINT64_MAX: there is none. */
uint64_t gr_front_expire(struct gr_front *f, uint64_t now_ns);
void gr_front_end_returns(struct gr_front *f);

#endif
