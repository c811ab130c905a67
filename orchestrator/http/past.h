/* Answers that a journal has: what is noted of a job beside its session, and a job made of that and of the tokens. What
 * is noted is JSON, and of one version: a note that is not as it must be makes no job. */
#ifndef GR_ORCHESTRATOR_HTTP_PAST_H
#define GR_ORCHESTRATOR_HTTP_PAST_H

#include "orchestrator/http/job.h"
#include "orchestrator/machine/kept_answer.h"

/* What is to be noted of a job: a text, the caller's (free). NULL: nothing is, since nobody can come back to it, or
 * there is no memory (logged). */
char *gr_past_note(const struct gr_job *j);
/* Whose it is, and how its request is found when it comes again. False: it is no note. */
bool gr_past_whose(const struct gr_kept_answer *a, struct gr_api_owner *owner, struct gr_once *once);
/* The job with all of its tokens; over, if the answer is. *stopped_out: its tokens have a stop string, and its turn is
 * to end. NULL (logged): it cannot be made. */
struct gr_job *gr_past_job(const struct gr_kept_answer *a, const struct gr_served *served, int n_served,
                           bool *stopped_out);

#endif
