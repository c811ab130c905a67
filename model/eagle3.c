#include "model/eagle3.h"

#include "common/base/log.h"
#include "model/eagle3_source.h"
#include "model/fc.h"
#include "model/layer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Rows that are run to the layer's end, one after the other, where the batch has others that only leave their KV. */
struct packed_rows {
    int n_row, n_seq;
    int32_t *row, *pos;      /* (n_row_max): in the batch; RoPE position */
    struct gr_attn_seq *seq; /* (n_row_max) */
    float *in, *g, *x;       /* (n_row_max, 2H | H | H): as the head's own */
};

struct eagle3 {
    struct gr_lm lm;
    struct gr_eagle3_source source;
    struct gr_kernels kernels;
    struct gr_memory memory;
    struct gr_fc fc; /* with raw_features */
    struct gr_layer_work work;
    struct gr_layer layer;
    float *hidden_norm, *final_norm; /* (H) */
    struct gr_row_table embed;       /* (n_vocab of the target, H) */
    struct gr_weight head;           /* (draft vocabulary rows, H) */
    int32_t *to_target;              /* (draft_n_vocab) */
    float *g;                        /* (n_row_max, H): features, then the residual of attention */
    float *in;                       /* (n_row_max, 2H): normed embedding, normed feature */
    float *x;                        /* (n_row_max, H): residual stream; lm.hidden unless norm_output */
    float *xo;                       /* (n_out_max, H): what lm_head is given */
    float *attn_out, *ffn_out;       /* (n_row_max, H) with keep_stages, else NULL */
    struct packed_rows packed;       /* not with keep_stages */
    struct gr_load_progress progress;
};

static struct eagle3 *of(struct gr_lm *lm)
{
    return GR_CONTAINER_OF(lm, struct eagle3, lm);
}

/* ---- loading ---- */

static struct gr_loader loader_of(struct eagle3 *m, const struct gr_tensors *files)
{
    return (struct gr_loader){.kernels = &m->kernels,
                              .memory = &m->memory,
                              .files = files,
                              .expand = m->source.expand.to != NULL ? &m->source.expand : NULL,
                              .team = m->lm.team,
                              .as = m->source.as,
                              .sum = &m->source.sum,
                              .progress = &m->progress};
}

static enum gr_status load_borrowed(struct eagle3 *m, struct gr_needs *needs)
{
    struct gr_eagle3_tensor t;
    GR_TRY(gr_eagle3_embedding(&m->source, &t));
    struct gr_loader l = loader_of(m, t.files);
    l.needs = needs;
    GR_TRY(gr_load_table(&l, t.name, m->source.hf.n_vocab, m->source.hf.hidden, &m->embed));
    GR_TRY(gr_eagle3_lm_head(&m->source, &t));
    l.files = t.files;
    return gr_load_matrix(&l, t.name, gr_hf_draft_vocab_rows(&m->source.hf), m->source.hf.hidden, &m->head);
}

static enum gr_status load_map(struct eagle3 *m)
{
    bool has_map = false;
    m->to_target = gr_memory_take(&m->memory, (size_t)m->source.hf.draft_n_vocab * sizeof(int32_t));
    if (m->to_target == NULL) {
        return GR_ENOMEM;
    }
    GR_TRY(gr_eagle3_map(&m->source, m->to_target, &has_map));
    m->lm.to_target = has_map ? m->to_target : NULL;
    return GR_OK;
}

/* needs: NULL, or where it is only counted (loader.h). */
static enum gr_status load_weights(struct eagle3 *m, const struct gr_eagle3_config *c, struct gr_needs *needs)
{
    struct gr_loader l = loader_of(m, m->source.files);
    l.needs = needs;
    const size_t n_cell = (size_t)(m->lm.n_pool_block + m->lm.n_scratch_block) * GR_KV_BLOCK_TOKENS;
    const char *prefix = gr_eagle3_layer_prefix(m->source.files);
    char name[64];
    GR_TRY(gr_layer_load(&l, &m->work, prefix, 0, n_cell, &m->layer));
    snprintf(name, sizeof(name), "%s.hidden_norm.weight", prefix);
    GR_TRY(gr_load_vector(&l, name, m->source.hf.hidden, &m->hidden_norm));
    GR_TRY(gr_load_vector(&l, "norm.weight", m->source.hf.hidden, &m->final_norm));
    GR_TRY(load_borrowed(m, needs));
    return c->raw_features
               ? gr_fc_load(&l, &m->source.hf, m->source.capture.n, m->source.target_hf.hidden, m->lm.n_row_max, &m->fc)
               : GR_OK;
}

