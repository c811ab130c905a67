#include "target_worker/rank_group.h"

#include "common/base/log.h"
#include "common/process/given_listener.h"
#include "model/cuda/ranks_make.h"
#include "model/group/agree.h"
#include "model/group/group_memory.h"
#include "model/group/group_tcp.h"
#include "model/load/shard.h"
#include "transport/connect/bootstrap.h"
#include "transport/worker/meet.h"

#include <stdio.h>
#include <string.h>

#define SPINS 2000 /* looks at another rank before a thread sleeps, where each has CPUs of its own */

/* Threads of a rank: the CPUs are shared out among those of its host, where nobody has said how many. */
static int threads_of(const struct gr_rank_group_config *g, int n_here)
{
    return g->n_thread > 0 ? g->n_thread : GR_MAX(gr_cpu_count() / n_here, 1);
}

/* How GPUs exchange sums. Rank 0 looks at all of them, so that one line tells what is wrong with one. */
static enum gr_status choose_exchange(const struct gr_rank_group_config *g, struct gr_llama_config *c)
{
    if (!gr_devices_on_gpu(&g->devices)) {
        return GR_OK;
    }
    const bool far = g->meets_at != NULL;
    for (int i = 0; (far || g->ranks->rank == 0) && i < g->devices.n; i++) {
        GR_TRY(gr_device_check(g->devices.device[i]));
    }
    if (far && g->ranks->rank == 0) {
        log_warn(
            "the GPUs of this group may be of several hosts, and exchange sums over NCCL: that has not been tested "
            "on hosts with GPUs");
    }
    const enum gr_cuda_ranks_kind kind = far ? GR_CUDA_RANKS_NCCL : (enum gr_cuda_ranks_kind)g->transport;
    c->gpu_ranks = gr_cuda_ranks_maker_of(kind, g->allreduce);
    return c->gpu_ranks != NULL ? GR_OK : GR_EUNSUPPORTED;
}

/* In the thread that has seen a rank's end, before the process ends: kernels that wait for it go on. */
static void abort_group(void *group)
{
    gr_group_abort_device(group);
}

/* ---- on one host ---- */

static enum gr_status open_here(const struct gr_rank_group_config *g, size_t n_part, struct gr_group **out)
{
    struct gr_ranks *ranks = g->ranks;
    if (ranks->rank == 0) {
        GR_TRY(gr_ranks_start(ranks, g->n_rank, g->argv));
    }
    GR_TRY(gr_ranks_map(ranks, gr_group_memory_bytes(g->n_rank, n_part)));
    const bool roomy = gr_cpu_count() >= g->n_rank * threads_of(g, g->n_rank);
    const struct gr_group_memory_config memory = {.memory = ranks->memory,
                                                  .rank = ranks->rank,
                                                  .n_rank = g->n_rank,
                                                  .n_part_max = n_part,
                                                  .limit_ns = g->limit_ns,
                                                  .n_spin = roomy ? SPINS : 0};
    return gr_group_memory_create(&memory, out);
}

/* ---- on several ---- */

/* What ranks must have alike, as far as it is known before anything is loaded. */
static void tell_model(const struct gr_hf_config *hf, const struct gr_llama_config *c, size_t n_part, char out[256])
{
    static const char *const types[] = {"own types", "bf16", "f32"};
    snprintf(out, 256,
             "a model of hidden %d, %d layers, %d+%d heads of %d, FFN %d, %d rows; context %d, %d sessions, sums of "
             "%zu, %s on %s",
             hf->hidden, hf->n_layer, hf->n_head, hf->n_kv_head, hf->head_dim, hf->ffn, gr_hf_vocab_rows(hf),
             c->n_ctx_max, c->n_seq_max, n_part, types[c->as], c->gpu_ranks != NULL ? "GPUs" : "CPUs");
}

static enum gr_status watch(struct gr_ranks *ranks, struct gr_meeting *met)
{
    return ranks->rank == 0 ? gr_ranks_watch(ranks, met->fd, met->host) : GR_OK;
}

static enum gr_status meet(const struct gr_rank_group_config *g, const char *runs, struct gr_meeting *out)
{
    uint8_t key[GR_KEY_BYTES];
    char gpu[32] = "";
    const bool has_gpu = gr_devices_on_gpu(&g->devices) && gr_cuda_device_pci(g->devices.device[0], gpu);
    const enum gr_status st = gr_key_from_env(key);
    if (st == GR_ENOTFOUND) {
        log_error("--tp-group %s: no shared key: set GRAFT_KEY_FILE (or GRAFT_KEY) to the orchestrator's", g->meets_at);
    }
    GR_TRY(st);
    const struct gr_meet_config c = {.rank = g->ranks->rank,
                                     .n_rank = g->n_rank,
                                     .address = g->meets_at,
                                     .listen_fd = gr_listener_given(),
                                     .listen = g->listen,
                                     .key = key,
                                     .runs = runs,
                                     .gpu = has_gpu ? gpu : NULL};
    return gr_meet(&c, out);
}

static enum gr_status open_far(const struct gr_rank_group_config *g, const char *runs, size_t n_part,
                               struct gr_group **out)
{
    struct gr_ranks *ranks = g->ranks;
    struct gr_meeting met;
    ranks->n_rank = g->n_rank;
    GR_TRY(meet(g, runs, &met));
    struct gr_group_tcp_config c = {
        .rank = ranks->rank, .n_rank = g->n_rank, .n_part_max = n_part, .limit_ns = g->limit_ns};
    memcpy(c.fd, met.fd, sizeof(c.fd));
    GR_TRY(gr_group_tcp_create(&c, out));
    (*out)->n_here = met.n_here;
    if (ranks->rank == 0) {
        log_info("the %d ranks of the tensor-parallel group have met, %d of them on this host", g->n_rank, met.n_here);
    }
    return watch(ranks, &met);
}

enum gr_status gr_rank_group_compare(struct gr_group *g, uint64_t fingerprint, const char *numerics_id)
{
    char kernels[128] = "";
    snprintf(kernels, sizeof(kernels), "%s", numerics_id);
    GR_TRY(gr_group_all_ok(g, GR_OK)); /* one host may have been slower */
    GR_TRY(gr_group_same(g, "model (its weights differ)", &fingerprint, sizeof(fingerprint)));
    return gr_group_same(g, "kind of kernels (CPU, --isa or GPU)", kernels, sizeof(kernels));
}

/* ---- both ---- */

enum gr_status gr_rank_group_open(const struct gr_rank_group_config *g, const struct gr_hf_config *hf,
                                  struct gr_llama_config *c, struct gr_group **out)
{
    char runs[256];
    GR_TRY(gr_shard_check(g->model, hf, g->n_rank));
    GR_TRY(choose_exchange(g, c));
    const size_t n_part = gr_llama_part_max(hf, c->n_row_max);
    tell_model(hf, c, n_part, runs);
    GR_TRY(g->meets_at != NULL ? open_far(g, runs, n_part, out) : open_here(g, n_part, out));
    gr_ranks_abort_with(g->ranks, abort_group, *out);
    c->group = *out;
    c->n_thread = threads_of(g, g->meets_at != NULL ? (*out)->n_here : g->n_rank);
    return GR_OK;
}

void gr_rank_group_let_go(struct gr_ranks *ranks)
{
    gr_ranks_let_go(ranks);
    gr_ranks_abort_with(ranks, NULL, NULL);
}
