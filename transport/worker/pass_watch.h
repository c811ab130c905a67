/* How long a computation has run, seen from a loop that goes on beside it: one that runs for much longer than any
 * before it never ends. Time in which the loop did not look is not the computation's: a process that was stopped, or
 * had no CPU, does not judge. Pure. Decision D-195. */
#ifndef GR_TRANSPORT_WORKER_PASS_WATCH_H
#define GR_TRANSPORT_WORKER_PASS_WATCH_H

#include "common/base/clock.h"

#include <stdbool.h>
#include <stdint.h>

#define GR_PASS_LOOK_NS GR_S /* the loop looks at least so often; a longer pause counts as one of these */
#define GR_PASS_LONGER 20u   /* a computation may take so many times what the longest took */

struct gr_pass_watch {
    uint64_t limit_ns; /* the least that every computation may take; 0: no limit */
    uint64_t longest_ns;
    uint64_t ran_ns, looked_ns; /* of the one that runs */
};

void gr_pass_watch_begin(struct gr_pass_watch *w, uint64_t now_ns);
void gr_pass_watch_end(struct gr_pass_watch *w, uint64_t now_ns);
/* While one runs. True: it has run for too long. */
bool gr_pass_watch_look(struct gr_pass_watch *w, uint64_t now_ns);
/* When to look again, while one runs; UINT64_MAX: there is no limit. */
uint64_t gr_pass_watch_due_ns(const struct gr_pass_watch *w);

#endif
