/* What the control groups of this process leave it, of both versions and nested: each level from its own group up to
 * the mount limits it, the least counts. A function of the files below a root folder, so that tests make trees. Reads
 * files and allocates: at start only. Any thread. */
#ifndef GR_COMMON_BASE_CGROUP_H
#define GR_COMMON_BASE_CGROUP_H

#include <stdint.h>

struct gr_cgroup_limits {
    uint64_t memory_left;  /* bytes that may still be taken; UINT64_MAX: no limit */
    char memory_from[512]; /* the file that said so, without the root; empty: none */
    int n_cpu;             /* CPUs' worth of time, rounded up, at least 1; INT_MAX: no limit */
    char cpu_from[512];
};

/* root: "" for the machine's own /proc and /sys. Memory: memory.max and memory.high (v2), memory.limit_in_bytes (v1),
 * less what is used; page cache that the kernel gives back (memory.stat: inactive_file) is not used. With swap a group
 * may take more, never less: limits of memory and swap together (memsw) are not looked at. CPU: cpu.max (v2),
 * cpu.cfs_quota_us per cpu.cfs_period_us (v1). A file that is not there, or not of its form, limits nothing. */
void gr_cgroup_read(const char *root, struct gr_cgroup_limits *out);

#endif
