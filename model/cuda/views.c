#include "model/cuda/views.h"

#include "common/base/log.h"

#define USE "partial views"

static size_t n_lists(const struct gr_kv_views_config *c)
{
    return (size_t)c->n_layer * (size_t)c->n_kv_head;
}

static size_t list_bytes(const struct gr_kv_views_config *c)
{
    return n_lists(c) * (size_t)(c->most.n_sink + c->most.n_retrieval) * sizeof(int32_t);
}

static size_t summary_bytes(const struct gr_kv_views_config *c)
{
    return n_lists(c) * (size_t)gr_kv_views_block_max(c) * 2 * (size_t)c->head_dim * sizeof(uint16_t);
}

static size_t score_bytes(const struct gr_kv_views_config *c)
{
    return n_lists(c) * (size_t)gr_kv_views_block_max(c) * sizeof(float);
}

uint64_t gr_cuda_view_memory_bytes(const struct gr_kv_views_config *c)
{
    return list_bytes(c) + summary_bytes(c) + score_bytes(c);
}

static enum gr_status take_all(struct gr_cuda_view_memory *p, struct gr_cuda_device *d)
{
    const struct gr_kv_views_config *c = &p->host.c;
    const size_t n = (size_t)c->n_view;
    void *at = NULL;
    GR_TRY(gr_cuda_take(d, USE, n * list_bytes(c), &at));
    p->views.list = at;
    GR_TRY(gr_cuda_take(d, USE, n * summary_bytes(c), &at));
    p->views.summary = at;
    GR_TRY(gr_cuda_take(d, USE, (size_t)p->views.shape.n_refresh_max * score_bytes(c), &at));
    p->views.score = at;
    for (size_t i = 0; i < n; i++) {
        p->host.view[i].list = p->views.list + i * list_bytes(c) / sizeof(int32_t);
    }
    return gr_cuda_wait(d, USE);
}

enum gr_status gr_cuda_view_memory_init(struct gr_cuda_view_memory *p, struct gr_cuda_device *d,
                                        const struct gr_kv_views_config *c, int n_head, int n_refresh_max,
                                        const struct gr_cuda_pass_inputs *inputs)
{
    *p = (struct gr_cuda_view_memory){.views = {.shape = {.n_layer = c->n_layer,
                                                          .n_head = n_head,
                                                          .n_kv_head = c->n_kv_head,
                                                          .head_dim = c->head_dim,
                                                          .n_view = c->n_view,
                                                          .n_refresh_max = n_refresh_max,
                                                          .n_block_max = gr_kv_views_block_max(c),
                                                          .n_list_max = c->most.n_sink + c->most.n_retrieval},
                                                .refresh = inputs->refresh,
                                                .n_refresh = inputs->n_refresh}};
    GR_TRY(gr_kv_views_init_bare(&p->host, c));
    enum gr_status st = gr_cuda_view_check(&p->views.shape);
    if (st == GR_OK) {
        st = take_all(p, d);
    }
    if (st != GR_OK) {
        gr_cuda_view_memory_finish(p, d);
        return st;
    }
    log_info("SpecPV: %.1f MiB a session: %d layers x %d KV heads x (%d listed blocks x 4 bytes + "
             "%d blocks x (2 x %d x 2 + 4) bytes)",
             (double)gr_cuda_view_memory_bytes(c) / 1048576.0, c->n_layer, c->n_kv_head, p->views.shape.n_list_max,
             p->views.shape.n_block_max, c->head_dim);
    gr_cuda_log_memory(d, USE);
    return GR_OK;
}

void gr_cuda_view_memory_finish(struct gr_cuda_view_memory *p, struct gr_cuda_device *d)
{
    gr_cuda_give_back(d, p->views.score);
    gr_cuda_give_back(d, p->views.summary);
    gr_cuda_give_back(d, p->views.list);
    gr_kv_views_finish(&p->host);
    *p = (struct gr_cuda_view_memory){0};
}
