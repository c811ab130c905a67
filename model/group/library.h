/* Do the ranks of a group see the same library and cards? Who connects them needs both to be alike, and says of a
 * difference at best that a message has another length. */
#ifndef GR_MODEL_GROUP_LIBRARY_H
#define GR_MODEL_GROUP_LIBRARY_H

#include "model/group/group.h"

/* Of a rank. Texts; all bytes behind their ends are 0. */
struct gr_group_library {
    char host[64];
    char version[24]; /* "2.21.5", of NCCL */
    char cards[160];  /* RDMA cards that it may use: names in order, with commas between them */
};

/* host, and of `folder' (/sys/class/infiniband) the cards that have an active port. Where NCCL_IB_DISABLE or
 * NCCL_IB_HCA says which cards NCCL takes, cards is empty: names may then be other ones on other hosts. */
void gr_group_library_fill(const char *folder, const char *version, struct gr_group_library *out);
/* All ranks call, as in agree.h. GR_EMISMATCH at a rank that has another library or other cards than rank 0, which logs
 * one line with both; GR_ENOMEM at the others. */
GR_NODISCARD enum gr_status gr_group_library_same(struct gr_group *g, const struct gr_group_library *own);

#endif
