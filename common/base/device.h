/* Where a model runs: the value of --device, --target-device, --draft-device. */
#ifndef GR_COMMON_BASE_DEVICE_H
#define GR_COMMON_BASE_DEVICE_H

#include "common/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GR_DEVICE_CPU (-1)   /* beside the N of cuda:N */
#define GR_DEVICE_LOCAL (-2) /* cuda:local: `graft launch' puts the N of this rank in its place */

#define GR_DEVICES_MAX 8

/* Of the ranks of a target, in their order. cpu stands alone, and for all of them. */
struct gr_devices {
    int device[GR_DEVICES_MAX];
    int n;
};

/* cpu, cuda:N or cuda:local. what: whose value it is, for the message ("--device"). */
GR_NODISCARD enum gr_status gr_device_parse(const char *what, const char *text, int *device_out);

/* "cuda:0,cuda:1", as it would be parsed. cap: GR_DEVICES_TEXT will do. */
#define GR_DEVICES_TEXT 96
void gr_devices_text(const struct gr_devices *d, char *text, size_t cap);
static inline bool gr_devices_on_gpu(const struct gr_devices *d)
{
    return d->n > 0 && d->device[0] != GR_DEVICE_CPU;
}
bool gr_devices_has(const struct gr_devices *d, int device);

/* Does each of n_rank ranks have a device? GR_EINVAL (logged): there are more or fewer, cpu is beside others, a GPU is
 * there twice, or one is cuda:local. */
GR_NODISCARD enum gr_status gr_devices_check(const char *what, const struct gr_devices *d, int64_t n_rank);
/* How many ranks a target has that gets all of these where nobody says how many: one for each GPU, where that is a
 * number of ranks; else 1. */
int gr_devices_ranks(const struct gr_devices *d);
/* Can a drafter of rank 0's process be on that GPU? GR_EINVAL (logged): it is another rank's. what: whose value it is
 * ("--draft-device"). */
GR_NODISCARD enum gr_status gr_devices_beside(const struct gr_devices *target, const char *what, int draft);
/* Of worker i of `count', with n_rank ranks each: a list of several is dealt out in turn, unless it is for one worker
 * alone. */
struct gr_devices gr_devices_deal(const struct gr_devices *all, int64_t n_rank, int64_t i, int64_t count);
/* The one of that rank. */
static inline int gr_devices_of(const struct gr_devices *d, int rank)
{
    return d->device[rank < d->n ? rank : 0];
}

/* GR_EINVAL (logged): it is cuda:local, and nobody has put a number in its place. */
GR_NODISCARD enum gr_status gr_device_placed(const char *what, int device);

/* Whether a model may run there: GR_EUNSUPPORTED is logged. The CPU always may. */
GR_NODISCARD enum gr_status gr_device_check(int device);

/* PCI address of a GPU, "0000:17:00.0". false: it cannot be told. */
bool gr_cuda_device_pci(int device, char out[32]);

/* Memory read and matrix products of a GPU, measured now (kernels/cuda/device/ceiling.h). */
GR_NODISCARD enum gr_status gr_cuda_device_ceilings(int device, double *read_bytes_per_s, double *flops);

/* Whether this build has models on GPUs (model/cuda). */
bool gr_cuda_is_built(void);

#endif
