/* How many KV blocks a worker takes: what is asked, or what the free memory allows. */
#ifndef GR_MODEL_KV_KV_SIZE_H
#define GR_MODEL_KV_KV_SIZE_H

#include "common/base/status.h"

#include <stddef.h>
#include <stdint.h>

struct gr_kv_blocks {
    int32_t n;
    int32_t least; /* with fewer the worker cannot do: all that were asked for, or one context */
};

/* asked > 0: that many. 0 (auto): enough for n_session contexts of n_ctx tokens, but at most half of the memory that
 * is available now. GR_ENOMEM (logged, with both numbers): not even one context fits. */
GR_NODISCARD enum gr_status gr_kv_blocks_choose(int asked, size_t bytes_per_token, int n_session, int n_ctx,
                                                struct gr_kv_blocks *out);

#endif