/* Everything but KV and weights is taken. */
static enum gr_status fit(struct eagle3 *m, const struct gr_eagle3_config *c)
{
    struct gr_needs needs = {.other_bytes = gr_memory_bytes(&m->memory),
                             .block_bytes = gr_eagle3_kv_bytes_per_token(&m->source.hf) * GR_KV_BLOCK_TOKENS,
                             .n_scratch_block = c->n_scratch_block,
                             .n_block = c->n_pool_block,
                             .n_block_least = c->n_pool_block_least > 0 ? c->n_pool_block_least : c->n_pool_block,
                             .n_session = GR_MAX(c->n_seq_max, 1),
                             .n_ctx = c->n_ctx_kept > 0 ? GR_MIN(c->n_ctx_kept, m->lm.n_ctx_max) : m->lm.n_ctx_max};
    GR_TRY(load_weights(m, c, &needs));
    GR_TRY(gr_needs_fit_host(&needs, c->dir, &m->lm.n_pool_block));
    gr_load_progress_begin(&m->progress, c->dir, gr_needs_weights(&needs));
    return GR_OK;
}

static enum gr_status take_state(struct eagle3 *m, bool keep_stages)
{
    const size_t n_row = (size_t)m->lm.n_row_max;
    const size_t n_hidden = (size_t)m->source.hf.hidden;
    const size_t n_stage = keep_stages ? n_row * n_hidden : 0;
    const size_t n_packed = keep_stages ? 0 : n_row * n_hidden;
    struct packed_rows *k = &m->packed;
    const struct {
        float **p;
        size_t n;
    } buffers[] = {
        {&m->g, n_row * n_hidden},
        {&m->in, n_row * 2 * n_hidden},
        {&m->lm.hidden, n_row * n_hidden},
        {&m->lm.state, (size_t)m->lm.n_state * n_hidden},
        {&m->x, m->source.hf.norm_output ? n_row * n_hidden : 0},
        {&m->xo, (size_t)m->lm.n_out_max * n_hidden},
        {&m->lm.logits, (size_t)m->lm.n_out_max * (size_t)m->lm.n_vocab_stride},
        {&m->attn_out, n_stage},
        {&m->ffn_out, n_stage},
        {&k->in, 2 * n_packed},
        {&k->g, n_packed},
        {&k->x, n_packed},
    };
    for (size_t i = 0; i < GR_ARRAY_LEN(buffers); i++) {
        if (buffers[i].n == 0) {
            continue;
        }
        *buffers[i].p = gr_memory_take_f32(&m->memory, buffers[i].n);
        if (*buffers[i].p == NULL) {
            return GR_ENOMEM;
        }
    }
    m->x = m->source.hf.norm_output ? m->x : m->lm.hidden;
    k->row = gr_memory_take(&m->memory, n_row * sizeof(*k->row));
    k->pos = gr_memory_take(&m->memory, n_row * sizeof(*k->pos));
    k->seq = gr_memory_take(&m->memory, n_row * sizeof(*k->seq));
    if (k->row == NULL || k->pos == NULL || k->seq == NULL) {
        return GR_ENOMEM;
    }
    return gr_layer_work_init(&m->work, &m->kernels, &m->memory, &m->source.hf, 2 * m->source.hf.hidden, &m->lm);
}

/* ---- the pass ---- */

struct pass {
    struct eagle3 *m;
    const struct gr_batch *b;
    const struct packed_rows *packed; /* NULL: all rows are run to the end */
    struct gr_layer_queries asking;   /* the rows that are run to the end */
    const float *residual;            /* (n_row, H): what their attention is added to */
    float *x;                         /* (n_row, H): their residual stream, after the sum */
};

