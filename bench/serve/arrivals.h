/* When the requests of a load are sent. Their gaps are drawn from a gamma distribution of the shape `burstiness`, as
 * vLLM's benchmark does: 1 is a Poisson process, less comes in bursts, more is evener. Then all are stretched so that
 * the last one is sent after n / rate seconds, whatever was drawn. Pure: a seed always gives the same. */
#ifndef GR_BENCH_SERVE_ARRIVALS_H
#define GR_BENCH_SERVE_ARRIVALS_H

#include <stdint.h>

struct gr_arrivals {
    double rate;       /* requests a second; INFINITY: all at once */
    double burstiness; /* above 0 */
    uint64_t seed;
};

/* at_s: (n), seconds after the beginning, ascending. */
void gr_arrivals_draw(const struct gr_arrivals *a, int n, double *at_s);

#endif
