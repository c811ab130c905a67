/* config.json and generation_config.json from memory. */
#include <stddef.h>
#include <stdint.h>

#include "model/files/hf_config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct gr_hf_config config;
    if (gr_hf_config_parse("fuzz", (const char *)data, size, &config) == GR_OK) {
        GR_ASSERT(config.hidden > 0 && config.n_head % config.n_kv_head == 0);
        GR_ASSERT(config.head_dim > 0 && config.head_dim % 2 == 0);
        GR_ASSERT(config.n_eos >= 0 && config.n_eos <= GR_HF_N_EOS_MAX);
        GR_ASSERT(config.n_capture >= 0 && config.n_capture <= GR_HF_N_CAPTURE_MAX);
        enum gr_status st = gr_hf_config_parse_generation("fuzz", (const char *)data, size, &config);
        GR_ASSERT(st == GR_OK || config.n_eos <= GR_HF_N_EOS_MAX);
    }
    return 0;
}
