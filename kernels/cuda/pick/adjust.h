/* Bans, biases and penalties on rows of logits on a GPU, from lists (common/rules/adjust_list.h), before
 * gr_cuda_pick_adjusted(). The same bits as the CPU's. All pointers are the device's and borrowed; nothing allocates.
 * Common subset of C and CUDA C++. */
#ifndef GR_KERNELS_CUDA_PICK_ADJUST_H
#define GR_KERNELS_CUDA_PICK_ADJUST_H

#include "common/base/status.h"
#include "common/rules/adjust_list.h"

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st;

/* What stands for -infinity in a row that was adjusted: a NaN that no arithmetic of a GPU gives (theirs is 0x7fffffff).
 * So the pick can tell an id that was taken out from a raw logit that is not finite. */
#define GR_CUDA_TAKEN_OUT 0xffc0ba17u

/* A row's list; by value, so that a pass's rows are one array. n 0: the row stays as it is. */
struct gr_cuda_adjust_row {
    struct gr_penalties penalties;
    int32_t first, n; /* in `entry` */
};

/* Row r < *n_row_true: each logit that the row's list names becomes gr_adjust_value(); GR_CUDA_TAKEN_OUT where that is
 * -infinity, and a NaN of another kind where the raw logit is not finite. No id stands twice in a list, and none is
 * n_vocab or above: a caller's error. */
struct gr_cuda_adjust_args {
    float *logits; /* (n_row, stride) */
    const struct gr_cuda_adjust_row *row;
    const struct gr_adjust_entry *entry;
    int n_row, stride;
    const int32_t *n_row_true;
};
GR_NODISCARD enum gr_status gr_cuda_adjust(const struct gr_cuda_adjust_args *a, struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif

#endif
