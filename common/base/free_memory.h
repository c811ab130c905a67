/* How much memory this process can still take of the host. Any thread. */
#ifndef GR_COMMON_BASE_FREE_MEMORY_H
#define GR_COMMON_BASE_FREE_MEMORY_H

#include <stdint.h>

struct gr_free_memory {
    uint64_t bytes;
    char from[512]; /* what said so: MemAvailable, or the control group's file that leaves less (cgroup.h) */
};
void gr_memory_available(struct gr_free_memory *out);

#endif
