/* Rows of a tensor in a large geometry, made on a GPU from the small tensor (common/rules/expand_rule.h;
 * model/load/expand.h says what for): the bits that model/load/expand.c makes on a CPU. Nothing allocates; pointers are
 * the device's and borrowed. Common subset of C and CUDA C++. */
#ifndef GR_KERNELS_CUDA_ROWS_EXPAND_H
#define GR_KERNELS_CUDA_ROWS_EXPAND_H

#include "common/rules/expand_rule.h"
#include "common/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st;

/* Rows [row0, row0 + n_row) of the large tensor; rule.n_in a multiple of 8. */
struct gr_cuda_expand_args {
    struct gr_expand_rule rule;
    const uint16_t *from; /* bf16 (rule.n_out_from, rule.n_in_from); NULL where the rule has no small tensor */
    uint16_t *out;        /* bf16 (n_row, rule.n_in), aligned to 16 */
    int row0, n_row;
};
GR_NODISCARD enum gr_status gr_cuda_expand(const struct gr_cuda_expand_args *a, struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif

#endif
