/* Tree attention on a GPU (sm_90a): bf16 queries, keys and values, f32 sums.
 *
 * What a row sees is said by struct gr_attn_seq as on CPUs; all its pointers are the device's. Row independence: the
 * bits of a row depend on its query, its keys and values and its position p only. They are a function of p like this:
 *   - near keys: those of positions >= near_from = max(0, p - 63) rounded down to 16 (and not below dense_from), at
 *     most 79. They are gathered row by row into the lanes of their positions, so it does not matter which of them
 *     are still in scratch: at most 64 of a row's keys are, itself included;
 *   - far keys: the rest, all in the pool. They are numbered from 0 (a view's list first, so a list of all
 *     blocks is as good as none) and cut into at most n_split_max splits of split_len(far_len) keys, worked through in
 *     tiles of 128; n_split_max is one number for a model, since bits depend on it;
 *   - splits are merged in increasing order, the near keys last.
 * With a window a row sees keys from first = max(0, p - window + 1) on: its near keys begin at first, too, if that is
 * later, its far ones at first, and splits and their tiles are cut at multiples of a length that the window alone gives
 * (window_split in attention_plan.cuh), so that rows whose windows begin elsewhere share tiles. A tile of keys that a
 * row sees nothing of changes nothing in it; one that no row sees is not loaded: cost goes by the window.
 * Rows of different split_len are computed in different tiles of rows; a class of equal split_len is n_split_max * 128
 * positions long, so trees rarely see two, and 64 rows beside each other never three.
 *
 * Limits: head_dim 64 or 128, at most 8 query heads a KV head, slots of a session below n_slot_max. The rows of a
 * session come in the order of their positions but for the branches of one tree: any four in a row need no more than 10
 * pool blocks between the first one's near_from and the largest limit. Nothing is clamped: gr_cuda_attn_plan() notes
 * what it refuses in the plan, and the pass then computes no attention (see gr_cuda_attn_plan_error). Nothing
 * allocates; all pointers are borrowed. Common subset of C and CUDA C++. */
#ifndef GR_KERNELS_CUDA_ATTENTION_ATTENTION_H
#define GR_KERNELS_CUDA_ATTENTION_ATTENTION_H

#include "common/base/status.h"
#include "kernels/kernels.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st; /* cudaStream_t without CUDA's headers */

enum {
    GR_CUDA_SPLIT_MAX = 8,  /* of the far keys of a row: n_split_max at most; sizes memory */
    GR_CUDA_KEY_TILE = 128, /* keys that are multiplied at once; split_len is a multiple of it */
    GR_CUDA_SLOT_MAX = 256, /* scratch cells of a session */
    GR_CUDA_GROUP_MAX = 8,  /* query heads of a KV head */
};

/* What a plan found wrong. The first word of a plan is one of these. */
enum gr_cuda_attn_error {
    GR_CUDA_ATTN_OK = 0,
    GR_CUDA_ATTN_ROWS = 1,  /* more rows or sequences than the plan has room for */
    GR_CUDA_ATTN_SLOTS = 2, /* a slot, or the number of them, or a row's n_anc out of range */
    GR_CUDA_ATTN_SPAN = 3,  /* rows beside each other too far apart, or below dense_from */
    GR_CUDA_ATTN_VIEW = 4,  /* a view, and a window */
};

/* Fixed for a model and the largest pass. */
struct gr_cuda_attn_shape {
    int n_head, n_kv_head, head_dim;
    int n_row_max, n_seq_max; /* of a pass: they size plan and work */
    int n_slot_max;           /* scratch cells of a session, at most GR_CUDA_SLOT_MAX; a verify pass has 64 */
    int n_split_max;          /* splits of a row's far keys, 1 .. GR_CUDA_SPLIT_MAX; memory does not depend on it */
};

struct gr_cuda_attention_args {
    struct gr_cuda_attn_shape shape;
    const void *kv;                /* bf16, the layer's blocks: kv_layout.h */
    const uint16_t *q;             /* bf16 (rows, q_stride), after RoPE */
    uint16_t *out;                 /* bf16 tiles (tiles.h) of width n_head * head_dim */
    const struct gr_attn_seq *seq; /* the plan's */
    const void *plan;
    void *work;
    int n_row, n_seq; /* upper bounds of this launch (a graph's bucket); the plan knows the true ones */
    int q_stride;     /* a multiple of 8; with n_row_max rows below 2^31 */
    int layer;        /* which lists of a view */
    float scale;
    int window; /* 0: all keys; as the plan's. A launch without one is another kernel, which knows of none. */
};

/* Bytes of device memory, aligned to 256. */
size_t gr_cuda_attn_plan_bytes(const struct gr_cuda_attn_shape *shape);
size_t gr_cuda_attn_work_bytes(const struct gr_cuda_attn_shape *shape);

/* Cuts the rows of seq[0 .. *n_seq) into tiles and items. n_seq is the device's, too, so a captured graph serves any
 * number. error: where an enum gr_cuda_attn_error is written, device memory or the host's, mapped; NULL: nowhere else
 * than in the plan. */
struct gr_cuda_attn_plan_args {
    struct gr_cuda_attn_shape shape;
    const struct gr_attn_seq *seq;
    const int32_t *n_seq;
    void *plan;
    int32_t *error;
    int window; /* 0: all keys; else how many keys a row sees, its own included */
};
/* Once a pass, before its layers; a pass of a model makes its plan beside other things (begin.h). */
GR_NODISCARD enum gr_status gr_cuda_attn_plan(const struct gr_cuda_attn_plan_args *a, struct CUstream_st *stream);
/* The first word of the plan, an enum gr_cuda_attn_error; device memory. */
static inline const int32_t *gr_cuda_attn_plan_error(const void *plan)
{
    return (const int32_t *)plan;
}

/* One layer: two kernels, launched so that they overlap with their neighbours (programmatic dependent launch).
 * Before it waits for the kernel before it in the stream, the first reads the plan, the sequences' block tables and
 * lists, and keys and values that the plan knows to be older than the pass; so, but for the plan, whose kernel sees to
 * it, none of them may be written by that kernel, nor by one that it overlaps with. Queries and new keys and values are
 * read after. The kernel after this call may be started before the results are there: if it is launched so, it has to
 * wait before it reads them. */
GR_NODISCARD enum gr_status gr_cuda_attention(const struct gr_cuda_attention_args *a, struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif

#endif
