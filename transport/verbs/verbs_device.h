/* Which device, port and address a worker uses. */
#ifndef GR_TRANSPORT_VERBS_VERBS_DEVICE_H
#define GR_TRANSPORT_VERBS_VERBS_DEVICE_H

#include "transport/verbs/verbs.h"
#include "transport/verbs/verbs_lib.h"

#include <netinet/in.h>
#include <sys/socket.h>

struct gr_verbs_device {
    char name[64];
    uint8_t port;
    int gid_index;                /* -1: the device is named by address (InfiniBand, iWARP) */
    struct sockaddr_storage addr; /* to bind; port 0 */
    char addr_text[INET6_ADDRSTRLEN];
    char gid_text[INET6_ADDRSTRLEN];
    int mtu_bytes;
    uint32_t n_wr_max, n_cqe_max;
    bool iwarp; /* no immediate data: two-sided only */
};

/* The options' device, else of what NCCL_IB_HCA, NCCL_IB_GID_INDEX and NCCL_SOCKET_IFNAME allow, or else of all that
 * are up, the one nearest to the options' GPU, or the first; RoCE v2 on IPv4 goes before other addresses, and before
 * nearness: it is what the other end has as well. Which it was is logged. GR_ENOTFOUND: one line says what was looked
 * for and what there is. */
GR_NODISCARD enum gr_status gr_verbs_device_choose(const struct gr_verbs_lib *lib,
                                                   const struct gr_verbs_options *options, struct gr_verbs_device *out);

/* "a,b", "^a,b" (not these), "=a" (whole names), each "NAME" or "NAME:PORT" where port_wanted: as NCCL has it. NULL or
 * empty: everything. For tests. */
bool gr_verbs_list_allows(const char *list, const char *name, unsigned port);

#endif