/* Which rows of a batch are run to the end. */
static void pack_rows(const struct gr_batch *b, struct packed_rows *k)
{
    k->n_row = k->n_seq = 0;
    for (int i = 0; i < b->n_seq; i++) {
        struct gr_attn_seq s = b->seq[i];
        const int n_skip = b->n_kv_only[i];
        GR_ASSERT(n_skip >= 0 && n_skip <= s.n_row);
        for (int r = s.row0 + n_skip; r < s.row0 + s.n_row; r++) {
            k->row[k->n_row + r - s.row0 - n_skip] = r;
            k->pos[k->n_row + r - s.row0 - n_skip] = b->pos[r];
        }
        s.row0 = k->n_row;
        s.n_row -= n_skip;
        s.limit += n_skip;
        s.n_anc += n_skip;
        s.anc += (size_t)n_skip * GR_ATTN_ANC_MAX;
        k->n_row += s.n_row;
        if (s.n_row > 0) {
            k->seq[k->n_seq++] = s;
        }
    }
}

static struct pass pass_of(struct eagle3 *m, const struct gr_batch *b)
{
    struct packed_rows *k = &m->packed;
    if (b->n_kv_only == NULL || k->x == NULL) {
        return (struct pass){.m = m, .b = b, .asking = gr_layer_all_ask(b, m->in), .residual = m->g, .x = m->x};
    }
    pack_rows(b, k);
    return (struct pass){.m = m,
                         .b = b,
                         .packed = k,
                         .residual = k->g,
                         .x = k->x,
                         .asking = {.in = k->in, .pos = k->pos, .seq = k->seq, .n_row = k->n_row, .n_seq = k->n_seq}};
}

/* Rows begin .. end - 1 of the batch, as far as they are run to the end. */
static void copy_packed(const struct eagle3 *m, const struct packed_rows *k, int begin, int end)
{
    const size_t n_hidden = (size_t)m->source.hf.hidden;
    for (int i = 0; i < k->n_row; i++) {
        const size_t r = (size_t)k->row[i];
        if (k->row[i] >= begin && k->row[i] < end) {
            memcpy(k->in + (size_t)i * 2 * n_hidden, m->in + r * 2 * n_hidden, 2 * n_hidden * sizeof(float));
            memcpy(k->g + (size_t)i * n_hidden, m->g + r * n_hidden, n_hidden * sizeof(float));
        }
    }
}

/* in = concat(norm_in(embed(token)), norm_hidden(g)), and g. Every step splits the rows alike: no barrier between. */
static void input_block(const struct gr_exec *x, const struct pass *p)
{
    struct eagle3 *m = p->m;
    const struct gr_batch *b = p->b;
    const int n_hidden = m->source.hf.hidden;
    const size_t row_bytes = (size_t)n_hidden * sizeof(float);
    float *const normed_g = m->in + n_hidden;
    int begin, end;
    gr_unit_range(b->n_row, x->ith, x->nth, &begin, &end);
    for (int r = begin; r < end; r++) {
        memcpy(m->g + (size_t)r * (size_t)n_hidden, gr_lm_feature(&m->lm, b, r), row_bytes);
    }
    m->kernels.embed(x, &(struct gr_embed_args){.table = m->embed.bf16,
                                                .table_f32 = m->embed.f32,
                                                .id = b->token,
                                                .y = m->in,
                                                .n_row = b->n_row,
                                                .n = n_hidden,
                                                .y_stride = 2 * n_hidden});
    m->kernels.rmsnorm(x, &(struct gr_rmsnorm_args){.x = m->in,
                                                    .w = m->layer.in_norm,
                                                    .y = m->in,
                                                    .n_row = b->n_row,
                                                    .n = n_hidden,
                                                    .x_stride = 2 * n_hidden,
                                                    .y_stride = 2 * n_hidden,
                                                    .eps = m->source.hf.rms_eps});
    m->kernels.rmsnorm(x, &(struct gr_rmsnorm_args){.x = m->g,
                                                    .w = m->hidden_norm,
                                                    .y = normed_g,
                                                    .n_row = b->n_row,
                                                    .n = n_hidden,
                                                    .x_stride = n_hidden,
                                                    .y_stride = 2 * n_hidden,
                                                    .eps = m->source.hf.rms_eps});
    for (int r = begin; m->source.hf.norm_before_residual && r < end; r++) {
        memcpy(m->g + (size_t)r * (size_t)n_hidden, normed_g + (size_t)r * 2 * (size_t)n_hidden, row_bytes);
    }
    if (p->packed != NULL) {
        copy_packed(m, p->packed, begin, end);
    }
}

