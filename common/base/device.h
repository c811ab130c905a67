/* Where a model runs: the value of --device, --target-device, --draft-device. */
#ifndef GR_COMMON_BASE_DEVICE_H
#define GR_COMMON_BASE_DEVICE_H

#include "common/base/status.h"

#include <stdbool.h>

#define GR_DEVICE_CPU (-1)   /* beside the N of cuda:N */
#define GR_DEVICE_LOCAL (-2) /* cuda:local: `graft launch' puts the N of this rank in its place */

/* cpu, cuda:N or cuda:local. what: whose value it is, for the message ("--device"). */
GR_NODISCARD enum gr_status gr_device_parse(const char *what, const char *text, int *device_out);

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
