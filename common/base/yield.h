/* sched_yield() with a memory. Between threads that work for tens of microseconds it is the cheapest way to wait:
 * nobody falls asleep or is woken. But to a thread that never waits (any busy process that shares the CPU) the kernel
 * gives a whole time slice for each yield, 2 to 4 ms on Linux; a pass of 40 barriers then takes a hundred times as
 * long. So when much time has gone that way, one should for a while fall asleep instead, which keeps the right to
 * preempt. Decision D-083. */
#ifndef GR_COMMON_BASE_YIELD_H
#define GR_COMMON_BASE_YIELD_H

#include "common/base/clock.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>

#define GR_YIELD_LONG_NS (1 * GR_MS) /* a yield that took longer went to a thread that never waits */
#define GR_YIELD_LOST_MAX_NS \
    (12 * GR_MS) /* time lost in long yields, less a tenth of the time that passed, after which threads sleep */
#define GR_YIELD_REST_MIN_NS                                                                                         \
    (20 * GR_MS) /* how long they sleep instead; doubled each time that the first yields after a rest are long again \
                  */
#define GR_YIELD_REST_MAX_NS (320 * GR_MS)

/* Zeroes at first. Shared by threads: where two write at once an entry may be lost, and the rest comes later. */
struct gr_yield {
    _Atomic uint64_t rest_until_ns, rest_ns;
    _Atomic uint64_t last_ns, lost_ns; /* of the last long one; in all */
};

static inline bool gr_yield_pays(const struct gr_yield *y, uint64_t now_ns)
{
    return now_ns >= atomic_load_explicit(&y->rest_until_ns, memory_order_relaxed);
}

static inline void gr_yield_rest(struct gr_yield *y, uint64_t now_ns)
{
    const uint64_t until_ns = atomic_load_explicit(&y->rest_until_ns, memory_order_relaxed);
    uint64_t rest_ns = atomic_load_explicit(&y->rest_ns, memory_order_relaxed);
    const bool again = now_ns < until_ns + GR_YIELD_REST_MIN_NS;
    rest_ns = !again ? GR_YIELD_REST_MIN_NS : rest_ns < GR_YIELD_REST_MAX_NS ? 2 * rest_ns : rest_ns;
    atomic_store_explicit(&y->rest_ns, rest_ns, memory_order_relaxed);
    atomic_store_explicit(&y->rest_until_ns, now_ns + rest_ns, memory_order_relaxed);
}

static inline void gr_yield_was_long(struct gr_yield *y, uint64_t now_ns, uint64_t took_ns)
{
    const uint64_t last_ns = atomic_load_explicit(&y->last_ns, memory_order_relaxed);
    const uint64_t forgiven_ns = now_ns > last_ns ? (now_ns - last_ns) / 10 : 0;
    uint64_t lost_ns = atomic_load_explicit(&y->lost_ns, memory_order_relaxed);
    lost_ns = (lost_ns > forgiven_ns ? lost_ns - forgiven_ns : 0) + took_ns;
    if (lost_ns > GR_YIELD_LOST_MAX_NS) {
        gr_yield_rest(y, now_ns);
        lost_ns = GR_YIELD_LOST_MAX_NS; /* less what the rest forgives: then a few are enough */
    }
    atomic_store_explicit(&y->lost_ns, lost_ns, memory_order_relaxed);
    atomic_store_explicit(&y->last_ns, now_ns, memory_order_relaxed);
}

/* Returns the time after it. */
static inline uint64_t gr_yield_once(struct gr_yield *y, uint64_t now_ns)
{
    sched_yield();
    const uint64_t after_ns = gr_clock_ns();
    if (after_ns - now_ns > GR_YIELD_LONG_NS) {
        gr_yield_was_long(y, after_ns, after_ns - now_ns);
    }
    return after_ns;
}

#endif
