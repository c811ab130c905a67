/* Whether the features that a head on a GPU is sent come into that GPU's memory, where the network card of the
 * drafter's RDMA connections writes them (decision D-185). */
#ifndef GR_DRAFT_WORKER_FAR_FEATURES_H
#define GR_DRAFT_WORKER_FAR_FEATURES_H

#include "common/base/far_memory.h"
#include "draft_worker/worker.h"

/* Before the model is created: as gr_worker_far_open(), on the card that is nearest to the GPU. A drafter on CPUs, one
 * that is no head, and one in its target's process have no use for it, required or not: *out NULL. */
GR_NODISCARD enum gr_status gr_draft_far_open(const struct gr_draft_options *o, bool is_head,
                                              const struct gr_far_memory **out);
/* When no connection, machine or model uses it any more. NULL: nothing happens. */
void gr_draft_far_close(const struct gr_far_memory *far);

#endif
