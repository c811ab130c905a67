/* The pictures of a sweep, by gnuplot, in its folder. */
#ifndef GR_BENCH_SWEEP_DRAW_H
#define GR_BENCH_SWEEP_DRAW_H

#include "bench/sweep/point.h"
#include "bench/sweep/sweep.h"

/* Asked before anything is measured. GR_ENOTFOUND (logged): --plots was given, and gnuplot is not there. */
GR_NODISCARD enum gr_status gr_sweep_draw_check(const struct gr_sweep *s);
/* point: (n), by fleet, mode and sessions. speed: tokens/s of a client against tokens/s of a device, a line through the
 * numbers of sessions of each fleet and mode; transport: its share of a round over sessions; hosts: device seconds of a
 * thousand tokens over hosts, a line for each mode, at each mode's best fleet with the most sessions, where there are
 * several numbers of hosts. Nothing with --plots none; without gnuplot nothing but a line that says so. */
GR_NODISCARD enum gr_status gr_sweep_draw(const struct gr_sweep *s, const struct gr_point *point, int n);

#endif
