#include "target_worker/far_features.h"

#include "common/base/device.h"
#include "common/base/log.h"
#include "model/cuda/far_memory.h"
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

static enum gr_status refuse(const char *why)
{
    log_error("--require-gpudirect: %s", why);
    return GR_EINVAL;
}

static enum gr_status try_on_gpu(const struct gr_target_options *o, const struct gr_far_memory **out)
{
    bool direct = false;
    const struct gr_far_memory *far = NULL;
    GR_TRY(gr_cuda_far_memory_open(o->device, &far));
    const enum gr_status st = gr_worker_use_far(far, o->require_gpudirect, &direct);
    if (!direct) {
        gr_cuda_far_memory_close(far);
        far = NULL;
    }
    *out = far;
    return st;
}

enum gr_status gr_far_features_open(const struct gr_target_options *o, const struct gr_far_memory **out)
{
    const char *why = obstacle(o);
    char pci[32];
    *out = NULL;
    if (o->device != GR_DEVICE_CPU && o->loop_conn == NULL && gr_cuda_device_pci(o->device, pci)) {
        gr_worker_near_gpu(pci);
    }
    if (why != NULL) {
        return o->require_gpudirect ? refuse(why) : GR_OK;
    }
    if (o->disable_gpudirect || (!o->require_gpudirect && !gr_worker_may_use_rdma())) {
        return GR_OK;
    }
    return try_on_gpu(o, out);
}

void gr_far_features_close(const struct gr_far_memory *far)
{
    if (far != NULL) {
        gr_worker_forget_far();
        gr_cuda_far_memory_close(far);
    }
}
