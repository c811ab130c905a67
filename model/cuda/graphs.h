/* Passes as CUDA graphs, made at start for a row of sizes (buckets); a pass takes the smallest that holds it. */
#ifndef GR_MODEL_CUDA_GRAPHS_H
#define GR_MODEL_CUDA_GRAPHS_H

#include "model/cuda/device.h"
#include "model/lm.h"

enum {
    GR_CUDA_BUCKET_MAX = 64,
};

/* Enqueues the pass for at most n rows on the device's stream. */
typedef enum gr_status gr_cuda_enqueue_fn(void *model, int n);

struct gr_cuda_graphs {
    int n_bucket;
    int bucket[GR_CUDA_BUCKET_MAX];           /* rows, rising; the last is n_max */
    cudaGraphExec_t exec[GR_CUDA_BUCKET_MAX]; /* owned */
};

/* One graph of what enqueue(model, n) enqueues. */
GR_NODISCARD enum gr_status gr_cuda_graph_capture(const struct gr_cuda_device *d, gr_cuda_enqueue_fn *enqueue,
                                                  void *model, int n, cudaGraphExec_t *out);
GR_NODISCARD enum gr_status gr_cuda_graphs_make(struct gr_cuda_graphs *g, const struct gr_cuda_device *d, int n_max,
                                                gr_cuda_enqueue_fn *enqueue, void *model);
void gr_cuda_graphs_destroy(struct gr_cuda_graphs *g);
/* 1 <= n <= n_max. */
GR_NODISCARD enum gr_status gr_cuda_graphs_launch(const struct gr_cuda_graphs *g, const struct gr_cuda_device *d,
                                                  int n);

/* A pass is made of several graphs, since its rows and those whose logits are wanted differ in number; between graphs
 * the device is idle for some microseconds, which matters where rows are few. So passes of up to 64 rows have a graph
 * that does it all, too, whatever their logits: up to so many rows ... */
int gr_cuda_graphs_whole_max(const struct gr_lm *lm);
/* ... and where it takes no longer than the others: the same bucket holds both numbers, or it is a small one. */
bool gr_cuda_graphs_whole(const struct gr_cuda_graphs *whole, int n_row, int n_out);

#endif
