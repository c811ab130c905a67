#include "model/cuda/ranks_ipc.h"

#include "common/base/log.h"
#include "model/group/agree.h"

#include <stdio.h>
#include <string.h>

/* What a rank tells the others. */
struct offer {
    int32_t device;
    cudaIpcMemHandle_t memory[GR_CUDA_N_SHOWN];
};

/* What is wrong between two ranks; why NULL: nothing. */
struct trouble {
    int peer;
    const char *why;
};

static const char *why_of(cudaError_t e)
{
    if (e == cudaSuccess) {
        return NULL;
    }
    (void)cudaGetLastError();
    return cudaGetErrorString(e);
}

/* Rank 0 alone has logits. */
static bool has(int rank, int i)
{
    return i != GR_CUDA_SHOWN_LOGITS || rank == 0;
}

static const char *export_own(const struct gr_cuda_ranks_config *c, const struct gr_cuda_shown_memory *own,
                              struct offer *out)
{
    const char *why = NULL;
    *out = (struct offer){.device = c->device->index};
    for (int i = 0; i < GR_CUDA_N_SHOWN && why == NULL; i++) {
        why = has(c->group->rank, i) ? why_of(cudaIpcGetMemHandle(&out->memory[i], own->p[i])) : NULL;
    }
    return why;
}

static const char *map_peer(const struct gr_cuda_ranks_config *c, int rank, const struct offer *theirs,
                            struct gr_cuda_shown_memory *out)
{
    int can = 0;
    const char *why = why_of(cudaDeviceCanAccessPeer(&can, c->device->index, theirs->device));
    if (why == NULL && can == 0) {
        return "the driver says that there is no way between them";
    }
    for (int i = 0; i < GR_CUDA_N_SHOWN && why == NULL; i++) {
        why = has(rank, i) ? why_of(cudaIpcOpenMemHandle(&out->p[i], theirs->memory[i], cudaIpcMemLazyEnablePeerAccess))
                           : NULL;
    }
    return why;
}

static void tell(const struct gr_cuda_peer_way *w, const struct gr_cuda_ranks_config *c, const struct offer *offers,
                 struct trouble t)
{
    char what[96];
    if (t.peer == c->group->rank) {
        snprintf(what, sizeof(what), "cuda:%d (rank %d) cannot export its memory", c->device->index, t.peer);
    } else {
        snprintf(what, sizeof(what), "cuda:%d (rank %d) cannot see the memory of cuda:%d (rank %d)", c->device->index,
                 c->group->rank, offers[t.peer].device, t.peer);
    }
    if (w->required) {
        log_error("%s: %s; take --tp-transport nccl", what, t.why);
    } else {
        log_info("%s: %s", what, t.why);
    }
}

/* Every rank comes, and tells its own trouble. */
static enum gr_status agree(const struct gr_cuda_peer_way *w, const struct gr_cuda_ranks_config *c,
                            const struct offer *offers, struct trouble t)
{
    int possible = t.why == NULL;
    if (t.why != NULL) {
        tell(w, c, offers, t);
    }
    GR_TRY(gr_group_least(c->group, &possible));
    return possible ? GR_OK : GR_EUNSUPPORTED;
}

static void ipc_hide(struct gr_cuda_peer_way *way, struct gr_cuda_shown_memory all[GR_GROUP_RANK_MAX], int rank,
                     int n_rank)
{
    (void)way;
    for (int r = 0; r < n_rank; r++) {
        for (int i = 0; i < GR_CUDA_N_SHOWN && r != rank; i++) {
            if (all[r].p[i] != NULL) {
                (void)cudaIpcCloseMemHandle(all[r].p[i]);
                all[r].p[i] = NULL;
            }
        }
    }
}

static enum gr_status ipc_show(struct gr_cuda_peer_way *way, const struct gr_cuda_ranks_config *c,
                               struct gr_cuda_shown_memory all[GR_GROUP_RANK_MAX])
{
    const int rank = c->group->rank, n_rank = c->group->n_rank;
    struct offer own, offers[GR_GROUP_RANK_MAX];
    struct trouble t = {.peer = rank, .why = export_own(c, &all[rank], &own)};
    GR_TRY(gr_group_all_give(c->group, &own, sizeof(own), offers));
    GR_TRY(agree(way, c, offers, t));
    for (int r = 0; r < n_rank && t.why == NULL; r++) {
        t.peer = r;
        t.why = r != rank ? map_peer(c, r, &offers[r], &all[r]) : NULL;
    }
    const enum gr_status st = agree(way, c, offers, t);
    if (st != GR_OK) {
        ipc_hide(way, all, rank, n_rank);
    }
    return st;
}

struct gr_cuda_peer_way gr_cuda_ipc_way(bool required)
{
    return (struct gr_cuda_peer_way){.required = required, .show = ipc_show, .hide = ipc_hide};
}
