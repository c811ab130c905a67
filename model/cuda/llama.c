#include "model/cuda/llama.h"

#include "common/base/log.h"
#include "kernels/cuda/rows/rows.h"
#include "model/cuda/model.h"
#include "model/cuda/ranks.h"
#include "model/cuda/views.h"
#include "model/follow.h"
#include "model/group/agree.h"
#include "model/llama_source.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct llama {
    struct gr_lm lm;
    struct gr_llama_source source;
    struct gr_cuda_model m;
    struct gr_cuda_layer *layer; /* (n_layer) */
    uint16_t *embed;             /* (n_vocab, H) */
    float *final_norm;           /* (H) */
    struct gr_cuda_matrix head;  /* (vocabulary rows, H); of a group this rank's */
    uint16_t *xo;                /* tiles of width H: rows whose logits are wanted */
    struct gr_cuda_graphs body, fuse;
    struct ends {
        struct gr_cuda_graphs logits; /* and picks */
        struct gr_cuda_graphs whole;  /* body, fuse and logits, for as many rows as a tree has */
    } plain, adjusted;                /* without lists and with them; the latter are a target's */
    struct gr_batch last;             /* of the last pass, what launch() goes by */
    /* with SpecPV */
    struct gr_cuda_view_memory views;
    struct gr_cuda_graphs refresh; /* body of a pass that chooses views */
    /* of a target that serves a head */
    struct gr_cuda_matrix fc; /* (fused_width, n_capture * H) */
    float *fc_bias;
    uint16_t *capture;               /* tiles of width n_capture * H */
    uint16_t *fused;                 /* (n_row_max, fused_width) */
    uint16_t *fused_alias;           /* lm.shipped as the device sees it */
    const struct gr_far_memory *far; /* borrowed: lm.shipped lies there; NULL: in pinned memory of the host */
    /* of a group */
    struct gr_group *group; /* borrowed; NULL: alone */
    bool no_chain;
    struct gr_shard shard;       /* alone: all of it */
    struct gr_cuda_ranks *ranks; /* owned */
    struct gr_steps steps;
    bool serves; /* all ranks are there, and those that follow wait for steps */
};

static struct llama *of(struct gr_lm *lm)
{
    return GR_CONTAINER_OF(lm, struct llama, lm);
}

static bool follows(const struct llama *m)
{
    return gr_group_follows(m->group);
}

static bool leads(const struct llama *m)
{
    return gr_group_leads(m->group);
}

static bool serves_head(const struct llama *m)
{
    return m->source.head_files != NULL;
}

/* ---- the pass, enqueued while its graphs are made ---- */

/* Where what enters layer i is kept, if it is a captured one: else NULL. */
static uint16_t *capture_of(const struct llama *m, int i, int *col_out)
{
    for (int c = 0; serves_head(m) && c < m->source.n_capture; c++) {
        if (m->source.capture_layer[c] == i) {
            *col_out = c * m->source.hf.hidden;
            return m->capture;
        }
    }
    return NULL;
}

/* Up to the norm before the first layer; the others have theirs from the layer before. */
static enum gr_status enqueue_begin(struct llama *m, int n)
{
    const int hidden = m->source.hf.hidden;
    struct gr_cuda_begin_step s = {.table = m->embed,
                                   .x = m->m.work.x,
                                   .token = {.weight = m->layer[0].in_norm,
                                             .y = m->m.work.in,
                                             .y_n = hidden,
                                             .capture_n = m->source.n_capture * hidden}};
    s.token.capture = capture_of(m, 0, &s.token.capture_col);
    return gr_cuda_model_enqueue_begin(&m->m, &s, n);
}

static enum gr_status enqueue_layer(struct llama *m, int i, int n)
{
    struct gr_cuda_layer_place place = {.capture_n = m->source.n_capture * m->source.hf.hidden};
    if (i + 1 < m->source.hf.n_layer) {
        place.next = &m->layer[i + 1];
        place.capture = capture_of(m, i + 1, &place.capture_col);
    }
    return gr_cuda_enqueue_layer(&m->m.work, &m->layer[i], &place, n);
}

