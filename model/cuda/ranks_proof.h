/* Whether GPUs of a group do see each other's memory. A driver that says they can is not enough: behind some switches
 * and address translations writes are lost, or reads bring what nobody wrote, and sums would be wrong without a word.
 * So each pair writes and reads back before the first pass. */
#ifndef GR_MODEL_CUDA_RANKS_PROOF_H
#define GR_MODEL_CUDA_RANKS_PROOF_H

#include "model/cuda/ranks_peer.h"

/* All ranks come, with zeros in their part buffers and nothing enqueued; these are zero again after. required: what is
 * wrong is an error, which names both GPUs and what to do; else the line is a warning. GR_EUNSUPPORTED on all ranks: a
 * pair does not read what was written. Where a GPU does not come to an end within the time it has, the process does,
 * since nothing of that device can be given back then. */
GR_NODISCARD enum gr_status gr_cuda_ranks_prove(const struct gr_cuda_ranks_config *c,
                                                const struct gr_cuda_shown_memory shown[GR_GROUP_RANK_MAX],
                                                bool required);

#endif
