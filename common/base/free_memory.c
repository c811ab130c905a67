#include "common/base/free_memory.h"

#include "common/base/cgroup.h"

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
