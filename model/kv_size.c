#include "model/kv_size.h"

#include "common/log.h"
#include "model/kv_pool.h"

#include <inttypes.h>
#include <stdio.h>

static uint64_t cgroup_left(void)
{
    FILE *limit_file = fopen("/sys/fs/cgroup/memory.max", "re");
    FILE *used_file = fopen("/sys/fs/cgroup/memory.current", "re");
    uint64_t limit = 0;
    uint64_t used = 0;
    bool known = limit_file != NULL && used_file != NULL && fscanf(limit_file, "%" SCNu64, &limit) == 1 &&
                 fscanf(used_file, "%" SCNu64, &used) == 1;
    if (limit_file != NULL) {
        fclose(limit_file);
    }
    if (used_file != NULL) {
        fclose(used_file);
    }
    return !known ? UINT64_MAX : limit > used ? limit - used : 0;
}

uint64_t gr_memory_available(void)
{
    char line[128];
    uint64_t kib = 0;
    FILE *f = fopen("/proc/meminfo", "re");
    while (f != NULL && fgets(line, sizeof(line), f) != NULL) {
        if (sscanf(line, "MemAvailable: %" SCNu64, &kib) == 1) {
            break;
        }
    }
    if (f != NULL) {
        fclose(f);
    }
    const uint64_t left = cgroup_left();
    return GR_MIN(kib * 1024, left);
}

enum gr_status gr_kv_blocks_choose(int asked, size_t bytes_per_token, int n_session, int n_ctx, int32_t *n_block_out)
{
    const int64_t per_session = (n_ctx + GR_KV_BLOCK_TOKENS - 1) / GR_KV_BLOCK_TOKENS;
    if (asked > 0) {
        *n_block_out = asked;
        return GR_OK;
    }
    const uint64_t block_bytes = (uint64_t)bytes_per_token * GR_KV_BLOCK_TOKENS;
    const uint64_t half = gr_memory_available() / 2;
    const int64_t affordable = (int64_t)(half / block_bytes);
    if (affordable < per_session) {
        log_error("KV pool: one context of %d tokens needs %" PRIu64 " MiB, half of the available memory is %" PRIu64
                  " MiB; lower --max-model-len or give --kv-blocks", n_ctx,
                  (uint64_t)per_session * block_bytes >> 20, half >> 20);
        return GR_ENOMEM;
    }
    *n_block_out = (int32_t)GR_MIN(per_session * n_session, GR_MIN(affordable, (int64_t)INT32_MAX / 64));
    return GR_OK;
}
