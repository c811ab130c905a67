/* What a pass begins with, after its inputs: the plan of its attention, the look-up of its rows and the norms before
 * its first layer. None of them needs another and each is all latency, so one launch has them beside each other. Common
 * subset of C and CUDA C++. Decision D-026. */
#ifndef GR_KERNELS_CUDA_ATTENTION_BEGIN_H
#define GR_KERNELS_CUDA_ATTENTION_BEGIN_H

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/rows/rows.h"

#ifdef __cplusplus
extern "C" {
#endif

/* All pointers are the device's and borrowed. For rows below *token.n_row_true: x[r] = f32(table[id[r]]), kept where x
 * is not NULL, and its norm as gr_cuda_norm() makes it of rows of f32: token.x and token.row are not looked at.
 * states: where from_state[r] >= 0, row r of feature.x is first made a copy of states[from_state[r]]. half: where that
 * is not so and half[r] is not NULL, row r of feature.x is first made f32(half[r]). */
struct gr_cuda_begin_args {
    struct gr_cuda_attn_plan_args plan;
    const uint16_t *table; /* bf16 (n_vocab, token.n) */
    const int32_t *id;
    float *x; /* (token.n_row, token.n) */
    struct gr_cuda_norm_args token;
    struct gr_cuda_norm_args feature; /* another norm of the pass's rows, as wide as the first; n_row 0: none */
    const float *states;              /* (.., feature.n), aligned to 16 bytes; NULL: none */
    const int32_t *from_state;        /* (feature.n_row) */
    const uint16_t *const *half;      /* (feature.n_row) rows of bf16, aligned to 16 bytes; NULL: none */
    float *feature_x;                 /* with states or half: feature.x, which has no stride and no gathering then */
    /* Another plan of the same rows, for layers with a window; window 0: none. */
    struct gr_cuda_attn_plan_args window_plan;
};
GR_NODISCARD enum gr_status gr_cuda_begin(const struct gr_cuda_begin_args *a, struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif

#endif
