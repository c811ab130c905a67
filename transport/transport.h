/* A connection between two workers (one per pair of workers, not per session) that moves frames of
 * two classes. small: all but FEATURES. Sent before any queued bulk frame, in order among
 * themselves. bulk: FEATURES. Sent in order among themselves, in what the small frames leave; a
 * bulk frame never arrives before a small frame that was sent earlier. One table, several
 * implementations (loop, shm, tcp, verbs). Nothing blocks, nothing allocates after open:
 * back-pressure is GR_AGAIN. A connection is used by one thread (its I/O loop) only.
 *
 * Sending:   acquire() gives a frame's payload memory in place -> fill it -> send(frame, bytes) or
 * abandon(). Receiving: recv() gives a borrowed payload -> use it -> release() (returns the
 * credit). The payload is memory that the peer could rewrite only until recv() returned:
 * implementations whose inbox stays remote-writable copy first. The transport's own header
 * (sequence, credits, class, bytes) is apart from the application's.
 *
 * A verbs connection may keep the rows of bulk frames in the memory of a GPU (gr_conn.far). Who fills a frame copies
 * them there by far->copy before send(), which waits until they are there; who received one copies them on before
 * release(), which waits until that has been done. */
#ifndef GR_TRANSPORT_TRANSPORT_H
#define GR_TRANSPORT_TRANSPORT_H

#include "common/base/far_memory.h"
#include "common/base/status.h"
#include "common/protocol/frame_class.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Limits of a connection, agreed in HELLO: each side announces what it accepts, a sender keeps to
 * the smaller. */
struct gr_conn_limits {
    uint32_t small_bytes_max; /* largest small frame: 64 .. 1 MiB */
    uint32_t bulk_bytes_max;  /* largest bulk frame: 0 (no bulk) .. 16 MiB */
    uint16_t n_small_slot;    /* frames in flight per direction (credits): 2 .. 256 */
    uint16_t n_bulk_slot;     /* 0 .. 64 */
};

/* Smaller of the two sides' limits, field by field. */
void gr_limits_agree(const struct gr_conn_limits *a, const struct gr_conn_limits *b, struct gr_conn_limits *out);

struct gr_frame {
    uint8_t *data; /* in place; valid until send/abandon (out) or release (in) */
    uint8_t *body; /* NULL: all of the frame is at data. Else of a bulk frame only the first GR_BULK_HEAD_BYTES are; the
                      rest lies here, in the connection's far memory (gr_conn.far) */
    uint32_t bytes; /* out: capacity given by acquire; in: payload length */
    enum gr_frame_class class;
    uint32_t slot; /* the implementation's */
};

struct gr_conn;

struct gr_transport_ops {
    const char *name; /* "loop", "shm", "tcp", "verbs" */
    /* Capacity given: the class's limit, never less than `bytes`. The credit is taken here, so send
     * cannot fail for want of one. GR_AGAIN: no slot or no credit; try again after the peer
     * released one (poll fd wakes). GR_ELIMIT: bytes over the class's limit (logged). GR_ECLOSED:
     * the connection is gone. */
    enum gr_status (*acquire)(struct gr_conn *c, enum gr_frame_class class, uint32_t bytes, struct gr_frame *frame_out);
    /* Queues the frame with `bytes` payload bytes (<= capacity; 0 is legal). The frame is taken in
     * any case. Call flush after a batch of sends: tcp writes nothing before (loop and shm publish
     * at once). GR_ECLOSED: the peer is known to be gone. */
    enum gr_status (*send)(struct gr_conn *c, struct gr_frame *frame, uint32_t bytes);
    void (*abandon)(struct gr_conn *c, struct gr_frame *frame);
    /* Next received frame, small ones first; several may be held, and released in any order.
     * GR_AGAIN: none. GR_ECLOSED: peer gone and nothing left. GR_EPROTO: the peer sent something
     * malformed or oversize (logged once); the connection is closed. Whole frames before it are
     * delivered first, except where a shared counter itself is nonsense. Both answers stay;
     * acquire, send and flush then say GR_ECLOSED. */
    enum gr_status (*recv)(struct gr_conn *c, struct gr_frame *frame_out);
    void (*release)(struct gr_conn *c, struct gr_frame *frame);
    /* Pushes what is queued towards the peer. GR_OK: all out. GR_AGAIN: some is left, call after
     * poll. GR_ECLOSED: the connection is gone. */
    enum gr_status (*flush)(struct gr_conn *c);
    /* fd for poll/epoll; *events_out: what to wait for now (POLLIN, plus POLLOUT while output is
     * stuck). Call it right before polling: it arms the wake-up (a peer that sees us armed rings
     * the bell). Returns -1 when there is something to do already (a frame, a credit that acquire
     * lacked, the peer's end): do not sleep, call recv. A wake-up may be spurious. It also pushes
     * output, as flush does. */
    int (*poll_fd)(struct gr_conn *c, short *events_out);
    void (*close)(struct gr_conn *c); /* cannot fail; queued frames are dropped; frees c */
};

