/* Monotonic time in nanoseconds. Never compare readings of two machines. */
#ifndef GR_COMMON_BASE_CLOCK_H
#define GR_COMMON_BASE_CLOCK_H

#include <limits.h>
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

/* Milliseconds until then, for poll(): rounded up, so that it never ends just before the deadline; below INT_MAX. */
static inline int gr_ms_left(uint64_t deadline_ns, uint64_t now_ns)
{
    const uint64_t left_ms = deadline_ns <= now_ns ? 0 : (deadline_ns - now_ns - 1) / GR_MS + 1;
    return left_ms < INT_MAX ? (int)left_ms : INT_MAX - 1;
}

/* The same of a time that may be never: UINT64_MAX, and -1. */
static inline int gr_clock_ms_until(uint64_t at_ns, uint64_t now_ns)
{
    return at_ns == UINT64_MAX ? -1 : gr_ms_left(at_ns, now_ns);
}

/* The shorter of two such waits. */
static inline int gr_clock_sooner_ms(int a_ms, int b_ms)
{
    return a_ms < 0 ? b_ms : b_ms < 0 || a_ms < b_ms ? a_ms : b_ms;
}

#endif
