#include "target_worker/rank_group.h"

#include "model/cuda/ranks_make.h"
#include "model/group/group_memory.h"
#include "model/load/shard.h"

#define SPINS 2000 /* looks at another rank before a thread sleeps, where each has CPUs of its own */

/* Threads of a rank: the CPUs are shared out, where nobody has said how many. */
static int threads_of(const struct gr_rank_group_config *g)
{
    return g->n_thread > 0 ? g->n_thread : GR_MAX(gr_cpu_count() / g->n_rank, 1);
}

/* How GPUs exchange sums. Rank 0 looks at all of them, so that one line tells what is wrong with one. */
static enum gr_status choose_exchange(const struct gr_rank_group_config *g, struct gr_llama_config *c)
{
    if (!gr_devices_on_gpu(&g->devices)) {
        return GR_OK;
    }
    for (int i = 0; g->ranks->rank == 0 && i < g->n_rank; i++) {
        GR_TRY(gr_device_check(g->devices.device[i]));
    }
    c->gpu_ranks = gr_cuda_ranks_maker_of((enum gr_cuda_ranks_kind)g->transport, g->allreduce);
    return c->gpu_ranks != NULL ? GR_OK : GR_EUNSUPPORTED;
}

/* In the thread that has seen a rank's end, before the process ends: kernels that wait for it go on. */
static void abort_group(void *group)
{
    gr_group_abort_device(group);
}

enum gr_status gr_rank_group_open(const struct gr_rank_group_config *g, const struct gr_hf_config *hf,
                                  struct gr_llama_config *c, struct gr_group **out)
{
    struct gr_ranks *ranks = g->ranks;
    GR_TRY(gr_shard_check(g->model, hf, g->n_rank));
    GR_TRY(choose_exchange(g, c));
    if (ranks->rank == 0) {
        GR_TRY(gr_ranks_start(ranks, g->n_rank, g->argv));
    }
    const size_t n_part = gr_llama_part_max(hf, c->n_row_max);
    GR_TRY(gr_ranks_map(ranks, gr_group_memory_bytes(g->n_rank, n_part)));
    const bool roomy = gr_cpu_count() >= g->n_rank * threads_of(g);
    const struct gr_group_memory_config memory = {.memory = ranks->memory,
                                                  .rank = ranks->rank,
                                                  .n_rank = g->n_rank,
                                                  .n_part_max = n_part,
                                                  .limit_ns = g->limit_ns,
                                                  .n_spin = roomy ? SPINS : 0};
    GR_TRY(gr_group_memory_create(&memory, out));
    gr_ranks_abort_with(ranks, abort_group, *out);
    c->group = *out;
    c->n_thread = threads_of(g);
    return GR_OK;
}

void gr_rank_group_let_go(struct gr_ranks *ranks)
{
    gr_ranks_let_go(ranks);
    gr_ranks_abort_with(ranks, NULL, NULL);
}
