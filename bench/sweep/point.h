/* A point of a sweep: one fleet, one mode, one number of sessions, over its repetitions. Pure. */
#ifndef GR_BENCH_SWEEP_POINT_H
#define GR_BENCH_SWEEP_POINT_H

#include "bench/sweep/capacity.h"
#include "bench/sweep/plan.h"
#include "bench/sweep/store.h"

/* How a fleet decodes: a split one with trees; a whole one with trees (co-located) and without (plain). */
enum gr_point_mode { GR_POINT_SPLIT, GR_POINT_COLOCATED, GR_POINT_PLAIN };
#define GR_POINT_N_MODE 3

/* Medians over the repetitions; NAN: not measured, or there is no such thing. */
struct gr_point {
    const struct gr_fleet *fleet;
    enum gr_point_mode mode;
    int n_session;
    int n_run;                /* repetitions that were measured */
    double speed, low, high;  /* tokens/s of all clients, its least and its most */
    double client, least;     /* of a client: the mean, and the slowest */
    double ttft_ms, together; /* together: percent of the tokens that came while all decoded */
    double acceptance, round_ms, transport_ms, draft_ms, verify_ms;
    double undrafted; /* sessions without a drafter that was there */
    double waited;    /* sessions that began when others had ended: what lets them in bounds the speed */
    double reopened;  /* sessions whose prompt was computed again while they were to decode */
    char transport[16], shares[128], texts[20];
    char why[GR_FLEET_WHY_MAX + 200]; /* it was not measured, or not as often as was asked for; else empty */
};

bool gr_point_has_mode(const struct gr_fleet *f, enum gr_point_mode mode);
const char *gr_point_mode_name(enum gr_point_mode mode); /* "split", "co-located", "plain" */
/* Of the mode in results: "trees" or "plain". */
const char *gr_point_run_mode(enum gr_point_mode mode);

void gr_point_read(const struct gr_store *s, const struct gr_fleet *f, enum gr_point_mode mode, int n_session,
                   int n_repeat, struct gr_point *out);
/* tokens/s of a device: of ALL devices of the fleet, the drafters' included. */
double gr_point_per_device(const struct gr_point *p);
/* Percent of a round that a session waits for trees beyond the drafter's own time. NAN: plain. */
double gr_point_transport_share(const struct gr_point *p);
/* The fastest of point (n) with that mode (co-located or plain), as many devices, hosts and sessions as p; NULL: there
 * is none. */
const struct gr_point *gr_point_rival(const struct gr_point *point, int n, const struct gr_point *p,
                                      enum gr_point_mode mode);
/* How many clients the fleet of p serves at `speed' for each; of point (n) those of its fleet and mode count, which are
 * in order of sessions. */
struct gr_capacity gr_point_capacity(const struct gr_point *point, int n, const struct gr_point *p, double speed);

#endif
