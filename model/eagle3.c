#include "model/eagle3.h"

#include "common/log.h"
#include "model/capture.h"
#include "model/fc.h"
#include "model/fingerprint.h"
#include "model/head_fit.h"
#include "model/layer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Rows that are run to the layer's end, one behind the other, where the batch has others that only leave their KV. */
struct packed_rows {
    int n_row, n_seq;
    int32_t *row, *pos;       /* (n_row_max): in the batch; RoPE position */
    struct gr_attn_seq *seq;  /* (n_row_max) */
    float *in, *g, *x;        /* (n_row_max, 2H | H | H): as the head's own */
};

struct eagle3 {
    struct gr_lm lm;
    struct gr_hf_config hf, target_hf;           /* as they run */
    struct gr_expand expand;                     /* to NULL: not expanded */
    struct gr_kernels kernels;
    struct gr_memory memory;
    struct gr_safetensors *files, *target_files; /* target_files: NULL when nothing is borrowed */
    struct gr_capture capture;       /* what fc is given */
    struct gr_fc fc;                 /* with raw_features */
    struct gr_layer_work work;
    struct gr_layer layer;
    float *hidden_norm, *final_norm; /* (H) */
    const uint16_t *embed;           /* (n_vocab of the target, H) bf16, mmapped or expanded */
    struct gr_weight head;           /* (draft vocabulary rows, H) */
    int32_t *to_target;              /* (draft_n_vocab) */
    float *g;                        /* (n_row_max, H): features, then the residual of attention */
    float *in;                       /* (n_row_max, 2H): normed embedding, normed feature */
    float *x;                        /* (n_row_max, H): residual stream; lm.hidden unless norm_output */
    float *xo;                       /* (n_out_max, H): what lm_head is given */
    float *attn_out, *ffn_out;       /* (n_row_max, H) with keep_stages, else NULL */
    struct packed_rows packed;       /* not with keep_stages */
};

static struct eagle3 *of(struct gr_lm *lm)
{
    return GR_CONTAINER_OF(lm, struct eagle3, lm);
}

/* ---- geometry ---- */

/* The spelling that the files use. */
static const char *layer_prefix(const struct gr_safetensors *files)
{
    return gr_safetensors_find(files, "layers.0.self_attn.q_proj.weight") != NULL ? "layers.0" : "midlayer";
}

/* q_proj says what an EAGLE-3 head is (inputs of twice the hidden size) and, where the config is silent, the width of
 * its heads. The other shapes are checked as they are loaded. */
static enum gr_status fit_geometry(const char *dir, const struct gr_safetensors *files, struct gr_hf_config *hf)
{
    char name[96];
    snprintf(name, sizeof(name), "%s.self_attn.q_proj.weight", layer_prefix(files));
    const struct gr_tensor *q = gr_safetensors_find(files, name);
    if (q == NULL || q->n_dim != 2) {
        return GR_OK; /* the load names what is wrong */
    }
    if (q->shape[1] != 2 * (int64_t)hf->hidden) {
        log_error("%s: %s takes %" PRId64 " values, an EAGLE-3 head of hidden size %d takes 2 x %d = %d", dir, name,
                  q->shape[1], hf->hidden, hf->hidden, 2 * hf->hidden);
        return GR_EMISMATCH;
    }
    if (!hf->head_dim_given && q->shape[0] % hf->n_head == 0 && q->shape[0] / hf->n_head <= GR_HEAD_DIM_MAX) {
        hf->head_dim = (int)(q->shape[0] / hf->n_head);
    }
    return GR_OK;
}

/* A head that is silent about its rotary embedding was trained on top of its target's. */
static void fit_rope(const char *dir, struct gr_hf_config *hf, const struct gr_hf_config *target)
{
    if (hf->rope_theta != 0.0) {
        return;
    }
    hf->rope_theta = target->rope_theta;
    if (hf->rope_kind == GR_ROPE_PLAIN) {
        hf->rope_kind = target->rope_kind;
        hf->rope = target->rope;
    }
    log_info("%s/config.json: no rope_theta: the head rotates as its target (theta %g)", dir, hf->rope_theta);
}

static enum gr_status open_folders(struct eagle3 *m, const struct gr_eagle3_config *c)
{
    GR_TRY(gr_hf_config_load(c->dir, &m->hf));
    GR_TRY(gr_hf_config_load(c->target_dir, &m->target_hf));
    GR_TRY(gr_safetensors_open(c->dir, &m->files));
    GR_TRY(gr_head_fit_check(c->dir, &m->hf, m->files, c->target_dir, &m->target_hf));
    GR_TRY(gr_capture_choose(c->dir, &m->hf, m->target_hf.n_layer, c->n_capture, c->capture_layer,
                             &m->capture));
    GR_TRY(fit_geometry(c->dir, m->files, &m->hf));
    fit_rope(c->dir, &m->hf, &m->target_hf);
    return gr_head_dim_check(c->dir, m->hf.head_dim);
}

