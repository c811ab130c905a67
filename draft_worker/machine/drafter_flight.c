/* The job that a session is in, and the candidates that jobs have left in its builder. */
#include "draft_worker/machine/drafter_internal.h"

void drafter_flight_begin(struct follow *f, enum gr_draft_task task)
{
    f->job.in_flight = true;
    f->job.stale = false;
    f->job.task = task;
}

void drafter_flight_works_on(struct follow *f, int32_t len, uint32_t round)
{
    f->job.len = len;
    f->job.round = round;
}

void drafter_flight_outdated_from(struct follow *f, int32_t len)
{
    f->job.stale = f->job.stale || (f->job.in_flight && len < f->job.len);
}

void drafter_flight_land(struct follow *f)
{
    f->job.in_flight = false;
}

void drafter_candidates_drop(struct follow *f)
{
    f->candidates.valid = false;
}

void drafter_candidates_cut(struct follow *f, int32_t len)
{
    f->candidates.valid = f->candidates.valid && f->candidates.len <= len;
}

void drafter_candidates_stand(struct follow *f)
{
    f->candidates.valid = true;
}

void drafter_candidates_of_job(struct follow *f)
{
    f->candidates = (struct candidates){.valid = true, .len = f->job.len};
}
