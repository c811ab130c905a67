/* A measured curve, by points: linear between them. Before the first point it is that one's value; beyond the last it
 * goes on in proportion, as passes do that read the weights once more for every so many rows. */
#ifndef GR_BENCH_SIMULATE_CURVE_H
#define GR_BENCH_SIMULATE_CURVE_H

#define GR_CURVE_POINT_MAX 32

struct gr_curve {
    int n;                                               /* points */
    double x[GR_CURVE_POINT_MAX], y[GR_CURVE_POINT_MAX]; /* x rises; the first is above 0 */
};

/* 0 of a curve without points. */
double gr_curve_at(const struct gr_curve *c, double x);

#endif
