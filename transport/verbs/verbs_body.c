#include "transport/verbs/verbs_body.h"

#include "common/base/log.h"

#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define GAP_STEP_BYTES 4096u
#define N_GAP_STEP 16u /* the inbox begins in one of these: a stranger has to guess its address with its key */
#define WHY_BYTES 320

enum { OUT_ACCESS = IBV_ACCESS_LOCAL_WRITE, IN_ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE };

/* One registration: a part of the far memory of a connection. */
struct part {
    uint8_t *at;
    size_t bytes;
    int access;
};

/* ---- the ways, the best first ---- */

static struct ibv_mr *by_dmabuf(const struct gr_verbs_bodies *b, const struct gr_verbs_lib *lib, struct ibv_pd *pd,
                                const struct part *p, size_t total, char *why)
{
    const int fd = b->far->export_fd(b->far->ctx, b->base, total);
    if (fd < 0) {
        snprintf(why, WHY_BYTES, "%s exports none (%s)", b->far->name, strerror(-fd));
        return NULL;
    }
    const uint64_t offset = (uint64_t)(p->at - b->base);
    struct ibv_mr *mr = lib->reg_dmabuf_mr(pd, offset, p->bytes, (uintptr_t)p->at, fd, p->access);
    const int err = errno;
    close(fd); /* the registration holds on to the buffer */
    if (mr == NULL) {
        snprintf(why, WHY_BYTES, "the device or its driver takes none (%s)", strerror(err));
    }
    return mr;
}

static struct ibv_mr *by_peer_memory(const struct gr_verbs_lib *lib, struct ibv_pd *pd, const struct part *p, char *why)
{
    struct ibv_mr *mr = lib->reg_mr(pd, p->at, p->bytes, p->access);
    if (mr == NULL) {
        const int err = errno;
        snprintf(why, WHY_BYTES, "%s (%s)",
                 lib->has_peer_memory() ? "the driver refused the address" : "the module nvidia_peermem is not loaded",
                 strerror(err));
    }
    return mr;
}

static struct ibv_mr *register_part(const struct gr_verbs_bodies *b, const struct gr_verbs_lib *lib, struct ibv_pd *pd,
                                    const struct part *p, size_t total, char *why)
{
    return b->path == GR_FAR_DMABUF ? by_dmabuf(b, lib, pd, p, total, why) : by_peer_memory(lib, pd, p, why);
}

/* ---- making it ---- */

struct sizes {
    size_t stride, half, total; /* half: all slots one way */
};

static struct sizes sizes_of(const struct gr_conn_limits *l)
{
    struct sizes s = {.stride = gr_verbs_body_stride(l->bulk_bytes_max)};
    s.half = gr_round_up(l->n_bulk_slot * s.stride, GAP_STEP_BYTES);
    s.total = gr_round_up(3 * s.half + N_GAP_STEP * GAP_STEP_BYTES, GR_FAR_PAGE_BYTES);
    return s;
}

static enum gr_status take(struct gr_verbs_bodies *b, const struct gr_far_memory *far, const struct gr_conn_limits *l)
{
    const struct sizes s = sizes_of(l);
    GR_TRY(far->take(far->ctx, s.total, &b->base));
    b->far = far;
    b->stride = s.stride;
    b->n_slot = l->n_bulk_slot;
    b->out = b->base;
    b->in = b->base + s.half + (size_t)randombytes_uniform(N_GAP_STEP) * GAP_STEP_BYTES;
    b->copies = b->base + s.total - s.half;
    return GR_OK;
}

/* By b->path. The slots' registration is made once, the inbox's for each connection. false: why says why not. */
static bool register_both(struct gr_verbs_bodies *b, const struct gr_verbs_lib *lib, struct ibv_pd *pd, size_t total,
                          char *why)
{
    const size_t bytes = b->n_slot * b->stride;
    if (b->out_mr == NULL) {
        b->out_mr = register_part(b, lib, pd, &(struct part){b->out, bytes, OUT_ACCESS}, total, why);
    }
    if (b->out_mr != NULL) {
        b->in_mr = register_part(b, lib, pd, &(struct part){b->in, bytes, IN_ACCESS}, total, why);
    }
    return b->in_mr != NULL;
}

