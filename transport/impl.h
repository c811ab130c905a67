/* What the implementations of a transport share; callers include transport.h only. */
#ifndef GR_TRANSPORT_IMPL_H
#define GR_TRANSPORT_IMPL_H

#include "transport/transport.h"

/* What the limits of a connection may be: bytes of a frame, and slots of each class. */
#define GR_SMALL_BYTES_MIN 64u
#define GR_SMALL_BYTES_MAX (1u << 20)
#define GR_BULK_BYTES_MAX (16u << 20)
#define GR_N_SMALL_SLOT_MIN 2u
#define GR_N_SMALL_SLOT_MAX 256u
#define GR_N_BULK_SLOT_MAX 64u
#define GR_N_SLOT_MAX 256u /* of any class; a power of two: rings wrap with a mask */

/* Slots start on a cache line, so that a payload may be read as any type. */
#define GR_SLOT_ALIGN 64u

extern const struct gr_transport_ops gr_transport_loop, gr_transport_shm, gr_transport_tcp;

/* GR_EINVAL with a logged line when a limit is out of its range. */
GR_NODISCARD enum gr_status gr_limits_check(const struct gr_conn_limits *limits);

static inline uint32_t gr_class_bytes_max(const struct gr_conn_limits *l, enum gr_frame_class class)
{
    return class == GR_FRAME_SMALL ? l->small_bytes_max : l->bulk_bytes_max;
}

static inline uint32_t gr_class_n_slot(const struct gr_conn_limits *l, enum gr_frame_class class)
{
    return class == GR_FRAME_SMALL ? l->n_small_slot : l->n_bulk_slot;
}

static inline size_t gr_round_up(size_t n, size_t align)
{
    return (n + align - 1) / align * align;
}

/* GR_ELIMIT with a logged line when a frame of `bytes` does not fit the class. */
GR_NODISCARD enum gr_status gr_acquire_check(const struct gr_conn *c, enum gr_frame_class class, uint32_t bytes);

static inline void gr_count_sent(struct gr_conn *c, enum gr_frame_class class, uint32_t bytes)
{
    c->stats.n_sent[class]++;
    c->stats.bytes_sent += bytes;
}

static inline void gr_count_received(struct gr_conn *c, enum gr_frame_class class, uint32_t bytes)
{
    c->stats.n_received[class]++;
    c->stats.bytes_received += bytes;
}

/* The mapped segment of an shm connection (struct gr_ring_shared first), borrowed until close. For
 * tests that corrupt it and for registering it with a device. */
void *gr_shm_segment(struct gr_conn *c, size_t *bytes_out);

#endif
