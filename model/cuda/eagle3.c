#include "model/cuda/eagle3.h"

#include "common/base/log.h"
#include "kernels/cuda/rows/rows.h"
#include "model/cuda/model.h"
#include "model/eagle3_source.h"

#include <stdio.h>
#include <stdlib.h>

struct eagle3 {
    struct gr_lm lm;
    struct gr_eagle3_source source;
    struct gr_cuda_model m;
    struct gr_cuda_layer layer;
    float *hidden_norm, *final_norm; /* (H) */
    uint16_t *embed;                 /* (n_vocab of the target, H) */
    struct gr_cuda_matrix head;      /* (draft vocabulary rows, H) */
    float *states;                   /* (n_state, H): kept ones; NULL: none */
    uint16_t *xo;                    /* tiles of width H: rows whose children are wanted */
    struct gr_cuda_graphs body, logits;
    struct gr_cuda_graphs whole; /* both, for as many rows as a level has */
    struct gr_batch last;        /* of the last pass, what launch() goes by */
};

static struct eagle3 *of(struct gr_lm *lm)
{
    return GR_CONTAINER_OF(lm, struct eagle3, lm);
}

/* ---- the pass, enqueued while its graphs are made ---- */

/* w->in = concat(norm_in(embed(token)), norm_hidden(g)). */
static enum gr_status enqueue_begin(struct eagle3 *m, int n)
{
    const int hidden = m->source.hf.hidden;
    const struct gr_cuda_norm_step feature = {
        .x = m->m.work.x, .weight = m->hidden_norm, .y = m->m.work.in, .y_n = 2 * hidden, .y_col = hidden};
    const struct gr_cuda_begin_step s = {.table = m->embed,
                                         .token = {.weight = m->layer.in_norm, .y = m->m.work.in, .y_n = 2 * hidden},
                                         .feature = &feature,
                                         .states = m->states};
    return gr_cuda_model_enqueue_begin(&m->m, &s, n);
}

static enum gr_status enqueue_layer(struct eagle3 *m, int n)
{
    GR_TRY(enqueue_begin(m, n));
    GR_TRY(gr_cuda_enqueue_first_heads(&m->m.work, &m->layer, n));
    return gr_cuda_enqueue_layer(&m->m.work, &m->layer, &(struct gr_cuda_layer_place){0}, n);
}

/* For the rows of later passes. */
static enum gr_status enqueue_states(struct eagle3 *m, int n)
{
    const struct gr_cuda_keep_args keep = {.from = m->m.work.x,
                                           .to = m->states,
                                           .number = m->m.pass.inputs.to_state,
                                           .n_row = n,
                                           .n = m->source.hf.hidden,
                                           .n_row_true = m->m.pass.inputs.n_row};
    return m->states != NULL ? gr_cuda_keep(&keep, m->m.device.stream) : GR_OK;
}

static enum gr_status enqueue_body(void *model, int n)
{
    GR_TRY(enqueue_layer(model, n));
    return enqueue_states(model, n);
}

static enum gr_status enqueue_final_norm(struct eagle3 *m, int n)
{
    const struct gr_cuda_norm_step norm = {
        .x = m->m.work.x, .weight = m->final_norm, .y = m->xo, .y_n = m->source.hf.hidden, .out_rows = true};
    return gr_cuda_enqueue_norm(&m->m.work, &norm, n);
}

static enum gr_status enqueue_head(struct eagle3 *m, int n)
{
    const struct gr_cuda_linear_step head = {
        .x = m->xo, .out = GR_CUDA_OUT_F32, .y = m->m.logits, .y_stride = m->lm.n_vocab_stride, .out_rows = true};
    GR_TRY(gr_cuda_enqueue_linear(&m->m.work, &m->head, &head, n));
    return gr_cuda_model_enqueue_picks(&m->m, &m->lm, n);
}

