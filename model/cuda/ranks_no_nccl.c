/* In builds without NCCL's header. */
#include "common/base/log.h"
#include "model/cuda/ranks_nccl.h"

enum gr_status gr_cuda_ranks_nccl_create(const struct gr_cuda_ranks_config *c, bool allreduce,
                                         struct gr_cuda_ranks **out)
{
    (void)allreduce;
    *out = NULL;
    if (c->group->rank == 0) {
        log_error("sums of ranks over NCCL are not part of this build (nccl.h was not found)");
    }
    return GR_EUNSUPPORTED;
}
