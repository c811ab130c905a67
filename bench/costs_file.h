/* A JSON file of measured costs for simulations. docs/bench.md tells its keys; times in it are microseconds. */
#ifndef GR_BENCH_COSTS_FILE_H
#define GR_BENCH_COSTS_FILE_H

#include "common/base/status.h"
#include "bench/simulate/costs.h"

#define GR_COSTS_ABOUT_MAX 256

struct gr_costs_file {
    char about[GR_COSTS_ABOUT_MAX]; /* a line that names the machine and the models */
    struct gr_sim_costs costs;
};

/* All of the file is checked, and an error is logged with the key that is wrong. GR_ENOTFOUND, GR_EFORMAT. */
GR_NODISCARD enum gr_status gr_costs_file_load(const char *path, struct gr_costs_file *out);

#endif
