/* A tensor-parallel group as one of its ranks sees it: the three operations in which ranks exchange data, in a table
 * that several implementations fill. All ranks make the same calls in the same order with the same sizes; that they do
 * is checked in every call. Nothing but these calls may depend on another rank, and no condition that only one rank
 * knows may stand before one.
 *
 * - join: f32 partial sums become their sum, the same bits on every rank: ranks are added as the segments of the
 *   unsplit sum are (common/rules/segments.h), neighbours first: ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7)).
 * - gather: columns of rows, of every rank, side by side on rank 0.
 * - broadcast: bytes of rank 0 to the others.
 *
 * A rank's partial sums are written to g->part, which the implementation owns and has registered where that is needed;
 * it changes with every call. One thread of a rank calls at a time. Nothing is allocated after creation. An
 * implementation on a device has its stream from its creation: a group has one order of calls.
 *
 * A peer that is gone, or does not come within the limit, is an error (logged once: which rank, which step), and stays
 * one: every later call returns it at once. A group is not mended; its processes end and are started anew. Decision
 * D-102. */
#ifndef GR_MODEL_GROUP_GROUP_H
#define GR_MODEL_GROUP_GROUP_H

#include "common/base/status.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GR_GROUP_RANK_MAX 8

/* Rows of f32 whose columns [begin[r], begin[r + 1]) rank r has. */
struct gr_group_rows {
    const float *mine; /* (n_row, begin[rank + 1] - begin[rank]) */
    float *all;        /* rank 0: (n_row, stride), else not looked at */
    int n_row, stride;
    int begin[GR_GROUP_RANK_MAX + 1];
};

struct gr_group;

struct gr_group_ops {
    const char *name; /* "memory", "tcp" */
    enum gr_status (*join)(struct gr_group *g, float *out, size_t n);
    enum gr_status (*gather)(struct gr_group *g, const struct gr_group_rows *rows);
    enum gr_status (*broadcast)(struct gr_group *g, void *data, size_t bytes);
    /* From any thread: calls of all ranks end with an error. */
    void (*abort)(struct gr_group *g);
    void (*destroy)(struct gr_group *g);
};

struct gr_group {
    const struct gr_group_ops *ops;
    int rank, n_rank;
    int n_here;            /* ranks that share this host's memory, as far as that is known; 1: this one */
    float *part;           /* (n_part_max): where the partial sums of the next join are written */
    size_t n_part_max;     /* n of a join, at most; a row of gather fits as well */
    uint64_t step;         /* of the pass that is computed, for messages; written by who runs it */
    uint64_t limit_ns;     /* 0: none, while a rank has nothing to do but to wait for the next step */
    enum gr_status status; /* GR_OK, or what the group has failed with */
    /* Where ranks wait for each other on a device as well: what ends these waits in this process. Set and taken away
     * by what is there (cuda/ranks_peer.c); NULL: nothing. */
    void *_Atomic device;
    void (*abort_device)(void *device);
};

/* out (n): may not overlap part. n at most n_part_max. */
GR_NODISCARD static inline enum gr_status gr_group_join(struct gr_group *g, float *out, size_t n)
{
    GR_ASSERT(n <= g->n_part_max);
    return g->status != GR_OK ? g->status : g->ops->join(g, out, n);
}
GR_NODISCARD static inline enum gr_status gr_group_gather(struct gr_group *g, const struct gr_group_rows *rows)
{
    return g->status != GR_OK ? g->status : g->ops->gather(g, rows);
}
GR_NODISCARD static inline enum gr_status gr_group_broadcast(struct gr_group *g, void *data, size_t bytes)
{
    return g->status != GR_OK ? g->status : g->ops->broadcast(g, data, bytes);
}
/* From any thread; never waits. */
static inline void gr_group_abort_device(struct gr_group *g)
{
    void *device = atomic_load(&g->device);
    if (device != NULL) {
        g->abort_device(device);
    }
}
static inline void gr_group_destroy(struct gr_group *g)
{
    if (g != NULL) {
        g->ops->destroy(g);
    }
}

/* What a rank does in a call, as its peers must do it, too. */
enum gr_group_kind { GR_GROUP_JOIN = 1, GR_GROUP_GATHER, GR_GROUP_BROADCAST };
struct gr_group_call {
    uint32_t kind, number; /* number: of all calls, from 1 */
    uint64_t n, step;
};
/* GR_EPROTO, logged: a peer is elsewhere. */
GR_NODISCARD enum gr_status gr_group_check_call(struct gr_group *g, int peer, const struct gr_group_call *mine,
                                                const struct gr_group_call *its);
/* Logs that peer did not come to the current step and remembers it; returns GR_ETIMEDOUT. */
enum gr_status gr_group_late(struct gr_group *g, int peer);
/* The same of a peer that is gone; returns GR_ECLOSED. */
enum gr_status gr_group_lost(struct gr_group *g, int peer);

/* out = the sum of n_rank parts by the tree; out may be one of them. part[r]: (n). */
void gr_group_sum(const float *const *part, int n_rank, size_t n, float *out);

#endif
