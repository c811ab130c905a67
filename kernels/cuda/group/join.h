/* Sums of a tensor-parallel group of GPUs that see each other's memory (peer access, NVLink): what the ranks' linear
 * layers have left in their part buffers (GR_CUDA_OUT_PART) is added up by each rank for itself, in the order of the
 * unsplit sum (common/rules/segments.h), neighbours first: ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7)); then it becomes
 * what GR_CUDA_OUT_ADD makes of a sum. So x, tiles, squares and captures have the bits of one GPU, on every rank.
 *
 * How ranks wait for each other: a block says that its rank is there (a number, written into each peer's memory), and
 * reads when the blocks of the same index of all ranks have said so. All ranks enqueue the same calls with the same
 * sizes, and each call's number is counted on the device, so that graphs may hold them. Blocks wait while they take up
 * room, so no two ranks may share a GPU unless both fit there at a time. Who waits longer than limit_ns, or is told to
 * stop (abort), says so in `error` and goes on without waiting, as do all calls after it: what they make is of no use,
 * but the stream comes to its end.
 *
 * A rank's part buffers are taken in turns, 0 and 1: a buffer is written anew only after a call with the other one,
 * which no rank passes before all have read the first.
 *
 * Nothing allocates; pointers are the device's and borrowed. Common subset of C and CUDA C++. Decision D-140. */
#ifndef GR_KERNELS_CUDA_GROUP_JOIN_H
#define GR_KERNELS_CUDA_GROUP_JOIN_H

#include "kernels/cuda/linear/linear.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    GR_CUDA_PEER_MAX = 8,
    GR_CUDA_JOIN_BLOCKS = 128,                       /* of a call, at most */
    GR_CUDA_JOIN_COUNTERS = GR_CUDA_JOIN_BLOCKS + 1, /* words of `count` */
};

enum gr_cuda_join_error { GR_CUDA_JOIN_OK, GR_CUDA_JOIN_LATE, GR_CUDA_JOIN_ABORTED };

/* The group as one rank's device sees it. Flags and counters are zero before the first call. */
struct gr_cuda_peers {
    int rank, n_rank;                 /* 1, 2, 4 or 8 */
    float *part[GR_CUDA_PEER_MAX];    /* [r]: rank r's buffers, (2, n_part), aligned to 16 */
    size_t n_part;                    /* a multiple of 4 */
    uint32_t *flag[GR_CUDA_PEER_MAX]; /* [r]: rank r's (n_rank, GR_CUDA_JOIN_BLOCKS): row p is written by rank p */
    uint32_t *count;                  /* own memory, (GR_CUDA_JOIN_COUNTERS): calls of each block; the last: given up */
    const uint32_t *abort;            /* of the host, mapped: not 0: stop waiting */
    uint32_t *error; /* of the host, mapped: enum gr_cuda_join_error, written once; in the upper half the
                        peer that did not come */
    uint64_t limit_ns;
    size_t
        two_shots_from; /* bytes of a rank's part (n_row n 4) from which a join has two shots; the same on all ranks */
};

/* A join has one shot, in which each rank reads the parts of all: n_rank - 1 parts come over its links. In two shots a
 * rank joins an n_rank-th and writes it into the part buffers of all, and each takes the sums from its own: less than
 * two parts, for more than two ranks, but ranks wait for each other twice. The bits are the same. A reasonable choice:
 */
static inline size_t gr_cuda_two_shots_from(int n_rank)
{
    return n_rank < 4 ? (size_t)-1 : ((size_t)4 << 20) / (size_t)n_rank;
}

/* x (n_row, n) += the ranks' sums, and what linear.h says of next and clear. */
struct gr_cuda_join_args {
    int buffer;        /* of part: 0 or 1. Rows of n values */
    float *x;          /* aligned to 16 */
    const float *bias; /* (n), added to the joined sum; NULL: none. Not with next.tiles */
    int n;             /* a multiple of 64 */
    struct gr_cuda_linear_next next;
    struct gr_cuda_square *clear;
    int square_columns; /* with next: columns whose squares are one sum in the unsplit layer: gr_cuda_square_columns()
                         */
    int n_row;          /* an upper bound, as in linear.h */
    const int32_t *n_row_true;
};

/* What square_columns is for a matrix of this cut (width above 0). */
static inline int gr_cuda_square_columns(struct gr_cuda_cut cut)
{
    return cut.width / cut.parts;
}

/* peers with n_rank 1: nobody is waited for; part[0] holds sums that are joined already. */
GR_NODISCARD enum gr_status gr_cuda_join(const struct gr_cuda_peers *peers, const struct gr_cuda_join_args *a,
                                         struct CUstream_st *stream);
/* After it each rank sees what all ranks' streams wrote before it, in whoever's memory. A call like a join: it is
 * counted, and frees both buffers. */
GR_NODISCARD enum gr_status gr_cuda_meet(const struct gr_cuda_peers *peers, struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif

#endif
