#include "model/llama.h"

#include "common/base/log.h"
#include "model/fc.h"
#include "model/follow.h"
#include "model/group/agree.h"
#include "model/layer.h"
#include "model/llama_source.h"
#include "model/load/shapes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct llama {
    struct gr_lm lm;
    struct gr_llama_source source;
    struct gr_kernels kernels;
    struct gr_memory memory; /* everything below that is owned */
    struct gr_layer_work work;
    struct gr_layer *layer;    /* (n_layer) */
    struct gr_row_table embed; /* (n_vocab, H) */
    float *final_norm;         /* (H) */
    struct gr_weight head;     /* (vocabulary rows, H); in a group this rank's */
    float *x;                  /* (n_row_max, H): residual stream */
    float *xo;                 /* (n_out_max, H): rows whose logits are wanted */
    struct gr_fc fc;           /* of the EAGLE-3 head that is served */
    struct gr_kv_views views;  /* with SpecPV: lm.view */
    struct gr_load_progress progress;
    struct gr_group *group; /* borrowed; NULL: alone */
    bool serves;            /* in a group: all ranks are there, and those that follow wait for steps */
    struct gr_steps steps;  /* in a group */
    float *part_logits;     /* in a group, (n_out_max, rows of head) */
};

static struct llama *of(struct gr_lm *lm)
{
    return GR_CONTAINER_OF(lm, struct llama, lm);
}

static const struct gr_lm_ops llama_head_ops;

static bool follows(const struct llama *m)
{
    return gr_group_follows(m->group);
}

static bool leads(const struct llama *m)
{
    return gr_group_leads(m->group);
}

/* ---- loading ---- */

static struct gr_loader loader_of(struct llama *m, const struct gr_tensors *files)
{
    return (struct gr_loader){.kernels = &m->kernels,
                              .memory = &m->memory,
                              .files = files,
                              .expand = m->source.expand.to != NULL ? &m->source.expand : NULL,
                              .team = m->lm.team,
                              .as = m->source.as,
                              .sum = &m->source.sum,
                              .progress = follows(m) ? NULL : &m->progress};
}

static enum gr_status load_target(struct llama *m, struct gr_needs *needs)
{
    const struct gr_hf_config *hf = &m->source.hf;
    struct gr_loader l = loader_of(m, m->source.files);
    l.needs = needs;
    const size_t n_cell = (size_t)(m->lm.n_pool_block + m->lm.n_scratch_block) * GR_KV_BLOCK_TOKENS;
    GR_TRY(gr_load_table(&l, "model.embed_tokens.weight", hf->n_vocab, hf->hidden, &m->embed));
    for (int i = 0; i < hf->n_layer; i++) {
        char prefix[64];
        snprintf(prefix, sizeof(prefix), "model.layers.%d", i);
        GR_TRY(gr_layer_load(&l, &m->work, prefix, i, n_cell, &m->layer[i]));
    }
    GR_TRY(gr_layer_load_norm(&l, hf, "model.norm.weight", hf->hidden, &m->final_norm));
    const char *head = hf->tie_embeddings ? "model.embed_tokens.weight" : "lm_head.weight";
    const struct gr_part part = {.row = m->work.shard.vocab, .n_row = m->work.shard.n_vocab, .n_col = hf->hidden};
    return gr_load_part(&l, head, gr_hf_vocab_rows(hf), hf->hidden, &part, &m->head);
}

static enum gr_status load_fc(struct llama *m, struct gr_needs *needs)
{
    struct gr_loader l = loader_of(m, m->source.head_files);
    l.needs = needs;
    if (!m->lm.raw_features) { /* else the head runs it */
        GR_TRY(gr_fc_load(&l, &m->source.head, m->lm.n_capture, m->source.hf.hidden, m->lm.n_row_max, &m->fc));
        m->lm.ops = &llama_head_ops;
    }
    return GR_OK;
}

/* needs: NULL, or where it is only counted (loader.h). */
static enum gr_status load_weights(struct llama *m, struct gr_needs *needs)
{
    GR_TRY(load_target(m, needs));
    return m->source.head_files != NULL ? load_fc(m, needs) : GR_OK;
}

