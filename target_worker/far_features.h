/* Whether a target's features lie in its GPU's memory, where the network card of its RDMA connections fetches them
 * (decision D-132). */
#ifndef GR_TARGET_WORKER_FAR_FEATURES_H
#define GR_TARGET_WORKER_FAR_FEATURES_H

#include "common/base/far_memory.h"
#include "target_worker/worker.h"

/* Before the model is created and before the first connection: tries it on the card that is nearest to the GPU. *out
 * NULL: they lie in the host's memory, for a target on CPUs, without a head, over loop, or where the card does not
 * reach the GPU, which is logged with its reasons. GR_EUNSUPPORTED, GR_EINVAL: that is not allowed (require_gpudirect).
 */
GR_NODISCARD enum gr_status gr_far_features_open(const struct gr_target_options *o, const struct gr_far_memory **out);
/* When no connection, machine or model uses it any more. NULL: nothing happens. */
void gr_far_features_close(const struct gr_far_memory *far);

#endif
