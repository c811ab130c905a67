/* What the verbs transport can be told. Needs no RDMA headers: a build without them has these functions, too. */
#ifndef GR_TRANSPORT_VERBS_VERBS_H
#define GR_TRANSPORT_VERBS_VERBS_H

#include "transport/transport.h"

#define GR_VERBS_SPIN_US_DEFAULT 20 /* a thread that waits looks without sleeping for so long */
#define GR_VERBS_SPIN_US_MAX 10000  /* the most that an option may ask for */
#define GR_VERBS_GID_INDEX_MAX 1023 /* the largest index that an option may name */

struct gr_near_map;
struct gr_verbs_lib;

struct gr_verbs_options {
    const char *hca;                /* "NAME" or "NAME:PORT", borrowed for the process's life; NULL: choose */
    int gid_index;                  /* -1: choose */
    bool two_sided;                 /* no memory that the peer can write: bulk frames by SEND, too */
    int spin_us;                    /* how long to poll before sleeping; 0: not at all */
    uint8_t ack_timeout;            /* the device sends again after 4.096 us * 2^this without an answer; 0: 67 ms */
    const struct gr_verbs_lib *lib; /* NULL: the libraries */
    /* Where nothing else tells, the device is the one nearest to this GPU, a PCI address; both borrowed. NULL: none. */
    const char *gpu_pci;
    const struct gr_near_map *map;
    /* Where rows of bulk frames are to lie, borrowed for the process's life; NULL: in the host's memory. Where the
     * device cannot be made to reach it they lie in the host's all the same, unless require_far. */
    const struct gr_far_memory *far;
    bool require_far;
};
#define GR_VERBS_OPTIONS_DEFAULT                             \
    {                                                        \
        .gid_index = -1, .spin_us = GR_VERBS_SPIN_US_DEFAULT \
    }

/* How a device reaches far memory. */
enum gr_far_path {
    GR_FAR_NONE,        /* there is none: the host's */
    GR_FAR_DMABUF,      /* ibv_reg_dmabuf_mr */
    GR_FAR_PEER_MEMORY, /* ibv_reg_mr on its address */
    GR_FAR_STAGING,     /* not at all: frames lie in the host's memory, and are copied */
    GR_N_FAR_PATH
};
const char *gr_far_path_name(enum gr_far_path path);

/* Of a process that may use the transport, before its first thread. */
void gr_verbs_prepare(void);

/* What gr_bootstrap() opens connections with. Before the first connection; not thread-safe. */
void gr_verbs_configure(const struct gr_verbs_options *options);
const struct gr_verbs_options *gr_verbs_configured(void);

/* Draws the map of this machine for the GPU at this PCI address, copied; "" takes both away. As gr_verbs_configure().
 * That there is no map is logged, and then the first device is as good. Nothing happens where RDMA is not offered. */
void gr_verbs_prefer_near(const char *gpu_pci);

/* Whether the device that the options choose reaches their far memory, tried on a part of it: which way is logged, or
 * why none. far_path GR_FAR_STAGING: none. GR_EIO: and require_far. GR_ENOTFOUND: no device. */
GR_NODISCARD enum gr_status gr_verbs_try_far(const struct gr_verbs_options *options, enum gr_far_path *path_out);

/* Is there a device that fits the options? One line in the log if not: GR_ENOTFOUND, GR_EUNSUPPORTED (build). */
GR_NODISCARD enum gr_status gr_verbs_check(const struct gr_verbs_options *options);

/* A device was named, or this machine has one. Not logged. */
bool gr_verbs_worth_offering(const struct gr_verbs_options *options);

/* Frees what is kept for peers that may come back. A process that ends need not. */
void gr_verbs_forget_peers(void);

struct gr_verbs_stats {
    uint64_t n_rnr;         /* work requests that ended for want of a posted receive: a bug if not 0 */
    uint64_t n_inline;      /* records that the device took from the work request itself */
    uint64_t n_post;        /* doorbells */
    uint64_t n_credit_sent; /* records of credits alone */
    uint32_t inline_bytes;  /* granted by the device */
    bool two_sided;
    enum gr_far_path far_path; /* how this side's device reaches the rows of bulk frames */
};
/* false: c is not a verbs connection. */
bool gr_verbs_stats(const struct gr_conn *c, struct gr_verbs_stats *out);
/* For tests: frames that have arrived and were not taken, and is nothing of ours on the wire? */
uint32_t gr_verbs_n_waiting(struct gr_conn *c, bool *out_idle_out);

/* HELLO has passed on fd. Both sides say over it whether they can, and go on to connect queue pairs. GR_EUNSUPPORTED:
 * both know that it failed, and the socket is clean. fd is taken on success. peer_id: whose memory is taken up again
 * when it reconnects (the HELLO's incarnation). */
GR_NODISCARD enum gr_status gr_transport_open_verbs(int fd, bool initiator, const struct gr_verbs_options *options,
                                                    const struct gr_conn_limits *limits, uint64_t peer_id,
                                                    uint32_t generation, struct gr_conn **conn_out);

#endif