static enum gr_status enqueue_logits(void *model, int n)
{
    GR_TRY(enqueue_final_norm(model, n));
    return enqueue_head(model, n);
}

/* States are kept while the first weights after them come. */
static enum gr_status enqueue_whole(void *model, int n)
{
    struct eagle3 *m = model;
    GR_TRY(enqueue_layer(m, n));
    GR_TRY(enqueue_final_norm(m, n));
    GR_TRY(enqueue_states(m, n));
    return enqueue_head(m, n);
}

/* ---- the model as the workers see it ---- */

static enum gr_status launch(const struct eagle3 *m, const struct gr_batch *b)
{
    if (gr_cuda_graphs_whole(&m->whole, b->n_row, b->n_out)) {
        return gr_cuda_graphs_launch(&m->whole, &m->m.device, b->n_row);
    }
    GR_TRY(gr_cuda_graphs_launch(&m->body, &m->m.device, b->n_row));
    return b->n_out > 0 ? gr_cuda_graphs_launch(&m->logits, &m->m.device, b->n_out) : GR_OK;
}

static enum gr_status eagle3_forward(struct gr_lm *lm, const struct gr_batch *b)
{
    struct eagle3 *m = of(lm);
    GR_ASSERT(b->feature != NULL || b->far_feature != NULL);
    GR_TRY(gr_cuda_model_begin(&m->m, b, 2)); /* a row's token stands one position after it, the picked one two */
    m->last = (struct gr_batch){.n_row = b->n_row, .n_out = b->n_out};
    GR_TRY(launch(m, &m->last));
    return gr_cuda_model_wait(&m->m, lm, b->n_out);
}

static enum gr_status eagle3_again(struct gr_lm *lm, int n)
{
    const struct eagle3 *m = of(lm);
    for (int i = 0; i < n; i++) {
        GR_TRY(launch(m, &m->last));
    }
    return gr_cuda_wait(&m->m.device, "passes one after another");
}

static void eagle3_copy_cells(struct gr_lm *lm, int n, const int32_t *src, const int32_t *dst)
{
    gr_cuda_model_copy_cells(&of(lm)->m, n, src, dst);
}

static void eagle3_destroy(struct gr_lm *lm)
{
    struct eagle3 *m = of(lm);
    gr_cuda_graphs_destroy(&m->body);
    gr_cuda_graphs_destroy(&m->logits);
    gr_cuda_graphs_destroy(&m->whole);
    gr_cuda_model_close(&m->m, lm);
    gr_eagle3_source_close(&m->source);
    free(m);
}

static const struct gr_lm_ops eagle3_ops = {
    .forward = eagle3_forward,
    .again = eagle3_again,
    .copy_cells = eagle3_copy_cells,
    .destroy = eagle3_destroy,
};

/* ---- loading ---- */

static enum gr_status load_map(struct eagle3 *m, int n_token)
{
    const size_t bytes = (size_t)m->source.hf.draft_n_vocab * sizeof(int32_t);
    bool has_map = false;
    int32_t *map = gr_memory_take(&m->m.memory, bytes);
    void *dev = NULL;
    if (map == NULL) {
        return GR_ENOMEM;
    }
    GR_TRY(gr_eagle3_map(&m->source, map, &has_map));
    m->lm.to_target = has_map ? map : NULL;
    if (n_token > 0) {
        (void)gr_lm_without_padding(&m->lm, n_token); /* before graphs are made for a vocabulary */
    }
    if (!has_map) {
        return GR_OK;
    }
    GR_TRY(gr_cuda_take(&m->m.device, "weights", bytes, &dev));
    m->m.to_target = dev;
    return gr_cuda_upload(&m->m.device, dev, map, bytes, "map of the vocabulary");
}