/* What the final norm gets may be a captured stream, too: it is kept without a norm. */
static enum gr_status enqueue_last_capture(struct llama *m, int n)
{
    const int c = m->source.n_capture - 1;
    if (!serves_head(m) || m->source.capture_layer[c] != m->source.hf.n_layer) {
        return GR_OK;
    }
    const struct gr_cuda_norm_step s = {.x = m->m.work.x,
                                        .y = m->capture,
                                        .y_n = m->source.n_capture * m->source.hf.hidden,
                                        .y_col = c * m->source.hf.hidden};
    return gr_cuda_enqueue_norm(&m->m.work, &s, n);
}

static enum gr_status enqueue_body(void *model, int n)
{
    struct llama *m = model;
    GR_TRY(enqueue_begin(m, n));
    GR_TRY(gr_cuda_enqueue_first_heads(&m->m.work, &m->layer[0], n));
    for (int i = 0; i < m->source.hf.n_layer; i++) {
        GR_TRY(enqueue_layer(m, i, n));
    }
    return enqueue_last_capture(m, n);
}

static enum gr_status enqueue_refresh(void *model, int n)
{
    struct llama *m = model;
    m->m.work.views = &m->views.views;
    const enum gr_status st = enqueue_body(model, n);
    m->m.work.views = NULL;
    GR_TRY(st);
    return gr_cuda_view_lists(&m->views.views, m->m.device.stream);
}

static enum gr_status enqueue_fc(struct llama *m, int n)
{
    const struct gr_cuda_linear_step fc = {
        .x = m->capture, .bias = m->fc_bias, .out = GR_CUDA_OUT_BF16, .y = m->fused, .y_stride = m->lm.fused_width};
    return gr_cuda_enqueue_linear(&m->m.work, &m->fc, &fc, n);
}

static enum gr_status enqueue_shipped(struct llama *m, int n)
{
    /* Two bf16 to a word of the copy. */
    const struct gr_cuda_output_args out = {.from = (const float *)(const void *)m->fused,
                                            .to = (float *)(void *)m->fused_alias,
                                            .n_row = n,
                                            .n = m->lm.fused_width / 2,
                                            .n_row_true = m->m.pass.inputs.n_row};
    return gr_cuda_output(&out, m->m.device.stream);
}

static enum gr_status enqueue_fuse(void *model, int n)
{
    GR_TRY(enqueue_fc(model, n));
    return enqueue_shipped(model, n);
}

static enum gr_status enqueue_final_norm(struct llama *m, int n)
{
    const struct gr_cuda_norm_step norm = {
        .x = m->m.work.x, .weight = m->final_norm, .y = m->xo, .y_n = m->source.hf.hidden, .out_rows = true};
    return gr_cuda_enqueue_norm(&m->m.work, &norm, n);
}

static enum gr_status enqueue_head(struct llama *m, int n)
{
    struct gr_cuda_linear_step head = {
        .x = m->xo, .out = GR_CUDA_OUT_F32, .y = m->m.logits, .y_stride = m->lm.n_vocab_stride, .out_rows = true};
    if (m->ranks == NULL) {
        return gr_cuda_enqueue_linear(&m->m.work, &m->head, &head, n);
    }
    head.y = m->ranks->logits;
    head.y_stride = m->ranks->logits_stride;
    GR_TRY(gr_cuda_enqueue_linear(&m->m.work, &m->head, &head, n));
    return m->ranks->ops->enqueue_logits(m->ranks, n);
}

/* Rank 0 of a group has the logits, and picks. */
static enum gr_status enqueue_picks(struct llama *m, int n)
{
    return follows(m) ? GR_OK : gr_cuda_model_enqueue_picks(&m->m, &m->lm, n);
}

static enum gr_status enqueue_logits(void *model, int n)
{
    struct llama *m = model;
    GR_TRY(enqueue_final_norm(m, n));
    GR_TRY(enqueue_head(m, n));
    return enqueue_picks(m, n);
}

static enum gr_status enqueue_adjusted(void *model, int n)
{
    struct llama *m = model;
    GR_TRY(enqueue_final_norm(m, n));
    GR_TRY(enqueue_head(m, n));
    return gr_cuda_model_enqueue_adjusted_picks(&m->m, &m->lm, n);
}

/* A kernel waits only for the one before it: what is shipped goes to the host while the head's first weights come. */
static enum gr_status enqueue_all_but_picks(struct llama *m, int n)
{
    GR_TRY(enqueue_body(m, n));
    if (serves_head(m)) {
        GR_TRY(enqueue_fc(m, n));
    }
    GR_TRY(enqueue_final_norm(m, n));
    if (serves_head(m)) {
        GR_TRY(enqueue_shipped(m, n));
    }
    return enqueue_head(m, n);
}

