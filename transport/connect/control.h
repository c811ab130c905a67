/* The control path: control messages (msg.h) over a stream socket, each as u32 little-endian length and msgpack map,
 * or, with keys, a sealed record that holds the map (seal.h). Non-blocking, with a bounded queue each way. One thread
 * uses a link. */
#ifndef GR_TRANSPORT_CONNECT_CONTROL_H
#define GR_TRANSPORT_CONNECT_CONTROL_H

#include "common/protocol/msg.h"
#include "transport/connect/seal.h"

struct gr_control;

/* fd: connected, HELLO done; taken on success. keys: of HELLO's peer, copied and then wiped; not on: plain, which a
 * warning tells; NULL: plain. */
GR_NODISCARD enum gr_status gr_control_create(int fd, struct gr_seal_keys *keys, struct gr_control **out);
/* Bounds what waits for the peer, here and in the kernel, to about `bytes` (at most the built-in bound of 8 MiB
 * here): for peers that must not hold much memory. */
void gr_control_limit_out(struct gr_control *c, uint32_t bytes);
void gr_control_destroy(struct gr_control *c);
/* Queues a message. GR_ELIMIT (logged): the queue is full, the peer does not read; GR_ECLOSED: it is gone. */
GR_NODISCARD enum gr_status gr_control_send(struct gr_control *c, const struct gr_msg *m);
/* Bytes that messages may still take; 4 bytes of each are its length, and GR_SEAL_BYTES its seal. */
size_t gr_control_room(const struct gr_control *c);
/* Writes what the socket takes. GR_OK: all; GR_AGAIN: some is left; GR_ECLOSED. */
GR_NODISCARD enum gr_status gr_control_flush(struct gr_control *c);
/* Next message; gr_msg_finish() it. GR_AGAIN: none yet; GR_ECLOSED: the peer is gone; GR_EFORMAT, GR_EPROTO: it broke
 * the protocol (logged); GR_EAUTH: a sealed record is not what the peer sent next (logged). */
GR_NODISCARD enum gr_status gr_control_recv(struct gr_control *c, struct gr_msg *out);
/* After a message: gr_control_recv() would find no other one unless the socket becomes readable, which poll() tells.
 * So whoever is told by poll() need not ask the socket in vain. */
bool gr_control_has_nothing(const struct gr_control *c);
int gr_control_fd(const struct gr_control *c);
short gr_control_events(const struct gr_control *c);

#endif
