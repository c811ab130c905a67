/* For tests: the GPUs of a group whose ranks are threads of one process, rank i on device i. */
#ifndef GR_TESTS_RANK_GPUS_H
#define GR_TESTS_RANK_GPUS_H

#include "model/cuda/llama.h"
#include "model/cuda/ranks_peer.h"
#include "model/group/agree.h"
#include "tests/unit/model/group/rank_threads.h"

struct rank_gpus {
    struct rank_threads threads;
    struct gr_cuda_shown_memory shown[GR_GROUP_RANK_MAX]; /* each rank writes its own */
    struct gr_cuda_peer_way way;
    bool mistaken; /* rank 0 takes its own memory for that of rank 1 */
    struct gr_cuda_ranks_maker maker;
    struct gr_llama_config config[GR_GROUP_RANK_MAX];
    enum gr_status st[GR_GROUP_RANK_MAX]; /* of those that follow, when they have ended */
};

static inline enum gr_status rank_gpus_show(struct gr_cuda_peer_way *w, const struct gr_cuda_ranks_config *c,
                                            struct gr_cuda_shown_memory all[GR_GROUP_RANK_MAX])
{
    struct rank_gpus *r = GR_CONTAINER_OF(w, struct rank_gpus, way);
    enum gr_status st = GR_OK;
    r->shown[c->group->rank] = all[c->group->rank];
    for (int peer = 0; peer < c->group->n_rank && st == GR_OK; peer++) {
        const cudaError_t e = peer != c->group->rank ? cudaDeviceEnablePeerAccess(peer, 0) : cudaSuccess;
        st = e == cudaErrorPeerAccessAlreadyEnabled ? GR_OK : gr_cuda_check(e, "access to a peer");
    }
    (void)cudaGetLastError();
    GR_TRY(gr_group_all_ok(c->group, st)); /* all have written theirs */
    memcpy(all, r->shown, sizeof(r->shown));
    if (r->mistaken && c->group->rank == 0) {
        all[1] = all[0];
    }
    return GR_OK;
}

static inline void rank_gpus_hide(struct gr_cuda_peer_way *w, struct gr_cuda_shown_memory all[GR_GROUP_RANK_MAX],
                                  int rank, int n_rank)
{
    (void)w, (void)all, (void)rank, (void)n_rank;
}

static inline enum gr_status rank_gpus_make(const struct gr_cuda_ranks_maker *m, const struct gr_cuda_ranks_config *c,
                                            struct gr_cuda_ranks **out)
{
    struct rank_gpus *r = GR_CONTAINER_OF((struct gr_cuda_ranks_maker *)(uintptr_t)m, struct rank_gpus, maker);
    return gr_cuda_ranks_peer_create(c, &r->way, out);
}

struct rank_gpus_follower {
    struct rank_gpus *all;
    int rank;
};

static inline void *rank_gpus_follow(void *arg)
{
    const struct rank_gpus_follower f = *(struct rank_gpus_follower *)arg;
    struct gr_lm *lm = NULL;
    free(arg);
    enum gr_status st = gr_cuda_llama_create(&f.all->config[f.rank], f.rank, NULL, NULL, &lm);
    if (st == GR_OK) {
        st = gr_llama_follow(lm);
        gr_lm_destroy(lm);
    }
    f.all->st[f.rank] = st;
    return NULL;
}

/* c: of all ranks, head_dir of rank 0. The model on rank 0, NULL: it cannot be. */
static inline struct gr_lm *rank_gpus_open_as(struct rank_gpus *r, const struct gr_llama_config *c, int n_rank,
                                              size_t n_part_max, bool mistaken)
{
    struct gr_lm *lm = NULL;
    *r = (struct rank_gpus){.way = {.required = true, .show = rank_gpus_show, .hide = rank_gpus_hide},
                            .mistaken = mistaken,
                            .maker = {.create = rank_gpus_make}};
    rank_threads_open(&r->threads, OVER_MEMORY, n_rank, n_part_max, UINT64_C(120000000000));
    for (int i = 0; i < n_rank; i++) {
        r->config[i] = *c;
        r->config[i].group = r->threads.group[i];
        r->config[i].gpu_ranks = &r->maker;
        if (i > 0) {
            struct rank_gpus_follower *f = malloc(sizeof(*f));
            GR_ASSERT(f != NULL);
            *f = (struct rank_gpus_follower){.all = r, .rank = i};
            r->config[i].head_dir = NULL;
            rank_threads_start(&r->threads, i, rank_gpus_follow, f);
        }
    }
    const enum gr_status st = gr_cuda_llama_create(&r->config[0], 0, NULL, NULL, &lm);
    return st == GR_OK ? lm : NULL;
}

static inline struct gr_lm *rank_gpus_open(struct rank_gpus *r, const struct gr_llama_config *c, int n_rank,
                                           size_t n_part_max)
{
    return rank_gpus_open_as(r, c, n_rank, n_part_max, false);
}

/* GR_OK: all ranks that follow ended as rank 0 said. */
static inline enum gr_status rank_gpus_close(struct rank_gpus *r, struct gr_lm *lm)
{
    enum gr_status st = GR_OK;
    gr_lm_destroy(lm);
    for (int i = 1; i < r->threads.n_rank; i++) {
        pthread_join(r->threads.thread[i], NULL);
        st = st != GR_OK ? st : r->st[i];
    }
    rank_threads_close(&r->threads);
    return st;
}

#endif
