/* Which GPUs this process sees, asked of the driver: neither CUDA_VISIBLE_DEVICES nor Slurm's lists are read, as their
 * spellings and numbers differ. The driver is opened at run time; where it is not, there are no GPUs. */
#ifndef GR_ORCHESTRATOR_LAUNCH_GPU_H
#define GR_ORCHESTRATOR_LAUNCH_GPU_H

#include "orchestrator/launch/table.h"

/* Fills n_gpu and gpu, in the order of cuda:N. GR_EUNSUPPORTED (logged): no driver, or it says no. */
GR_NODISCARD enum gr_status gr_launch_gpus(struct gr_launch_entry *self);

#endif
