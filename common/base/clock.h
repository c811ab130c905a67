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

#define GR_MS 1000000ull   /* nanoseconds of a millisecond */
#define GR_S 1000000000ull /* nanoseconds of a second */

#endif
