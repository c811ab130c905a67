/* A verbs connection, for the files that make it up. From the ground up: verbs_header.c (codec), verbs_conn.c (slots,
 * receives, the end), verbs_send.c and verbs_recv.c (records), verbs.c (the table, events), verbs_open.c (hand-shake).
 * One thread at a time. */
#ifndef GR_TRANSPORT_VERBS_VERBS_CONN_H
#define GR_TRANSPORT_VERBS_VERBS_CONN_H

#include "transport/verbs/verbs_cm.h"

#include <stdatomic.h>

#define GR_VERBS_SENT_MAX 512u            /* work requests on the send queue; a power of two */
#define GR_VERBS_SEND_WR_BIT (1ull << 63) /* wr_id: a count of sends with this bit, or the slot of a receive */

struct gr_verbs_header {
    uint32_t class; /* enum gr_frame_class or GR_VERBS_CREDIT */
    bool more;      /* two-sided: further parts of this bulk frame follow */
    uint32_t n_credit[GR_N_FRAME_CLASS];
    uint32_t n_credit_record; /* records of credits alone that the sender has taken since it last said so */
    uint32_t sequence, bytes;
};
#define GR_VERBS_CREDIT 2u             /* beside the frame classes 0 and 1: a record of credits alone */
#define GR_VERBS_HELLO_BYTES_MAX 8192u /* of the first record */

enum gr_verbs_slot_state { GR_VERBS_FREE, GR_VERBS_HELD, GR_VERBS_QUEUED, GR_VERBS_POSTED };

/* Slots of one kind with a free list and a queue, all in arrays of n_slot. */
struct gr_verbs_slots {
    uint32_t n_slot, n_free, n_queued, head;
    uint16_t *free, *queue;
    uint32_t *bytes;
    uint8_t *state; /* enum gr_verbs_slot_state */
};

/* A work request on the send queue, in order. */
struct gr_verbs_sent {
    uint8_t kind; /* enum gr_verbs_out, or GR_N_VERBS_OUT: its slot is free already */
    bool last;    /* bulk: the frame's slot comes free with it */
    uint16_t slot;
    uint32_t bytes;
};

struct gr_verbs_conn {
    struct gr_conn base;
    const struct gr_verbs_lib *lib;
    struct gr_verbs_memory *memory; /* owned */
    struct gr_verbs_link link;
    int fd, epoll_fd; /* bootstrap socket; what a caller sleeps on */
    struct gr_verbs_mode mode;
    uint32_t path_mtu; /* the smaller one of both ends, in bytes */
    int spin_us;
    bool require_far; /* bodies in far memory, or no connection */
    /* the end */
    bool gone;               /* nothing more is sent; what has arrived is handed out */
    bool failed;             /* the peer broke the protocol */
    _Atomic int fatal_event; /* enum ibv_event_type + 1, set by whichever connection reads the device's events */
    bool broke;              /* not closed by us: the peer may come back */
    bool keep_memory;        /* park it */
    bool armed;              /* events may have come since they were last looked at */
    uint32_t n_empty_recv, n_unacked_event;
    uint64_t n_record, n_record_seen, last_record_ns; /* for the spin */
    /* sending */
    struct gr_verbs_slots out[GR_N_VERBS_OUT];
    uint32_t n_credit[GR_N_FRAME_CLASS];  /* frames that may still be acquired */
    uint32_t n_unacked[GR_N_FRAME_CLASS]; /* frames sent whose credit is not back */
    bool starved[GR_N_FRAME_CLASS];
    uint32_t send_sequence, n_since_signal;
    struct gr_verbs_sent sent[GR_VERBS_SENT_MAX];
    uint64_t n_posted, n_done; /* of the send queue; sent[i % GR_VERBS_SENT_MAX] */
    uint32_t bulk_in_flight;   /* bytes */
    uint32_t bulk_at;          /* two-sided: what of the first queued bulk frame has been posted */
    uint32_t n_bulk_sent;
    uint64_t remote_inbox, remote_body; /* remote_body: where bodies are apart */
    uint32_t remote_key, remote_body_key;
    uint8_t credit_class[GR_VERBS_N_CREDIT]; /* records of credits that the peer has not taken, the oldest first */
    uint32_t n_credit_record, n_credit_record_of[GR_N_FRAME_CLASS];
    bool stuck; /* something is queued that waits for completions */
    /* receiving */
    struct gr_verbs_slots in;   /* receives: small frames lie in them while they are held */
    struct gr_verbs_slots bulk; /* private copies */
    uint8_t *copies;            /* of frames, or of their heads where bodies are far */
    uint16_t *repost;           /* [n_recv] receives to be posted again */
    uint32_t n_repost, n_recv_posted;
    uint32_t n_owed[GR_N_FRAME_CLASS], n_owed_record;
    uint32_t n_small_held; /* small frames queued or held */
    uint32_t recv_sequence, n_bulk_received;
    bool in_bulk; /* two-sided: parts of this copy are coming */
    uint32_t bulk_slot, bulk_bytes;
    struct gr_verbs_stats stats;
    struct gr_verbs_conn *next; /* list of all, for the device's events */
    void *arena;                /* owned: the arrays above */
};

extern const struct gr_transport_ops gr_transport_verbs;