static enum gr_status enqueue_whole(void *model, int n)
{
    struct llama *m = model;
    GR_TRY(enqueue_all_but_picks(m, n));
    return enqueue_picks(m, n);
}

static enum gr_status enqueue_adjusted_whole(void *model, int n)
{
    struct llama *m = model;
    GR_TRY(enqueue_all_but_picks(m, n));
    return gr_cuda_model_enqueue_adjusted_picks(&m->m, &m->lm, n);
}

/* ---- the model as the workers see it ---- */

static enum gr_status launch(struct llama *m, const struct gr_batch *b)
{
    const struct gr_cuda_device *d = &m->m.device;
    const struct ends *ends = b->list != NULL ? &m->adjusted : &m->plain;
    const bool fuse = b->want_capture && serves_head(m);
    if (b->n_refresh == 0 && fuse == serves_head(m) && gr_cuda_graphs_whole(&ends->whole, b->n_row, b->n_out)) {
        return gr_cuda_graphs_launch(&ends->whole, d, b->n_row);
    }
    GR_TRY(gr_cuda_graphs_launch(b->n_refresh > 0 ? &m->refresh : &m->body, d, b->n_row));
    if (fuse) {
        GR_TRY(gr_cuda_graphs_launch(&m->fuse, d, b->n_row));
    }
    return b->n_out > 0 ? gr_cuda_graphs_launch(&ends->logits, d, b->n_out) : GR_OK;
}

/* The pass on this rank, as all of them run it. */
static enum gr_status compute(struct gr_lm *lm, const struct gr_batch *b)
{
    struct llama *m = of(lm);
    gr_kv_refresh_begin(&m->views.host, b->n_refresh, b->refresh);
    GR_TRY(gr_cuda_model_begin(&m->m, b, 1));
    m->last = (struct gr_batch){.n_row = b->n_row,
                                .n_out = b->n_out,
                                .want_capture = b->want_capture,
                                .n_refresh = b->n_refresh,
                                .list = b->list};
    if (m->ranks != NULL && m->ranks->ops->begin != NULL) {
        m->ranks->ops->begin(m->ranks);
    }
    GR_TRY(launch(m, &m->last));
    GR_TRY(gr_cuda_model_wait(&m->m, lm, follows(m) ? 0 : b->n_out));
    gr_kv_refresh_end(&m->views.host, b->n_refresh, b->refresh);
    return m->ranks != NULL ? m->ranks->ops->status(m->ranks) : GR_OK;
}

static enum gr_status llama_forward(struct gr_lm *lm, const struct gr_batch *b)
{
    struct llama *m = of(lm);
    if (leads(m)) {
        GR_TRY(gr_steps_forward(&m->steps, b));
    }
    return compute(lm, b);
}

static enum gr_status llama_again(struct gr_lm *lm, int n)
{
    struct llama *m = of(lm);
    for (int i = 0; i < n; i++) {
        GR_TRY(launch(m, &m->last));
    }
    return gr_cuda_wait(&m->m.device, "passes one after another");
}

static void copy_cells(struct gr_lm *lm, int n, const int32_t *src, const int32_t *dst)
{
    gr_cuda_model_copy_cells(&of(lm)->m, n, src, dst);
}

static void llama_copy_cells(struct gr_lm *lm, int n, const int32_t *src, const int32_t *dst)
{
    struct llama *m = of(lm);
    if (n > 0 && leads(m)) {
        const enum gr_status st = gr_steps_copy(&m->steps, n, src, dst);
        (void)st; /* logged; the next pass fails with it */
    }
    copy_cells(lm, n, src, dst);
}

static struct gr_kv_views_config view_config(const struct llama *m, const struct gr_kv_budget *most, int n_view,
                                             int n_ctx)
{
    return (struct gr_kv_views_config){.n_view = n_view,
                                       .n_layer = m->source.hf.n_layer,
                                       .n_kv_head = m->shard.n_kv_head,
                                       .head_dim = m->source.hf.head_dim,
                                       .n_ctx_max = n_ctx,
                                       .most = *most};
}

