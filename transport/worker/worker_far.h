/* Whether the rows of FEATURES that a worker sends or receives lie in its GPU's memory, where the network card of its
 * RDMA connections reads or writes them (decisions D-132, D-185). */
#ifndef GR_TRANSPORT_WORKER_WORKER_FAR_H
#define GR_TRANSPORT_WORKER_WORKER_FAR_H

#include "common/base/far_memory.h"

#include <stdbool.h>

/* What a worker wishes. */
struct gr_worker_far_wish {
    const char *why_not; /* rows cannot lie there, whatever the card says; static text. NULL: they can */
    int device;          /* of cuda:N */
    bool required, disabled;
    /* The memory of such a GPU. */
    enum gr_status (*open)(int device, const struct gr_far_memory **out);
    void (*close)(const struct gr_far_memory *far);
};

/* Before the model is created and before the first connection: tries it on the process's RDMA device. *out NULL: rows
 * lie in the host's memory, where why_not says so, it is disabled, there is no RDMA device, or it does not reach the
 * GPU, which is logged with its reasons. GR_EUNSUPPORTED, GR_EINVAL (logged): that is not allowed (required). */
GR_NODISCARD enum gr_status gr_worker_far_open(const struct gr_worker_far_wish *w, const struct gr_far_memory **out);
/* When no connection, machine or model uses it any more. NULL: nothing happens. */
void gr_worker_far_close(const struct gr_far_memory *far, void (*close)(const struct gr_far_memory *far));

#endif