static size_t kv_bytes(const struct gr_hf_config *hf, int n_kv_head)
{
    return (size_t)hf->n_layer * 2 * (size_t)(n_kv_head * hf->head_dim) * sizeof(float);
}

/* Everything but KV and weights is taken. Blocks that an automatic choice may do without give way. */
static enum gr_status fit(struct llama *m, const struct gr_llama_config *c)
{
    struct gr_needs needs = {.other_bytes = gr_memory_bytes(&m->memory),
                             .block_bytes = kv_bytes(&m->source.hf, m->work.n_kv_head) * GR_KV_BLOCK_TOKENS,
                             .n_scratch_block = c->n_scratch_block,
                             .n_block = c->n_pool_block,
                             .n_block_least = c->n_pool_block_least > 0 ? c->n_pool_block_least : c->n_pool_block,
                             .n_session = GR_MAX(c->n_seq_max, 1),
                             .n_ctx = m->lm.n_ctx_max,
                             .n_rank = m->group != NULL ? m->group->n_here : 0,
                             .quiet = follows(m)};
    GR_TRY(load_weights(m, &needs));
    enum gr_status st = gr_needs_fit_host(&needs, c->dir, &m->lm.n_pool_block);
    if (m->group != NULL) {
        GR_TRY(gr_group_all_ok(m->group, st));
        st = gr_agree_on_sizes(&m->steps, &m->source.hf, &m->lm, m->source.as);
    }
    GR_TRY(st);
    if (!follows(m)) {
        gr_load_progress_begin(&m->progress, c->dir, gr_needs_weights(&needs));
    }
    return GR_OK;
}

static enum gr_status take_state(struct llama *m)
{
    const size_t n_row = (size_t)m->lm.n_row_max;
    const size_t n_hidden = (size_t)m->source.hf.hidden;
    const struct {
        float **p;
        size_t n;
    } buffers[] = {
        {&m->x, n_row * n_hidden},
        {&m->xo, (size_t)m->lm.n_out_max * n_hidden},
        {&m->lm.logits, follows(m) ? 0 : (size_t)m->lm.n_out_max * (size_t)m->lm.n_vocab_stride},
        {&m->part_logits, m->group != NULL ? (size_t)m->lm.n_out_max * (size_t)m->work.shard.n_vocab : 0},
        {&m->lm.capture, n_row * (size_t)m->lm.n_capture * n_hidden},
    };
    for (size_t i = 0; i < GR_ARRAY_LEN(buffers); i++) {
        *buffers[i].p = gr_memory_take_f32(&m->memory, buffers[i].n);
        if (*buffers[i].p == NULL) {
            return GR_ENOMEM;
        }
    }
    return gr_layer_work_init(&m->work, &m->kernels, &m->memory, &m->source.hf, m->source.hf.hidden, &m->lm);
}

/* This rank's part of the model, and what rank 0 says to the others through. */
static enum gr_status take_place(struct llama *m, const struct gr_llama_config *c)
{
    if (c->group == NULL) {
        m->work.shard = gr_shard_whole(&m->source.hf);
        return GR_OK;
    }
    m->group = m->work.group = c->group;
    GR_TRY(gr_shard_plan(c->dir, &m->source.hf, c->group->n_rank, c->group->rank, &m->work.shard));
    GR_ASSERT(c->group->n_part_max >= gr_llama_part_max(&m->source.hf, m->lm.n_row_max));
    return gr_steps_init(&m->steps, &m->memory, c->group, &m->lm, GR_MAX(c->n_seq_max, 1));
}

/* ---- the pass ---- */

struct pass {
    struct llama *m;
    const struct gr_batch *b;
};

/* Keeps the residual stream entering layer i_layer (n_layer: the final norm), if it is a captured one. */
static void capture(const struct gr_exec *x, const struct llama *m, const struct gr_batch *b, int i_layer)
{
    const size_t n_hidden = (size_t)m->source.hf.hidden;
    const size_t width = n_hidden * (size_t)m->lm.n_capture;
    int begin, end;
    gr_unit_range(b->n_row, x->ith, x->nth, &begin, &end);
    for (int c = 0; c < m->lm.n_capture; c++) {
        for (int r = begin; m->source.capture_layer[c] == i_layer && r < end; r++) {
            memcpy(m->lm.capture + (size_t)r * width + (size_t)c * n_hidden, m->x + (size_t)r * n_hidden,
                   n_hidden * sizeof(float));
        }
    }
}