static void give_views_back(struct gr_lm *lm)
{
    struct llama *m = of(lm);
    gr_cuda_graphs_destroy(&m->refresh);
    gr_cuda_view_memory_finish(&m->views, &m->m.device);
    m->m.pass.view = NULL;
    lm->view = NULL;
    lm->n_view = 0;
}

static enum gr_status make_views(struct llama *m, const struct gr_kv_budget *most, int n_view)
{
    const struct gr_kv_views_config c = view_config(m, most, n_view, m->lm.n_ctx_max);
    GR_TRY(m->m.broken);
    GR_TRY(gr_cuda_view_memory_init(&m->views, &m->m.device, &c, m->shard.n_head, m->m.pass.limits.n_seq_max,
                                    &m->m.pass.inputs));
    GR_TRY(gr_cuda_graphs_make(&m->refresh, &m->m.device, m->lm.n_row_max, enqueue_refresh, m));
    return gr_cuda_wait(&m->m.device, "graphs of a pass");
}

static enum gr_status take_views(struct gr_lm *lm, const struct gr_kv_budget *most, int n_view)
{
    struct llama *m = of(lm);
    enum gr_status st = make_views(m, most, n_view);
    if (m->group != NULL) {
        st = gr_group_all_ok(m->group, st);
    }
    if (st != GR_OK) {
        give_views_back(lm);
        return st;
    }
    m->m.pass.view = m->views.host.view;
    lm->view = m->views.host.view;
    lm->n_view = n_view;
    return GR_OK;
}

/* What a rank does itself, whoever says so. */
static const struct gr_follow_ops own_part = {
    .forward = compute, .copy_cells = copy_cells, .take_views = take_views, .give_views_back = give_views_back};

static enum gr_status cuda_view_create(struct gr_lm *lm, const struct gr_kv_budget *most, int n_view)
{
    struct llama *m = of(lm);
    GR_TRY(gr_llama_source_check_views(&m->source, lm));
    return gr_lead_views(lm, leads(m) ? &m->steps : NULL, &own_part, most, n_view);
}

static void cuda_view_destroy(struct gr_lm *lm)
{
    struct llama *m = of(lm);
    gr_lead_no_views(lm, leads(m) ? &m->steps : NULL, &own_part);
}

static enum gr_status llama_follow(struct gr_lm *lm)
{
    GR_ASSERT(follows(of(lm)));
    return gr_follow(lm, &of(lm)->steps, &own_part);
}

/* Ranks read each other's memory, so none gives its own back before all have come to their end; of a group that has
 * failed nobody waits. */
static void leave_group(struct llama *m)
{
    if (m->serves && leads(m)) {
        const enum gr_status st = gr_steps_say(&m->steps, GR_STEP_END);
        (void)st; /* a group that has failed ends without */
    }
    if (m->ranks == NULL) {
        return;
    }
    enum gr_status st = gr_cuda_wait(&m->m.device, "the end of a group");
    if (st == GR_OK && m->serves) {
        float n = 0.0f;
        m->group->part[0] = 0.0f;
        st = gr_group_join(m->group, &n, 1);
    }
    (void)st; /* logged */
    gr_cuda_ranks_destroy(m->ranks);
}

static void llama_destroy(struct gr_lm *lm)
{
    struct llama *m = of(lm);
    gr_lm_view_destroy(lm);
    leave_group(m);
    gr_cuda_graphs_destroy(&m->body);
    gr_cuda_graphs_destroy(&m->fuse);
    for (int i = 0; i < 2; i++) {
        struct ends *ends = i == 0 ? &m->plain : &m->adjusted;
        gr_cuda_graphs_destroy(&ends->logits);
        gr_cuda_graphs_destroy(&ends->whole);
    }
    if (m->far != NULL && lm->shipped != NULL) {
        m->far->give(m->far->ctx, (uint8_t *)lm->shipped);
    }
    gr_cuda_model_close(&m->m, lm);
    gr_llama_source_close(&m->source);
    free(m->layer);
    free(m);
}

static const struct gr_lm_ops llama_ops = {
    .forward = llama_forward,
    .again = llama_again,
    .copy_cells = llama_copy_cells,
    .view_create = cuda_view_create,
    .view_destroy = cuda_view_destroy,
    .destroy = llama_destroy,
};

