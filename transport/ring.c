#include "transport/ring.h"

#include "common/base/log.h"

#include <string.h>

static size_t slot_stride(const struct gr_conn_limits *limits, enum gr_frame_class class)
{
    return gr_round_up(gr_class_bytes_max(limits, class), GR_SLOT_ALIGN);
}

size_t gr_ring_slots_bytes(const struct gr_conn_limits *limits)
{
    size_t bytes = 0;
    for (int k = 0; k < GR_N_FRAME_CLASS; k++) {
        bytes += slot_stride(limits, k) * gr_class_n_slot(limits, k);
    }
    return bytes;
}

static size_t slots_offset(void)
{
    return gr_round_up(sizeof(struct gr_ring_shared), 4096);
}

size_t gr_ring_shared_bytes(const struct gr_conn_limits *limits)
{
    return gr_round_up(slots_offset() + 2 * gr_ring_slots_bytes(limits), 4096);
}

void gr_ring_shared_init(struct gr_ring_shared *shared, const struct gr_conn_limits *limits, uint32_t generation)
{
    shared->magic = GR_RING_MAGIC;
    shared->layout = GR_RING_LAYOUT;
    shared->conn_generation = generation;
    shared->total_bytes = gr_ring_shared_bytes(limits);
    shared->small_bytes_max = limits->small_bytes_max;
    shared->bulk_bytes_max = limits->bulk_bytes_max;
    shared->n_small_slot = limits->n_small_slot;
    shared->n_bulk_slot = limits->n_bulk_slot;
}

static void out_init(struct gr_ring_out *out, struct gr_ring_ctl *ctl, uint8_t *slots,
                     const struct gr_conn_limits *limits, enum gr_frame_class class)
{
    memset(out, 0, sizeof(*out));
    out->ctl = ctl;
    out->slots = slots;
    out->stride = slot_stride(limits, class);
    out->n_slot = gr_class_n_slot(limits, class);
    out->bytes_max = gr_class_bytes_max(limits, class);
    out->n_free = out->n_slot;
    for (uint32_t i = 0; i < out->n_slot; i++) {
        out->free[i] = (uint16_t)(out->n_slot - 1 - i);
    }
}

static void in_init(struct gr_ring_in *in, struct gr_ring_ctl *ctl, const uint8_t *slots, uint8_t *copies,
                    const struct gr_conn_limits *limits, enum gr_frame_class class)
{
    memset(in, 0, sizeof(*in));
    in->ctl = ctl;
    in->slots = slots;
    in->copies = copies;
    in->stride = slot_stride(limits, class);
    in->n_slot = gr_class_n_slot(limits, class);
    in->bytes_max = gr_class_bytes_max(limits, class);
}

void gr_ring_end_init(struct gr_ring_end *end, struct gr_ring_shared *shared, const struct gr_conn_limits *limits,
                      unsigned self, uint8_t *copies)
{
    GR_ASSERT(self < 2);
    end->shared = shared;
    end->self = self;
    uint8_t *slots = (uint8_t *)shared + slots_offset();
    for (unsigned side = 0; side < 2; side++) {
        for (int k = 0; k < GR_N_FRAME_CLASS; k++) {
            struct gr_ring_ctl *ctl = &shared->ring[side][k];
            size_t bytes = slot_stride(limits, k) * gr_class_n_slot(limits, k);
            if (side == self) {
                out_init(&end->out[k], ctl, slots, limits, k);
            } else {
                in_init(&end->in[k], ctl, slots, copies, limits, k);
                copies = copies == NULL ? NULL : copies + bytes;
            }
            slots += bytes;
        }
    }
}

/* Moves the slots that the peer gave back to the free list. */
static enum gr_status take_freed(struct gr_ring_out *out)
{
    uint32_t n_freed = atomic_load_explicit(&out->ctl->n_freed, memory_order_acquire);
    uint32_t n_new = n_freed - out->n_freed;
    if (n_new > out->n_sent - out->n_freed) {
        log_error("ring: the peer gave back %u slots, %u were in flight; closing", n_new, out->n_sent - out->n_freed);
        return GR_EPROTO;
    }
    for (; n_new > 0; n_new--) {
        uint32_t slot = atomic_load_explicit(&out->ctl->freed[out->n_freed & GR_RING_MASK], memory_order_relaxed);
        if (slot >= out->n_slot || out->state[slot] != GR_SLOT_IN_FLIGHT) {
            log_error("ring: the peer gave back slot %u, which is not in flight; closing", slot);
            return GR_EPROTO;
        }
        out->state[slot] = GR_SLOT_FREE;
        out->free[out->n_free++] = (uint16_t)slot;
        out->n_freed++;
    }
    return GR_OK;
}

enum gr_status gr_ring_acquire(struct gr_ring_end *end, enum gr_frame_class class, struct gr_frame *frame_out)
{
    struct gr_ring_out *out = &end->out[class];
    GR_TRY(take_freed(out));
    out->starved = out->n_free == 0;
    if (out->starved) {
        return GR_AGAIN;
    }
    uint32_t slot = out->free[--out->n_free];
    out->state[slot] = GR_SLOT_HELD;
    *frame_out = (struct gr_frame){
        .data = out->slots + slot * out->stride, .bytes = out->bytes_max, .class = class, .slot = slot};
    return GR_OK;
}

static struct gr_ring_out *held_out(struct gr_ring_end *end, const struct gr_frame *frame)
{
    GR_ASSERT((unsigned)frame->class < GR_N_FRAME_CLASS);
    struct gr_ring_out *out = &end->out[frame->class];
    GR_ASSERT(frame->slot < out->n_slot && out->state[frame->slot] == GR_SLOT_HELD);
    return out;
}

