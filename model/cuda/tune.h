/* Which shapes a model's kernels have on this GPU: those of the file of measured shapes (model/files/tuned.h), else
 * those of the kernels' own formula. Chosen before anything is packed. */
#ifndef GR_MODEL_CUDA_TUNE_H
#define GR_MODEL_CUDA_TUNE_H

#include "model/cuda/device.h"
#include "model/load/expand.h"
#include "model/load/shapes.h"
#include "model/files/tuned.h"

/* The model as graft-bench tune is to be told of it. All borrowed for the call. */
struct gr_cuda_tune_model {
    const char *model, *draft;          /* draft NULL: none */
    const struct gr_geometry *geometry; /* NULL: as in the folders */
};

/* tuned: NULL: no file. One line of the log (info) for each shape. GR_ENOTFOUND, GR_EMISMATCH (logged): a shape or this
 * GPU is not in a file that is required. */
GR_NODISCARD enum gr_status gr_cuda_tune(struct gr_model_shapes *s, const struct gr_tuned *tuned,
                                         const struct gr_cuda_device *d, const struct gr_cuda_tune_model *model);

/* "cuda/sm90/...": equal ids promise equal bits. Shapes out of a file are told by their hash. */
void gr_cuda_numerics_id(const struct gr_model_shapes *s, char *text, size_t cap);

#endif
