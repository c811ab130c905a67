#include "transport/verbs/verbs_memory.h"

#include "common/base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#define PAGE_BYTES 4096u /* what registered memory is aligned to */
#define N_GAP_PAGE 16u   /* the inbox begins in one of these */
#define INTERVAL_MAX 16u
#define PART_BYTES 16384u /* of a bulk frame that is sent in parts, at least */
#define N_PART_MAX 2048u  /* receives for bulk frames by SEND */

/* ---- layout ---- */

static uint32_t n_part_of(uint32_t bulk_bytes_max, uint32_t part_bytes)
{
    return GR_MAX(1u, (bulk_bytes_max + part_bytes - 1) / part_bytes);
}

static void lay_out(struct gr_verbs_layout *l, enum gr_verbs_out kind, uint32_t n, size_t stride)
{
    l->n_out[kind] = n;
    l->out_stride[kind] = stride;
    l->out_at[kind] = l->local_bytes;
    l->local_bytes += n * stride;
}

/* A receive may be taken by any record, so all are as large as the largest record that is sent: a small frame, or in
 * two-sided mode a part of a bulk frame. Each credit is a posted receive: one a small frame, one a bulk frame or each
 * of its parts, and those for records of credits. */
void gr_verbs_layout_init(struct gr_verbs_layout *l, const struct gr_conn_limits *limits, struct gr_verbs_mode mode)
{
    const bool two_sided = mode.two_sided;
    *l = (struct gr_verbs_layout){.limits = *limits, .mode = mode};
    const uint32_t n_small = limits->n_small_slot, n_bulk = limits->n_bulk_slot;
    l->head = two_sided ? GR_SLOT_ALIGN : 0;
    const size_t small_stride = l->head + gr_round_up(limits->small_bytes_max, GR_SLOT_ALIGN);
    l->bulk_stride = gr_round_up(limits->bulk_bytes_max, GR_SLOT_ALIGN); /* headers do not go there */
    /* Slots of unsignalled records come back with the next signalled one: they must not be missed. */
    l->signal_interval = GR_MIN(INTERVAL_MAX, n_small / 2);
    uint32_t record_bytes = limits->small_bytes_max, n_part = 1;
    l->bulk_head = mode.apart ? GR_SLOT_ALIGN : l->head; /* apart: for the length */
    if (two_sided && n_bulk > 0) {
        const uint32_t total = n_bulk * limits->bulk_bytes_max;
        const uint32_t part = GR_MIN(limits->bulk_bytes_max, GR_MAX(PART_BYTES, total / N_PART_MAX));
        record_bytes = GR_MAX(record_bytes, part);
        l->part_bytes = record_bytes;
        n_part = n_part_of(limits->bulk_bytes_max, l->part_bytes);
        l->bulk_head += gr_round_up(n_part * GR_VERBS_HEADER_BYTES, GR_SLOT_ALIGN);
    }
    lay_out(l, GR_VERBS_OUT_SMALL, n_small + l->signal_interval, small_stride); /* from a page's beginning */
    const uint32_t here = mode.far ? GR_MIN(limits->bulk_bytes_max, GR_BULK_HEAD_BYTES) : limits->bulk_bytes_max;
    lay_out(l, GR_VERBS_OUT_BULK, n_bulk, l->bulk_head + gr_round_up(here, GR_SLOT_ALIGN));
    lay_out(l, GR_VERBS_OUT_CREDIT, GR_VERBS_N_CREDIT + l->signal_interval, GR_SLOT_ALIGN);
    l->n_recv = n_small + n_bulk * n_part + GR_VERBS_N_CREDIT;
    l->recv_stride = l->head + gr_round_up(record_bytes, GR_SLOT_ALIGN);
    l->recv_at = gr_round_up(l->local_bytes, PAGE_BYTES);
    l->local_bytes = gr_round_up(l->recv_at + l->n_recv * l->recv_stride, PAGE_BYTES);
    if (mode.apart) {
        l->bulk_stride = GR_VERBS_HEAD_BYTES;
        l->body_stride = gr_verbs_body_stride(limits->bulk_bytes_max);
        l->body_at = n_bulk * l->bulk_stride;
    }
    l->inbox_bytes = two_sided ? 0 : n_bulk * (l->bulk_stride + (mode.far ? 0 : l->body_stride));
    const size_t gap = l->inbox_bytes == 0 ? 0 : (N_GAP_PAGE + 1) * PAGE_BYTES;
    l->slab_bytes = l->local_bytes + gap + gr_round_up(l->inbox_bytes, PAGE_BYTES);
}

