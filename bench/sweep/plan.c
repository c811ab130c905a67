#include "bench/sweep/plan.h"

#include "common/base/log.h"

#include <stdio.h>
#include <string.h>

int gr_fleet_devices(const struct gr_fleet *f)
{
    return f->n_target * f->tp + f->n_draft;
}

void gr_fleet_name(const struct gr_fleet *f, char name[static GR_FLEET_NAME_MAX])
{
    if (f->whole) {
        snprintf(name, GR_FLEET_NAME_MAX, "whole h%d t%d tp%d", f->n_host, f->n_target, f->tp);
    } else {
        snprintf(name, GR_FLEET_NAME_MAX, "split h%d t%d d%d tp%d", f->n_host, f->n_target, f->n_draft, f->tp);
    }
}

/* ---- can it run? ---- */

static bool is_group_size(int tp)
{
    return tp == 1 || tp == 2 || tp == 4 || tp == 8;
}

static bool fits_ranks(const struct gr_fleet *f, const struct gr_sweep_site *site, char *why)
{
    if (!is_group_size(f->tp)) {
        snprintf(why, GR_FLEET_WHY_MAX, "tp %d: a target has 1, 2, 4 or 8 ranks", f->tp);
        return false;
    }
    if (site->n_kv_head > 0 && (f->tp > site->n_kv_head || site->n_kv_head % f->tp != 0)) {
        snprintf(why, GR_FLEET_WHY_MAX, "tp %d: the target's %d KV heads cannot be shared out so", f->tp,
                 site->n_kv_head);
        return false;
    }
    return true;
}

static bool fits_hosts(const struct gr_fleet *f, const struct gr_sweep_site *site, char *why)
{
    const int n_worker = f->n_target + f->n_draft;
    const int n_cpu = gr_fleet_devices(f) * site->device_cpu;
    if (f->n_host > site->n_host) {
        snprintf(why, GR_FLEET_WHY_MAX, "%d hosts are needed, there %s %d", f->n_host, site->n_host == 1 ? "is" : "are",
                 site->n_host);
    } else if (n_worker < f->n_host) {
        snprintf(why, GR_FLEET_WHY_MAX, "%d worker%s cannot stand on %d hosts", n_worker, n_worker == 1 ? "" : "s",
                 f->n_host);
    } else if (n_worker > GR_FLEET_WORKER_MAX) {
        snprintf(why, GR_FLEET_WHY_MAX, "%d workers: an orchestrator of this version is given %d at most", n_worker,
                 GR_FLEET_WORKER_MAX);
    } else if (site->n_device > 0 && gr_fleet_devices(f) > f->n_host * site->n_device) {
        snprintf(why, GR_FLEET_WHY_MAX, "%d devices are needed, %d host%s %d", gr_fleet_devices(f), f->n_host,
                 f->n_host == 1 ? " has" : "s have", f->n_host * site->n_device);
    } else if (n_cpu > 0 && n_cpu + 1 > f->n_host * site->n_cpu) {
        snprintf(why, GR_FLEET_WHY_MAX, "%d CPUs are needed, the orchestrator's among them, there are %d", n_cpu + 1,
                 f->n_host * site->n_cpu);
    }
    return why[0] == '\0';
}

/* The host with the fewest devices in use that has room for n; -1: none has. */
static int roomiest(const struct gr_fleet *f, const struct gr_sweep_site *site, const int *used, int n)
{
    int best = -1;
    for (int h = 0; h < f->n_host; h++) {
        const bool fits = site->n_device == 0 || used[h] + n <= site->n_device;
        if (fits && (best < 0 || used[h] < used[best])) {
            best = h;
        }
    }
    return best;
}

bool gr_fleet_place(const struct gr_fleet *f, const struct gr_sweep_site *site,
                    struct gr_place place[static GR_FLEET_WORKER_MAX], char *why)
{
    int used[64] = {0};
    GR_ASSERT(f->n_host <= (int)GR_ARRAY_LEN(used) && f->n_target + f->n_draft <= GR_FLEET_WORKER_MAX);
    for (int i = 0; i < f->n_target + f->n_draft; i++) {
        const int n = i < f->n_target ? f->tp : 1;
        const int h = roomiest(f, site, used, n);
        if (h < 0 && why != NULL) {
            snprintf(why, GR_FLEET_WHY_MAX, "a %s of %d devices finds no host of %d with room for it",
                     i < f->n_target ? "target" : "drafter", n, site->n_device);
        }
        if (h < 0) {
            return false;
        }
        place[i] = (struct gr_place){.host = h, .device = used[h]};
        used[h] += n;
    }
    return true;
}

static void judge(struct gr_fleet *f, const struct gr_sweep_site *site)
{
    struct gr_place place[GR_FLEET_WORKER_MAX];
    if (f->why[0] == '\0' && fits_ranks(f, site, f->why) && fits_hosts(f, site, f->why)) {
        (void)gr_fleet_place(f, site, place, f->why); /* no: why is filled in */
    }
}

