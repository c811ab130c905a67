#include "draft_worker/far_features.h"

#include "common/base/device.h"
#include "model/cuda/far_memory.h"
#include "transport/worker/worker_far.h"
#include "transport/worker/worker_options.h"

/* NULL: features can come into the GPU's memory. Else why not. */
static const char *obstacle(const struct gr_draft_options *o)
{
    const bool rdma = o->forced_transport == -1 || o->forced_transport == GR_TRANSPORT_VERBS;
    return o->ship_raw ? "a head on a GPU takes no raw features"
           : !rdma     ? "--transport names another transport than verbs"
                       : NULL;
}

enum gr_status gr_draft_far_open(const struct gr_draft_options *o, bool is_head, const struct gr_far_memory **out)
{
    const struct gr_worker_far_wish wish = {.why_not = obstacle(o),
                                            .device = o->device,
                                            .required = o->require_gpudirect,
                                            .disabled = o->disable_gpudirect,
                                            .open = gr_cuda_far_memory_open,
                                            .close = gr_cuda_far_memory_close};
    char pci[32];
    *out = NULL;
    if (o->device == GR_DEVICE_CPU || o->loop_conn != NULL) {
        return GR_OK;
    }
    if (gr_cuda_device_pci(o->device, pci)) {
        gr_worker_near_gpu(pci);
    }
    return is_head ? gr_worker_far_open(&wish, out) : GR_OK;
}

void gr_draft_far_close(const struct gr_far_memory *far)
{
    gr_worker_far_close(far, gr_cuda_far_memory_close);
}