static void output_block(const struct gr_exec *x, struct llama *m, const struct gr_batch *b)
{
    const size_t n_hidden = (size_t)m->source.hf.hidden;
    int begin, end;
    gr_unit_range(b->n_out, x->ith, x->nth, &begin, &end);
    for (int i = begin; i < end; i++) {
        memcpy(m->xo + (size_t)i * n_hidden, m->x + (size_t)b->out_row[i] * n_hidden, n_hidden * sizeof(float));
    }
    gr_layer_norm(x, &m->work, m->xo, m->final_norm, m->xo, b->n_out);
    gr_exec_barrier(x);
    m->kernels.linear(x, &(struct gr_linear_args){.w = &m->head,
                                                  .x = m->xo,
                                                  .y = m->group != NULL ? m->part_logits : m->lm.logits,
                                                  .n_row = b->n_out,
                                                  .x_stride = m->source.hf.hidden,
                                                  .y_stride = m->group != NULL ? m->head.n_out : m->lm.n_vocab_stride});
}

static void run_pass(const struct gr_exec *x, void *arg)
{
    const struct pass *p = arg;
    struct llama *m = p->m;
    const struct gr_batch *b = p->b;
    const struct gr_layer_queries asking = gr_layer_all_ask(b, m->work.xn);
    m->kernels.embed(x, &(struct gr_embed_args){.table = m->embed.bf16,
                                                .table_f32 = m->embed.f32,
                                                .id = b->token,
                                                .y = m->x,
                                                .n_row = b->n_row,
                                                .n = m->source.hf.hidden,
                                                .y_stride = m->source.hf.hidden,
                                                .scale = m->source.hf.embed_scale});
    for (int i = 0; i < m->source.hf.n_layer; i++) {
        const struct gr_layer *l = &m->layer[i];
        /* The rows of x that capture() and the norm read are those this thread wrote, or a barrier lies between. */
        capture(x, m, b, i);
        gr_layer_norm(x, &m->work, m->x, l->in_norm, m->work.xn, b->n_row);
        gr_exec_barrier(x);
        gr_layer_attention(x, &m->work, l, b, m->work.xn, &asking, m->x, m->x);
        gr_layer_mlp(x, &m->work, l, m->x, b->n_row);
    }
    capture(x, m, b, m->source.hf.n_layer);
    if (b->n_out > 0) {
        output_block(x, m, b);
    }
}

static enum gr_status gather_logits(struct llama *m, int n_out)
{
    struct gr_group_rows rows = {
        .mine = m->part_logits, .all = m->lm.logits, .n_row = n_out, .stride = m->lm.n_vocab_stride};
    for (int r = 0; r <= m->group->n_rank; r++) {
        rows.begin[r] = gr_shard_vocab(gr_hf_vocab_rows(&m->source.hf), m->group->n_rank, r);
    }
    return gr_group_gather(m->group, &rows);
}

/* The pass on this rank, as all of them run it. */
static enum gr_status compute(struct llama *m, const struct gr_batch *b)
{
    if (b->n_refresh > 0) {
        gr_kv_refresh_begin(&m->views, b->n_refresh, b->refresh);
    }
    gr_team_run(m->lm.team, run_pass, &(struct pass){.m = m, .b = b});
    if (b->n_refresh > 0) {
        gr_kv_refresh_end(&m->views, b->n_refresh, b->refresh);
    }
    return m->group != NULL ? gather_logits(m, b->n_out) : GR_OK;
}

static enum gr_status llama_forward(struct gr_lm *lm, const struct gr_batch *b)
{
    struct llama *m = of(lm);
    GR_ASSERT(b->n_row >= 1 && b->n_row <= lm->n_row_max && b->n_out <= lm->n_out_max);
    if (leads(m)) {
        GR_TRY(gr_steps_forward(&m->steps, b));
    }
    return compute(m, b);
}

