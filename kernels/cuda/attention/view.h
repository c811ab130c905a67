/* SpecPV's views on a GPU (sm_90a): how blocks of keys are summed up, scored and chosen by a pass that
 * refreshes views. What a view is, model/kv/kv_views.h says; what scores and lists are, kernels.h
 * (gr_block_scores_args, gr_top_blocks). All pointers are the device's and borrowed; nothing allocates. Common subset
 * of C and CUDA C++. */
#ifndef GR_KERNELS_CUDA_ATTENTION_VIEW_H
#define GR_KERNELS_CUDA_ATTENTION_VIEW_H

#include "common/base/status.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st;

enum {
    GR_CUDA_VIEW_BLOCKS_MAX = 49152, /* of a context: 768K tokens. Their scores are held in shared memory */
};

/* Fixed for a model. */
struct gr_cuda_view_shape {
    int n_layer, n_head, n_kv_head, head_dim; /* head_dim 64 or 128, at most 8 query heads a KV head */
    int n_view;
    int n_refresh_max; /* of a pass */
    int n_block_max;   /* of a context; a multiple of 16 */
    int n_list_max;    /* blocks of a list */
};

/* A view that a pass chooses, and the rows whose queries do it. Blocks are numbered as in the sequence's table. */
struct gr_cuda_refresh {
    const int32_t *block; /* the sequence's table */
    int32_t view;
    int32_t row0, n_row;       /* of the pass; at least one */
    int32_t n_summed, n_whole; /* blocks [n_summed, n_whole) get summaries; those before have them */
    int32_t n_fixed;           /* every list begins with blocks 0 .. n_fixed - 1; */
    int32_t n_below, n_list;   /* the other n_list - n_fixed are the best of [n_fixed, n_below); n_below <= n_whole */
    int32_t use_max;           /* 1: blocks are scored by their best query; 0: by the mean */
    int32_t pad;
};

struct gr_cuda_views {
    struct gr_cuda_view_shape shape;
    /* bf16 (n_view, n_layer, n_kv_head, n_block_max, 2, head_dim): a block's largest values, then its smallest */
    uint16_t *summary;
    float *score;  /* (n_refresh_max, n_layer, n_kv_head, n_block_max): of the pass's candidates */
    int32_t *list; /* (n_view, n_layer, n_kv_head, n_list_max) */
    const struct gr_cuda_refresh *refresh; /* (n_refresh_max), of the pass */
    const int32_t *n_refresh;              /* at most n_refresh_max */
};

/* GR_EUNSUPPORTED (one line): a shape that the kernels do not take. */
GR_NODISCARD enum gr_status gr_cuda_view_check(const struct gr_cuda_view_shape *shape);

/* One layer's keys and queries. */
struct gr_cuda_view_layer {
    const void *kv;    /* bf16, the layer's blocks: kv_layout.h */
    const uint16_t *q; /* bf16 (rows, q_stride), after RoPE; q_stride a multiple of 8, q aligned to 16 bytes */
    int q_stride;
    int layer;
};

/* Between a layer's keys and its attention: summaries of the blocks that lack them, and scores of the candidates. A
 * summary is exact. A score is summed in f32, in an order that n_row and the shape decide: its bits depend on those,
 * the queries and the block's keys only. A candidate's score is written where something is to be chosen, no other. */
GR_NODISCARD enum gr_status gr_cuda_view_scores(const struct gr_cuda_views *v, const struct gr_cuda_view_layer *l,
                                                struct CUstream_st *stream);
/* After the last layer: the lists of all layers. Equal scores: the lower block; NaN counts as -INFINITY. Only lists of
 * the refreshed views are written. */
GR_NODISCARD enum gr_status gr_cuda_view_lists(const struct gr_cuda_views *v, struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif

#endif