struct gr_conn_stats {
    uint64_t n_sent[GR_N_FRAME_CLASS], n_received[GR_N_FRAME_CLASS];
    uint64_t bytes_sent, bytes_received;
    uint64_t n_no_credit; /* acquire() answered GR_AGAIN */
};

/* Why a connection did not open, for the one line that says what follows from it. */
struct gr_why {
    char text[256];
    bool theirs; /* it is the other side's, which tells it */
};

/* First member of every implementation's connection. */
struct gr_conn {
    const struct gr_transport_ops *ops;
    struct gr_conn_limits limits; /* the agreed ones */
    struct gr_conn_stats stats;
    const struct gr_far_memory *far; /* borrowed: where bodies of bulk frames lie; NULL: in the host's, with the rest */
    uint32_t conn_generation;
    uint32_t n_fallback; /* transports of the order that were tried first and did not open */
};

static inline enum gr_status gr_conn_acquire(struct gr_conn *c, enum gr_frame_class class, uint32_t bytes,
                                             struct gr_frame *frame_out)
{
    return c->ops->acquire(c, class, bytes, frame_out);
}
static inline enum gr_status gr_conn_send(struct gr_conn *c, struct gr_frame *frame, uint32_t bytes)
{
    return c->ops->send(c, frame, bytes);
}
static inline void gr_conn_abandon(struct gr_conn *c, struct gr_frame *frame)
{
    c->ops->abandon(c, frame);
}
static inline enum gr_status gr_conn_recv(struct gr_conn *c, struct gr_frame *frame_out)
{
    return c->ops->recv(c, frame_out);
}
static inline void gr_conn_release(struct gr_conn *c, struct gr_frame *frame)
{
    c->ops->release(c, frame);
}
static inline enum gr_status gr_conn_flush(struct gr_conn *c)
{
    return c->ops->flush(c);
}
static inline int gr_conn_poll_fd(struct gr_conn *c, short *events_out)
{
    return c->ops->poll_fd(c, events_out);
}
static inline void gr_conn_close(struct gr_conn *c)
{
    if (c != NULL) {
        c->ops->close(c);
    }
}

/* ---- registry: ordered, the first that can connect wins ---- */
enum gr_transport_kind { GR_TRANSPORT_LOOP, GR_TRANSPORT_SHM, GR_TRANSPORT_TCP, GR_TRANSPORT_VERBS, GR_N_TRANSPORT };

const char *gr_transport_name(enum gr_transport_kind kind);
/* GR_ENOTFOUND: unknown name. */
GR_NODISCARD enum gr_status gr_transport_by_name(const char *name, enum gr_transport_kind *kind_out);
/* Bit i set: kind i is in this build. */
uint32_t gr_transport_built_mask(void);

/* ---- opening ----
 * Every connection starts from a connected stream socket (TCP, or a socketpair in tests) over which
 * HELLO has passed (bootstrap.h). shm and tcp take the socket over (taken on success); it stays
 * open as the liveness signal: its end of file is the peer's death. shm: the `creator` side makes
 * the segment and names it over the socket. Opening may take a few milliseconds of hand-shake on
 * the socket, bounded by timeout_ms. Limits must be in range and equal on both sides
 * (gr_limits_agree), else GR_EINVAL or GR_EUNSUPPORTED. shm: GR_EUNSUPPORTED means that both sides
 * know it failed (no room in /dev/shm), that the socket is clean for another transport, and that why
 * says what was lacking, which is not logged. */
GR_NODISCARD enum gr_status gr_transport_open_tcp(int fd, const struct gr_conn_limits *limits, uint32_t generation,
                                                  struct gr_conn **conn_out);
GR_NODISCARD enum gr_status gr_transport_open_shm(int fd, bool creator, const struct gr_conn_limits *limits,
                                                  uint32_t generation, int timeout_ms, struct gr_conn **conn_out,
                                                  struct gr_why *why);
/* Two ends in one process; each end may live in its own thread. */
GR_NODISCARD enum gr_status gr_transport_open_loop(const struct gr_conn_limits *limits, uint32_t generation,
                                                   struct gr_conn *conn_out[2]);

#endif
