#include "model/cuda/cells.h"

#include "kernels/cuda/rows/kv.h"

#include <string.h>

#define N_LIST 64 /* lists of cells that may be on their way at a time */

struct gr_cuda_cell_list {
    int32_t n, error, pad[2];
    int32_t src[GR_CUDA_COPY_MAX], dst[GR_CUDA_COPY_MAX];
};

enum gr_status gr_cuda_cells_init(struct gr_cuda_cells *c, struct gr_cuda_device *d)
{
    void *host = NULL;
    void *alias = NULL;
    void *dev = NULL;
    const size_t bytes = N_LIST * sizeof(struct gr_cuda_cell_list);
    GR_TRY(gr_cuda_take_host(d, bytes, &host, &alias));
    GR_TRY(gr_cuda_take(d, "inputs of a pass", bytes, &dev));
    *c = (struct gr_cuda_cells){.host = host, .dev = dev};
    return GR_OK;
}

static enum gr_status copy_list(struct gr_cuda_cells *c, const struct gr_cuda_device *d, const struct gr_cuda_kv *kv,
                                int n, const int32_t *src, const int32_t *dst)
{
    if (c->n_used == N_LIST) {
        GR_TRY(gr_cuda_wait(d, "copy of cells"));
        c->n_used = 0;
    }
    const int i = c->n_used++;
    struct gr_cuda_cell_list *list = &c->host[i];
    list->n = n;
    memcpy(list->src, src, (size_t)n * sizeof(*src));
    memcpy(list->dst, dst, (size_t)n * sizeof(*dst));
    GR_TRY(gr_cuda_check(cudaMemcpyAsync(&c->dev[i], list, sizeof(*list), cudaMemcpyHostToDevice, d->stream),
                         "copy of cells"));
    const struct gr_cuda_kv_copy_args a = {.kv = kv->blocks,
                                           .layer_bytes = kv->layer_bytes,
                                           .src = c->dev[i].src,
                                           .dst = c->dev[i].dst,
                                           .n = &c->dev[i].n,
                                           .error = &c->dev[i].error,
                                           .n_layer = kv->n_layer,
                                           .n_kv_head = kv->n_kv_head,
                                           .head_dim = kv->head_dim};
    return gr_cuda_kv_copy(&a, d->stream);
}

enum gr_status gr_cuda_cells_copy(struct gr_cuda_cells *c, const struct gr_cuda_device *d, const struct gr_cuda_kv *kv,
                                  int n, const int32_t *src, const int32_t *dst)
{
    for (int i = 0; i < n; i += GR_CUDA_COPY_MAX) {
        GR_TRY(copy_list(c, d, kv, GR_MIN(n - i, (int)GR_CUDA_COPY_MAX), src + i, dst + i));
    }
    return GR_OK;
}
