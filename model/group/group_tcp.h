/* A group over sockets, for ranks of several hosts: one connected stream to each other rank. Sums are made by recursive
 * doubling, ranks 1, 2, then 4 apart: partners exchange what they have and both add the lower rank's first, which is
 * the tree of group.h, so each rank has sent and received log2(n) times the message at the end. Rows and bytes of rank
 * 0 go over its own connections. Each message begins with the call that it belongs to. */
#ifndef GR_MODEL_GROUP_GROUP_TCP_H
#define GR_MODEL_GROUP_GROUP_TCP_H

#include "model/group/group.h"

struct gr_group_tcp_config {
    int fd[GR_GROUP_RANK_MAX]; /* taken: to each other rank; of the own one it is not looked at */
    int rank, n_rank;
    size_t n_part_max;
    uint64_t limit_ns; /* that this rank waits for another within a step */
};
/* Closes what it has taken, also after an error. */
GR_NODISCARD enum gr_status gr_group_tcp_create(const struct gr_group_tcp_config *c, struct gr_group **out);

#endif