static enum gr_status load_all(void *model, struct gr_cuda_weights *l, struct gr_loader *host)
{
    struct eagle3 *m = model;
    const struct gr_hf_config *hf = &m->source.hf;
    const char *prefix = gr_eagle3_layer_prefix(m->source.files);
    struct gr_eagle3_tensor t;
    char name[64];
    GR_TRY(gr_cuda_layer_load(l, &m->m.work, prefix, 0, &m->layer));
    snprintf(name, sizeof(name), "%s.hidden_norm.weight", prefix);
    GR_TRY(gr_cuda_vector_load(l, name, hf->hidden, &m->hidden_norm));
    GR_TRY(gr_cuda_vector_load(l, "norm.weight", hf->hidden, &m->final_norm));
    GR_TRY(gr_eagle3_embedding(&m->source, &t));
    host->files = t.files;
    GR_TRY(gr_cuda_table_load(l, t.name, hf->n_vocab, hf->hidden, &m->embed));
    GR_TRY(gr_eagle3_lm_head(&m->source, &t));
    host->files = t.files;
    GR_TRY(gr_cuda_matrix_take(l, m->lm.n_vocab_stride, hf->hidden, &m->head));
    return gr_cuda_matrix_load(l, t.name, gr_hf_draft_vocab_rows(hf), &m->head);
}

static uint64_t weight_bytes(const struct eagle3 *m)
{
    return gr_eagle3_weight_bytes(&m->source.hf) +
           2ull * (uint64_t)m->source.hf.n_vocab * (uint64_t)m->source.hf.hidden;
}

/* ---- creation ---- */

static enum gr_status check(const struct eagle3 *m, const struct gr_eagle3_config *c)
{
    const struct gr_hf_config *hf = &m->source.hf;
    GR_TRY(gr_cuda_geometry_check(c->dir, hf));
    if (hf->norm_before_residual || hf->norm_output || c->raw_features) {
        log_error("%s: norm_before_residual, norm_output and --ship-features raw are not for a head on a GPU; take cpu",
                  c->dir);
        return GR_EUNSUPPORTED;
    }
    return GR_OK;
}

static uint64_t state_bytes(const struct eagle3 *m, int n_state)
{
    return (uint64_t)n_state * (uint64_t)m->source.hf.hidden * sizeof(float);
}

static enum gr_status choose_blocks(const struct eagle3 *m, const struct gr_eagle3_config *c, int *n_block_out)
{
    const int max_pos = m->source.target_hf.max_pos;
    const int n_ctx = c->n_ctx_max > 0 ? GR_MIN(c->n_ctx_max, max_pos) : max_pos;
    const struct gr_cuda_blocks b = {.dir = c->dir,
                                     .block_bytes = gr_cuda_kv_block_bytes(&m->source.hf, m->source.hf.n_kv_head, 1),
                                     .weights = weight_bytes(m),
                                     .others = (uint64_t)c->n_out_max *
                                                   (uint64_t)gr_hf_draft_vocab_rows(&m->source.hf) * sizeof(float) +
                                               state_bytes(m, c->n_state) + c->far_feature_bytes,
                                     .n_ctx = c->n_ctx_kept > 0 ? GR_MIN(c->n_ctx_kept, n_ctx) : n_ctx,
                                     .n_session = c->n_seq_max,
                                     .n_scratch = c->n_scratch_block,
                                     .asked = c->n_pool_block};
    return gr_cuda_choose_blocks(&m->m, &b, n_block_out);
}

