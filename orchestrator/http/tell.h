/* What a job's followers are told: each what he has not been told yet, at his own position, of the one text that the
 * job has. The orchestrator's thread. */
#ifndef GR_ORCHESTRATOR_HTTP_TELL_H
#define GR_ORCHESTRATOR_HTTP_TELL_H

#include "orchestrator/http/job.h"

#define GR_TELL_PING_NS 5000000000ull /* a stream that has been silent for so long gets a comment */
#define GR_TELL_RETRY_MS 1000 /* after which, and up to half as much again, a stream that broke is asked for again */

/* All that there is for him: the head, text, ends, what went wrong. */
void gr_tell_follower(struct gr_job *j, struct gr_follower *f, uint64_t now_ns);
/* The same, of all of them. */
void gr_tell_all(struct gr_job *j, uint64_t now_ns);
/* More of an answer's text is there. */
void gr_tell_text(struct gr_job_answer *a, uint64_t now_ns);
/* A round has come: those who are told rounds hear of it before its text. */
void gr_tell_round(struct gr_job_answer *a, const struct gr_msg_commit *m, uint64_t now_ns);
/* Who has heard nothing for long, of a stream that has begun. */
void gr_tell_ping(struct gr_job *j, uint64_t now_ns);
/* The job's response ends in an error, if it has not ended: followers are told. */
void gr_tell_failure(struct gr_job *j, const struct gr_api_error *e);
void gr_tell_failed(struct gr_job *j, int http_status, const char *text);
/* An end that leaves no answer is told as a failure; text: why, or empty. False: the end is a good one. */
bool gr_tell_bad_end(struct gr_job *j, enum gr_finish finish, const char *text);

#endif
