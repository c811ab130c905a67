/* Measures what passes cost on this machine, before the first session: a few tree passes of growing size on an empty
 * pool. Stops when its time is used up; the table goes on learning from real passes, contexts above all (an empty
 * pool's keys are one page of zeros, which says nothing about reading them). Decision D-044. */
#ifndef GR_TARGET_WORKER_COMPUTE_CALIBRATE_H
#define GR_TARGET_WORKER_COMPUTE_CALIBRATE_H

#include "target_worker/policy/cost_table.h"
#include "target_worker/compute/verifier.h"

struct gr_calibration {
    struct gr_verifier *verifier;    /* borrowed */
    int32_t n_ctx_max, n_pool_block; /* scratch blocks of the slots follow the pool's */
    int n_session_max;
    uint64_t budget_ns;
};

/* Leaves `out` as initialised when not even two sizes could be measured. GR_ENOMEM, or what a pass returned (logged).
 */
GR_NODISCARD enum gr_status gr_calibrate(const struct gr_calibration *c, struct gr_cost_table *out);

#endif
