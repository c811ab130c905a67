#include "bench/rows.h"

#include "common/base/device.h"
#include "common/protocol/wire.h"
#include "model/cuda/far_memory.h"
#include "transport/verbs/verbs.h"

#include <stdio.h>

void gr_rows_configure(const struct gr_bench_options *o)
{
    struct gr_verbs_options v = *gr_verbs_configured();
    v.hca = o->ib_hca != NULL ? o->ib_hca : v.hca;
    v.two_sided = o->verbs_mode == GR_BENCH_TWO_SIDED;
    v.require_far = o->require_gpudirect;
    gr_verbs_configure(&v);
}

enum gr_status gr_rows_open(const struct gr_bench_options *o, struct gr_rows *out)
{
    struct gr_verbs_options v = *gr_verbs_configured();
    const size_t bytes = gr_far_whole_pages(GR_WIRE_BULK_BYTES_MAX);
    struct gr_rows r = {.far = NULL};
    char pci[32];
    if (!gr_devices_on_gpu(&o->device)) {
        *out = r;
        return GR_OK;
    }
    GR_TRY(gr_devices_check("--device", &o->device, 1));
    GR_TRY(gr_cuda_far_memory_open(o->device.device[0], &r.far));
    const enum gr_status st = r.far->take(r.far->ctx, bytes, &r.at);
    if (st != GR_OK) {
        gr_cuda_far_memory_close(r.far);
        return st;
    }
    v.far = r.far;
    gr_verbs_configure(&v);
    if (gr_cuda_device_pci(o->device.device[0], pci)) {
        gr_verbs_prefer_near(pci);
    }
    *out = r;
    return GR_OK;
}

void gr_rows_close(struct gr_rows *r)
{
    if (r->far == NULL) {
        return;
    }
    gr_verbs_forget_peers(); /* they hold memory of it */
    r->far->give(r->far->ctx, r->at);
    gr_cuda_far_memory_close(r->far);
    *r = (struct gr_rows){.far = NULL};
}

static uint8_t *rows_of(const struct gr_frame *f)
{
    return f->body != NULL ? f->body : f->data + GR_BULK_HEAD_BYTES;
}

static bool has_rows(const struct gr_rows *r, const struct gr_frame *f, uint32_t bytes)
{
    return r->far != NULL && f->class == GR_FRAME_BULK && bytes > GR_BULK_HEAD_BYTES;
}

enum gr_status gr_rows_put(const struct gr_rows *r, const struct gr_frame *f, uint32_t bytes)
{
    return has_rows(r, f, bytes) ? r->far->copy(r->far->ctx, rows_of(f), r->at, bytes - GR_BULK_HEAD_BYTES) : GR_OK;
}

enum gr_status gr_rows_get(const struct gr_rows *r, const struct gr_frame *f)
{
    if (!has_rows(r, f, f->bytes)) {
        return GR_OK;
    }
    GR_TRY(r->far->copy(r->far->ctx, r->at, rows_of(f), f->bytes - GR_BULK_HEAD_BYTES));
    return f->body != NULL ? GR_OK : r->far->wait(r->far->ctx); /* else release() waits */
}

void gr_rows_path(const struct gr_rows *r, const struct gr_conn *c, char out[48])
{
    struct gr_verbs_stats s = {.far_path = GR_FAR_NONE};
    if (r->far == NULL) {
        snprintf(out, 48, "host");
        return;
    }
    const bool direct = gr_verbs_stats(c, &s) && c->far != NULL;
    snprintf(out, 48, "%.16s by %s%s", r->far->name, gr_far_path_name(direct ? s.far_path : GR_FAR_STAGING),
             direct && s.two_sided ? " out, staging in" : "");
}
