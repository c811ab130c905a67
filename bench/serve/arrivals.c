#include "bench/serve/arrivals.h"

#include <math.h>
#include <stdlib.h>

struct draws {
    unsigned short state[3];
};

/* In (0, 1). */
static double uniform(struct draws *d)
{
    double x = 0.0;
    while (x == 0.0) {
        x = erand48(d->state);
    }
    return x;
}

static double normal(struct draws *d)
{
    return sqrt(-2.0 * log(uniform(d))) * cos(2.0 * M_PI * uniform(d));
}

/* Marsaglia and Tsang, A simple method for generating gamma variables, ACM TOMS 26 (2000); shape at least 1. */
static double gamma_of_one_or_more(struct draws *d, double shape)
{
    const double a = shape - 1.0 / 3.0;
    const double c = 1.0 / sqrt(9.0 * a);
    for (;;) {
        const double x = normal(d);
        const double v = pow(1.0 + c * x, 3.0);
        if (v > 0.0 && log(uniform(d)) < 0.5 * x * x + a - a * v + a * log(v)) {
            return a * v;
        }
    }
}

/* Mean `shape'. A smaller shape is one larger by 1, times a power (the same paper, section 6). */
static double gamma_of(struct draws *d, double shape)
{
    if (shape >= 1.0) {
        return gamma_of_one_or_more(d, shape);
    }
    return gamma_of_one_or_more(d, shape + 1.0) * pow(uniform(d), 1.0 / shape);
}

void gr_arrivals_draw(const struct gr_arrivals *a, int n, double *at_s)
{
    struct draws d = {
        .state = {(unsigned short)a->seed, (unsigned short)(a->seed >> 16), (unsigned short)(a->seed >> 32)}};
    double sum = 0.0;
    for (int i = 0; i < n; i++) {
        sum += isinf(a->rate) ? 0.0 : gamma_of(&d, a->burstiness);
        at_s[i] = sum;
    }
    for (int i = 0; i < n && sum > 0.0; i++) {
        at_s[i] *= n / (a->rate * sum);
    }
}
