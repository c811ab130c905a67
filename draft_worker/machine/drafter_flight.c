/* The job that a session is in, and the candidates that jobs have left in its builder. */
#include "draft_worker/machine/drafter_internal.h"

void drafter_flight_begin(struct session *s, enum gr_draft_task task)
{
    s->job.in_flight = true;
    s->job.stale = false;
    s->job.task = task;
}

void drafter_flight_works_on(struct session *s, int32_t len, uint32_t round)
{
    s->job.len = len;
    s->job.round = round;
}

void drafter_flight_outdated_from(struct session *s, int32_t len)
{
    s->job.stale = s->job.stale || (s->job.in_flight && len < s->job.len);
}

void drafter_flight_land(struct session *s)
{
    s->job.in_flight = false;
}

void drafter_candidates_drop(struct session *s)
{
    s->candidates.valid = false;
}

void drafter_candidates_cut(struct session *s, int32_t len)
{
    s->candidates.valid = s->candidates.valid && s->candidates.len <= len;
}

void drafter_candidates_stand(struct session *s)
{
    s->candidates.valid = true;
}

void drafter_candidates_of_job(struct session *s)
{
    s->candidates = (struct candidates){.valid = true, .len = s->job.len};
}
