#include "transport/worker/worker_far.h"

#include "common/base/log.h"
#include "transport/verbs/verbs.h"

/* Rows of bulk frames of RDMA connections lie in this memory from now on, if the process's RDMA device reaches it:
 * *direct_out. */
static enum gr_status use(const struct gr_far_memory *far, bool required, bool *direct_out)
{
    struct gr_verbs_options v = *gr_verbs_configured();
    enum gr_far_path path = GR_FAR_NONE;
    v.far = far;
    v.require_far = required;
    *direct_out = false;
    if (gr_verbs_try_far(&v, &path) != GR_OK) {
        return required ? GR_EUNSUPPORTED : GR_OK;
    }
    *direct_out = path == GR_FAR_DMABUF || path == GR_FAR_PEER_MEMORY;
    if (*direct_out) {
        gr_verbs_configure(&v);
    }
    return GR_OK;
}

static enum gr_status try_on_gpu(const struct gr_worker_far_wish *w, const struct gr_far_memory **out)
{
    bool direct = false;
    const struct gr_far_memory *far = NULL;
    GR_TRY(w->open(w->device, &far));
    const enum gr_status st = use(far, w->required, &direct);
    if (!direct) {
        w->close(far);
        far = NULL;
    }
    *out = far;
    return st;
}

enum gr_status gr_worker_far_open(const struct gr_worker_far_wish *w, const struct gr_far_memory **out)
{
    *out = NULL;
    if (w->why_not != NULL && w->required) {
        log_error("--require-gpudirect: %s", w->why_not);
        return GR_EINVAL;
    }
    if (w->why_not != NULL || w->disabled || (!w->required && !gr_verbs_worth_offering(gr_verbs_configured()))) {
        return GR_OK;
    }
    return try_on_gpu(w, out);
}

/* What is kept of connections holds none of it any more; there are none. */
static void forget(void)
{
    struct gr_verbs_options v = *gr_verbs_configured();
    v.far = NULL;
    gr_verbs_configure(&v);
    gr_verbs_forget_peers();
}

void gr_worker_far_close(const struct gr_far_memory *far, void (*close)(const struct gr_far_memory *far))
{
    if (far != NULL) {
        forget();
        close(far);
    }
}
