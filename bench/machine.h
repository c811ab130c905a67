/* What this machine can do, measured now: the ceilings that results are stated against. */
#ifndef GR_BENCH_MACHINE_H
#define GR_BENCH_MACHINE_H

#include <stddef.h>

/* f32 fused multiply-adds from registers, best of several runs, all threads together; operations per second. */
double gr_machine_peak_flops(int n_thread);
/* Reading a buffer of `bytes` again and again, best of several runs, all threads together. */
double gr_machine_read_bytes_per_s(int n_thread, size_t bytes);

#endif
