#include "model/kv/kv_views.h"

#include "common/base/log.h"
#include "common/base/zeroed.h"

#include <stdlib.h>

/* ---- one view ---- */

void gr_kv_view_plan(struct gr_kv_view *v, const struct gr_kv_budget *budget, int32_t kv_len)
{
    const int32_t n_below = GR_MAX(0, kv_len / GR_KV_BLOCK_TOKENS - budget->n_window);
    v->dense_from = n_below * GR_KV_BLOCK_TOKENS;
    v->n_list = GR_MIN(n_below, budget->n_sink + budget->n_retrieval);
    GR_ASSERT(v->n_list <= v->n_list_max);
}

void gr_kv_view_truncate(struct gr_kv_view *v, int32_t len)
{
    v->n_summed = GR_MIN(v->n_summed, len / GR_KV_BLOCK_TOKENS);
    if (v->dense_from > len) {
        v->dense_from = GR_VIEW_NONE;
    }
}

void gr_kv_view_attend(const struct gr_kv_view *v, struct gr_attn_seq *seq)
{
    GR_ASSERT(v->dense_from != GR_VIEW_NONE);
    seq->sparse = v->list;
    seq->n_sparse = v->n_list;
    seq->sparse_stride = v->n_list_max;
    seq->dense_from = v->dense_from;
}

/* ---- the views of a model ---- */

int32_t gr_kv_views_block_max(const struct gr_kv_views_config *c)
{
    const int32_t n_block = (c->n_ctx_max + GR_KV_BLOCK_TOKENS - 1) / GR_KV_BLOCK_TOKENS;
    return (n_block + GR_KV_BLOCK_TOKENS - 1) / GR_KV_BLOCK_TOKENS * GR_KV_BLOCK_TOKENS;
}

static size_t list_values(const struct gr_kv_views_config *c)
{
    return (size_t)c->n_layer * (size_t)c->n_kv_head * (size_t)(c->most.n_sink + c->most.n_retrieval);
}

static size_t summary_values(const struct gr_kv_views_config *c)
{
    return (size_t)c->n_layer * (size_t)c->n_kv_head * (size_t)gr_kv_views_block_max(c) * (size_t)c->head_dim;
}

size_t gr_kv_views_bytes(const struct gr_kv_views_config *c)
{
    return list_values(c) * sizeof(int32_t) + 2 * summary_values(c) * sizeof(float);
}

static enum gr_status take_view(struct gr_kv_views *p, struct gr_kv_view *v)
{
    v->list = gr_memory_take(&p->memory, list_values(&p->c) * sizeof(int32_t));
    v->k_max = gr_memory_take_f32(&p->memory, summary_values(&p->c));
    v->k_min = gr_memory_take_f32(&p->memory, summary_values(&p->c));
    return v->list != NULL && v->k_max != NULL && v->k_min != NULL ? GR_OK : GR_ENOMEM;
}

static enum gr_status take_all(struct gr_kv_views *p)
{
    for (int i = 0; i < p->c.n_view; i++) {
        GR_TRY(take_view(p, &p->view[i]));
    }
    p->score = gr_memory_take_f32(&p->memory, (size_t)(p->c.n_kv_head * p->n_block_max));
    p->top_work = gr_memory_take_f32(&p->memory, (size_t)(p->c.n_kv_head * p->n_block_max));
    return p->score != NULL && p->top_work != NULL ? GR_OK : GR_ENOMEM;
}

enum gr_status gr_kv_views_init_bare(struct gr_kv_views *p, const struct gr_kv_views_config *c)
{
    bool ok = true;
    const struct gr_kv_budget *b = &c->most;
    if (b->n_sink < 0 || b->n_retrieval < 0 || b->n_window < 1 || b->n_sink + b->n_retrieval < 1) {
        log_error("SpecPV: sink %d, retrieval %d, window %d blocks: the window needs one, sink and retrieval together "
                  "as well",
                  b->n_sink, b->n_retrieval, b->n_window);
        return GR_EINVAL;
    }
    *p = (struct gr_kv_views){.c = *c, .n_block_max = gr_kv_views_block_max(c)};
    p->view = gr_zeroed((size_t)c->n_view, sizeof(*p->view), &ok);
    for (int i = 0; ok && i < c->n_view; i++) {
        p->view[i] = (struct gr_kv_view){.dense_from = GR_VIEW_NONE, .n_list_max = b->n_sink + b->n_retrieval};
    }
    if (!ok) {
        log_error("out of memory for %d partial views", c->n_view);
        return GR_ENOMEM;
    }
    return GR_OK;
}

enum gr_status gr_kv_views_init(struct gr_kv_views *p, const struct gr_kv_views_config *c)
{
    GR_TRY(gr_kv_views_init_bare(p, c));
    const enum gr_status st = take_all(p);
    if (st != GR_OK) {
        gr_kv_views_finish(p);
        return st;
    }
    log_info("SpecPV: %.1f MiB a session: %d layers x %d KV heads x (%d listed blocks x 4 bytes + "
             "%d blocks x 2 x %d x 4 bytes)",
             (double)gr_kv_views_bytes(c) / 1048576.0, c->n_layer, c->n_kv_head, c->most.n_sink + c->most.n_retrieval,
             p->n_block_max, c->head_dim);
    return GR_OK;
}

