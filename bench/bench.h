/* The benchmarks of graft-bench; each is a command and returns the exit status. */
#ifndef GR_BENCH_BENCH_H
#define GR_BENCH_BENCH_H

#include "bench/table.h"

#include <stdbool.h>

int gr_bench_e2e(int argc, char **argv);
int gr_bench_long(int argc, char **argv); /* e2e --context */
int gr_bench_sweep(int argc, char **argv);
int gr_bench_sessions(int argc, char **argv);
int gr_bench_gates(int argc, char **argv);
int gr_bench_stages(int argc, char **argv);
int gr_bench_kernels(int argc, char **argv);
int gr_bench_tune(int argc, char **argv);
int gr_bench_transport(int argc, char **argv);

/* Exit status to leave with, or -1. Options every benchmark has: -o FORMAT and those of the caller's table. */
struct gr_bench_option {
    const char *name; /* without dashes */
    const char **value;
    const char *help;
};
int gr_bench_options(const char *what, int argc, char **argv, enum gr_table_format *format,
                     const struct gr_bench_option *options, int n_option);
/* Takes --NAME, which has no value, out of the arguments, before gr_bench_options; a row there is its help. */
bool gr_bench_flag(int *argc, char **argv, const char *name);

#endif
