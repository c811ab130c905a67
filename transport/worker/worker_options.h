/* What both worker programs do with their options (common/options) before they begin. */
#ifndef GR_TRANSPORT_WORKER_WORKER_OPTIONS_H
#define GR_TRANSPORT_WORKER_WORKER_OPTIONS_H

#include "common/base/clock.h"
#include "common/options/options.h"

#include <stdbool.h>
#include <stdint.h>

/* Reads environment and command line of the worker, and settles what is the process's own: how verbs connections are
 * opened, how long joining is tried. Exit status to leave with at once, or -1: go on. */
int gr_worker_options_read(struct gr_options *o, enum gr_command worker, int argc, char **argv);

/* The value of --transport: enum gr_transport_kind, or -1: any. */
int gr_worker_forced_transport(const struct gr_options *o);

/* A worker whose model is on the GPU at this PCI address takes the RDMA device that is nearest to it, unless one is
 * named. Before its first connection. */
void gr_worker_near_gpu(const char *gpu_pci);

/* asked_ms: of --spin-ms. To be woken costs 50 to 100 us on an idle machine, up to six times a round. By itself a
 * worker spins only where its model leaves the CPUs alone and four threads of a pair are few among them. */
static inline uint64_t gr_worker_spin_ns(int asked_ms, bool on_gpu, int n_cpu)
{
    const int ms = asked_ms != GR_SPIN_AUTO ? asked_ms : on_gpu && n_cpu >= 8 ? 50 : 0;
    return (uint64_t)ms * GR_MS;
}

#endif