/* ---- loading ---- */

static struct gr_loader loader_of(struct eagle3 *m, const struct gr_safetensors *files)
{
    return (struct gr_loader){.kernels = &m->kernels, .memory = &m->memory, .files = files,
                              .expand = m->expand.to != NULL ? &m->expand : NULL, .team = m->lm.team};
}

/* The target's files, opened when the first tensor is borrowed. What is borrowed must be as wide as the head. */
static enum gr_status borrow(struct eagle3 *m, const struct gr_eagle3_config *c, const char *what)
{
    if (m->hf.hidden != m->target_hf.hidden) {
        log_error("%s: no %s of its own, and that of the target %s is %d wide, the head %d", c->dir, what,
                  c->target_dir, m->target_hf.hidden, m->hf.hidden);
        return GR_EMISMATCH;
    }
    return m->target_files != NULL ? GR_OK : gr_safetensors_open(c->target_dir, &m->target_files);
}

static enum gr_status load_embedding(struct eagle3 *m, const struct gr_eagle3_config *c)
{
    const bool own = gr_safetensors_find(m->files, "embed_tokens.weight") != NULL;
    if (!own) {
        GR_TRY(borrow(m, c, "embed_tokens.weight"));
    }
    const struct gr_loader l = loader_of(m, own ? m->files : m->target_files);
    return gr_load_embedding(&l, own ? "embed_tokens.weight" : "model.embed_tokens.weight", m->hf.n_vocab, m->hf.hidden,
                             &m->embed);
}

/* Own lm_head; else, over the whole vocabulary, the head's own tied embedding or the target's lm_head. */
static enum gr_status load_lm_head(struct eagle3 *m, const struct gr_eagle3_config *c)
{
    struct gr_loader l = loader_of(m, m->files);
    const char *name = "lm_head.weight";
    const bool own = gr_safetensors_find(m->files, name) != NULL;
    if (!own && m->hf.draft_n_vocab == m->hf.n_vocab) {
        if (m->hf.tie_embeddings && gr_safetensors_find(m->files, "embed_tokens.weight") != NULL) {
            name = "embed_tokens.weight";
        } else {
            GR_TRY(borrow(m, c, name));
            l.files = m->target_files;
            name = m->target_hf.tie_embeddings ? "model.embed_tokens.weight" : name;
        }
    }
    return gr_load_matrix(&l, name, gr_hf_draft_vocab_rows(&m->hf), m->hf.hidden, &m->head);
}

static enum gr_status load_map(struct eagle3 *m, const struct gr_eagle3_config *c)
{
    bool has_map = false;
    m->to_target = gr_memory_take(&m->memory, (size_t)m->hf.draft_n_vocab * sizeof(int32_t));
    if (m->to_target == NULL) {
        return GR_ENOMEM;
    }
    GR_TRY(gr_draft_map_read(c->dir, &m->hf, m->files, m->to_target, &has_map));
    m->lm.to_target = has_map ? m->to_target : NULL;
    return GR_OK;
}

/* fc and its norms must be there, and in their shapes, also where the target runs them. */
static enum gr_status check_fc(struct eagle3 *m, const struct gr_eagle3_config *c)
{
    const void *data = NULL;
    const int target_hidden = m->target_hf.hidden;
    const int n_capture = m->capture.n;
    GR_TRY(gr_fc_check(c->dir, &m->hf, m->files, n_capture, target_hidden));
    if (m->hf.norm_before_fc) {
        GR_TRY(gr_safetensors_take(m->files, "input_norm.weight", GR_ST_BF16, 1,
                                   (int64_t[]){(int64_t)n_capture * target_hidden}, &data));
    }
    for (int i = 0; m->hf.fc_norm && i < n_capture; i++) {
        char name[32];
        snprintf(name, sizeof(name), "fc_norm.%d.weight", i);
        GR_TRY(gr_safetensors_take(m->files, name, GR_ST_BF16, 1, (int64_t[]){target_hidden}, &data));
    }
    if (gr_safetensors_find(m->files, "fc.bias") != NULL) {
        GR_TRY(gr_safetensors_take(m->files, "fc.bias", GR_ST_BF16, 1, (int64_t[]){m->hf.hidden}, &data));
    }
    return GR_OK;
}