static enum gr_status take_state(struct eagle3 *m, int n_seq_max)
{
    const struct gr_hf_config *hf = &m->source.hf;
    struct gr_cuda_device *d = &m->m.device;
    void *p = NULL;
    GR_TRY(gr_cuda_model_take(&m->m, &m->lm, n_seq_max, hf->hidden, true));
    const struct gr_cuda_layer_config config = {.hf = hf,
                                                .shapes = &m->m.shapes,
                                                .shard = gr_shard_whole(hf),
                                                .n_in = 2 * hf->hidden,
                                                .n_layer = 1,
                                                .n_seq_max = n_seq_max,
                                                .lm = &m->lm,
                                                .inputs = &m->m.pass.inputs};
    GR_TRY(gr_cuda_layer_work_init(&m->m.work, d, &config));
    m->m.work.x = m->m.pass.inputs.feature; /* the residual of attention */
    GR_TRY(gr_cuda_take(d, "activations and tables", gr_cuda_tile_bytes(m->lm.n_out_max, hf->hidden), &p));
    m->xo = p;
    if (m->lm.n_state > 0) {
        GR_TRY(gr_cuda_take(d, "kept states", state_bytes(m, m->lm.n_state), &p));
        m->states = p;
    }
    return GR_OK;
}

static enum gr_status tune(struct eagle3 *m, const struct gr_eagle3_config *c)
{
    const struct gr_cuda_tune_model model = {.model = c->target_dir, .draft = c->dir, .geometry = c->geometry};
    gr_eagle3_shapes(&m->source.hf, &m->m.shapes);
    return gr_cuda_model_tune(&m->m, &m->lm, c->tuned, &model);
}

static enum gr_status build(struct eagle3 *m, const struct gr_eagle3_config *config, int device,
                            uint64_t *fingerprint_out)
{
    struct gr_eagle3_config c = *config;
    GR_TRY(gr_eagle3_source_open(&c, &m->source));
    GR_TRY(check(m, &c));
    GR_TRY(gr_cuda_model_open(&m->m, &m->lm, device, c.n_thread));
    GR_TRY(tune(m, &c));
    gr_cuda_memory_begin(&m->m.device);
    GR_TRY(choose_blocks(m, &c, &c.n_pool_block));
    gr_eagle3_source_describe(&m->source, &c, &m->lm);
    m->lm.far_features = c.far_feature_bytes > 0;
    GR_TRY(take_state(m, c.n_seq_max));
    struct gr_load_progress progress;
    const struct gr_loader from = {.files = m->source.files,
                                   .expand = m->source.expand.to != NULL ? &m->source.expand : NULL,
                                   .team = m->lm.team,
                                   .as = m->source.as,
                                   .sum = &m->source.sum,
                                   .progress = &progress};
    gr_load_progress_begin(&progress, c.dir, weight_bytes(m));
    GR_TRY(gr_cuda_model_load(&m->m, &from, load_all, m));
    GR_TRY(load_map(m, c.n_token));
    GR_TRY(gr_cuda_graphs_make(&m->body, &m->m.device, m->lm.n_row_max, enqueue_body, m));
    GR_TRY(gr_cuda_graphs_make(&m->logits, &m->m.device, m->lm.n_out_max, enqueue_logits, m));
    GR_TRY(gr_cuda_graphs_make(&m->whole, &m->m.device, gr_cuda_graphs_whole_max(&m->lm), enqueue_whole, m));
    GR_TRY(gr_cuda_wait(&m->m.device, "graphs of a pass"));
    gr_cuda_memory_end(&m->m.device);
    gr_cuda_log_memory(&m->m.device, NULL);
    return gr_eagle3_source_finish(&m->source, &m->lm, fingerprint_out);
}

enum gr_status gr_cuda_eagle3_create(const struct gr_eagle3_config *config, int device, struct gr_hf_config *hf_out,
                                     uint64_t *fingerprint_out, struct gr_lm **lm_out)
{
    struct eagle3 *m = calloc(1, sizeof(*m));
    if (m == NULL) {
        log_error("no memory for an EAGLE-3 head");
        return GR_ENOMEM;
    }
    m->lm.ops = &eagle3_ops;
    enum gr_status st = build(m, config, device, fingerprint_out);
    if (st != GR_OK) {
        eagle3_destroy(&m->lm);
        return st;
    }
    if (hf_out != NULL) {
        *hf_out = m->source.hf;
    }
    *lm_out = &m->lm;
    return GR_OK;
}
