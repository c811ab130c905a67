#include "model/cuda/ranks_make.h"

#include "common/base/log.h"
#include "model/cuda/ranks_ipc.h"
#include "model/cuda/ranks_nccl.h"

struct maker {
    struct gr_cuda_ranks_maker maker; /* first */
    enum gr_cuda_ranks_kind kind;
    bool allreduce;
    struct gr_cuda_peer_way way; /* used as long as the ranks live: a process is one rank */
};

static void tell(const struct gr_cuda_ranks_config *c, const struct gr_cuda_ranks *r, bool allreduce)
{
    if (c->group->rank == 0) {
        log_info("%d ranks, rank 0 on cuda:%d: sums by %s%s", c->group->n_rank, c->device->index, r->ops->name,
                 allreduce ? ", in NCCL's order" : "");
    }
}

static enum gr_status create(const struct gr_cuda_ranks_maker *maker, const struct gr_cuda_ranks_config *c,
                             struct gr_cuda_ranks **out)
{
    struct maker *m = (struct maker *)(uintptr_t)maker;
    enum gr_status st = GR_EUNSUPPORTED;
    if (m->kind != GR_CUDA_RANKS_NCCL) {
        m->way = gr_cuda_ipc_way(m->kind == GR_CUDA_RANKS_PEER);
        st = gr_cuda_ranks_peer_create(c, &m->way, out);
    }
    if (st == GR_EUNSUPPORTED && m->kind == GR_CUDA_RANKS_AUTO && c->group->rank == 0) {
        log_warn("the GPUs of this group do not see each other's memory: sums go over NCCL");
    }
    if (st == GR_EUNSUPPORTED && m->kind != GR_CUDA_RANKS_PEER) {
        st = gr_cuda_ranks_nccl_create(c, m->allreduce, out);
    }
    if (st == GR_OK) {
        tell(c, *out, m->allreduce);
    }
    return st;
}

const struct gr_cuda_ranks_maker *gr_cuda_ranks_maker_of(enum gr_cuda_ranks_kind kind, bool allreduce)
{
    static struct maker m = {.maker = {.create = create}};
    if (allreduce && kind == GR_CUDA_RANKS_PEER) {
        log_error("--tp-allreduce nccl: sums in NCCL's order need NCCL; leave --tp-transport out");
        return NULL;
    }
    m.kind = allreduce ? GR_CUDA_RANKS_NCCL : kind;
    m.allreduce = allreduce;
    m.maker.numerics = allreduce ? "nccl" : NULL;
    return &m.maker;
}
