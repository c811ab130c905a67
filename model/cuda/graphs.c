#include "model/cuda/graphs.h"

#define TILE_ROWS 64  /* between them a pass costs about the same */
#define SMALL_ROWS 16 /* up to so many rows cost about what one does */

/* 1, 2, 4, .. 64, then whole tiles, fewer and fewer of them. */
static int choose_buckets(int n_max, int bucket[GR_CUDA_BUCKET_MAX])
{
    int n_bucket = 0;
    int n = 1;
    while (n < n_max && n_bucket < GR_CUDA_BUCKET_MAX - 1) {
        bucket[n_bucket++] = n;
        n += n < TILE_ROWS ? n : n < 8 * TILE_ROWS ? TILE_ROWS : n / 4 / TILE_ROWS * TILE_ROWS;
    }
    bucket[n_bucket++] = n_max;
    return n_bucket;
}

enum gr_status gr_cuda_graph_capture(const struct gr_cuda_device *d, gr_cuda_enqueue_fn *enqueue, void *model, int n,
                                     cudaGraphExec_t *out)
{
    cudaGraph_t graph = NULL;
    GR_TRY(gr_cuda_check(cudaStreamBeginCapture(d->stream, cudaStreamCaptureModeThreadLocal), "capture of a pass"));
    const enum gr_status enqueued = enqueue(model, n);
    const enum gr_status ended = gr_cuda_check(cudaStreamEndCapture(d->stream, &graph), "capture of a pass");
    enum gr_status st = enqueued != GR_OK ? enqueued : ended;
    if (st == GR_OK) {
        st = gr_cuda_check(cudaGraphInstantiate(out, graph, 0), "graph of a pass");
    }
    if (graph != NULL) {
        (void)cudaGraphDestroy(graph);
    }
    return st;
}

enum gr_status gr_cuda_graphs_make(struct gr_cuda_graphs *g, const struct gr_cuda_device *d, int n_max,
                                   gr_cuda_enqueue_fn *enqueue, void *model)
{
    g->n_bucket = choose_buckets(n_max, g->bucket);
    for (int i = 0; i < g->n_bucket; i++) {
        GR_TRY(gr_cuda_graph_capture(d, enqueue, model, g->bucket[i], &g->exec[i]));
        GR_TRY(gr_cuda_check(cudaGraphUpload(g->exec[i], d->stream), "graph of a pass"));
    }
    return GR_OK;
}

void gr_cuda_graphs_destroy(struct gr_cuda_graphs *g)
{
    for (int i = 0; i < g->n_bucket; i++) {
        if (g->exec[i] != NULL) {
            (void)cudaGraphExecDestroy(g->exec[i]);
        }
    }
    *g = (struct gr_cuda_graphs){0};
}

/* The smallest that holds n, or n_bucket. */
static int bucket_of(const struct gr_cuda_graphs *g, int n)
{
    int i = 0;
    while (i < g->n_bucket && g->bucket[i] < n) {
        i++;
    }
    return i;
}

enum gr_status gr_cuda_graphs_launch(const struct gr_cuda_graphs *g, const struct gr_cuda_device *d, int n)
{
    const int i = bucket_of(g, n);
    GR_ASSERT(n >= 1 && i < g->n_bucket);
    return gr_cuda_check(cudaGraphLaunch(g->exec[i], d->stream), "launch of a pass");
}

int gr_cuda_graphs_whole_max(const struct gr_lm *lm)
{
    return GR_MIN(TILE_ROWS, GR_MIN(lm->n_row_max, lm->n_out_max));
}

bool gr_cuda_graphs_whole(const struct gr_cuda_graphs *whole, int n_row, int n_out)
{
    const int i = bucket_of(whole, n_row);
    return n_out > 0 && i < whole->n_bucket && (whole->bucket[i] <= SMALL_ROWS || bucket_of(whole, n_out) == i);
}
