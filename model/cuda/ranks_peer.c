#include "model/cuda/ranks_peer.h"

#include "common/base/log.h"
#include "model/cuda/ranks_proof.h"

#include <stdlib.h>

#define USE "exchange of ranks"
#define SHOWN_BYTES (2ull << 20) /* what is shown comes in pieces of so much: nothing else lies beside it */

struct peer_ranks {
    struct gr_cuda_ranks ranks;
    struct gr_cuda_ranks_config c;
    struct gr_cuda_peer_way *way;
    struct gr_cuda_peers peers;
    struct gr_cuda_shown_memory shown[GR_GROUP_RANK_MAX];
    bool shows;
    volatile uint32_t *word; /* pinned: abort, error */
};

_Static_assert((int)GR_GROUP_RANK_MAX <= (int)GR_CUDA_PEER_MAX, "a place for each rank");

static struct peer_ranks *of(struct gr_cuda_ranks *r)
{
    return GR_CONTAINER_OF(r, struct peer_ranks, ranks);
}

static enum gr_status peer_enqueue_join(struct gr_cuda_ranks *r, const struct gr_cuda_join_args *a)
{
    return gr_cuda_join(&of(r)->peers, a, of(r)->c.device->stream);
}

/* lm_head has written to rank 0's memory. */
static enum gr_status peer_enqueue_logits(struct gr_cuda_ranks *r, int n)
{
    (void)n;
    return gr_cuda_meet(&of(r)->peers, of(r)->c.device->stream);
}

static enum gr_status peer_status(struct gr_cuda_ranks *r)
{
    struct peer_ranks *p = of(r);
    struct gr_group *g = p->c.group;
    const uint32_t error = p->word[1];
    if (error == GR_CUDA_JOIN_OK || g->status != GR_OK) {
        return g->status;
    }
    const int peer = (int)(error >> 16);
    return (error & 0xffff) == GR_CUDA_JOIN_LATE ? gr_group_late(g, peer) : gr_group_lost(g, peer);
}

static void peer_abort(struct gr_cuda_ranks *r)
{
    of(r)->word[0] = 1;
}

static void abort_device(void *device)
{
    peer_abort(device);
}

static void peer_destroy(struct gr_cuda_ranks *r)
{
    struct peer_ranks *p = of(r);
    atomic_store(&p->c.group->device, NULL);
    if (p->shows) {
        p->way->hide(p->way, p->shown, p->c.group->rank, p->c.group->n_rank);
    }
    free(p); /* memory is the device's */
}

static const struct gr_cuda_ranks_ops peer_ops = {.name = "peer",
                                                  .enqueue_join = peer_enqueue_join,
                                                  .enqueue_logits = peer_enqueue_logits,
                                                  .status = peer_status,
                                                  .abort = peer_abort,
                                                  .destroy = peer_destroy};

static enum gr_status take_shown(struct gr_cuda_device *d, size_t bytes, void **out)
{
    return gr_cuda_take(d, USE, (bytes + SHOWN_BYTES - 1) / SHOWN_BYTES * SHOWN_BYTES, out);
}

/* Own memory, zeros. */
static enum gr_status take(struct peer_ranks *p)
{
    struct gr_cuda_device *d = p->c.device;
    void **mine = p->shown[p->c.group->rank].p;
    void *count = NULL;
    void *host = NULL;
    void *alias = NULL;
    const size_t n_flag = (size_t)p->c.group->n_rank * GR_CUDA_JOIN_BLOCKS;
    GR_TRY(take_shown(d, 2 * p->c.n_part * sizeof(float), &mine[GR_CUDA_SHOWN_PART]));
    GR_TRY(take_shown(d, n_flag * sizeof(uint32_t), &mine[GR_CUDA_SHOWN_FLAG]));
    GR_TRY(gr_cuda_take(d, USE, GR_CUDA_JOIN_COUNTERS * sizeof(uint32_t), &count));
    GR_TRY(gr_cuda_take_host(d, 2 * sizeof(uint32_t), &host, &alias));
    mine[GR_CUDA_SHOWN_LOGITS] = p->c.logits;
    p->word = host;
    p->peers.count = count;
    p->peers.abort = alias;
    p->peers.error = (uint32_t *)alias + 1;
    return gr_cuda_wait(d, USE); /* it is zero before anybody sees it */
}

static void connect(struct peer_ranks *p)
{
    const struct gr_cuda_ranks_config *c = &p->c;
    const int rank = c->group->rank;
    float *logits = p->shown[0].p[GR_CUDA_SHOWN_LOGITS];
    p->peers.rank = rank;
    p->peers.n_rank = c->group->n_rank;
    p->peers.n_part = c->n_part;
    p->peers.limit_ns = c->group->limit_ns;
    p->peers.two_shots_from = gr_cuda_two_shots_from(c->group->n_rank);
    for (int r = 0; r < c->group->n_rank; r++) {
        p->peers.part[r] = p->shown[r].p[GR_CUDA_SHOWN_PART];
        p->peers.flag[r] = p->shown[r].p[GR_CUDA_SHOWN_FLAG];
    }
    p->ranks = (struct gr_cuda_ranks){.ops = &peer_ops,
                                      .part = {p->peers.part[rank], p->peers.part[rank] + c->n_part},
                                      .logits = logits + c->begin[rank],
                                      .logits_stride = c->logits_stride};
}

enum gr_status gr_cuda_ranks_peer_create(const struct gr_cuda_ranks_config *c, struct gr_cuda_peer_way *way,
                                         struct gr_cuda_ranks **out)
{
    struct peer_ranks *p = calloc(1, sizeof(*p));
    if (p == NULL) {
        log_error("no memory for a group's peer memory");
        return GR_ENOMEM;
    }
    p->c = *c;
    p->way = way;
    enum gr_status st = take(p);
    if (st == GR_OK) {
        st = way->show(way, c, p->shown);
        p->shows = st == GR_OK;
    }
    if (p->shows) {
        st = gr_cuda_ranks_prove(c, p->shown, way->required);
    }
    if (st != GR_OK) {
        peer_destroy(&p->ranks);
        return st;
    }
    connect(p);
    c->group->abort_device = abort_device;
    atomic_store(&c->group->device, &p->ranks);
    *out = &p->ranks;
    return GR_OK;
}
