/* Two RDMA devices in memory, fake0 at 10.9.0.1 and fake1 at 10.9.0.2: the calls of transport/verbs/verbs_lib.h with
 * the libraries' statuses at the libraries' times, and faults on command. What a test may not do on real devices either
 * is asserted: work requests outside of registered memory, receives that overflow, objects destroyed in a wrong order,
 * and memory that a device may write in any order it likes.
 */
#ifndef GR_TESTS_TRANSPORT_FAKE_VERBS_H
#define GR_TESTS_TRANSPORT_FAKE_VERBS_H

#include "transport/verbs/verbs_lib.h"

#include <stdint.h>

extern struct gr_verbs_lib fake_verbs; /* whole after the first fake_reset() */

/* fe80::N as RoCE v2 at index 0; 10.9.0.N as v1 at index 1 and as v2 at index 2. */
enum fake_gids {
    FAKE_GIDS_USUAL,
    FAKE_GIDS_SHIFTED,    /* the same from index 2 on, after fe80::N as v1 and an entry that is empty */
    FAKE_GIDS_V6,         /* fe80::N, and fd09::N as v1 and as v2: nothing of IPv4 */
    FAKE_GIDS_LINK_LOCAL, /* fe80::N alone, as v1 and as v2 */
};

/* Knobs; fake_reset() sets them as if everything worked. Set while no other thread uses the table. */
struct fake_knobs {
    uint32_t inline_max;    /* a queue pair with more is refused, EINVAL (512) */
    size_t locked_max;      /* bytes registered; more is ENOMEM (unlimited) */
    int dmabuf_errno;       /* of a registration; 0: it works (EOPNOTSUPP) */
    bool peer_memory;       /* guarded far memory can be registered by its address; else EFAULT */
    _Atomic bool port_down; /* of fake0, as query_port says; at any time */
    int n_device;           /* 0 .. 2 (2) */
    unsigned ifindex[2];    /* of the interface that each one's addresses are of (0: none) */
    enum fake_gids gids[2]; /* each one's table of addresses (FAKE_GIDS_USUAL) */
    bool swallow;           /* packets: sends end in retry exceeded, connects in nothing */
    int spoil_private_at;   /* this byte of a connect's private data is changed (0: none) */
    uint32_t spoil_imm;     /* these bits of immediate data are, as a hostile peer might */
    bool lose_imm;          /* sends come without it */
    uint8_t spoil_head;     /* these bits of the first byte of a plain write are */
    uint32_t stretch;       /* sends come with so many bytes more at the end */
    int refuse_send_errno;  /* post_send fails with it */
};
extern struct fake_knobs fake_knobs;
void fake_reset(void);
void fake_set_iwarp(bool iwarp); /* both devices */

/* The device is taken away: an event for each identifier on it. */
void fake_remove_device(int i_device);
/* An asynchronous event of port 1. */
void fake_port_event(int i_device, enum ibv_event_type type);

struct fake_counts {
    int n_context, n_pd, n_mr, n_channel, n_comp, n_cq, n_id, n_qp; /* alive */
    int n_register, n_dmabuf;                                       /* ever */
    int n_rnr;                                                      /* sends that met no receive */
    int n_doorbell;                                                 /* calls of post_send */
    int n_unsignalled_max;                                          /* the most unsignalled work requests in a row */
    int ack_timeout;                                                /* the last one that was asked for */
};
struct fake_counts fake_counts(void);

#endif