static enum gr_status take_views(struct gr_lm *lm, const struct gr_kv_budget *most, int n_view)
{
    struct llama *m = of(lm);
    const struct gr_kv_views_config c = {.n_view = n_view,
                                         .n_layer = m->source.hf.n_layer,
                                         .n_kv_head = m->work.n_kv_head,
                                         .head_dim = m->work.head_dim,
                                         .n_ctx_max = lm->n_ctx_max,
                                         .most = *most};
    enum gr_status st = gr_kv_views_init(&m->views, &c);
    if (m->group != NULL) {
        const enum gr_status mine = st;
        st = gr_group_all_ok(m->group, mine);
        if (st != GR_OK && mine == GR_OK) {
            gr_kv_views_finish(&m->views);
        }
    }
    GR_TRY(st);
    m->work.views = &m->views;
    lm->view = m->views.view;
    lm->n_view = n_view;
    return GR_OK;
}

static void give_views_back(struct gr_lm *lm)
{
    struct llama *m = of(lm);
    gr_kv_views_finish(&m->views);
    m->work.views = NULL;
    lm->view = NULL;
    lm->n_view = 0;
}

struct copy {
    struct llama *m;
    int n;
    const int32_t *src, *dst;
};

static void run_copy(const struct gr_exec *x, void *arg)
{
    const struct copy *c = arg;
    for (int i = 0; i < c->m->source.hf.n_layer; i++) {
        c->m->kernels.kv_copy(
            x, &(struct gr_kv_copy_args){.kv = c->m->layer[i].kv, .src = c->src, .dst = c->dst, .n = c->n});
    }
}

/* A few kilobytes: waking the team would cost more than the copy. */
static void copy_cells(struct llama *m, int n, const int32_t *src, const int32_t *dst)
{
    run_copy(&(struct gr_exec){.nth = 1}, &(struct copy){.m = m, .n = n, .src = src, .dst = dst});
}

static void llama_copy_cells(struct gr_lm *lm, int n, const int32_t *src, const int32_t *dst)
{
    struct llama *m = of(lm);
    if (n > 0 && leads(m)) {
        const enum gr_status st = gr_steps_copy(&m->steps, n, src, dst);
        (void)st; /* logged; the next pass fails with it */
    }
    if (n > 0) {
        copy_cells(m, n, src, dst);
    }
}

/* ---- a rank that follows ---- */

static enum gr_status follow_forward(struct gr_lm *lm, const struct gr_batch *b)
{
    return compute(of(lm), b);
}

static void follow_copy_cells(struct gr_lm *lm, int n, const int32_t *src, const int32_t *dst)
{
    copy_cells(of(lm), n, src, dst);
}

/* What a rank does itself, whoever says so. */
static const struct gr_follow_ops own_part = {.forward = follow_forward,
                                              .copy_cells = follow_copy_cells,
                                              .take_views = take_views,
                                              .give_views_back = give_views_back};

static enum gr_status cpu_view_create(struct gr_lm *lm, const struct gr_kv_budget *most, int n_view)
{
    struct llama *m = of(lm);
    GR_TRY(gr_llama_source_check_views(&m->source, lm));
    return gr_lead_views(lm, leads(m) ? &m->steps : NULL, &own_part, most, n_view);
}

static void cpu_view_destroy(struct gr_lm *lm)
{
    struct llama *m = of(lm);
    gr_lead_no_views(lm, leads(m) ? &m->steps : NULL, &own_part);
}

static enum gr_status llama_follow(struct gr_lm *lm)
{
    GR_ASSERT(follows(of(lm)));
    return gr_follow(lm, &of(lm)->steps, &own_part);
}

struct fuse {
    struct llama *m;
    int n;
    const float *const *capture;
    float *out;
};

static void run_fuse(const struct gr_exec *x, void *arg)
{
    const struct fuse *f = arg;
    gr_fc_fuse(x, &f->m->fc, f->n, f->capture, f->out);
}

static void llama_fuse(struct gr_lm *lm, int n, const float *const *capture, float *out)
{
    GR_ASSERT(lm->fused_width > 0 && n <= lm->n_row_max);
    if (n > 0) {
        gr_team_run(lm->team, run_fuse, &(struct fuse){.m = of(lm), .n = n, .capture = capture, .out = out});
    }
}

