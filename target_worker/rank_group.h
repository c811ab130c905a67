/* The tensor-parallel group of a program that can be its rank 0: the other processes, the memory that all see, and how
 * its GPUs exchange sums. graft-target's, and what graft-bench measures. */
#ifndef GR_TARGET_WORKER_RANK_GROUP_H
#define GR_TARGET_WORKER_RANK_GROUP_H

#include "common/base/device.h"
#include "common/process/ranks.h"
#include "model/llama.h"

struct gr_rank_group_config {
    const char *model;         /* for messages */
    struct gr_devices devices; /* of all ranks */
    int n_rank;                /* 2, 4 or 8 */
    int n_thread;              /* of each; 0: the CPUs are shared out */
    int transport;             /* enum gr_cuda_ranks_kind: how GPUs exchange sums */
    bool allreduce;            /* in NCCL's order, instead of the unsplit model's */
    uint64_t limit_ns;         /* that a rank waits for another in a pass */
    const char *meets_at;      /* processes that are started one by one meet here (meet.h); NULL: rank 0 starts them */
    const char *listen;        /* of such a rank that follows: where higher ones connect; NULL: any port */
    struct gr_ranks *ranks;    /* borrowed: of this process where a rank 0 has started it, else not started yet */
    char *const *argv;         /* borrowed; of this process, for the other ranks */
};

/* This process's place in the group: of c the group, the way of GPUs, and n_thread. Rank 0 starts the others, once it
 * is known that the model (hf, as it runs) can be split so and that the GPUs are there. */
GR_NODISCARD enum gr_status gr_rank_group_open(const struct gr_rank_group_config *g, const struct gr_hf_config *hf,
                                               struct gr_llama_config *c, struct gr_group **out);
/* Do all ranks have the same weights, and kernels with the same bits? Processes of one host have the same files; those
 * that were started one by one may not. GR_EMISMATCH, logged. */
GR_NODISCARD enum gr_status gr_rank_group_compare(struct gr_group *g, uint64_t fingerprint, const char *numerics_id);
/* Before the model is destroyed: an end of the others is none that ends this process any more. */
void gr_rank_group_let_go(struct gr_ranks *ranks);

#endif