size_t gr_verbs_granted_bytes(const struct gr_verbs_layout *l)
{
    return l->mode.apart ? l->body_at : l->inbox_bytes;
}

uint16_t gr_verbs_bulk_slots_within(const struct gr_conn_limits *limits, struct gr_verbs_mode mode, size_t bytes)
{
    struct gr_conn_limits fit = *limits;
    while (fit.n_bulk_slot > 1) {
        struct gr_verbs_layout l;
        gr_verbs_layout_init(&l, &fit, mode);
        if (l.local_bytes + l.inbox_bytes + PAGE_BYTES <= bytes) {
            break;
        }
        fit.n_bulk_slot--;
    }
    return fit.n_bulk_slot;
}

/* ---- device and protection domain ---- */

enum gr_status gr_verbs_memory_create(const struct gr_verbs_lib *lib, const struct gr_verbs_device *device,
                                      uint64_t peer_id, struct gr_verbs_memory **out)
{
    struct gr_verbs_memory *m = calloc(1, sizeof(*m));
    if (m == NULL) {
        log_error("verbs: out of memory");
        return GR_ENOMEM;
    }
    m->lib = lib;
    m->device = *device;
    m->peer_id = peer_id;
    m->slab = MAP_FAILED;
    const char *what = "an event channel";
    m->channel = lib->create_event_channel();
    if (m->channel == NULL) {
        goto failed;
    }
    (void)fcntl(m->channel->fd, F_SETFL, fcntl(m->channel->fd, F_GETFL) | O_NONBLOCK);
    what = "an identifier";
    if (lib->create_id(m->channel, &m->anchor, NULL, RDMA_PS_TCP) != 0) {
        m->anchor = NULL;
        goto failed;
    }
    what = "its address bound";
    if (lib->bind_addr(m->anchor, (struct sockaddr *)&m->device.addr) != 0) {
        goto failed;
    }
    what = "a device at its address";
    errno = ENODEV;
    if (m->anchor->verbs == NULL) {
        goto failed;
    }
    what = "a protection domain";
    m->pd = lib->alloc_pd(m->anchor->verbs);
    if (m->pd == NULL) {
        goto failed;
    }
    *out = m;
    return GR_OK;

failed:
    log_error("verbs: %s at %s: cannot have %s: %s", device->name, device->addr_text, what, strerror(errno));
    gr_verbs_memory_destroy(m);
    return GR_EIO;
}

/* ---- slab and registrations ---- */

static enum gr_status registration_failed(const struct gr_verbs_memory *m, size_t bytes, const char *what, int err)
{
    struct rlimit lim;
    if (err == ENOMEM && getrlimit(RLIMIT_MEMLOCK, &lim) == 0 && lim.rlim_cur != RLIM_INFINITY) {
        log_error("verbs: %s: cannot lock %zu KiB of memory for the %s: RLIMIT_MEMLOCK is %llu KiB, a connection "
                  "needs %zu KiB; raise it (`ulimit -l', LimitMEMLOCK=)",
                  m->device.name, bytes / 1024, what, (unsigned long long)lim.rlim_cur / 1024,
                  (m->layout.local_bytes + m->layout.inbox_bytes + PAGE_BYTES) / 1024 + 1);
    } else {
        log_error("verbs: %s: cannot register %zu KiB for the %s: %s", m->device.name, bytes / 1024, what,
                  strerror(err));
    }
    return err == ENOMEM ? GR_ENOMEM : GR_EIO;
}

