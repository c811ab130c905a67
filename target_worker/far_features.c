#include "target_worker/far_features.h"

#include "common/base/device.h"
#include "model/cuda/far_memory.h"
#include "transport/worker/worker_far.h"
#include "transport/worker/worker_options.h"

/* NULL: features can lie in the GPU's memory. Else why not. */
static const char *obstacle(const struct gr_target_options *o)
{
    const bool rdma = o->forced_transport == -1 || o->forced_transport == GR_TRANSPORT_VERBS;
    return o->device == GR_DEVICE_CPU ? "the target is on CPUs (--device cuda:N)"
           : o->head == NULL          ? "the target serves no head, so it ships no features (--head)"
           : o->ship_raw              ? "a GPU ships no raw features"
           : o->loop_conn != NULL     ? "its drafter is in the same process (two devices, or --transport verbs)"
           : !rdma                    ? "--transport names another transport than verbs"
                                      : NULL;
}

enum gr_status gr_far_features_open(const struct gr_target_options *o, const struct gr_far_memory **out)
{
    const struct gr_worker_far_wish wish = {.why_not = obstacle(o),
                                            .device = o->device,
                                            .required = o->require_gpudirect,
                                            .disabled = o->disable_gpudirect,
                                            .open = gr_cuda_far_memory_open,
                                            .close = gr_cuda_far_memory_close};
    char pci[32];
    if (o->device != GR_DEVICE_CPU && o->loop_conn == NULL && gr_cuda_device_pci(o->device, pci)) {
        gr_worker_near_gpu(pci);
    }
    return gr_worker_far_open(&wish, out);
}

void gr_far_features_close(const struct gr_far_memory *far)
{
    gr_worker_far_close(far, gr_cuda_far_memory_close);
}