static void llama_destroy(struct gr_lm *lm)
{
    struct llama *m = of(lm);
    if (m->serves && leads(m)) {
        const enum gr_status st = gr_steps_say(&m->steps, GR_STEP_END);
        (void)st; /* a group that has failed ends without */
    }
    gr_team_destroy(lm->team);
    gr_kv_views_finish(&m->views);
    gr_memory_finish(&m->memory);
    gr_llama_source_close(&m->source);
    free(m->layer);
    free(m);
}

static const struct gr_lm_ops llama_ops = {
    .forward = llama_forward,
    .copy_cells = llama_copy_cells,
    .view_create = cpu_view_create,
    .view_destroy = cpu_view_destroy,
    .follow = llama_follow,
    .destroy = llama_destroy,
};

/* Of a target that serves a head. */
static const struct gr_lm_ops llama_head_ops = {
    .forward = llama_forward,
    .copy_cells = llama_copy_cells,
    .view_create = cpu_view_create,
    .view_destroy = cpu_view_destroy,
    .fuse = llama_fuse,
    .destroy = llama_destroy,
};

/* ---- creation ---- */

static enum gr_status build(struct llama *m, const struct gr_llama_config *c, uint64_t *fingerprint_out)
{
    GR_TRY(gr_llama_source_open(c, &m->source));
    GR_TRY(gr_model_kernels(&m->kernels, c->isa));
    GR_TRY(gr_team_create(gr_cpu_threads(c->n_thread), &m->lm.team));
    gr_llama_source_describe(&m->source, c, &m->lm);
    m->lm.kernels = &m->kernels;
    m->layer = calloc((size_t)m->source.hf.n_layer, sizeof(*m->layer));
    if (m->layer == NULL) {
        log_error("out of memory for a model of %d layers", m->source.hf.n_layer);
        return GR_ENOMEM;
    }
    GR_TRY(take_place(m, c));
    GR_TRY(take_state(m));
    GR_TRY(fit(m, c));
    const enum gr_status loaded = load_weights(m, NULL);
    if (!follows(m)) {
        gr_load_progress_end(&m->progress);
    }
    GR_TRY(m->group != NULL ? gr_group_all_ok(m->group, loaded) : loaded);
    m->serves = m->group != NULL;
    gr_model_numerics_id(&m->kernels, m->lm.numerics_id, sizeof(m->lm.numerics_id));
    return gr_llama_source_finish(&m->source, fingerprint_out);
}

enum gr_status gr_llama_create(const struct gr_llama_config *config, struct gr_hf_config *hf_out,
                               uint64_t *fingerprint_out, struct gr_lm **lm_out)
{
    struct llama *m = calloc(1, sizeof(*m));
    if (m == NULL) {
        log_error("no memory for a model");
        return GR_ENOMEM;
    }
    m->lm.ops = &llama_ops;
    m->memory.what = config->dir;
    enum gr_status st = build(m, config, fingerprint_out);
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

/* ---- sizes ---- */

size_t gr_llama_kv_bytes_per_token(const struct gr_hf_config *hf)
{
    return kv_bytes(hf, hf->n_kv_head);
}

size_t gr_llama_part_max(const struct gr_hf_config *hf, int n_row_max)
{
    return GR_MAX((size_t)n_row_max * (size_t)hf->hidden, (size_t)gr_vocab_stride(gr_hf_vocab_rows(hf)));
}

static double weights_per_pass(const struct gr_hf_config *hf)
{
    const double h = hf->hidden;
    const double q = (double)hf->n_head * hf->head_dim;
    const double kv = (double)hf->n_kv_head * hf->head_dim;
    return hf->n_layer * (2 * h * q + 2 * h * kv + 3 * h * hf->ffn) + (double)gr_hf_vocab_rows(hf) * h;
}

size_t gr_llama_weight_bytes(const struct gr_hf_config *hf)
{
    return (size_t)(2 * weights_per_pass(hf)) + 4 * (size_t)hf->hidden * (2 * (size_t)hf->n_layer + 1);
}

double gr_llama_flops_per_row(const struct gr_hf_config *hf)
{
    return 2 * weights_per_pass(hf);
}