void gr_kv_views_finish(struct gr_kv_views *p)
{
    gr_memory_finish(&p->memory);
    free(p->view);
    *p = (struct gr_kv_views){0};
}

/* ---- a refresh ---- */

void gr_kv_refresh_begin(struct gr_kv_views *p, int n, const struct gr_kv_refresh *refresh)
{
    for (int i = 0; i < n; i++) {
        GR_ASSERT(refresh[i].view >= 0 && refresh[i].view < p->c.n_view && refresh[i].n_row >= 1);
        gr_kv_view_plan(&p->view[refresh[i].view], &refresh[i].budget, refresh[i].kv_len);
    }
}

void gr_kv_refresh_end(struct gr_kv_views *p, int n, const struct gr_kv_refresh *refresh)
{
    for (int i = 0; i < n; i++) {
        p->view[refresh[i].view].n_summed = refresh[i].kv_len / GR_KV_BLOCK_TOKENS;
    }
}

struct layer_of_view {
    struct gr_kv_view *v;
    const struct gr_kv_refresh *r;
    size_t list, summary; /* where this layer's begin */
    int n_sink, n_below;  /* blocks: of the sink, below dense_from */
};

static struct layer_of_view layer_of(const struct gr_kv_views *p, int layer, const struct gr_kv_refresh *r)
{
    struct gr_kv_view *v = &p->view[r->view];
    const size_t first_head = (size_t)layer * (size_t)p->c.n_kv_head;
    const int n_below = v->dense_from / GR_KV_BLOCK_TOKENS;
    return (struct layer_of_view){.v = v,
                                  .r = r,
                                  .list = first_head * (size_t)v->n_list_max,
                                  .summary = first_head * (size_t)p->n_block_max * (size_t)p->c.head_dim,
                                  .n_sink = GR_MIN(n_below, r->budget.n_sink),
                                  .n_below = n_below};
}

static void summarize(const struct gr_exec *x, const struct gr_kv_views *p, const struct gr_kv_refresh_layer *a,
                      const struct layer_of_view *l)
{
    a->kernels->kv_summary(
        x, &(struct gr_kv_summary_args){.kv = a->kv,
                                        .block = a->seq[l->r->i_seq].block,
                                        .k_max = l->v->k_max + l->summary,
                                        .k_min = l->v->k_min + l->summary,
                                        .begin = GR_MIN(l->v->n_summed, l->r->kv_len / GR_KV_BLOCK_TOKENS),
                                        .end = l->r->kv_len / GR_KV_BLOCK_TOKENS,
                                        .n_block_max = p->n_block_max});
}

/* Where all candidates are chosen there is nothing to score. */
static bool must_choose(const struct layer_of_view *l)
{
    return l->v->n_list < l->n_below;
}

static void score(const struct gr_exec *x, const struct gr_kv_views *p, const struct gr_kv_refresh_layer *a,
                  const struct layer_of_view *l)
{
    a->kernels->block_scores(x, &(struct gr_block_scores_args){.q = a->q + (size_t)l->r->row0 * (size_t)a->q_stride,
                                                               .k_max = l->v->k_max + l->summary,
                                                               .k_min = l->v->k_min + l->summary,
                                                               .score = p->score,
                                                               .n_row = l->r->n_row,
                                                               .q_stride = a->q_stride,
                                                               .n_head = a->n_head,
                                                               .n_kv_head = p->c.n_kv_head,
                                                               .head_dim = p->c.head_dim,
                                                               .begin = l->n_sink,
                                                               .end = l->n_below,
                                                               .n_block_max = p->n_block_max,
                                                               .use_max = l->r->budget.score_max,
                                                               .work = a->work});
}

/* Candidates begin after the sink, and keep their own numbers: block i is positions 16 i .. 16 i + 15. */
static void choose(const struct gr_exec *x, const struct gr_kv_views *p, const struct layer_of_view *l)
{
    for (int h = x->ith; h < p->c.n_kv_head; h += x->nth) {
        int32_t *list = l->v->list + l->list + (size_t)h * (size_t)l->v->n_list_max;
        const size_t at = (size_t)h * (size_t)p->n_block_max;
        const int n_fixed = must_choose(l) ? l->n_sink : l->n_below;
        for (int b = 0; b < n_fixed; b++) {
            list[b] = b;
        }
        gr_top_blocks(p->score + at, n_fixed, l->n_below, l->v->n_list - n_fixed, p->top_work + at, list + n_fixed);
    }
}

void gr_kv_refresh_layer(const struct gr_exec *x, const struct gr_kv_views *p, const struct gr_kv_refresh_layer *a)
{
    for (int i = 0; i < a->n_refresh; i++) {
        const struct layer_of_view l = layer_of(p, a->layer, &a->refresh[i]);
        summarize(x, p, a, &l);
        gr_exec_barrier(x);
        if (must_choose(&l)) {
            score(x, p, a, &l);
            gr_exec_barrier(x);
        }
        choose(x, p, &l); /* the next writer of the scores is after the next barrier */
    }
}
