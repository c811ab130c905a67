/* In builds without CUDA. */
#include "common/base/log.h"
#include "model/cuda/eagle3.h"
#include "model/cuda/far_memory.h"
#include "model/cuda/llama.h"
#include "model/cuda/ranks_make.h"
#include "common/base/device.h"

bool gr_cuda_is_built(void)
{
    return false;
}

static enum gr_status not_built(int device)
{
    log_error("cuda:%d: models on GPUs are not part of this build (no CUDA toolkit was found); take cpu", device);
    return GR_EUNSUPPORTED;
}

enum gr_status gr_device_check(int device)
{
    return device == GR_DEVICE_CPU ? GR_OK : not_built(device);
}

enum gr_status gr_cuda_llama_create(const struct gr_llama_config *config, int device, struct gr_hf_config *hf_out,
                                    uint64_t *fingerprint_out, struct gr_lm **lm_out)
{
    (void)config;
    (void)hf_out;
    (void)fingerprint_out;
    (void)lm_out;
    return not_built(device);
}

enum gr_status gr_cuda_eagle3_create(const struct gr_eagle3_config *config, int device, struct gr_hf_config *hf_out,
                                     uint64_t *fingerprint_out, struct gr_lm **lm_out)
{
    (void)config;
    (void)hf_out;
    (void)fingerprint_out;
    (void)lm_out;
    return not_built(device);
}

bool gr_cuda_device_pci(int device, char out[32])
{
    (void)device;
    (void)out;
    return false;
}

const struct gr_cuda_ranks_maker *gr_cuda_ranks_maker_of(enum gr_cuda_ranks_kind kind, bool allreduce)
{
    (void)kind;
    (void)allreduce;
    log_error("groups of GPUs are not part of this build (no CUDA toolkit was found); take cpu");
    return NULL;
}

enum gr_status gr_cuda_device_ceilings(int device, double *read_bytes_per_s, double *flops)
{
    (void)read_bytes_per_s;
    (void)flops;
    return not_built(device);
}

enum gr_status gr_cuda_far_memory_open(int index, const struct gr_far_memory **out)
{
    (void)out;
    return not_built(index);
}

void gr_cuda_far_memory_close(const struct gr_far_memory *memory)
{
    (void)memory;
}