/* Of a group: the host says each pass. */
static const struct gr_lm_ops llama_rank_ops = {
    .forward = llama_forward,
    .copy_cells = llama_copy_cells,
    .view_create = cuda_view_create,
    .view_destroy = cuda_view_destroy,
    .follow = llama_follow,
    .destroy = llama_destroy,
};

/* ---- memory ---- */

static uint64_t weight_bytes(const struct llama *m)
{
    const struct gr_hf_config *hf = &m->source.hf;
    const uint64_t hidden = (uint64_t)hf->hidden;
    struct gr_hf_config mine = *hf;
    mine.n_head = m->shard.n_head, mine.n_kv_head = m->shard.n_kv_head, mine.ffn = m->shard.n_ffn;
    const uint64_t others = 2 * (uint64_t)(gr_hf_vocab_rows(hf) - m->shard.n_vocab) * hidden; /* ranks' lm_head */
    const uint64_t fc =
        serves_head(m) ? 2ull * (uint64_t)m->source.head.hidden * (uint64_t)m->source.n_capture * hidden : 0;
    return gr_llama_weight_bytes(&mine) - others + 2ull * (uint64_t)hf->n_vocab * hidden + fc;
}

/* Everything but weights and KV, roughly: it is small beside them, and what is really taken is checked as it is taken.
 */
static uint64_t activation_bytes(const struct llama *m, const struct gr_llama_config *c)
{
    const struct gr_hf_config *hf = &m->source.hf;
    const uint64_t n_q = (uint64_t)m->shard.n_head * (uint64_t)hf->head_dim;
    const uint64_t parts = m->group != NULL ? 2 * sizeof(float) : 0;
    const uint64_t row = (8 + parts) * (uint64_t)hf->hidden + 6 * n_q + 2ull * (uint64_t)m->shard.n_ffn +
                         gr_cuda_sums_bytes(hf, &m->shard) +
                         GR_CUDA_SPLIT_MAX * (n_q + 2ull * (uint64_t)m->shard.n_head) * sizeof(float);
    return (uint64_t)c->n_row_max * row + (uint64_t)c->n_out_max * (uint64_t)gr_hf_vocab_rows(hf) * sizeof(float);
}

static enum gr_status choose_blocks(const struct llama *m, const struct gr_llama_config *c, int *n_block_out)
{
    const int n_ctx = c->n_ctx_max > 0 ? GR_MIN(c->n_ctx_max, m->source.hf.max_pos) : m->source.hf.max_pos;
    const struct gr_kv_views_config view = view_config(m, &c->view_most, c->n_view, n_ctx);
    const struct gr_cuda_blocks b = {
        .dir = c->dir,
        .block_bytes = gr_cuda_kv_block_bytes(&m->source.hf, m->shard.n_kv_head, m->source.hf.n_layer),
        .weights = weight_bytes(m),
        .others = activation_bytes(m, c),
        .views = (uint64_t)c->n_view * gr_cuda_view_memory_bytes(&view),
        .n_ctx = n_ctx,
        .n_session = c->n_seq_max,
        .n_scratch = c->n_scratch_block,
        .asked = c->n_pool_block,
        .quiet = follows(m)};
    return gr_cuda_choose_blocks(&m->m, &b, n_block_out);
}

/* ---- loading ---- */

static enum gr_status load_fc(struct llama *m, struct gr_cuda_weights *l)
{
    const int n_in = m->source.n_capture * m->source.hf.hidden;
    GR_TRY(gr_cuda_matrix_take(l, m->source.head.hidden, n_in, &m->fc));
    GR_TRY(gr_cuda_matrix_load(l, "fc.weight", m->source.head.hidden, &m->fc));
    if (gr_tensors_find(m->source.head_files, "fc.bias") != NULL) {
        GR_TRY(gr_cuda_vector_load(l, "fc.bias", m->source.head.hidden, &m->fc_bias));
    }
    return GR_OK;
}

static enum gr_status load_head(struct llama *m, struct gr_cuda_weights *l, const char *name)
{
    const struct gr_cuda_rows r = {
        .name = name,
        .n_out = gr_hf_vocab_rows(&m->source.hf),
        .n_in = m->source.hf.hidden,
        .part = {.row = m->shard.vocab, .n_row = m->shard.n_vocab, .n_col = m->source.hf.hidden},
        .step = 1};
    GR_TRY(gr_cuda_matrix_take_rows(l, m->lm.n_vocab_stride, r.n_in, gr_vocab_stride(m->shard.n_vocab), &m->head));
    return gr_cuda_rows_load(l, &r, &m->head);
}

