/* From logits to tokens on a GPU: the pick of a row (common/sampler.h), and the best ids of a row with the noise that
 * the target will use, for a drafter. The same bits as the CPU's given the same logits: gr_math.h is compiled for both.
 * All pointers are the device's and borrowed unless it says otherwise; nothing allocates. Common subset of C and CUDA
 * C++. */
#ifndef GR_KERNELS_CUDA_PICK_H
#define GR_KERNELS_CUDA_PICK_H

#include "common/sampler.h"
#include "common/status.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st;

/* How a row is picked; by value, so that a pass's rows are one array. */
struct gr_cuda_pick {
    uint64_t seed;
    float temperature; /* 0: argmax of the logits */
    uint32_t pos;      /* of the picked token */
    uint32_t choice;
    /* 1: processors that need the whole row (top-k, top-p, min-p) come first; the device leaves the row to the host */
    uint32_t host;
};

/* Row r: argmax over i < n of l[i], or of l[i] / temperature + gumbel(seed, pos, i, choice): lowest id on ties, NaN
 * counts as -inf. picked: mapped host memory or the device's, (n_row). done (mapped host memory; NULL: none): when all
 * is written becomes *ticket, visible to the host after everything else that the stream wrote before. */
struct gr_cuda_pick_args {
    const float *logits; /* (n_row, stride) */
    const struct gr_cuda_pick *how;
    struct gr_picked *picked;
    void *work; /* gr_cuda_pick_work_bytes(n_row), zeroed once */
    const uint32_t *ticket;
    uint32_t *done;
    int n_row, n, stride;
    const int32_t *n_row_true;
};
size_t gr_cuda_pick_work_bytes(int n_row);
GR_NODISCARD enum gr_status gr_cuda_pick(const struct gr_cuda_pick_args *a, struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif

#endif
