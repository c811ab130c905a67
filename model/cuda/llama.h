/* The Llama runtime on a GPU: the same gr_lm as model/llama.h's, bf16 weights and KV, f32 residual stream. A pass is up
 * to three CUDA graphs: the layers; fc over the captured streams, where features are wanted (it runs in the pass, so
 * what the caller sees as captured states are fused features: n_capture 1, of fused_width, and fuse() copies); lm_head
 * and the picks. A pass that chooses views (SpecPV) has graphs of its own for the
 * layers, made with the views. Raw features are refused. Decisions D-026, D-030. */
#ifndef GR_MODEL_CUDA_LLAMA_H
#define GR_MODEL_CUDA_LLAMA_H

#include "common/base/device.h"
#include "model/llama.h"

/* isa is not read; n_thread: of the team that expands weights and picks where the device cannot. n_pool_block 0: as
 * many blocks as the sessions' contexts need and the memory allows. */
GR_NODISCARD enum gr_status gr_cuda_llama_create(const struct gr_llama_config *config, int device,
                                                 struct gr_hf_config *hf_out, uint64_t *fingerprint_out,
                                                 struct gr_lm **lm_out);

/* device: GR_DEVICE_CPU or a GPU's index. */
GR_NODISCARD static inline enum gr_status gr_llama_create_on(int device, const struct gr_llama_config *config,
                                                             struct gr_hf_config *hf_out, uint64_t *fingerprint_out,
                                                             struct gr_lm **lm_out)
{
    return device == GR_DEVICE_CPU ? gr_llama_create(config, hf_out, fingerprint_out, lm_out)
                                   : gr_cuda_llama_create(config, device, hf_out, fingerprint_out, lm_out);
}

#endif