/* lm.hidden of the rows that were run to the end. */
static void store_hidden(const struct gr_exec *x, const struct pass *p)
{
    struct eagle3 *m = p->m;
    const size_t n_hidden = (size_t)m->source.hf.hidden;
    int begin, end;
    gr_unit_range(p->asking.n_row, x->ith, x->nth, &begin, &end);
    if (m->source.hf.norm_output) { /* all rows are fed back normed; lm_head takes them as they are */
        gr_layer_norm(x, &m->work, p->x, m->final_norm, p->packed != NULL ? p->x : m->lm.hidden, p->asking.n_row);
    }
    for (int i = begin; p->packed != NULL && i < end; i++) {
        memcpy(m->lm.hidden + (size_t)p->packed->row[i] * n_hidden, p->x + (size_t)i * n_hidden,
               n_hidden * sizeof(float));
    }
    if (m->source.hf.norm_output || p->packed != NULL) {
        gr_exec_barrier(x);
    }
}

static void output_block(const struct gr_exec *x, struct eagle3 *m, const struct gr_batch *b)
{
    const size_t n_hidden = (size_t)m->source.hf.hidden;
    int begin, end;
    gr_unit_range(b->n_out, x->ith, x->nth, &begin, &end);
    for (int i = begin; i < end; i++) {
        memcpy(m->xo + (size_t)i * n_hidden, m->lm.hidden + (size_t)b->out_row[i] * n_hidden, n_hidden * sizeof(float));
    }
    if (!m->source.hf.norm_output) {
        gr_layer_norm(x, &m->work, m->xo, m->final_norm, m->xo, b->n_out);
    }
    gr_exec_barrier(x);
    m->kernels.linear(x, &(struct gr_linear_args){.w = &m->head,
                                                  .x = m->xo,
                                                  .y = m->lm.logits,
                                                  .n_row = b->n_out,
                                                  .x_stride = m->source.hf.hidden,
                                                  .y_stride = m->lm.n_vocab_stride});
}

static void run_pass(const struct gr_exec *x, void *arg)
{
    const struct pass *p = arg;
    struct eagle3 *m = p->m;
    const struct gr_batch *b = p->b;
    const struct gr_layer *l = &m->layer;
    const int n_row = p->asking.n_row;
    input_block(x, p);
    gr_exec_barrier(x);
    gr_layer_attention(x, &m->work, l, b, m->in, &p->asking, p->residual, p->x);
    if (n_row == 0) {
        return;
    }
    if (m->attn_out != NULL) {
        gr_layer_linear(x, &m->work, &l->o, m->work.att, NULL, m->attn_out, n_row);
    }
    gr_layer_mlp(x, &m->work, l, p->x, n_row);
    if (m->ffn_out != NULL) {
        gr_layer_linear(x, &m->work, &l->down, m->work.gate, NULL, m->ffn_out, n_row);
    }
    store_hidden(x, p);
    if (b->n_out > 0) {
        output_block(x, m, b);
    }
}

static enum gr_status eagle3_forward(struct gr_lm *lm, const struct gr_batch *b)
{
    struct eagle3 *m = of(lm);
    GR_ASSERT(b->n_row >= 1 && b->n_row <= lm->n_row_max && b->n_out <= lm->n_out_max && b->feature != NULL);
    struct pass pass = pass_of(m, b);
    gr_team_run(lm->team, run_pass, &pass);
    gr_lm_keep_states(lm, b);
    return GR_OK;
}

static void eagle3_copy_cells(struct gr_lm *lm, int n, const int32_t *src, const int32_t *dst)
{
    struct eagle3 *m = of(lm);
    if (n > 0) { /* one layer, a few kilobytes: not worth waking the team */
        m->kernels.kv_copy(&(struct gr_exec){.nth = 1},
                           &(struct gr_kv_copy_args){.kv = m->layer.kv, .src = src, .dst = dst, .n = n});
    }
}

struct fuse {
    const struct gr_fc *fc;
    int n;
    const float *const *capture;
    float *out;
};

static void run_fuse(const struct gr_exec *x, void *arg)
{
    const struct fuse *f = arg;
    gr_fc_fuse(x, f->fc, f->n, f->capture, f->out);
}