static enum gr_status load_weights(struct eagle3 *m, const struct gr_eagle3_config *c)
{
    const struct gr_loader l = loader_of(m, m->files);
    const size_t n_cell = (size_t)(m->lm.n_pool_block + m->lm.n_scratch_block) * GR_KV_BLOCK;
    const char *prefix = layer_prefix(m->files);
    char name[64];
    GR_TRY(gr_layer_load(&l, &m->work, prefix, n_cell, &m->layer));
    snprintf(name, sizeof(name), "%s.hidden_norm.weight", prefix);
    GR_TRY(gr_load_vector(&l, name, m->hf.hidden, &m->hidden_norm));
    GR_TRY(gr_load_vector(&l, "norm.weight", m->hf.hidden, &m->final_norm));
    GR_TRY(load_embedding(m, c));
    GR_TRY(load_lm_head(m, c));
    GR_TRY(load_map(m, c));
    if (c->raw_features) {
        GR_TRY(gr_fc_load(&l, &m->hf, m->capture.n, m->target_hf.hidden, m->lm.n_row_max, &m->fc));
    }
    return gr_safetensors_check_all_used(m->files);
}

static enum gr_status take_state(struct eagle3 *m, bool keep_stages)
{
    const size_t n_row = (size_t)m->lm.n_row_max;
    const size_t n_hidden = (size_t)m->hf.hidden;
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
        {&m->x, m->hf.norm_output ? n_row * n_hidden : 0},
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
    m->x = m->hf.norm_output ? m->x : m->lm.hidden;
    k->row = gr_memory_take(&m->memory, n_row * sizeof(*k->row));
    k->pos = gr_memory_take(&m->memory, n_row * sizeof(*k->pos));
    k->seq = gr_memory_take(&m->memory, n_row * sizeof(*k->seq));
    if (k->row == NULL || k->pos == NULL || k->seq == NULL) {
        return GR_ENOMEM;
    }
    return gr_layer_work_init(&m->work, &m->kernels, &m->memory, &m->hf, 2 * m->hf.hidden, &m->lm);
}

/* ---- the pass ---- */

struct pass {
    struct eagle3 *m;
    const struct gr_batch *b;
    const struct packed_rows *packed; /* NULL: all rows are run to the end */
    struct gr_layer_queries asking; /* the rows that are */
    const float *residual;          /* theirs, and */
    float *x;                       /* (n_row, H): their residual stream */
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
    return (struct pass){.m = m, .b = b, .packed = k, .residual = k->g, .x = k->x,
                         .asking = {.in = k->in, .pos = k->pos, .seq = k->seq, .n_row = k->n_row, .n_seq = k->n_seq}};
}

