/* The benchmarks of graft-bench; each is a command and returns the exit status. */
#ifndef GR_BENCH_BENCH_H
#define GR_BENCH_BENCH_H

#include "bench/options/options.h"
#include "bench/table.h"

/* The format that --format asks for. */
static inline enum gr_table_format gr_bench_format(const struct gr_bench_options *o)
{
    return o->json ? GR_TABLE_JSON : (enum gr_table_format)o->format;
}

int gr_bench_e2e(int argc, char **argv);
int gr_bench_long(int argc, char **argv); /* e2e --context */
int gr_bench_trees(int argc, char **argv);
int gr_bench_sweep(int argc, char **argv);
int gr_bench_clients(int argc, char **argv);
int gr_bench_sessions(int argc, char **argv);
int gr_bench_gates(int argc, char **argv);
int gr_bench_stages(int argc, char **argv);
int gr_bench_kernels(int argc, char **argv);
int gr_bench_tune(int argc, char **argv);
int gr_bench_transport(int argc, char **argv);
int gr_bench_simulate(int argc, char **argv);
int gr_bench_serve(int argc, char **argv);
int gr_bench_server(int argc, char **argv);

#endif
