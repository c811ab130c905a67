/* The time in which all of several sessions decode: from the moment when every session has its first token to the
 * moment when one has its last. No prompt is computed in it, and nobody's place is empty. Pure. */
#ifndef GR_BENCH_WINDOW_H
#define GR_BENCH_WINDOW_H

#include "common/base/status.h"

#include <stdint.h>

struct gr_window {
    uint64_t begin_ns, end_ns;
};

/* Of no sessions: all time. */
static inline struct gr_window gr_window_all(void)
{
    return (struct gr_window){.begin_ns = 0, .end_ns = UINT64_MAX};
}

/* With one session more. when_ns: (n), n > 0: when each of its tokens came. */
static inline struct gr_window gr_window_with(struct gr_window w, const uint64_t *when_ns, uint32_t n)
{
    return (struct gr_window){.begin_ns = GR_MAX(w.begin_ns, when_ns[0]), .end_ns = GR_MIN(w.end_ns, when_ns[n - 1])};
}

/* Tokens of a session in it; those of its first moment began before. */
static inline double gr_window_tokens(struct gr_window w, const uint64_t *when_ns, uint32_t n)
{
    double tokens = 0.0;
    for (uint32_t k = 0; k < n; k++) {
        tokens += when_ns[k] > w.begin_ns && when_ns[k] <= w.end_ns;
    }
    return tokens;
}

/* 0: there was no such time. */
static inline double gr_window_seconds(struct gr_window w)
{
    return w.end_ns > w.begin_ns ? 1e-9 * (double)(w.end_ns - w.begin_ns) : 0.0;
}

#endif
