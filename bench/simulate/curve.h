/* A measured curve, given by points, with straight lines between them. Before the first point it has that point's
 * value. Beyond the last one it goes on in proportion: a pass of many rows reads the weights once for each block of
 * rows. */
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
