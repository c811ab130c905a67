#include "orchestrator/http/answering.h"

#include "common/base/clock.h"
#include "common/base/condition.h"

void gr_answering_init(struct gr_answering *a)
{
    *a = (struct gr_answering){0};
    pthread_mutex_init(&a->lock, NULL);
    gr_condition_init(&a->none);
}

void gr_answering_finish(struct gr_answering *a)
{
    pthread_cond_destroy(&a->none);
    pthread_mutex_destroy(&a->lock);
}

void gr_answering_begin(struct gr_answering *a)
{
    pthread_mutex_lock(&a->lock);
    a->n++;
    pthread_mutex_unlock(&a->lock);
}

void gr_answering_end(struct gr_answering *a)
{
    pthread_mutex_lock(&a->lock);
    if (--a->n == 0) {
        pthread_cond_broadcast(&a->none);
    }
    pthread_mutex_unlock(&a->lock);
}

int gr_answering_wait(struct gr_answering *a, int seconds)
{
    const struct timespec until = gr_clock_timespec(gr_clock_ns() + (uint64_t)seconds * GR_S);
    int late = 0;
    pthread_mutex_lock(&a->lock);
    while (a->n > 0 && late == 0) {
        late = pthread_cond_timedwait(&a->none, &a->lock, &until);
    }
    const int n = a->n;
    pthread_mutex_unlock(&a->lock);
    return n;
}
