/* A group over memory that all its ranks see: threads of one process (for tests, and where a GPU is stood in for) or
 * processes of one host. Each rank has two rooms for what it gives to the others, which it takes in turns: it writes
 * one while the others may still read the other. A rank counts in its header which call it has written and which it
 * has read; who waits spins briefly and then sleeps on the counter (futex). */
#ifndef GR_MODEL_GROUP_GROUP_MEMORY_H
#define GR_MODEL_GROUP_GROUP_MEMORY_H

#include "model/group/group.h"

/* The ranks' common memory: zeros at first, aligned to 64. */
size_t gr_group_memory_bytes(int n_rank, size_t n_part_max);

struct gr_group_memory_config {
    void *memory; /* borrowed; gr_group_memory_bytes of it */
    int rank, n_rank;
    size_t n_part_max; /* the same on all ranks */
    uint64_t limit_ns; /* that this rank waits for another within a step */
    int n_spin;        /* looks before it sleeps; 0 where there are fewer CPUs than ranks */
};
/* GR_EMISMATCH, logged: another rank has other sizes. */
GR_NODISCARD enum gr_status gr_group_memory_create(const struct gr_group_memory_config *c, struct gr_group **out);

#endif
