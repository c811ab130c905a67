/* The EAGLE-3 head on a GPU: the same gr_lm as model/eagle3.h's, bf16 weights and KV. A pass is two CUDA graphs: the
 * layer, whose states stay on the device where they are to be kept; lm_head and the children (lm->top). Heads with
 * norm_before_residual, norm_output or raw features are refused. */
#ifndef GR_MODEL_CUDA_EAGLE3_H
#define GR_MODEL_CUDA_EAGLE3_H

#include "common/base/device.h"
#include "model/eagle3.h"

/* isa is not read; n_pool_block 0: as many blocks as the sessions' contexts need. */
GR_NODISCARD enum gr_status gr_cuda_eagle3_create(const struct gr_eagle3_config *config, int device,
                                                  struct gr_hf_config *hf_out, uint64_t *fingerprint_out,
                                                  struct gr_lm **lm_out);

/* device: GR_DEVICE_CPU or a GPU's index. */
GR_NODISCARD static inline enum gr_status gr_eagle3_create_on(int device, const struct gr_eagle3_config *config,
                                                              struct gr_hf_config *hf_out, uint64_t *fingerprint_out,
                                                              struct gr_lm **lm_out)
{
    return device == GR_DEVICE_CPU ? gr_eagle3_create(config, hf_out, fingerprint_out, lm_out)
                                   : gr_cuda_eagle3_create(config, device, hf_out, fingerprint_out, lm_out);
}

#endif