static bool has_room(int n_worker, const char *role, int n_session, char *why)
{
    const int n_most = n_worker * GR_FLEET_SESSION_MAX;
    if (n_session > n_most) {
        snprintf(why, GR_FLEET_WHY_MAX, "%d sessions: %d %s%s room for %d", n_session, n_worker, role,
                 n_worker == 1 ? " has" : "s have", n_most);
    }
    return n_session <= n_most;
}

void gr_fleet_refuses(const struct gr_fleet *f, int n_session, char why[static GR_FLEET_WHY_MAX])
{
    why[0] = '\0';
    if (has_room(f->n_target, "target", n_session, why) && !f->whole) {
        (void)has_room(f->n_draft, "drafter", n_session, why);
    }
}

/* ---- which there are ---- */

static bool is_same(const struct gr_fleet *a, const struct gr_fleet *b)
{
    return a->whole == b->whole && a->n_host == b->n_host && a->n_target == b->n_target && a->n_draft == b->n_draft &&
           a->tp == b->tp;
}

static enum gr_status add(struct gr_sweep_plan *p, const struct gr_sweep_site *site, const struct gr_fleet *f)
{
    for (int i = 0; i < p->n; i++) {
        if (is_same(&p->fleet[i], f)) {
            return GR_OK;
        }
    }
    if (p->n == GR_FLEET_MAX) {
        log_error("a sweep has at most %d fleets; ask for fewer counts", GR_FLEET_MAX);
        return GR_ELIMIT;
    }
    p->fleet[p->n] = *f;
    judge(&p->fleet[p->n++], site);
    return GR_OK;
}

/* As many devices in groups of tp; where they do not come out even, that is said in a fleet that cannot run. */
static enum gr_status add_whole(struct gr_sweep_plan *p, const struct gr_sweep_site *site, const struct gr_fleet *split,
                                int tp)
{
    const int n = gr_fleet_devices(split);
    struct gr_fleet f = {.whole = true, .n_host = split->n_host, .n_target = n / tp, .tp = tp};
    if (n % tp != 0) {
        f.n_target = 0;
        f.n_draft = n; /* the devices that it would have */
        snprintf(f.why, sizeof(f.why), "%d devices are no multiple of tp %d", n, tp);
    }
    return add(p, site, &f);
}

/* The next larger fleet, for figures of a device: where no whole fleet has just as many. */
static enum gr_status add_larger(struct gr_sweep_plan *p, const struct gr_sweep_site *site,
                                 const struct gr_fleet *split, int tp)
{
    const int n = gr_fleet_devices(split);
    const struct gr_fleet f = {.whole = true, .n_host = split->n_host, .n_target = (n + tp - 1) / tp, .tp = tp};
    return add(p, site, &f);
}

static enum gr_status add_split(struct gr_sweep_plan *p, const struct gr_sweep_axes *axes,
                                const struct gr_sweep_site *site, const struct gr_fleet *f)
{
    struct gr_fleet judged = *f;
    bool even = false;
    GR_TRY(add(p, site, f));
    judge(&judged, site);
    if (judged.why[0] != '\0') {
        return GR_OK; /* nothing is compared with it */
    }
    for (int i = 0; i < axes->tp.n; i++) {
        const int tp = (int)axes->tp.value[i];
        even = even || (is_group_size(tp) && gr_fleet_devices(f) % tp == 0);
        if (is_group_size(tp)) {
            GR_TRY(add_whole(p, site, f, tp));
        }
    }
    for (int i = 0; i < axes->tp.n && !even; i++) {
        if (is_group_size((int)axes->tp.value[i])) {
            GR_TRY(add_larger(p, site, f, (int)axes->tp.value[i]));
        }
    }
    return GR_OK;
}

static enum gr_status add_targets(struct gr_sweep_plan *p, const struct gr_sweep_axes *axes,
                                  const struct gr_sweep_site *site, struct gr_fleet f)
{
    for (int i = 0; i < axes->n_target.n; i++) {
        for (int k = 0; k < axes->n_draft.n; k++) {
            f.n_target = (int)axes->n_target.value[i];
            f.n_draft = (int)axes->n_draft.value[k];
            GR_TRY(add_split(p, axes, site, &f));
        }
    }
    return GR_OK;
}

enum gr_status gr_sweep_plan(const struct gr_sweep_axes *axes, const struct gr_sweep_site *site,
                             struct gr_sweep_plan *out)
{
    out->n = 0;
    for (int h = 0; h < axes->hosts.n; h++) {
        for (int i = 0; i < axes->tp.n; i++) {
            const struct gr_fleet f = {.n_host = (int)axes->hosts.value[h], .tp = (int)axes->tp.value[i]};
            GR_TRY(add_targets(out, axes, site, f));
        }
    }
    return GR_OK;
}

bool gr_fleet_is_beside(const struct gr_fleet *f, const struct gr_fleet *other)
{
    return other->whole && f->n_host == other->n_host && gr_fleet_devices(f) == gr_fleet_devices(other);
}
