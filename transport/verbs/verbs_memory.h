/* The memory of one verbs connection: a protection domain, one page-aligned slab and its two registrations.
 *
 *   slab: | out small | out bulk | out credit | receives |  page(s), gap  | inbox |
 *           registered for the device's own use            not registered   remote-writable, a new key per connection
 *
 * A slot is the payload, in two-sided mode after GR_SLOT_ALIGN bytes, whose last ones are the record's header; of the
 * inbox the payload alone.
 *
 * Where either side keeps bodies of bulk frames in far memory (verbs_body.h), both have them apart from the heads: a
 * slot of the inbox is GR_VERBS_HEAD_BYTES for the frame's length and head, and bodies have an inbox of their own, in
 * the far memory or behind the heads. The side without far memory has its frames whole, in slots and copies. Slab and
 * protection domain live on when a connection breaks and are taken up again when the same peer comes back over the same
 * device; the inbox is registered anew, so an old key writes nothing. Decision D-090. */
#ifndef GR_TRANSPORT_VERBS_VERBS_MEMORY_H
#define GR_TRANSPORT_VERBS_VERBS_MEMORY_H

#include "transport/impl.h"
#include "transport/verbs/verbs_body.h"
#include "transport/verbs/verbs_device.h"

#define GR_VERBS_HEADER_BYTES 20u
#define GR_VERBS_LENGTH_BYTES 4u /* of a bulk frame whose body is apart, in front of its head */
#define GR_VERBS_HEAD_BYTES 64u  /* length and head: a slot of the inbox for them */
#define GR_VERBS_N_CREDIT 4u     /* records of credits alone that are on their way, two a class */

enum gr_verbs_out { GR_VERBS_OUT_SMALL, GR_VERBS_OUT_BULK, GR_VERBS_OUT_CREDIT, GR_N_VERBS_OUT };

/* How bulk frames go. two_sided and apart are agreed; far: this side has their bodies in far memory. */
struct gr_verbs_mode {
    bool two_sided, apart, far;
};

/* Where everything lies, as the agreed limits and mode have it. */
struct gr_verbs_layout {
    struct gr_conn_limits limits;
    struct gr_verbs_mode mode;
    uint32_t signal_interval; /* of small and credit records one in so many is signalled */
    uint32_t n_out[GR_N_VERBS_OUT];
    size_t out_at[GR_N_VERBS_OUT], out_stride[GR_N_VERBS_OUT];
    uint32_t part_bytes; /* two-sided: the most payload of one record of a bulk frame */
    size_t head;         /* before a payload: room for its header in two-sided mode, else nothing */
    size_t bulk_head;    /* before the payload of an outgoing bulk frame: its parts' headers, the first one's last */
    uint32_t n_recv;
    size_t recv_at, recv_stride;
    size_t local_bytes;
    size_t bulk_stride, inbox_bytes; /* 0: no inbox. Apart: of a slot for heads, and of all for heads and bodies */
    size_t body_at, body_stride;     /* apart: of the inbox's bodies, unless they are in far memory */
    size_t slab_bytes;               /* with the gap before the inbox */
};
void gr_verbs_layout_init(struct gr_verbs_layout *l, const struct gr_conn_limits *limits, struct gr_verbs_mode mode);
/* What both sides grant each other: of the inbox, the heads alone where bodies are apart. */
size_t gr_verbs_granted_bytes(const struct gr_verbs_layout *l);
/* Bulk slots, at most those of the limits, with which both registrations stay below bytes; at least one if any. */
uint16_t gr_verbs_bulk_slots_within(const struct gr_conn_limits *limits, struct gr_verbs_mode mode, size_t bytes);

struct gr_verbs_memory {
    const struct gr_verbs_lib *lib;
    struct gr_verbs_device device;
    uint64_t peer_id;
    /* Holds the device open for pd, and is told when it is taken away. */
    struct rdma_event_channel *channel;
    struct rdma_cm_id *anchor;
    struct ibv_pd *pd;
    struct gr_verbs_layout layout;
    uint8_t *slab, *inbox; /* inbox lies in slab, at a place drawn at random */
    struct ibv_mr *local_mr, *inbox_mr;
    struct gr_verbs_bodies bodies;
    bool device_gone; /* it is being removed: keep nothing */
};

/* Binds the device and makes a protection domain. Errors are logged. */
GR_NODISCARD enum gr_status gr_verbs_memory_create(const struct gr_verbs_lib *lib, const struct gr_verbs_device *device,
                                                   uint64_t peer_id, struct gr_verbs_memory **out);
/* Slab and registrations; what fits from before is kept, the inbox is registered anew in any case. GR_ENOMEM: the line
 * names the limit on locked memory. */
GR_NODISCARD enum gr_status gr_verbs_memory_layout(struct gr_verbs_memory *m, const struct gr_verbs_layout *layout);
/* As the device says now. False, too, where it cannot be asked any more. */
bool gr_verbs_memory_port_is_up(const struct gr_verbs_memory *m);
/* The peer can write nothing any more. */
void gr_verbs_memory_forget_inbox(struct gr_verbs_memory *m);
/* Only what holds the device open and hears of its removal is left. */
void gr_verbs_memory_shrink(struct gr_verbs_memory *m);
void gr_verbs_memory_destroy(struct gr_verbs_memory *m);

static inline uint8_t *gr_verbs_out_slot(const struct gr_verbs_memory *m, enum gr_verbs_out kind, uint32_t slot)
{
    const size_t head = kind == GR_VERBS_OUT_BULK ? m->layout.bulk_head : m->layout.head;
    return m->slab + m->layout.out_at[kind] + slot * m->layout.out_stride[kind] + head;
}
/* Where the peer writes bodies, where they are apart. */
static inline uint8_t *gr_verbs_inbox_bodies(const struct gr_verbs_memory *m)
{
    return m->layout.mode.far ? m->bodies.in : m->inbox + m->layout.body_at;
}
static inline uint8_t *gr_verbs_recv_slot(const struct gr_verbs_memory *m, uint32_t slot)
{
    return m->slab + m->layout.recv_at + slot * m->layout.recv_stride + m->layout.head;
}

#endif