static void eagle3_fuse(struct gr_lm *lm, int n, const float *const *capture, float *out)
{
    GR_ASSERT(lm->raw_features && n <= lm->n_row_max);
    if (n > 0) {
        gr_team_run(lm->team, run_fuse, &(struct fuse){.fc = &of(lm)->fc, .n = n, .capture = capture, .out = out});
    }
}

static void eagle3_destroy(struct gr_lm *lm)
{
    struct eagle3 *m = of(lm);
    gr_team_destroy(lm->team);
    gr_memory_finish(&m->memory);
    gr_eagle3_source_close(&m->source);
    free(m);
}

static const struct gr_lm_ops eagle3_ops = {
    .forward = eagle3_forward,
    .copy_cells = eagle3_copy_cells,
    .fuse = eagle3_fuse,
    .destroy = eagle3_destroy,
};

/* ---- creation ---- */

static enum gr_status build(struct eagle3 *m, const struct gr_eagle3_config *c, uint64_t *fingerprint_out)
{
    GR_TRY(gr_eagle3_source_open(c, &m->source));
    GR_TRY(gr_model_kernels(&m->kernels, c->isa));
    GR_TRY(gr_team_create(gr_cpu_threads(c->n_thread), &m->lm.team));
    gr_eagle3_source_describe(&m->source, c, &m->lm);
    m->lm.kernels = &m->kernels;
    GR_TRY(take_state(m, c->keep_stages));
    GR_TRY(fit(m, c));
    const enum gr_status loaded = load_weights(m, c, NULL);
    gr_load_progress_end(&m->progress);
    GR_TRY(loaded);
    GR_TRY(load_map(m));
    gr_model_numerics_id(&m->kernels, m->lm.numerics_id, sizeof(m->lm.numerics_id));
    return gr_eagle3_source_finish(&m->source, &m->lm, fingerprint_out);
}

enum gr_status gr_eagle3_create(const struct gr_eagle3_config *config, struct gr_hf_config *hf_out,
                                uint64_t *fingerprint_out, struct gr_lm **lm_out)
{
    struct eagle3 *m = calloc(1, sizeof(*m));
    if (m == NULL) {
        log_error("no memory for an EAGLE-3 head");
        return GR_ENOMEM;
    }
    m->lm.ops = &eagle3_ops;
    m->memory.what = config->dir;
    enum gr_status st = build(m, config, fingerprint_out);
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

const float *gr_eagle3_stage(const struct gr_lm *lm, const char *name, int *width_out)
{
    const struct eagle3 *m = (const struct eagle3 *)(const void *)((const char *)lm - offsetof(struct eagle3, lm));
    const struct {
        const char *name;
        const float *value;
        int width;
    } stages[] = {
        {"attn_input", m->in, 2 * m->source.hf.hidden},  {"attn_out", m->attn_out, m->source.hf.hidden},
        {"ffn_out", m->ffn_out, m->source.hf.hidden},    {"hidden", m->lm.hidden, m->source.hf.hidden},
        {"pre_head_hidden", m->xo, m->source.hf.hidden},
    };
    for (size_t i = 0; lm->ops == &eagle3_ops && m->attn_out != NULL && i < GR_ARRAY_LEN(stages); i++) {
        if (strcmp(stages[i].name, name) == 0) {
            *width_out = stages[i].width;
            return stages[i].value;
        }
    }
    return NULL;
}

/* ---- sizes ---- */

size_t gr_eagle3_kv_bytes_per_token(const struct gr_hf_config *hf)
{
    return 2 * (size_t)(hf->n_kv_head * hf->head_dim) * sizeof(float);
}

static double weights_per_pass(const struct gr_hf_config *hf)
{
    const double h = hf->hidden;
    const double q = (double)hf->n_head * hf->head_dim;
    const double kv = (double)hf->n_kv_head * hf->head_dim;
    return 3 * h * q + 4 * h * kv + 3 * h * hf->ffn + (double)gr_hf_draft_vocab_rows(hf) * h;
}

size_t gr_eagle3_weight_bytes(const struct gr_hf_config *hf)
{
    return (size_t)(2 * weights_per_pass(hf)) + 4 * 4 * (size_t)hf->hidden;
}

double gr_eagle3_flops_per_row(const struct gr_hf_config *hf)
{
    return 2 * weights_per_pass(hf);
}
