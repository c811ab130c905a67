/* Conditions whose waits end by gr_clock_ns(): pthread_cond_timedwait() takes gr_clock_timespec() of it then. */
#ifndef GR_COMMON_BASE_CONDITION_H
#define GR_COMMON_BASE_CONDITION_H

#include <pthread.h>
#include <time.h>

static inline void gr_condition_init(pthread_cond_t *c)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(c, &attr);
    pthread_condattr_destroy(&attr);
}

#endif