bool gr_verbs_memory_port_is_up(const struct gr_verbs_memory *m)
{
    struct ibv_port_attr attr;
    return m->lib->query_port(m->anchor->verbs, m->device.port, &attr) == 0 && attr.state == IBV_PORT_ACTIVE;
}

static void forget_host_inbox(struct gr_verbs_memory *m)
{
    if (m->inbox_mr != NULL) {
        m->lib->dereg_mr(m->inbox_mr);
        m->inbox_mr = NULL;
    }
}

void gr_verbs_memory_forget_inbox(struct gr_verbs_memory *m)
{
    forget_host_inbox(m);
    gr_verbs_bodies_forget_inbox(&m->bodies, m->lib);
}

static void release_slab(struct gr_verbs_memory *m)
{
    forget_host_inbox(m);
    if (m->local_mr != NULL) {
        m->lib->dereg_mr(m->local_mr);
        m->local_mr = NULL;
    }
    if (m->slab != MAP_FAILED) {
        munmap(m->slab, m->layout.slab_bytes);
        m->slab = MAP_FAILED;
    }
}

static enum gr_status make_slab(struct gr_verbs_memory *m, const struct gr_verbs_layout *l)
{
    release_slab(m);
    m->layout = *l;
    m->slab = mmap(NULL, l->slab_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (m->slab == MAP_FAILED) {
        log_error("verbs: no memory for a connection's slab of %zu KiB", l->slab_bytes / 1024);
        return GR_ENOMEM;
    }
    m->local_mr = m->lib->reg_mr(m->pd, m->slab, l->local_bytes, IBV_ACCESS_LOCAL_WRITE);
    return m->local_mr != NULL ? GR_OK : registration_failed(m, l->local_bytes, "slots", errno);
}

static enum gr_status make_inbox(struct gr_verbs_memory *m)
{
    const struct gr_verbs_layout *l = &m->layout;
    forget_host_inbox(m);
    if (l->inbox_bytes == 0) {
        return GR_OK;
    }
    /* Page and place in the page: a peer learns the address, a stranger has to guess it with the key. */
    const size_t offset = (size_t)randombytes_uniform(N_GAP_PAGE * PAGE_BYTES / GR_SLOT_ALIGN) * GR_SLOT_ALIGN;
    m->inbox = m->slab + l->local_bytes + PAGE_BYTES + offset;
    m->inbox_mr = m->lib->reg_mr(m->pd, m->inbox, l->inbox_bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    return m->inbox_mr != NULL ? GR_OK : registration_failed(m, l->inbox_bytes, "inbox", errno);
}

static bool same_layout(const struct gr_verbs_layout *a, const struct gr_verbs_layout *b)
{
    return a->limits.small_bytes_max == b->limits.small_bytes_max &&
           a->limits.bulk_bytes_max == b->limits.bulk_bytes_max && a->limits.n_small_slot == b->limits.n_small_slot &&
           a->limits.n_bulk_slot == b->limits.n_bulk_slot && a->mode.two_sided == b->mode.two_sided &&
           a->mode.apart == b->mode.apart && a->mode.far == b->mode.far;
}

enum gr_status gr_verbs_memory_layout(struct gr_verbs_memory *m, const struct gr_verbs_layout *layout)
{
    if (m->local_mr == NULL || !same_layout(&m->layout, layout)) {
        GR_TRY(make_slab(m, layout));
    }
    return make_inbox(m);
}

void gr_verbs_memory_shrink(struct gr_verbs_memory *m)
{
    release_slab(m);
    gr_verbs_bodies_release(&m->bodies, m->lib);
    if (m->pd != NULL) {
        m->lib->dealloc_pd(m->pd);
        m->pd = NULL;
    }
}

void gr_verbs_memory_destroy(struct gr_verbs_memory *m)
{
    if (m == NULL) {
        return;
    }
    gr_verbs_memory_shrink(m);
    if (m->anchor != NULL) {
        m->lib->destroy_id(m->anchor);
    }
    if (m->channel != NULL) {
        m->lib->destroy_event_channel(m->channel);
    }
    if (m->device_gone) {
        m->lib->forget_removed_devices();
    }
    free(m);
}
