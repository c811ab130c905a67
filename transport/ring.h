/* The frame rings of loop and shm: for each direction and class a ring of slots in memory that both
 * ends map.
 *
 * The sender owns the free slots. send() publishes {slot, bytes} in `sent`; the receiver hands the
 * slot back through `freed`. Slots may come back in any order, so a receiver may hold several
 * frames. Both counters only grow and wrap at 2^32; an entry lies at count % 256. Each ring has one
 * writer per counter, so there is no lock.
 *
 * Trust: the other end may be another process and may write anything at any time. Everything read
 * from shared memory is read once and checked against the private state below before use; whoever
 * breaks a rule gets GR_EPROTO.
 *
 * Waking: the end that is about to sleep stores `armed`, then looks at the counters; the other end
 * stores its counter, then looks at `armed`. All four are sequentially consistent, so at least one
 * of the two sees the other.
 *
 * Each end is used by one thread. */
#ifndef GR_TRANSPORT_RING_H
#define GR_TRANSPORT_RING_H

#include "transport/impl.h"

#include <assert.h>
#include <stdalign.h>
#include <stdatomic.h>

#define GR_RING_MAGIC 0x31474e4952465247ull /* "GRFRING1" */
#define GR_RING_LAYOUT 1u
#define GR_RING_MASK (GR_N_SLOT_MAX - 1u)

enum { GR_ARM_FRAME = 1, GR_ARM_CREDIT = 2 };

struct gr_ring_side {
    alignas(64) _Atomic uint32_t armed; /* GR_ARM_*: what this side sleeps for */
    _Atomic uint32_t closed;
};

struct gr_ring_ctl {
    alignas(64) _Atomic uint32_t n_sent;              /* written by the sender */
    alignas(64) _Atomic uint32_t n_freed;             /* written by the receiver */
    alignas(64) _Atomic uint64_t sent[GR_N_SLOT_MAX]; /* slot | bytes << 32 */
    _Atomic uint32_t freed[GR_N_SLOT_MAX];            /* slot */
};

struct gr_ring_shared {
    uint64_t magic;
    uint32_t layout;
    uint32_t conn_generation;
    uint64_t total_bytes;
    uint32_t small_bytes_max, bulk_bytes_max;
    uint32_t n_small_slot, n_bulk_slot;
    struct gr_ring_side side[2];
    struct gr_ring_ctl ring[2][GR_N_FRAME_CLASS]; /* [sending side][class] */
    /* slots follow: side 0 small, side 0 bulk, side 1 small, side 1 bulk */
};
static_assert(ATOMIC_INT_LOCK_FREE == 2 && ATOMIC_LLONG_LOCK_FREE == 2, "shared atomics");
static_assert(offsetof(struct gr_ring_shared, side) == 64, "docs/protocol.md");
static_assert(offsetof(struct gr_ring_shared, ring) == 192, "docs/protocol.md");
static_assert(sizeof(struct gr_ring_ctl) == 3200, "docs/protocol.md");

enum gr_slot_state { GR_SLOT_FREE, GR_SLOT_HELD, GR_SLOT_IN_FLIGHT };

/* Private state of one class at one end; `ctl` and `slots` point into shared memory. */
struct gr_ring_out {
    struct gr_ring_ctl *ctl;
    uint8_t *slots;
    size_t stride;
    uint32_t n_slot, bytes_max;
    uint32_t n_sent, n_freed; /* published; taken back */
    uint32_t n_free;
    bool starved; /* the last acquire found no slot: sleep for credits too */
    uint16_t free[GR_N_SLOT_MAX];
    uint8_t state[GR_N_SLOT_MAX]; /* enum gr_slot_state */
};

struct gr_ring_in {
    struct gr_ring_ctl *ctl;
    const uint8_t *slots;
    uint8_t *copies; /* private, one per slot; NULL: the peer is trusted, payloads are used in place */
    size_t stride;
    uint32_t n_slot, bytes_max;
    uint32_t n_taken, n_freed;
    bool held[GR_N_SLOT_MAX];
};

struct gr_ring_end {
    struct gr_ring_shared *shared;
    unsigned self; /* 0 or 1 */
    struct gr_ring_out out[GR_N_FRAME_CLASS];
    struct gr_ring_in in[GR_N_FRAME_CLASS];
};

/* Bytes of the shared part for these limits; of one direction's slots. */
size_t gr_ring_shared_bytes(const struct gr_conn_limits *limits);
size_t gr_ring_slots_bytes(const struct gr_conn_limits *limits);

/* `shared` points at zeroed memory of gr_ring_shared_bytes(), aligned to 64. */
void gr_ring_shared_init(struct gr_ring_shared *shared, const struct gr_conn_limits *limits, uint32_t generation);

/* copies: private memory of gr_ring_slots_bytes(), or NULL. Both borrowed for the end's life. */
void gr_ring_end_init(struct gr_ring_end *end, struct gr_ring_shared *shared, const struct gr_conn_limits *limits,
                      unsigned self, uint8_t *copies);

/* As in gr_transport_ops. GR_EPROTO: the peer wrote nonsense (logged). */
GR_NODISCARD enum gr_status gr_ring_acquire(struct gr_ring_end *end, enum gr_frame_class class,
                                            struct gr_frame *frame_out);
GR_NODISCARD enum gr_status gr_ring_recv(struct gr_ring_end *end, struct gr_frame *frame_out);
void gr_ring_abandon(struct gr_ring_end *end, struct gr_frame *frame);
/* true: the peer sleeps for this, ring its bell. */
GR_NODISCARD bool gr_ring_send(struct gr_ring_end *end, struct gr_frame *frame, uint32_t bytes);
GR_NODISCARD bool gr_ring_release(struct gr_ring_end *end, struct gr_frame *frame);

/* Before sleeping. false: something is waiting (and we are not armed). */
GR_NODISCARD bool gr_ring_arm(struct gr_ring_end *end);
void gr_ring_disarm(struct gr_ring_end *end);

bool gr_ring_peer_closed(const struct gr_ring_end *end);
void gr_ring_mark_closed(struct gr_ring_end *end);

#endif
