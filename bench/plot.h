/* Line plots by the program gnuplot, which is given a script with its data through a pipe. */
#ifndef GR_BENCH_PLOT_H
#define GR_BENCH_PLOT_H

#include "common/base/out_file.h"
#include "common/base/status.h"

#include <stdbool.h>
#include <stdio.h>

struct gr_plot {
    struct gr_out_file file; /* where gnuplot's picture goes */
    FILE *to;                /* gnuplot's standard input: lines `x y', a line `e' after each series */
    int pid;
};

struct gr_plot_config {
    const char *path; /* .png or .svg */
    const char *title, *x_label, *y_label;
    const char *const *series; /* names, (n_series) */
    int n_series;
    bool log_x;
};

/* Is gnuplot installed? */
bool gr_plot_is_there(void);
/* what: whose file it is, for messages ("--plot"). GR_EINVAL: not a .png or .svg, or a name that gnuplot could not be
 * told; GR_ENOTFOUND: gnuplot is not installed. Both logged: asked before a long run. */
GR_NODISCARD enum gr_status gr_plot_check(const char *what, const char *path);
/* GR_EIO; then plot_end() must not follow. */
GR_NODISCARD enum gr_status gr_plot_begin(const struct gr_plot_config *config, struct gr_plot *out);
/* GR_EIO: gnuplot did not make the file. */
GR_NODISCARD enum gr_status gr_plot_end(struct gr_plot *p);

#endif
