#include "model/kv/kv_size.h"

#include "common/base/cgroup.h"
#include "common/base/log.h"
#include "model/kv/kv_pool.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>

/* 0: the kernel does not say. */
static uint64_t host_available(void)
{
    char line[128];
    uint64_t kib = 0;
    bool known = false;
    FILE *f = fopen("/proc/meminfo", "re");
    while (f != NULL && !known && fgets(line, sizeof(line), f) != NULL) {
        known = sscanf(line, "MemAvailable: %" SCNu64, &kib) == 1;
    }
    if (f != NULL) {
        fclose(f);
    }
    return known ? kib * 1024 : 0;
}

void gr_memory_available(struct gr_free_memory *out)
{
    struct gr_cgroup_limits limits;
    gr_cgroup_read("", &limits);
    *out = (struct gr_free_memory){.bytes = host_available(), .from = "MemAvailable"};
    if (limits.memory_left < out->bytes) {
        out->bytes = limits.memory_left;
        snprintf(out->from, sizeof(out->from), "%s", limits.memory_from);
    }
}

enum gr_status gr_kv_blocks_choose(int asked, size_t bytes_per_token, int n_session, int n_ctx, int32_t *n_block_out)
{
    const int64_t per_session = (n_ctx + GR_KV_BLOCK_TOKENS - 1) / GR_KV_BLOCK_TOKENS;
    if (asked > 0) {
        *n_block_out = asked;
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
    *n_block_out = (int32_t)GR_MIN(per_session * n_session, GR_MIN(affordable, (int64_t)INT32_MAX / 64));
    return GR_OK;
}