static void deregister(struct gr_verbs_bodies *b, const struct gr_verbs_lib *lib)
{
    gr_verbs_bodies_forget_inbox(b, lib);
    if (b->out_mr != NULL) {
        lib->dereg_mr(b->out_mr);
        b->out_mr = NULL;
    }
}

/* why: of the ways that do not work, each in its turn. */
static bool find_way(struct gr_verbs_bodies *b, const struct gr_verbs_lib *lib, struct ibv_pd *pd, size_t total,
                     char why[2][WHY_BYTES])
{
    static const enum gr_far_path ways[] = {GR_FAR_DMABUF, GR_FAR_PEER_MEMORY};
    for (size_t i = 0; i < GR_ARRAY_LEN(ways); i++) {
        b->path = ways[i];
        if (b->far->unfit != NULL) {
            snprintf(why[i], WHY_BYTES, "%s", b->far->unfit);
            continue;
        }
        if (register_both(b, lib, pd, total, why[i])) {
            return true;
        }
        deregister(b, lib);
    }
    return false;
}

static const char *device_of(const struct gr_verbs_lib *lib, const struct ibv_pd *pd)
{
    return lib->get_device_name(pd->context->device);
}

static enum gr_status stage(const char *device, const struct gr_verbs_options *o, char why[2][WHY_BYTES])
{
    if (o->require_far) {
        log_error("verbs: %s cannot reach memory of %s, which --require-gpudirect asks for (dma-buf: %s; peer memory: "
                  "%s): load nvidia_peermem (modprobe) or the driver's open kernel modules, name a device that can "
                  "(--ib-hca), and let the IOMMU be off or in pass-through (iommu=pt)",
                  device, o->far->name, why[0], why[1]);
        return GR_EIO;
    }
    log_warn("verbs: %s does not reach memory of %s: bulk frames are staged in the host's (dma-buf: %s; peer memory: "
             "%s)",
             device, o->far->name, why[0], why[1]);
    return GR_OK;
}

static bool fits(const struct gr_verbs_bodies *b, const struct gr_far_memory *far, const struct gr_conn_limits *l)
{
    return b->far == far && b->n_slot == l->n_bulk_slot && b->stride == gr_verbs_body_stride(l->bulk_bytes_max);
}

enum gr_status gr_verbs_bodies_make(struct gr_verbs_bodies *b, const struct gr_verbs_lib *lib, struct ibv_pd *pd,
                                    const struct gr_verbs_options *options, const struct gr_conn_limits *limits)
{
    char why[2][WHY_BYTES] = {"", ""};
    gr_verbs_bodies_forget_inbox(b, lib);
    if (!fits(b, options->far, limits)) {
        gr_verbs_bodies_release(b, lib);
        GR_TRY(take(b, options->far, limits));
    }
    const size_t total = sizes_of(limits).total;
    if (b->out_mr != NULL ? register_both(b, lib, pd, total, why[0]) : find_way(b, lib, pd, total, why)) {
        log_info("verbs: %s reads and writes memory of %s by %s%s%s", device_of(lib, pd), options->far->name,
                 gr_far_path_name(b->path), why[0][0] != '\0' ? "; not by dma-buf: " : "", why[0]);
        return GR_OK;
    }
    gr_verbs_bodies_release(b, lib);
    b->path = GR_FAR_STAGING;
    return stage(device_of(lib, pd), options, why);
}

void gr_verbs_bodies_forget_inbox(struct gr_verbs_bodies *b, const struct gr_verbs_lib *lib)
{
    if (b->in_mr != NULL) {
        lib->dereg_mr(b->in_mr);
        b->in_mr = NULL;
    }
}

void gr_verbs_bodies_release(struct gr_verbs_bodies *b, const struct gr_verbs_lib *lib)
{
    deregister(b, lib);
    if (b->base != NULL) {
        b->far->give(b->far->ctx, b->base);
    }
    *b = (struct gr_verbs_bodies){.far = NULL};
}
