/* From a device to a connected queue pair: librdmacm with a deadline on every step. The side that did not connect the
 * bootstrap socket listens on its device's address; the other one connects and shows the nonce that it was told over
 * that socket. While one waits, the other may give up and say so there. */
#ifndef GR_TRANSPORT_VERBS_VERBS_CM_H
#define GR_TRANSPORT_VERBS_VERBS_CM_H

#include "transport/verbs/verbs_memory.h"

#define GR_VERBS_NONCE_BYTES 32 /* random, so that a connection of another hand-shake is not taken */
#define GR_VERBS_N_SEND_SGE 3   /* of one work request: a header, a head, a body */

struct gr_verbs_link {
    const struct gr_verbs_lib *lib;
    struct rdma_event_channel *channel;
    struct rdma_cm_id *listener; /* until the peer has come */
    struct rdma_cm_id *id;       /* owns the queue pair */
    struct ibv_comp_channel *comp;
    struct ibv_cq *cq;
    uint32_t inline_bytes; /* granted */
    bool connected;
    /* set before connect or accept */
    struct gr_verbs_memory *memory; /* borrowed */
    uint32_t n_send, n_recv;        /* work requests */
    uint32_t generation;
    uint8_t ack_timeout; /* 0: the usual one */
    uint8_t nonce[GR_VERBS_NONCE_BYTES];
    enum gr_status (*post_receives)(void *ctx); /* called when the queue pair is there, before it is connected */
    void *ctx;
    bool (*peer_gave_up)(int fd); /* something on the bootstrap socket ends the wait */
    int fd;                       /* the bootstrap socket, borrowed */
};

/* Both channels and the completion queue. Errors are logged here and below. */
GR_NODISCARD enum gr_status gr_verbs_link_init(struct gr_verbs_link *k);
void gr_verbs_link_finish(struct gr_verbs_link *k);

/* Port that the listener got (host order). */
GR_NODISCARD enum gr_status gr_verbs_link_listen(struct gr_verbs_link *k, uint16_t *port_out);
/* Requests with wrong private data are rejected, one line each; waiting goes on. */
GR_NODISCARD enum gr_status gr_verbs_link_accept(struct gr_verbs_link *k, uint64_t deadline_ns);
GR_NODISCARD enum gr_status gr_verbs_link_connect(struct gr_verbs_link *k, const struct sockaddr *peer,
                                                  uint64_t deadline_ns);

#endif
