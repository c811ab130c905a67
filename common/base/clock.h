/* Monotonic time in nanoseconds. Never compare readings of two machines. */
#ifndef GR_COMMON_BASE_CLOCK_H
#define GR_COMMON_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t gr_clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* A time of it, or a span, as calls of the system take it. */
static inline struct timespec gr_clock_timespec(uint64_t ns)
{
    return (struct timespec){.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
}

#define GR_MS 1000000ull   /* nanoseconds of a millisecond */
#define GR_S 1000000000ull /* nanoseconds of a second */

#endif
