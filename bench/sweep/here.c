/* A fleet on this host, without a launcher: `graft serve', the workers and the clients are this process's children,
 * each on its own devices and CPUs. */
#include "bench/sweep/line.h"
#include "transport/connect/bootstrap.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

/* Of n devices from `device' on; device -1: of the orchestrator and the clients, which share the first CPU. NULL: all
 * that there are. */
static const cpu_set_t *cpus_of(const struct gr_sweep *s, int device, int n, cpu_set_t *room)
{
    const int k = s->site.device_cpu;
    cpu_set_t own;
    CPU_ZERO(&own);
    (void)sched_getaffinity(0, sizeof(own), &own);
    *room = device < 0 ? gr_crew_cpus(&own, 0, 1) : gr_crew_cpus(&own, 1 + device * k, n * k);
    return k > 0 ? room : NULL;
}

static enum gr_status start(struct gr_sweep *s, struct gr_crew *c, const char *name, const struct gr_line *l,
                            int device, int n, bool read, int *index_out)
{
    cpu_set_t cpus;
    return gr_crew_start(c, name, l->args.argv, cpus_of(s, device, n, &cpus), read, index_out);
}

static enum gr_status start_workers(struct gr_sweep *s, struct gr_crew *c, const struct gr_sweep_life *l,
                                    const char *address)
{
    struct gr_place place[GR_FLEET_WORKER_MAX];
    static struct gr_line line;
    const struct gr_fleet *f = l->fleet;
    int index = 0;
    const bool fits = gr_fleet_place(f, &s->site, place, NULL);
    GR_ASSERT(fits); /* the plan has placed it */
    for (int i = 0; i < f->n_target + f->n_draft; i++) {
        const bool is_target = i < f->n_target;
        char name[32];
        snprintf(name, sizeof(name), "%s %d", is_target ? "target" : "drafter", is_target ? i : i - f->n_target);
        if (is_target) {
            gr_line_target(&line, s, l, &place[i], address);
        } else {
            gr_line_draft(&line, s, &place[i], address);
        }
        GR_TRY(start(s, c, name, &line, place[i].device, is_target ? f->tp : 1, false, &index));
    }
    return GR_OK;
}

static enum gr_status run(struct gr_sweep *s, struct gr_sweep_life *l, struct gr_crew *c)
{
    static struct gr_line line;
    char address[GR_CREW_ADDRESS_MAX] = "";
    cpu_set_t cpus;
    int orchestrator = 0, clients = 0;
    GR_TRY(gr_crew_serve(c, "orchestrator", cpus_of(s, -1, 1, &cpus), &orchestrator, address, l->why));
    GR_TRY(start_workers(s, c, l, address));
    gr_line_clients(&line, s, l, address);
    GR_TRY(start(s, c, "clients", &line, -1, 1, true, &clients));
    return gr_crew_wait(c, clients, (int)(s->o.within + s->o.limit), l->why);
}

enum gr_status gr_sweep_live_here(struct gr_sweep *s, struct gr_sweep_life *l)
{
    static struct gr_crew c;
    uint8_t key[GR_KEY_BYTES];
    char key_hex[2 * GR_KEY_BYTES + 1];
    GR_TRY(gr_key_random(key, key_hex));
    gr_crew_begin(&c, l->dir, key_hex);
    const enum gr_status st = run(s, l, &c);
    gr_crew_end(&c);
    /* A fleet that does not come up or is lost is a result. */
    return (st == GR_EINVAL || st == GR_ETIMEDOUT) && l->why[0] != '\0' ? GR_OK : st;
}

void gr_sweep_tell_here(const struct gr_sweep *s, const struct gr_sweep_life *l)
{
    struct gr_place place[GR_FLEET_WORKER_MAX];
    static struct gr_line line;
    const struct gr_fleet *f = l->fleet;
    const bool fits = gr_fleet_place(f, &s->site, place, NULL);
    GR_ASSERT(fits);
    for (int i = 0; i < f->n_target + f->n_draft; i++) {
        if (i < f->n_target) {
            gr_line_target(&line, s, l, &place[i], "HOST:PORT");
        } else {
            gr_line_draft(&line, s, &place[i], "HOST:PORT");
        }
        gr_words_print(line.args.argv, stdout);
    }
    gr_line_clients(&line, s, l, "HOST:PORT");
    gr_words_print(line.args.argv, stdout);
}