void gr_ring_abandon(struct gr_ring_end *end, struct gr_frame *frame)
{
    struct gr_ring_out *out = held_out(end, frame);
    out->state[frame->slot] = GR_SLOT_FREE;
    out->free[out->n_free++] = (uint16_t)frame->slot;
    frame->data = NULL;
}

/* After a counter was stored: does the peer sleep for it? Whoever takes the flag rings the bell. */
static bool take_armed(struct gr_ring_end *end, uint32_t what)
{
    struct gr_ring_side *peer = &end->shared->side[1 - end->self];
    if ((atomic_load(&peer->armed) & what) == 0) {
        return false;
    }
    return atomic_exchange(&peer->armed, 0) != 0;
}

bool gr_ring_send(struct gr_ring_end *end, struct gr_frame *frame, uint32_t bytes)
{
    struct gr_ring_out *out = held_out(end, frame);
    GR_ASSERT(bytes <= out->bytes_max);
    out->state[frame->slot] = GR_SLOT_IN_FLIGHT;
    atomic_store_explicit(&out->ctl->sent[out->n_sent & GR_RING_MASK], (uint64_t)bytes << 32 | frame->slot,
                          memory_order_relaxed);
    out->n_sent++;
    atomic_store(&out->ctl->n_sent, out->n_sent);
    frame->data = NULL;
    return take_armed(end, GR_ARM_FRAME);
}

static enum gr_status recv_class(struct gr_ring_in *in, enum gr_frame_class class, struct gr_frame *frame_out)
{
    uint32_t n_waiting = atomic_load_explicit(&in->ctl->n_sent, memory_order_acquire) - in->n_taken;
    if (n_waiting == 0) {
        return GR_AGAIN;
    }
    uint64_t entry = atomic_load_explicit(&in->ctl->sent[in->n_taken & GR_RING_MASK], memory_order_relaxed);
    uint32_t slot = (uint32_t)entry, bytes = (uint32_t)(entry >> 32);
    if (n_waiting > in->n_slot || slot >= in->n_slot || in->held[slot] || bytes > in->bytes_max) {
        log_error("ring: malformed %s frame from the peer: %u waiting of %u slots, slot %u, %u "
                  "bytes of %u; closing",
                  class == GR_FRAME_SMALL ? "small" : "bulk", n_waiting, in->n_slot, slot, bytes, in->bytes_max);
        return GR_EPROTO;
    }
    in->held[slot] = true;
    in->n_taken++;
    const uint8_t *data = in->slots + slot * in->stride;
    if (in->copies != NULL) {
        uint8_t *copy = in->copies + slot * in->stride;
        memcpy(copy, data, bytes);
        data = copy;
    }
    *frame_out = (struct gr_frame){.data = (uint8_t *)(uintptr_t)data, .bytes = bytes, .class = class, .slot = slot};
    return GR_OK;
}

enum gr_status gr_ring_recv(struct gr_ring_end *end, struct gr_frame *frame_out)
{
    const struct gr_ring_in *bulk = &end->in[GR_FRAME_BULK];
    enum gr_status st = recv_class(&end->in[GR_FRAME_SMALL], GR_FRAME_SMALL, frame_out);
    if (st != GR_AGAIN || atomic_load(&bulk->ctl->n_sent) == bulk->n_taken) {
        return st;
    }
    /* A bulk frame is there: a small frame that was sent before it is visible by now. One that comes only after this
     * look is not taken in this call, as the small frame before it may have come in between too. */
    st = recv_class(&end->in[GR_FRAME_SMALL], GR_FRAME_SMALL, frame_out);
    return st == GR_AGAIN ? recv_class(&end->in[GR_FRAME_BULK], GR_FRAME_BULK, frame_out) : st;
}

bool gr_ring_release(struct gr_ring_end *end, struct gr_frame *frame)
{
    GR_ASSERT((unsigned)frame->class < GR_N_FRAME_CLASS);
    struct gr_ring_in *in = &end->in[frame->class];
    GR_ASSERT(frame->slot < in->n_slot && in->held[frame->slot]);
    in->held[frame->slot] = false;
    atomic_store_explicit(&in->ctl->freed[in->n_freed & GR_RING_MASK], frame->slot, memory_order_relaxed);
    in->n_freed++;
    atomic_store(&in->ctl->n_freed, in->n_freed);
    frame->data = NULL;
    return take_armed(end, GR_ARM_CREDIT);
}

static bool something_waits(const struct gr_ring_end *end)
{
    for (int k = 0; k < GR_N_FRAME_CLASS; k++) {
        const struct gr_ring_in *in = &end->in[k];
        const struct gr_ring_out *out = &end->out[k];
        if (atomic_load(&in->ctl->n_sent) != in->n_taken ||
            (out->starved && (out->n_free > 0 || atomic_load(&out->ctl->n_freed) != out->n_freed))) {
            return true;
        }
    }
    return gr_ring_peer_closed(end);
}

bool gr_ring_arm(struct gr_ring_end *end)
{
    bool starved = end->out[GR_FRAME_SMALL].starved || end->out[GR_FRAME_BULK].starved;
    atomic_store(&end->shared->side[end->self].armed, GR_ARM_FRAME | (starved ? GR_ARM_CREDIT : 0u));
    if (something_waits(end)) {
        gr_ring_disarm(end);
        return false;
    }
    return true;
}

void gr_ring_disarm(struct gr_ring_end *end)
{
    atomic_store_explicit(&end->shared->side[end->self].armed, 0, memory_order_relaxed);
}

bool gr_ring_peer_closed(const struct gr_ring_end *end)
{
    return atomic_load(&end->shared->side[1 - end->self].closed) != 0;
}

void gr_ring_mark_closed(struct gr_ring_end *end)
{
    atomic_store(&end->shared->side[end->self].closed, 1);
}
