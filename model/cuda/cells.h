/* Copies of KV cells between two passes, each a list in pinned memory that the device copies after the pass before. */
#ifndef GR_MODEL_CUDA_CELLS_H
#define GR_MODEL_CUDA_CELLS_H

#include "model/cuda/device.h"

struct gr_cuda_kv {
    void *blocks; /* of the first layer */
    size_t layer_bytes;
    int n_layer, n_kv_head, head_dim;
};

struct gr_cuda_cells {
    struct gr_cuda_cell_list *host, *dev; /* (GR_CUDA_CELL_LISTS), pinned and on the device */
    int n_used;                           /* lists whose copy may still be running */
};

GR_NODISCARD enum gr_status gr_cuda_cells_init(struct gr_cuda_cells *c, struct gr_cuda_device *d);
/* Enqueues it. No dst is a later src. */
GR_NODISCARD enum gr_status gr_cuda_cells_copy(struct gr_cuda_cells *c, const struct gr_cuda_device *d,
                                               const struct gr_cuda_kv *kv, int n, const int32_t *src,
                                               const int32_t *dst);
/* To be called when all that was enqueued has run: lists may be filled again. */
static inline void gr_cuda_cells_done(struct gr_cuda_cells *c)
{
    c->n_used = 0;
}

#endif
