/* From logits to tokens on a GPU: the pick of a row (common/rules/sampler.h), and the best ids of a row with the noise
 * that the target will use, for a drafter. The same bits as the CPU's given the same logits: gr_math.h is compiled for
 * both. All pointers are the device's and borrowed unless it says otherwise; nothing allocates. Common subset of C and
 * CUDA C++. Decision D-014. */
#ifndef GR_KERNELS_CUDA_PICK_PICK_H
#define GR_KERNELS_CUDA_PICK_PICK_H

#include "common/rules/sampler.h"
#include "common/base/status.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st;

enum {
    GR_CUDA_PICK_N_MAX = 262144, /* logits of a row */
};

/* How a row is picked; by value, so that a pass's rows are one array. */
struct gr_cuda_pick {
    uint64_t seed;
    float temperature; /* below GR_TEMPERATURE_GREEDY: argmax of the logits */
    uint32_t pos;      /* of the picked token */
    uint32_t choice;
    /* 1: processors that need the whole row (top-k, top-p, min-p) come first; the device leaves the row to the host */
    uint32_t host;
};

/* Row r: argmax over i < n of l[i], or of l[i] / temperature + gumbel(seed, pos, i, choice): lowest id on ties. Where
 * an l[i], whichever, is NaN or infinite, or the best of the sums is infinite: {GR_PICK_NOT_FINITE, 0}. picked: mapped
 * host memory or the device's, (n_row); of a row that is left to the host {GR_PICK_TO_HOST, 0}. done (mapped host
 * memory; NULL: none): when all is written becomes *ticket, visible to the host after everything else that the stream
 * wrote before. n at most GR_CUDA_PICK_N_MAX. */
struct gr_cuda_pick_args {
    const float *logits; /* (n_row, stride), aligned to 16 bytes; stride a multiple of 4 */
    const struct gr_cuda_pick *how;
    struct gr_picked *picked;
    void *work; /* gr_cuda_pick_work_bytes(n_row), of as many rows or more, zeroed once; for one call at a time */
    const uint32_t *ticket;
    uint32_t *done;
    int n_row, n, stride;
    const int32_t *n_row_true;
};
size_t gr_cuda_pick_work_bytes(int n_row);
GR_NODISCARD enum gr_status gr_cuda_pick(const struct gr_cuda_pick_args *a, struct CUstream_st *stream);
/* The same of rows that gr_cuda_adjust() has gone over (adjust.h): ids that it took out are no values, and only raw
 * logits make a row not finite, or a best value that is infinite. */
GR_NODISCARD enum gr_status gr_cuda_pick_adjusted(const struct gr_cuda_pick_args *a, struct CUstream_st *stream);

/* Row r: the n_top[r] largest of l[i], or of l[i] / temperature + gumbel(seed, pos, to_target[i], choice), fewer where
 * fewer are above -inf (id -1 and edge 0 after them); lower id on ties; n GR_PICK_TO_HOST of a row that is left to the
 * host, and GR_PICK_NOT_FINITE as above, with no ids. The ids and their order are those of the CPU's drafter given the
 * same logits. log_sum is summed in f32 in an order that n decides: edges are within 1e-5 of the true ones, and a unit
 * in the last place of the value and of the edge (the CPU's own sum, in 16 chains, is up to (8 + sqrt(n / 16)) 2^-24
 * from the true one). done, work, logits, how: as for gr_cuda_pick(). */
struct gr_cuda_top_args {
    const float *logits;
    const int32_t *to_target; /* (n), rising; NULL: the ids are the target's */
    const struct gr_cuda_pick *how;
    const int32_t *n_top;   /* (n_row), 0 .. GR_TOP_MAX; others are a caller's error: the kernel traps */
    struct gr_top_row *top; /* (n_row): mapped host memory or the device's, aligned to 16 bytes */
    void *work;             /* gr_cuda_top_work_bytes(n_row) */
    const uint32_t *ticket;
    uint32_t *done;
    int n_row, n, stride;
    const int32_t *n_row_true;
};
size_t gr_cuda_top_work_bytes(int n_row);
GR_NODISCARD enum gr_status gr_cuda_top(const struct gr_cuda_top_args *a, struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif

#endif
