/* The headline of a sweep: how many clients a fleet serves at a stated speed for each. Pure. */
#ifndef GR_BENCH_SWEEP_CAPACITY_H
#define GR_BENCH_SWEEP_CAPACITY_H

/* The speed that one client gets when n_client are served. */
struct gr_capacity_point {
    double n_client;
    double speed; /* tokens/s of one client, above 0 */
};

enum gr_capacity_kind {
    GR_CAPACITY_NONE,     /* nothing was measured */
    GR_CAPACITY_BELOW,    /* even the fewest clients that were measured get less: n_client is that number */
    GR_CAPACITY_BETWEEN,  /* interpolated */
    GR_CAPACITY_AT_LEAST, /* the most clients that were measured still get it: n_client is that number */
};

struct gr_capacity {
    enum gr_capacity_kind kind;
    double n_client;
};

/* The most clients that each still get `speed' tokens/s. point: (n), in order of n_client. What is interpolated is the
 * time between a client's tokens, 1 / speed, as a straight line over the number of clients: a pass takes a fixed time
 * and one for each session. Where the measured speeds go below `speed' and up again, the first time counts. */
struct gr_capacity gr_capacity_at(const struct gr_capacity_point *point, int n, double speed);

#endif
