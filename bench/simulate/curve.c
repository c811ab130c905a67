#include "bench/simulate/curve.h"

double gr_curve_at(const struct gr_curve *c, double x)
{
    if (c->n == 0) {
        return 0.0;
    }
    if (x <= c->x[0]) {
        return c->y[0];
    }
    for (int i = 1; i < c->n; i++) {
        if (x <= c->x[i]) {
            return c->y[i - 1] + (c->y[i] - c->y[i - 1]) * (x - c->x[i - 1]) / (c->x[i] - c->x[i - 1]);
        }
    }
    return c->y[c->n - 1] * x / c->x[c->n - 1];
}
