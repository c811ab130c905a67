/* GPUs of a group that see each other's memory: sums are joined by kernels/cuda/group/join.h. Each rank takes its own
 * part buffers, flags and counters; how it gets at the others' (the same process, another one) is a way that is given.
 */
#ifndef GR_MODEL_CUDA_RANKS_PEER_H
#define GR_MODEL_CUDA_RANKS_PEER_H

#include "model/cuda/ranks.h"

/* What ranks show each other: starts of what gr_cuda_take gave. LOGITS: rank 0's alone. */
enum gr_cuda_shown { GR_CUDA_SHOWN_PART, GR_CUDA_SHOWN_FLAG, GR_CUDA_SHOWN_LOGITS, GR_CUDA_N_SHOWN };

struct gr_cuda_shown_memory {
    void *p[GR_CUDA_N_SHOWN];
};

/* How this rank's device comes to see the others' memory. */
struct gr_cuda_peer_way {
    bool required; /* why it cannot be is an error; else a line, and another way is taken */
    /* all[c->group->rank] is the own memory; the others' are filled in, as this device sees them. All ranks come.
     * Errors are logged. */
    enum gr_status (*show)(struct gr_cuda_peer_way *w, const struct gr_cuda_ranks_config *c,
                           struct gr_cuda_shown_memory all[GR_GROUP_RANK_MAX]);
    /* Nothing of it is used any more. */
    void (*hide)(struct gr_cuda_peer_way *w, struct gr_cuda_shown_memory all[GR_GROUP_RANK_MAX], int rank, int n_rank);
};

/* way: borrowed for as long as the ranks live. All ranks come. GR_EUNSUPPORTED on all of them (logged): GPUs do not see
 * each other's memory, or not what was written there (ranks_proof.h). */
GR_NODISCARD enum gr_status gr_cuda_ranks_peer_create(const struct gr_cuda_ranks_config *c,
                                                      struct gr_cuda_peer_way *way, struct gr_cuda_ranks **out);

#endif
