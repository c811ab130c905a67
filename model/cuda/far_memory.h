/* Memory of a GPU as far memory (common/base/far_memory.h), with a stream of its own. One in a process at a time, by
 * the thread that uses it; a process that forks opens it after. */
#ifndef GR_MODEL_CUDA_FAR_MEMORY_H
#define GR_MODEL_CUDA_FAR_MEMORY_H

#include "common/base/far_memory.h"

/* Of cuda:`index`. Errors are logged: GR_EUNSUPPORTED as gr_device_check() says. */
GR_NODISCARD enum gr_status gr_cuda_far_memory_open(int index, const struct gr_far_memory **out);
/* All that was taken has been given back by now. NULL: nothing happens. */
void gr_cuda_far_memory_close(const struct gr_far_memory *memory);

#endif
