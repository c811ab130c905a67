/* Which fleets of workers a sweep runs, and which of them are compared: a pure function of the axes and of what there
 * is to run on.
 *
 * A device is what a rank of a target or a drafter has to itself: a GPU or, on CPUs, a share of them. A split fleet of
 * T targets of `tp' ranks and D drafters has T * tp + D devices. Beside it stand whole fleets of as many devices on as
 * many hosts: targets with the drafter in their own process, for every tp that is asked for; they decode with trees
 * (co-located) and without (plain). Nothing stands beside a fleet that cannot run. Where no tp that is asked for
 * divides the number of devices there are the next larger whole fleets instead, whose figures can be compared by the
 * device alone. */
#ifndef GR_BENCH_SWEEP_PLAN_H
#define GR_BENCH_SWEEP_PLAN_H

#include "bench/options/options.h"

#define GR_FLEET_MAX 1024        /* fleets of a sweep */
#define GR_FLEET_WORKER_MAX 63   /* workers of a fleet: as many as an orchestrator takes, less one in doubt */
#define GR_FLEET_SESSION_MAX 256 /* sessions that one worker can have room for */
#define GR_FLEET_NAME_MAX 64
#define GR_FLEET_WHY_MAX 128

struct gr_sweep_axes {
    struct gr_option_list hosts, n_draft, n_target, tp, sessions;
};

/* What there is to run on. */
struct gr_sweep_site {
    int n_host;
    int n_device;   /* of each host; 0: as many as are asked for (CPUs that all share) */
    int n_cpu;      /* of each host, for pinned workers */
    int device_cpu; /* CPUs of a device, its own; 0: they are not pinned */
    int n_kv_head;  /* of the target: a group has no more ranks; 0: not known */
};

struct gr_fleet {
    bool whole; /* each target has a drafter in its process */
    int n_host, n_target, n_draft, tp;
    char why[GR_FLEET_WHY_MAX]; /* it cannot run; empty: it can */
};

struct gr_sweep_plan {
    struct gr_fleet
        fleet[GR_FLEET_MAX]; /* no two alike; whole fleets behind the first split one that they stand beside */
    int n;
};

/* Where a worker of a fleet stands. */
struct gr_place {
    int host;
    int device; /* its first on that host; a target has the tp from there on */
};

int gr_fleet_devices(const struct gr_fleet *f);
/* "split h1 t2 d1 tp1": what results are filed under. */
void gr_fleet_name(const struct gr_fleet *f, char name[static GR_FLEET_NAME_MAX]);
/* GR_ELIMIT (logged): more than GR_FLEET_MAX. */
GR_NODISCARD enum gr_status gr_sweep_plan(const struct gr_sweep_axes *axes, const struct gr_sweep_site *site,
                                          struct gr_sweep_plan *out);
/* The targets of a fleet, then its drafters: each on the host that has the fewest devices in use so far, of equal ones
 * the first. False: there is no room (why, unless NULL, says so). */
bool gr_fleet_place(const struct gr_fleet *f, const struct gr_sweep_site *site,
                    struct gr_place place[static GR_FLEET_WORKER_MAX], char *why);
/* Is `other' a fleet that `f' is to be compared with: whole, on as many hosts, and of as many devices? */
bool gr_fleet_is_beside(const struct gr_fleet *f, const struct gr_fleet *other);
/* Why a fleet that can run has no room for n_session sessions; empty: it has. */
void gr_fleet_refuses(const struct gr_fleet *f, int n_session, char why[static GR_FLEET_WHY_MAX]);

#endif