static enum gr_status load_all(void *model, struct gr_cuda_weights *l, struct gr_loader *host)
{
    struct llama *m = model;
    const struct gr_hf_config *hf = &m->source.hf;
    const char *head = hf->tie_embeddings ? "model.embed_tokens.weight" : "lm_head.weight";
    GR_TRY(gr_cuda_table_load(l, "model.embed_tokens.weight", hf->n_vocab, hf->hidden, &m->embed));
    for (int i = 0; i < hf->n_layer; i++) {
        char prefix[64];
        snprintf(prefix, sizeof(prefix), "model.layers.%d", i);
        GR_TRY(gr_cuda_layer_load(l, &m->m.work, prefix, i, &m->layer[i]));
    }
    GR_TRY(gr_cuda_vector_load(l, "model.norm.weight", hf->hidden, &m->final_norm));
    GR_TRY(load_head(m, l, head));
    if (serves_head(m)) {
        host->files = m->source.head_files;
        GR_TRY(load_fc(m, l));
    }
    return GR_OK;
}

/* ---- creation ---- */

static enum gr_status check(const struct llama *m, const struct gr_llama_config *c)
{
    GR_TRY(gr_cuda_geometry_check(c->dir, &m->source.hf));
    if (!serves_head(m)) {
        return GR_OK;
    }
    if (c->raw_features) {
        log_error("--ship-features raw: a target on a GPU ships fused features only");
        return GR_EUNSUPPORTED;
    }
    if (m->source.head.norm_before_fc || m->source.head.fc_norm || m->source.head.hidden % 16 != 0) {
        log_error(
            "%s/config.json: norm_before_fc, fc_norm or a hidden size of %d: a GPU does not run this head's fc; take "
            "cpu",
            c->head_dir, m->source.head.hidden);
        return GR_EUNSUPPORTED;
    }
    return GR_OK;
}

static enum gr_status take_shipped(struct llama *m, size_t bytes)
{
    void *host = NULL, *on_device = NULL;
    uint8_t *far = NULL;
    if (m->far != NULL) {
        GR_TRY(m->far->take(m->far->ctx, gr_far_whole_pages(bytes), &far));
        m->lm.shipped = m->fused_alias = (uint16_t *)(void *)far;
        return GR_OK;
    }
    GR_TRY(gr_cuda_take_host(&m->m.device, bytes, &host, &on_device));
    m->fused_alias = on_device;
    m->lm.shipped = host;
    return GR_OK;
}

/* Where sums of ranks have another order than those of one GPU, the name says so. */
static enum gr_status name_order(struct gr_lm *lm, const char *order, int n_rank)
{
    const size_t len = strlen(lm->numerics_id);
    const int n =
        order != NULL ? snprintf(lm->numerics_id + len, sizeof(lm->numerics_id) - len, "/%s%d", order, n_rank) : 0;
    return n >= 0 && (size_t)n < sizeof(lm->numerics_id) - len ? GR_OK : GR_ELIMIT;
}

/* How this rank's GPU reaches the others'. */
static enum gr_status take_ranks(struct llama *m, const struct gr_cuda_ranks_maker *maker)
{
    struct gr_cuda_ranks_config c = {.group = m->group,
                                     .device = &m->m.device,
                                     .n_part = (size_t)m->lm.n_row_max * (size_t)m->source.hf.hidden,
                                     .hidden = m->source.hf.hidden,
                                     .logits = follows(m) ? NULL : m->m.logits,
                                     .n_out_max = m->lm.n_out_max,
                                     .logits_stride = m->lm.n_vocab_stride};
    for (int r = 0; r <= m->group->n_rank; r++) {
        c.begin[r] = gr_shard_vocab(gr_hf_vocab_rows(&m->source.hf), m->group->n_rank, r);
    }
    GR_TRY(name_order(&m->lm, maker->numerics, m->group->n_rank));
    return maker->create(maker, &c, &m->ranks);
}

