#include "model/kv/kv_size.h"

#include "common/base/free_memory.h"
#include "common/base/log.h"
#include "model/kv/kv_pool.h"

#include <inttypes.h>

enum gr_status gr_kv_blocks_choose(int asked, size_t bytes_per_token, int n_session, int n_ctx,
                                   struct gr_kv_blocks *out)
{
    const int64_t per_session = (n_ctx + GR_KV_BLOCK_TOKENS - 1) / GR_KV_BLOCK_TOKENS;
    if (asked > 0) {
        *out = (struct gr_kv_blocks){.n = asked, .least = asked};
        return GR_OK;
    }
    const uint64_t block_bytes = (uint64_t)bytes_per_token * GR_KV_BLOCK_TOKENS;
    struct gr_free_memory available;
    gr_memory_available(&available);
    const uint64_t half = available.bytes / 2;
    const int64_t affordable = (int64_t)(half / block_bytes);
    if (affordable < per_session) {
        log_error("KV pool: one context of %d tokens needs %" PRIu64 " MiB, half of the available memory is %" PRIu64
                  " MiB (by %s); lower --max-model-len or give --kv-blocks",
                  n_ctx, (uint64_t)per_session * block_bytes >> 20, half >> 20, available.from);
        return GR_ENOMEM;
    }
    if (affordable < per_session * n_session) {
        log_info("KV pool: %" PRId64 " blocks are half of the available memory, %" PRIu64
                 " MiB (by %s); %d contexts of "
                 "%d tokens would take %" PRId64,
                 affordable, half >> 20, available.from, n_session, n_ctx, per_session * n_session);
    }
    *out = (struct gr_kv_blocks){
        .n = (int32_t)GR_MIN(per_session * n_session, GR_MIN(affordable, (int64_t)INT32_MAX / 64)),
        .least = (int32_t)per_session};
    return GR_OK;
}
