/* Which way the GPUs of a tensor-parallel group exchange sums (ranks.h); known in builds without CUDA, too. */
#ifndef GR_MODEL_CUDA_RANKS_MAKE_H
#define GR_MODEL_CUDA_RANKS_MAKE_H

#include <stdbool.h>

struct gr_cuda_ranks_maker;

enum gr_cuda_ranks_kind {
    GR_CUDA_RANKS_AUTO, /* peer memory; where that is not to be had NCCL, and the log says why */
    GR_CUDA_RANKS_PEER,
    GR_CUDA_RANKS_NCCL,
};

/* For gr_llama_config.gpu_ranks; static. allreduce: sums in whatever order NCCL adds, instead of the unsplit model's;
 * it needs NCCL. NULL (logged): this build has not got it. */
const struct gr_cuda_ranks_maker *gr_cuda_ranks_maker_of(enum gr_cuda_ranks_kind kind, bool allreduce);

#endif