static enum gr_status take_state(struct llama *m, int n_seq_max, bool ranks, const struct gr_cuda_ranks_maker *maker)
{
    const struct gr_hf_config *hf = &m->source.hf;
    const size_t n_row = (size_t)m->lm.n_row_max;
    struct gr_cuda_device *d = &m->m.device;
    void *p = NULL;
    GR_TRY(gr_cuda_model_take(&m->m, &m->lm, n_seq_max, 0, ranks));
    GR_TRY(m->group != NULL ? take_ranks(m, maker) : GR_OK);
    const struct gr_cuda_layer_config config = {.hf = hf,
                                                .shapes = &m->m.shapes,
                                                .shard = m->shard,
                                                .ranks = m->ranks,
                                                .n_in = hf->hidden,
                                                .n_layer = hf->n_layer,
                                                .n_seq_max = n_seq_max,
                                                .lm = &m->lm,
                                                .inputs = &m->m.pass.inputs};
    GR_TRY(gr_cuda_layer_work_init(&m->m.work, d, &config));
    GR_TRY(gr_cuda_take(d, "activations and tables", gr_cuda_tile_bytes(m->lm.n_out_max, hf->hidden), &p));
    m->xo = p;
    /* A drafter may share the GPU with a target, and only one of them may have kernels that wait. */
    if (!ranks && m->group == NULL && !m->no_chain) {
        GR_TRY(gr_cuda_take(d, "activations and tables", sizeof(*m->m.work.chain), &p));
        m->m.work.chain = p;
    }
    if (!serves_head(m)) {
        return GR_OK;
    }
    const size_t fused_bytes = n_row * (size_t)m->lm.fused_width * sizeof(uint16_t);
    GR_TRY(gr_cuda_take(d, "features", gr_cuda_tile_bytes(m->lm.n_row_max, m->source.n_capture * hf->hidden), &p));
    m->capture = p;
    GR_TRY(gr_cuda_take(d, "features", fused_bytes, &p));
    m->fused = p;
    GR_TRY(take_shipped(m, fused_bytes));
    m->lm.n_capture = 1;
    m->lm.capture_width = m->lm.fused_width;
    return GR_OK;
}

static void log_chain(const struct llama *m)
{
    if (m->m.work.chain != NULL && !gr_cuda_layer_can_chain(&m->m.work, &m->layer[0], 1)) {
        log_info("cuda:%d: no room for linear layers in one kernel, or their shapes are not such: each is a kernel of "
                 "its own",
                 m->m.device.index);
    }
}

/* Ranks wait for each other by blocks, so a pass has the same size on all of them, whichever graph a rank takes for it:
 * the whole pass's sizes are the first ones of the body's. */
static int whole_max(const struct llama *m)
{
    const int most = gr_cuda_graphs_whole_max(&m->lm);
    int n = 1;
    while (2 * n <= most) {
        n *= 2;
    }
    return m->group == NULL || most == m->lm.n_row_max ? most : n;
}

static enum gr_status make_ends(struct llama *m, struct ends *e, gr_cuda_enqueue_fn *logits, gr_cuda_enqueue_fn *whole)
{
    const struct gr_cuda_device *d = &m->m.device;
    GR_TRY(gr_cuda_graphs_make(&e->logits, d, m->lm.n_out_max, logits, m));
    return gr_cuda_graphs_make(&e->whole, d, whole_max(m), whole, m);
}

static enum gr_status make_graphs(struct llama *m)
{
    const struct gr_cuda_device *d = &m->m.device;
    log_chain(m);
    GR_TRY(gr_cuda_graphs_make(&m->body, d, m->lm.n_row_max, enqueue_body, m));
    GR_TRY(make_ends(m, &m->plain, enqueue_logits, enqueue_whole));
    if (m->lm.n_list_max > 0) {
        GR_TRY(make_ends(m, &m->adjusted, enqueue_adjusted, enqueue_adjusted_whole));
    }
    if (serves_head(m)) {
        GR_TRY(gr_cuda_graphs_make(&m->fuse, d, m->lm.n_row_max, enqueue_fuse, m));
    }
    return gr_cuda_wait(d, "graphs of a pass");
}

static enum gr_status tune(struct llama *m, const struct gr_llama_config *c)
{
    const struct gr_cuda_tune_model model = {.model = c->dir, .draft = c->head_dir, .geometry = c->geometry};
    gr_llama_shapes(&m->source.hf, serves_head(m) ? m->source.head.hidden : 0, m->source.n_capture, &m->m.shapes);
    return gr_cuda_model_tune(&m->m, &m->lm, c->tuned, &model);
}

