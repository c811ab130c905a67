/* How long a computation has run, seen from a loop that goes on beside it: one that runs for much longer than the
 * longest before it never ends. What has more rows may take longer in proportion. Time in which the loop did not look
 * is not the computation's: a process that was stopped does not judge. Pure. Decision D-195. */
#ifndef GR_TRANSPORT_WORKER_PASS_WATCH_H
#define GR_TRANSPORT_WORKER_PASS_WATCH_H

#include "common/base/clock.h"

#include <stdbool.h>
#include <stdint.h>

#define GR_PASS_LOOK_NS GR_S /* the loop looks at least so often; a longer pause counts as one of these */
#define GR_PASS_LONGER 20u   /* a computation may take this many times as long as the longest */

struct gr_pass_watch {
    uint64_t limit_ns;          /* the least that every computation may take; 0: no limit */
    uint64_t longest_ns;        /* the longest one so far; 0: none has ended */
    uint64_t longest_row;       /* of that one */
    uint64_t n_row;             /* of the one that runs */
    uint64_t ran_ns, looked_ns; /* the same */
};

/* A computation of n_row rows has taken ns. */
void gr_pass_watch_know(struct gr_pass_watch *w, uint64_t n_row, uint64_t ns);
void gr_pass_watch_begin(struct gr_pass_watch *w, uint64_t n_row, uint64_t now_ns);
void gr_pass_watch_end(struct gr_pass_watch *w, uint64_t now_ns);
/* How long the one that runs may run. Where nothing is known yet, 20 times the limit. */
uint64_t gr_pass_watch_allowed_ns(const struct gr_pass_watch *w);
/* While one runs. True: it has run for longer than it may. */
bool gr_pass_watch_look(struct gr_pass_watch *w, uint64_t now_ns);
/* When to look again, while one runs; UINT64_MAX: there is no limit. */
uint64_t gr_pass_watch_due_ns(const struct gr_pass_watch *w);

#endif
