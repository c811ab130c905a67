/* What a target's rounds would take with more sessions: it tells so in PONG, and sessions are placed by it. Pure.
 * Decision D-229. */
#ifndef GR_TARGET_WORKER_POLICY_OUTLOOK_H
#define GR_TARGET_WORKER_POLICY_OUTLOOK_H

#include "target_worker/policy/cost_table.h"

/* The sessions that decode, and what one more like them has. All decode plainly here, whatever trees they have: trees
 * get smaller as sessions come, so those of a few say nothing of many. */
struct gr_crowd_load {
    struct gr_pass_load load; /* of all of them, a row each */
    int32_t n_context;        /* tokens that one more attends to */
    int n_room;               /* how many more there is room for */
};

struct gr_outlook {
    double round_ns; /* of a round with one session more */
    double more_ns;  /* what each session after that one adds: the mean over up to 256, at least 0 */
    double first_ns; /* of a round of one such session alone */
};

struct gr_outlook gr_outlook_of(const struct gr_cost_table *cost, const struct gr_crowd_load *crowd);

#endif
