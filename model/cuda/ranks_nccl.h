/* Ranks whose GPUs do not see each other's memory, or which are told so: sums over NCCL, which is loaded when it is
 * asked for (libnccl.so.2). The tree's order and bits are kept: by halves, partners 1, 2, then 4 apart send each other
 * half of what they have and add what comes, and then all pieces are gathered the same way back. */
#ifndef GR_MODEL_CUDA_RANKS_NCCL_H
#define GR_MODEL_CUDA_RANKS_NCCL_H

#include "model/cuda/ranks.h"

/* All ranks call. allreduce: NCCL's own sum instead, in an order of its own. GR_EUNSUPPORTED (logged): there is no NCCL
 * here. */
GR_NODISCARD enum gr_status gr_cuda_ranks_nccl_create(const struct gr_cuda_ranks_config *c, bool allreduce,
                                                      struct gr_cuda_ranks **out);

#endif