static inline struct gr_verbs_conn *gr_verbs_downcast(struct gr_conn *c)
{
    GR_ASSERT(c->ops == &gr_transport_verbs);
    return GR_CONTAINER_OF(c, struct gr_verbs_conn, base);
}

/* ---- slots ---- */

static inline uint32_t gr_verbs_slot_take(struct gr_verbs_slots *s)
{
    const uint32_t slot = s->free[--s->n_free];
    s->state[slot] = GR_VERBS_HELD;
    return slot;
}

static inline void gr_verbs_slot_free(struct gr_verbs_slots *s, uint32_t slot)
{
    s->state[slot] = GR_VERBS_FREE;
    s->free[s->n_free++] = (uint16_t)slot;
}

static inline void gr_verbs_slot_push(struct gr_verbs_slots *s, uint32_t slot, uint32_t bytes)
{
    uint32_t at = s->head + s->n_queued++;
    s->state[slot] = GR_VERBS_QUEUED;
    s->bytes[slot] = bytes;
    at -= at >= s->n_slot ? s->n_slot : 0;
    s->queue[at] = (uint16_t)slot;
}

static inline uint32_t gr_verbs_slot_pop(struct gr_verbs_slots *s)
{
    const uint32_t slot = s->queue[s->head];
    s->head = s->head + 1 == s->n_slot ? 0 : s->head + 1;
    s->n_queued--;
    s->state[slot] = GR_VERBS_HELD;
    return slot;
}

static inline uint32_t gr_verbs_slot_peek(const struct gr_verbs_slots *s)
{
    return s->queue[s->head];
}

/* ---- headers: decoders return false for what is none of ours ---- */
/* In front of the payload: two-sided. */
void gr_verbs_header_encode(const struct gr_verbs_header *h, uint8_t out[GR_VERBS_HEADER_BYTES]);
bool gr_verbs_header_decode(const uint8_t in[GR_VERBS_HEADER_BYTES], struct gr_verbs_header *out);
/* As immediate data (host order): one-sided. Of the sequence number only the lowest bits go over; bytes is what the
 * device counted. */
#define GR_VERBS_IMM_SEQUENCE_MASK 0x7ffu
uint32_t gr_verbs_imm_encode(const struct gr_verbs_header *h);
bool gr_verbs_imm_decode(uint32_t imm, uint32_t bytes, struct gr_verbs_header *out);

/* ---- records ---- */

/* Posts what is queued as far as the send queue has room. As gr_transport_ops.flush. */
enum gr_status gr_verbs_push(struct gr_verbs_conn *v);
/* A record of credits, whether any are owed or not. bytes: of a payload of zeros, which only the first record of a
 * connection has. */
enum gr_status gr_verbs_push_credit(struct gr_verbs_conn *v, uint32_t bytes);
/* Of the first record: more than a packet of the largest path MTU (4096) holds, where small frames may be so large.
 * What swallows large packets lets through all others, and a connection would come about that carries no large frame.
 */
static inline uint32_t gr_verbs_hello_bytes(const struct gr_conn_limits *l)
{
    return GR_MIN(l->small_bytes_max, GR_VERBS_HELLO_BYTES_MAX);
}
/* A send completed: it and all before it. */
void gr_verbs_sent_done(struct gr_verbs_conn *v, uint64_t wr_id);
bool gr_verbs_credits_due(const struct gr_verbs_conn *v);

/* Posts the receives that are free again. */
enum gr_status gr_verbs_repost(struct gr_verbs_conn *v);
/* A receive is free again; it is posted with the next ones. */
void gr_verbs_recv_done(struct gr_verbs_conn *v, uint32_t slot);
/* A private copy of a bulk frame. */
uint8_t *gr_verbs_copy_of(const struct gr_verbs_conn *v, uint32_t slot);
/* Of a frame with a far body: the body of an outgoing one, and of a copy. NULL: the frame is whole. */
uint8_t *gr_verbs_out_body(const struct gr_verbs_conn *v, uint32_t slot);
uint8_t *gr_verbs_copy_body(const struct gr_verbs_conn *v, uint32_t slot);
/* Takes completions: frames into their queues, slots back. */
void gr_verbs_pump(struct gr_verbs_conn *v);

/* ---- the end ---- */
/* The connection is gone. The first caller's line is logged, unless why is NULL; an end that the peer wants is no
 * error. */
void gr_verbs_lose(struct gr_verbs_conn *v, bool is_error, const char *why);
/* record_bytes: what the device counted, a header in front with it. */
void gr_verbs_throw_out(struct gr_verbs_conn *v, const char *fault, const struct gr_verbs_header *h,
                        uint32_t record_bytes);

/* ---- for verbs_open.c ---- */
/* Arrays and counters for the agreed layout of v->memory. */
enum gr_status gr_verbs_conn_init(struct gr_verbs_conn *v);
/* Device and queue pair are listened to; the bootstrap socket, once nothing is said on it any more. */
enum gr_status gr_verbs_conn_watch(struct gr_verbs_conn *v);
enum gr_status gr_verbs_conn_watch_socket(struct gr_verbs_conn *v);
void gr_verbs_conn_destroy(struct gr_verbs_conn *v);

#endif
