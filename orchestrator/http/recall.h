/* Which answers are found again, by their session or by the Idempotency-Key of their request, and whose they are:
 * nobody finds another's. A place without a job names a session whose answer is not in memory any more; a journal may
 * have it. Such a place is used for another answer when none is free. Pure. */
#ifndef GR_ORCHESTRATOR_HTTP_RECALL_H
#define GR_ORCHESTRATOR_HTTP_RECALL_H

#include "orchestrator/http/job.h"

#define GR_RECALL_PLACES 16384 /* more than there are jobs in memory */

struct gr_recall;

struct gr_recalled {
    bool used;
    uint64_t session; /* 0: not open yet, or of several answers */
    struct gr_api_owner owner;
    struct gr_once once;
    struct gr_job *job; /* borrowed; NULL: it is not in memory */
};

/* GR_ENOMEM: logged. */
GR_NODISCARD enum gr_status gr_recall_create(struct gr_recall **out);
void gr_recall_destroy(struct gr_recall *r); /* NULL is legal */
/* A place for an answer; job: NULL, or borrowed until it is taken away. once: where it was asked for. */
int gr_recall_add(struct gr_recall *r, const struct gr_api_owner *owner, const struct gr_once *once,
                  struct gr_job *job);
void gr_recall_name(struct gr_recall *r, int place, uint64_t session);
/* NULL: there is none, or it is not this owner's. Valid until the next call. */
struct gr_recalled *gr_recall_session(struct gr_recall *r, uint64_t session, const struct gr_api_owner *owner);
struct gr_recalled *gr_recall_once(struct gr_recall *r, const struct gr_once *once);
int gr_recall_place(const struct gr_recall *r, const struct gr_recalled *e);
/* The job is in memory. */
void gr_recall_load(struct gr_recall *r, int place, struct gr_job *job);
/* The job is in memory no more. */
void gr_recall_unload(struct gr_recall *r, int place);
/* The same request, sent again, is another one from now on. */
void gr_recall_forget_once(struct gr_recall *r, int place);
/* There was no such answer. */
void gr_recall_forget(struct gr_recall *r, int place);

#endif