/* Rows begin .. end - 1 of the batch, as far as they are run to the end. */
static void copy_packed(const struct eagle3 *m, const struct packed_rows *k, int begin, int end)
{
    const size_t n_hidden = (size_t)m->hf.hidden;
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
    const int n_hidden = m->hf.hidden;
    const size_t row_bytes = (size_t)n_hidden * sizeof(float);
    float *const normed_g = m->in + n_hidden;
    int begin, end;
    gr_unit_range(b->n_row, x->ith, x->nth, &begin, &end);
    for (int r = begin; r < end; r++) {
        memcpy(m->g + (size_t)r * (size_t)n_hidden, b->feature[r], row_bytes);
    }
    m->kernels.embed(x, &(struct gr_embed_args){.table = m->embed, .id = b->token, .y = m->in, .n_row = b->n_row,
                                                .n = n_hidden, .y_stride = 2 * n_hidden});
    m->kernels.rmsnorm(x, &(struct gr_rmsnorm_args){.x = m->in, .w = m->layer.in_norm, .y = m->in, .n_row = b->n_row,
                                                    .n = n_hidden, .x_stride = 2 * n_hidden, .y_stride = 2 * n_hidden,
                                                    .eps = m->hf.rms_eps});
    m->kernels.rmsnorm(x, &(struct gr_rmsnorm_args){.x = m->g, .w = m->hidden_norm, .y = normed_g, .n_row = b->n_row,
                                                    .n = n_hidden, .x_stride = n_hidden, .y_stride = 2 * n_hidden,
                                                    .eps = m->hf.rms_eps});
    for (int r = begin; m->hf.norm_before_residual && r < end; r++) {
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
    const size_t n_hidden = (size_t)m->hf.hidden;
    int begin, end;
    gr_unit_range(p->asking.n_row, x->ith, x->nth, &begin, &end);
    if (m->hf.norm_output) { /* all rows are fed back normed; lm_head takes them as they are */
        gr_layer_norm(x, &m->work, p->x, m->final_norm, p->packed != NULL ? p->x : m->lm.hidden, p->asking.n_row);
    }
    for (int i = begin; p->packed != NULL && i < end; i++) {
        memcpy(m->lm.hidden + (size_t)p->packed->row[i] * n_hidden, p->x + (size_t)i * n_hidden,
               n_hidden * sizeof(float));
    }
    if (m->hf.norm_output || p->packed != NULL) {
        gr_exec_barrier(x);
    }
}

static void output_block(const struct gr_exec *x, struct eagle3 *m, const struct gr_batch *b)
{
    const size_t n_hidden = (size_t)m->hf.hidden;
    int begin, end;
    gr_unit_range(b->n_out, x->ith, x->nth, &begin, &end);
    for (int i = begin; i < end; i++) {
        memcpy(m->xo + (size_t)i * n_hidden, m->lm.hidden + (size_t)b->out_row[i] * n_hidden, n_hidden * sizeof(float));
    }
    if (!m->hf.norm_output) {
        gr_layer_norm(x, &m->work, m->xo, m->final_norm, m->xo, b->n_out);
    }
    gr_exec_barrier(x);
    m->kernels.linear(x, &(struct gr_linear_args){.w = &m->head, .x = m->xo, .y = m->lm.logits, .n_row = b->n_out,
                                                  .x_stride = m->hf.hidden, .y_stride = m->lm.n_vocab_stride});
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
    gr_safetensors_close(m->files);
    gr_safetensors_close(m->target_files);
    free(m);
}

static const struct gr_lm_ops eagle3_ops = {
    .forward = eagle3_forward,
    .copy_cells = eagle3_copy_cells,
    .fuse = eagle3_fuse,
    .destroy = eagle3_destroy,
};

/* ---- creation ---- */

static void fill_limits(struct eagle3 *m, const struct gr_eagle3_config *c)
{
    struct gr_lm *lm = &m->lm;
    lm->n_vocab = m->hf.draft_n_vocab;
    lm->n_vocab_stride = (gr_hf_draft_vocab_rows(&m->hf) + 15) / 16 * 16;
    lm->n_vocab_target = m->hf.n_vocab;
    lm->n_ctx_max = c->n_ctx_max > 0 ? GR_MIN(c->n_ctx_max, m->target_hf.max_pos) : m->target_hf.max_pos;
    lm->n_row_max = c->n_row_max;
    lm->n_out_max = c->n_out_max;
    lm->n_pool_block = c->n_pool_block;
    lm->n_scratch_block = c->n_scratch_block;
    lm->feature_width = m->hf.hidden;
    gr_capture_text(&m->capture, lm->captures, sizeof(lm->captures));
    if (c->raw_features) {
        lm->raw_features = true;
        lm->n_capture = m->capture.n;
        lm->capture_width = m->target_hf.hidden;
        lm->fused_width = m->hf.hidden;
    }
    lm->kernels = &m->kernels;
    if (lm->n_ctx_max > m->hf.max_pos) {
        log_info("%s: made for %d positions, may be asked for %d: the text stays right, acceptance may fall there",
                 c->dir, m->hf.max_pos, lm->n_ctx_max);
    }
}

static enum gr_status build(struct eagle3 *m, const struct gr_eagle3_config *c, uint64_t *fingerprint_out)
{
    GR_TRY(open_folders(m, c));
    GR_TRY(check_fc(m, c));
    if (c->geometry != NULL) {
        GR_TRY(gr_expand_init(&m->expand, c->geometry, c->dir, &m->hf));
        GR_TRY(gr_expand_config(c->geometry, c->target_dir, &m->target_hf));
    }
    GR_TRY(gr_model_kernels(&m->kernels, c->isa));
    GR_TRY(gr_team_create(c->n_thread > 0 ? c->n_thread : gr_cpu_count(), &m->lm.team));
    fill_limits(m, c);
    GR_TRY(take_state(m, c->keep_stages));
    GR_TRY(load_weights(m, c));
    m->lm.fc_fingerprint = gr_fc_fingerprint(m->files);
    if (fingerprint_out != NULL) {
        *fingerprint_out = gr_model_fingerprint(&m->hf, m->files);
    }
    gr_model_numerics_id(&m->kernels, m->lm.numerics_id, sizeof(m->lm.numerics_id));
    return GR_OK;
}

enum gr_status gr_eagle3_create(const struct gr_eagle3_config *config, struct gr_hf_config *hf_out,
                                uint64_t *fingerprint_out, struct gr_lm **lm_out)
{
    struct eagle3 *m = calloc(1, sizeof(*m));
    if (m == NULL) {
        log_error("out of memory");
        return GR_ENOMEM;
    }
    m->lm.ops = &eagle3_ops;
    enum gr_status st = build(m, config, fingerprint_out);
    if (st != GR_OK) {
        eagle3_destroy(&m->lm);
        return st;
    }
    if (hf_out != NULL) {
        *hf_out = m->hf;
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
        {"attn_input", m->in, 2 * m->hf.hidden}, {"attn_out", m->attn_out, m->hf.hidden},
        {"ffn_out", m->ffn_out, m->hf.hidden},   {"hidden", m->lm.hidden, m->hf.hidden},
        {"pre_head_hidden", m->xo, m->hf.hidden},
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
