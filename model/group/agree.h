/* What ranks agree on while they start, made of the group's operations. All ranks call, and get the same answer. Waits
 * without limit, since one rank may load for longer than another. */
#ifndef GR_MODEL_GROUP_AGREE_H
#define GR_MODEL_GROUP_AGREE_H

#include "model/group/group.h"

/* *n: of this rank, 0 to 2^24; then the least of all ranks. */
GR_NODISCARD enum gr_status gr_group_least(struct gr_group *g, int *n);
/* st: what this rank's part of something came to. GR_OK: it went well on all of them. Else st, or GR_ENOMEM where it
 * was another rank that could not (it has logged why). */
GR_NODISCARD enum gr_status gr_group_all_ok(struct gr_group *g, enum gr_status st);
/* all (n_rank, bytes): what each rank gives. n_rank * bytes is at most n_part_max. */
GR_NODISCARD enum gr_status gr_group_all_give(struct gr_group *g, const void *mine, size_t bytes, void *all);
/* data: of rank 0, to all. At most n_part_max values of 4 bytes. */
GR_NODISCARD enum gr_status gr_group_broadcast_patiently(struct gr_group *g, void *data, size_t bytes);
/* data of rank 0, as this rank has it. GR_EMISMATCH, logged (what: "sizes of the model"): it is not the same. */
GR_NODISCARD enum gr_status gr_group_same(struct gr_group *g, const char *what, const void *data, size_t bytes);

#endif