/* This rank's part of the model. */
static enum gr_status take_place(struct llama *m, const struct gr_llama_config *c)
{
    m->shard = gr_shard_whole(&m->source.hf);
    m->no_chain = c->no_chain;
    if (c->group == NULL) {
        return GR_OK;
    }
    m->group = c->group;
    m->lm.ops = &llama_rank_ops;
    if (c->gpu_ranks == NULL || c->ranks) {
        log_error("a tensor-parallel group of GPUs: %s",
                  c->ranks ? "a drafter is not shared out" : "there is no way between its GPUs");
        return GR_EUNSUPPORTED;
    }
    return gr_shard_plan(c->dir, &m->source.hf, c->group->n_rank, c->group->rank, &m->shard);
}

/* Blocks that all ranks have room for, and what they must have alike. */
static enum gr_status fit(struct llama *m, struct gr_llama_config *c)
{
    const enum gr_status st = choose_blocks(m, c, &c->n_pool_block);
    GR_TRY(m->group != NULL ? gr_group_all_ok(m->group, st) : st);
    gr_llama_source_describe(&m->source, c, &m->lm);
    if (m->group == NULL) {
        return GR_OK;
    }
    GR_TRY(gr_steps_init(&m->steps, &m->m.memory, m->group, &m->lm, GR_MAX(c->n_seq_max, 1)));
    return gr_agree_on_sizes(&m->steps, &m->source.hf, &m->lm, m->source.as);
}

static enum gr_status load(struct llama *m, const struct gr_llama_config *c)
{
    struct gr_load_progress progress;
    const struct gr_loader from = {.files = m->source.files,
                                   .expand = m->source.expand.to != NULL ? &m->source.expand : NULL,
                                   .team = m->lm.team,
                                   .as = m->source.as,
                                   .sum = &m->source.sum,
                                   .progress = follows(m) ? NULL : &progress};
    if (!follows(m)) {
        gr_load_progress_begin(&progress, c->dir, weight_bytes(m));
    }
    GR_TRY(gr_cuda_model_load(&m->m, &from, load_all, m));
    return make_graphs(m);
}

static enum gr_status build(struct llama *m, const struct gr_llama_config *config, int device,
                            uint64_t *fingerprint_out)
{
    struct gr_llama_config c = *config;
    GR_TRY(gr_llama_source_open(&c, &m->source));
    GR_TRY(take_place(m, &c));
    GR_TRY(check(m, &c));
    m->far = c.far;
    GR_TRY(gr_cuda_model_open(&m->m, &m->lm, device, c.n_thread));
    GR_TRY(tune(m, &c));
    gr_cuda_memory_begin(&m->m.device);
    GR_TRY(fit(m, &c));
    m->layer = calloc((size_t)m->source.hf.n_layer, sizeof(*m->layer));
    if (m->layer == NULL) {
        log_error("out of memory for a model of %d layers", m->source.hf.n_layer);
        return GR_ENOMEM;
    }
    GR_TRY(take_state(m, c.n_seq_max, c.ranks, c.gpu_ranks));
    const enum gr_status loaded = load(m, &c);
    GR_TRY(m->group != NULL ? gr_group_all_ok(m->group, loaded) : loaded);
    m->serves = m->group != NULL;
    gr_cuda_memory_end(&m->m.device);
    gr_cuda_log_memory(&m->m.device, NULL);
    return gr_llama_source_finish(&m->source, fingerprint_out);
}

enum gr_status gr_cuda_llama_create(const struct gr_llama_config *config, int device, struct gr_hf_config *hf_out,
                                    uint64_t *fingerprint_out, struct gr_lm **lm_out)
{
    struct llama *m = calloc(1, sizeof(*m));
    if (m == NULL) {
        log_error("no memory for a model");
        return GR_ENOMEM;
    }
    m->lm.ops = &llama_ops;
    enum gr_status st = build(m, config, device, fingerprint_out);
    if (st != GR_OK) {
        if (m->group != NULL) {
            m->group->ops->abort(m->group); /* the others would wait for this rank */
        }
        llama_destroy(&m->lm);
        return st;
    }
    if (hf_out != NULL) {
        *hf_out = m->source.hf;
    }
    *lm_out = &m->lm;
    return GR_OK;
}
