/* How the GPUs of a tensor-parallel group exchange what a pass makes: the sums of o and down, and rows of logits. The
 * steps themselves, and all that is agreed on, go over the host group (model/group). A table that several
 * implementations fill: peer memory (ranks_peer.h), or a library. All ranks enqueue the same calls in the same order,
 * also into graphs. Decision D-140. */
#ifndef GR_MODEL_CUDA_RANKS_H
#define GR_MODEL_CUDA_RANKS_H

#include "kernels/cuda/group/join.h"
#include "model/cuda/device.h"
#include "model/group/group.h"

struct gr_cuda_ranks;

struct gr_cuda_ranks_ops {
    const char *name; /* "peer", "nccl" */
    /* All ranks' parts of buffer a->buffer, of this rank written by what was enqueued before, become sums, and those
     * what gr_cuda_join says. */
    enum gr_status (*enqueue_join)(struct gr_cuda_ranks *r, const struct gr_cuda_join_args *a);
    /* n rows of logits, of which each rank has written its columns to r->logits, are whole in rank 0's buffer. */
    enum gr_status (*enqueue_logits)(struct gr_cuda_ranks *r, int n);
    /* Before a pass is launched. NULL: there is nothing to do. */
    void (*begin)(struct gr_cuda_ranks *r);
    /* After a pass, when the stream has ended. GR_ETIMEDOUT, GR_ECLOSED (logged): a rank did not come, or the group was
     * aborted; it stays so, and the group is done with. */
    enum gr_status (*status)(struct gr_cuda_ranks *r);
    /* From any thread: what is enqueued ends soon. */
    void (*abort)(struct gr_cuda_ranks *r);
    /* The stream has ended. */
    void (*destroy)(struct gr_cuda_ranks *r);
};

/* One rank's end, as the model uses it. */
struct gr_cuda_ranks {
    const struct gr_cuda_ranks_ops *ops;
    float *part[2];    /* own memory, (n_part) each: where o's and down's sums are written, rows of `hidden` */
    float *logits;     /* where this rank's lm_head writes its first column of row 0; not always own memory */
    int logits_stride; /* values between rows */
};

/* All ranks give the same, but device, logits and group, which are their own. Borrowed for as long as the ranks live.
 */
struct gr_cuda_ranks_config {
    struct gr_group *group; /* for handles and agreement while it is created; all ranks come to create */
    struct gr_cuda_device *device;
    size_t n_part; /* values of a part buffer: n_row_max * hidden */
    int hidden;
    float *logits; /* rank 0's buffer, memory of its device, (n_out_max, logits_stride); NULL on the others */
    int n_out_max, logits_stride;
    int begin[GR_GROUP_RANK_MAX + 1]; /* columns [begin[r], begin[r + 1]) of logits are rank r's */
};

/* What gr_llama_config.gpu_ranks points to: makes a rank's end. Errors are logged; all ranks have one then. */
struct gr_cuda_ranks_maker {
    enum gr_status (*create)(const struct gr_cuda_ranks_maker *m, const struct gr_cuda_ranks_config *c,
                             struct gr_cuda_ranks **out);
    const char *numerics; /* sums have other bits than those of one GPU: a word of the numerics name; NULL: they have
                             not */
};

static inline void gr_cuda_ranks_destroy(struct gr_cuda_ranks *r)
{
    if (r != NULL) {
        r->ops->destroy(r);
    }
}

#endif
