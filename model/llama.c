#include "model/llama.h"

#include "common/log.h"
#include "model/fingerprint.h"
#include "model/rope.h"
#include "model/safetensors.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct layer {
    float *attn_norm, *mlp_norm; /* (hidden) */
    struct gr_weight q, k, v, o; /* (n_head * d, H), (n_kv * d, H) twice, (H, n_head * d) */
    struct gr_weight gate, up;   /* (ffn, H) */
    struct gr_weight down;       /* (H, ffn) */
    struct gr_kv_layer kv;
};

struct llama {
    struct gr_lm lm;
    struct gr_hf_config hf;
    struct gr_kernels kernels;
    struct gr_safetensors *files;
    struct layer *layer;         /* (n_layer) */
    const uint16_t *embed;       /* (n_vocab, H) bf16, mmapped */
    float *final_norm;           /* (H) */
    struct gr_weight head;       /* (n_vocab, H) */
    float *rope_cos, *rope_sin;  /* (n_ctx_max, d / 2) */
    float *x, *xn;               /* (n_row_max, H): residual stream, normed */
    float *q, *k, *v, *att;      /* (n_row_max, n_head * d | n_kv * d | n_kv * d | n_head * d) */
    float *gate, *up;            /* (n_row_max, ffn) */
    float *xo;                   /* (n_out_max, H): rows whose logits are wanted */
    void *attn_work;
    float attn_scale;
    int capture_layer[GR_CAPTURE_MAX];
    /* Everything taken from the system, released by destroy. */
    struct region {
        void *p;
        size_t bytes;
    } * region;
    int n_region, n_region_max;
};

static struct llama *of(struct gr_lm *lm)
{
    return GR_CONTAINER_OF(lm, struct llama, lm);
}

/* Zeroed pages; kept on the model's list. */
static void *take(struct llama *m, size_t bytes)
{
    if (bytes == 0) {
        bytes = 1;
    }
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED || m->n_region == m->n_region_max) {
        log_error("out of memory: the model needs another %zu MiB; lower --kv-blocks or the context", bytes >> 20);
        if (p != MAP_FAILED) {
            munmap(p, bytes);
        }
        return NULL;
    }
    (void)madvise(p, bytes, MADV_HUGEPAGE);
    m->region[m->n_region++] = (struct region){.p = p, .bytes = bytes};
    return p;
}

static float *take_f32(struct llama *m, size_t n)
{
    return take(m, n * sizeof(float));
}

/* ---- loading ---- */

static enum gr_status load_matrix(struct llama *m, const char *name, int n_out, int n_in, struct gr_weight *out)
{
    const void *data = NULL;
    GR_TRY(gr_safetensors_take(m->files, name, GR_ST_BF16, 2, (int64_t[]){n_out, n_in}, &data));
    *out = (struct gr_weight){.plain = data, .n_out = n_out, .n_in = n_in};
    size_t bytes = m->kernels.linear_packed_bytes(n_out, n_in);
    if (bytes > 0) {
        void *packed = take(m, bytes);
        if (packed == NULL) {
            return GR_ENOMEM;
        }
        m->kernels.linear_pack(data, n_out, n_in, packed);
        out->packed = packed;
    }
    return GR_OK;
}

static enum gr_status load_norm(struct llama *m, const char *name, int n, float **out)
{
    const void *data = NULL;
    GR_TRY(gr_safetensors_take(m->files, name, GR_ST_BF16, 1, (int64_t[]){n}, &data));
    float *w = take_f32(m, (size_t)n);
    if (w == NULL) {
        return GR_ENOMEM;
    }
    for (int i = 0; i < n; i++) {
        w[i] = gr_bf16_to_f32(((const uint16_t *)data)[i]);
    }
    *out = w;
    return GR_OK;
}

static enum gr_status load_layer(struct llama *m, int i_layer)
{
    const struct gr_hf_config *hf = &m->hf;
    struct layer *l = &m->layer[i_layer];
    const int n_q = hf->n_head * hf->head_dim;
    const int n_kv = hf->n_kv_head * hf->head_dim;
    const struct {
        const char *name;
        int n_out, n_in;
        struct gr_weight *w;
    } matrices[] = {
        {"self_attn.q_proj", n_q, hf->hidden, &l->q},      {"self_attn.k_proj", n_kv, hf->hidden, &l->k},
        {"self_attn.v_proj", n_kv, hf->hidden, &l->v},     {"self_attn.o_proj", hf->hidden, n_q, &l->o},
        {"mlp.gate_proj", hf->ffn, hf->hidden, &l->gate},  {"mlp.up_proj", hf->ffn, hf->hidden, &l->up},
        {"mlp.down_proj", hf->hidden, hf->ffn, &l->down},
    };
    char name[160];
    for (size_t i = 0; i < GR_ARRAY_LEN(matrices); i++) {
        snprintf(name, sizeof(name), "model.layers.%d.%s.weight", i_layer, matrices[i].name);
        GR_TRY(load_matrix(m, name, matrices[i].n_out, matrices[i].n_in, matrices[i].w));
    }
    snprintf(name, sizeof(name), "model.layers.%d.input_layernorm.weight", i_layer);
    GR_TRY(load_norm(m, name, hf->hidden, &l->attn_norm));
    snprintf(name, sizeof(name), "model.layers.%d.post_attention_layernorm.weight", i_layer);
    return load_norm(m, name, hf->hidden, &l->mlp_norm);
}

static enum gr_status load_weights(struct llama *m)
{
    const struct gr_hf_config *hf = &m->hf;
    const void *data = NULL;
    GR_TRY(gr_safetensors_take(m->files, "model.embed_tokens.weight", GR_ST_BF16, 2,
                               (int64_t[]){hf->n_vocab, hf->hidden}, &data));
    m->embed = data;
    for (int i = 0; i < hf->n_layer; i++) {
        GR_TRY(load_layer(m, i));
    }
    GR_TRY(load_norm(m, "model.norm.weight", hf->hidden, &m->final_norm));
    const char *head = hf->tie_embeddings ? "model.embed_tokens.weight" : "lm_head.weight";
    GR_TRY(load_matrix(m, head, hf->n_vocab, hf->hidden, &m->head));
    return gr_safetensors_check_all_used(m->files);
}

static enum gr_status check_config(const struct gr_llama_config *c, const struct gr_hf_config *hf)
{
    if (strcmp(hf->architecture, "LlamaForCausalLM") != 0) {
        log_error("%s/config.json: architecture %s cannot be run by this build; known: LlamaForCausalLM", c->dir,
                  hf->architecture);
        return GR_EUNSUPPORTED;
    }
    if (hf->attention_bias || hf->mlp_bias) {
        log_error("%s/config.json: attention_bias and mlp_bias are not supported for LlamaForCausalLM", c->dir);
        return GR_EUNSUPPORTED;
    }
    if (hf->head_dim > GR_HEAD_DIM_MAX || hf->head_dim % 16 != 0) {
        log_error("%s/config.json: head_dim %d: must be a multiple of 16 and at most %d", c->dir, hf->head_dim,
                  GR_HEAD_DIM_MAX);
        return GR_ELIMIT;
    }
    for (int i = 0; i < c->n_capture; i++) {
        if (c->capture_layer[i] < 0 || c->capture_layer[i] >= hf->n_layer) {
            log_error("capture layer %d: %s has %d layers", c->capture_layer[i], c->dir, hf->n_layer);
            return GR_EINVAL;
        }
    }
    return GR_OK;
}

static enum gr_status take_state(struct llama *m)
{
    const struct gr_hf_config *hf = &m->hf;
    const size_t n_row = (size_t)m->lm.n_row_max;
    const size_t n_q = (size_t)(hf->n_head * hf->head_dim);
    const size_t n_kv = (size_t)(hf->n_kv_head * hf->head_dim);
    const size_t n_hidden = (size_t)hf->hidden;
    const size_t n_thread = (size_t)gr_team_size(m->lm.team);
    const struct {
        float **p;
        size_t n;
    } buffers[] = {
        {&m->x, n_row * n_hidden},
        {&m->xn, n_row * n_hidden},
        {&m->q, n_row * n_q},
        {&m->k, n_row * n_kv},
        {&m->v, n_row * n_kv},
        {&m->att, n_row * n_q},
        {&m->gate, n_row * (size_t)hf->ffn},
        {&m->up, n_row * (size_t)hf->ffn},
        {&m->xo, (size_t)m->lm.n_out_max * n_hidden},
        {&m->lm.logits, (size_t)m->lm.n_out_max * (size_t)m->lm.n_vocab_stride},
        {&m->lm.capture, n_row * (size_t)m->lm.n_capture * n_hidden},
        {&m->rope_cos, (size_t)m->lm.n_ctx_max * (size_t)hf->head_dim / 2},
        {&m->rope_sin, (size_t)m->lm.n_ctx_max * (size_t)hf->head_dim / 2},
    };
    for (size_t i = 0; i < GR_ARRAY_LEN(buffers); i++) {
        *buffers[i].p = take_f32(m, buffers[i].n);
        if (*buffers[i].p == NULL) {
            return GR_ENOMEM;
        }
    }
    m->attn_work = take(m, n_thread * m->kernels.attention_work_bytes(hf->n_head, hf->n_kv_head, hf->head_dim));
    if (m->attn_work == NULL) {
        return GR_ENOMEM;
    }
    const size_t n_cell = (size_t)(m->lm.n_pool_block + m->lm.n_scratch_block) * GR_KV_BLOCK;
    for (int i = 0; i < hf->n_layer; i++) {
        struct gr_kv_layer *kv = &m->layer[i].kv;
        *kv = (struct gr_kv_layer){.n_kv_head = hf->n_kv_head, .head_dim = hf->head_dim};
        kv->k = take_f32(m, n_cell * n_kv);
        kv->v = take_f32(m, n_cell * n_kv);
        if (kv->k == NULL || kv->v == NULL) {
            return GR_ENOMEM;
        }
    }
    gr_rope_tables(hf, m->lm.n_ctx_max, m->rope_cos, m->rope_sin);
    m->attn_scale = (float)(1.0 / sqrt((double)hf->head_dim));
    return GR_OK;
}

/* ---- the pass ---- */

struct pass {
    struct llama *m;
    const struct gr_batch *b;
};

/* Keeps the residual stream entering layer i_layer, if it is a captured one. */
static void capture(const struct gr_exec *x, const struct llama *m, const struct gr_batch *b, int i_layer)
{
    const size_t n_hidden = (size_t)m->hf.hidden;
    const size_t width = n_hidden * (size_t)m->lm.n_capture;
    int begin, end;
    gr_unit_range(b->n_row, x->ith, x->nth, &begin, &end);
    for (int c = 0; c < m->lm.n_capture; c++) {
        for (int r = begin; m->capture_layer[c] == i_layer && r < end; r++) {
            memcpy(m->lm.capture + (size_t)r * width + (size_t)c * n_hidden, m->x + (size_t)r * n_hidden,
                   n_hidden * sizeof(float));
        }
    }
}

static void norm(const struct gr_exec *x, const struct llama *m, const float *in, const float *w, float *out, int n_row)
{
    m->kernels.rmsnorm(x, &(struct gr_rmsnorm_args){.x = in, .w = w, .y = out, .n_row = n_row, .n = m->hf.hidden,
                                                    .x_stride = m->hf.hidden, .y_stride = m->hf.hidden,
                                                    .eps = m->hf.rms_eps});
}

static void linear(const struct gr_exec *x, const struct llama *m, const struct gr_weight *w, const float *in,
                   const float *residual, float *out, int n_row)
{
    m->kernels.linear(x, &(struct gr_linear_args){.w = w, .x = in, .residual = residual, .y = out, .n_row = n_row,
                                                  .x_stride = w->n_in, .y_stride = w->n_out});
}

static void rope(const struct gr_exec *x, const struct llama *m, const struct gr_batch *b, float *rows, int n_head)
{
    m->kernels.rope(x, &(struct gr_rope_args){.x = rows, .pos = b->pos, .cos = m->rope_cos, .sin = m->rope_sin,
                                              .n_row = b->n_row, .n_head = n_head, .head_dim = m->hf.head_dim,
                                              .stride = n_head * m->hf.head_dim});
}

static void attention_block(const struct gr_exec *x, struct llama *m, const struct gr_batch *b, struct layer *l)
{
    const int n_kv = m->hf.n_kv_head * m->hf.head_dim;
    const int n_q = m->hf.n_head * m->hf.head_dim;
    norm(x, m, m->x, l->attn_norm, m->xn, b->n_row);
    gr_exec_barrier(x);
    linear(x, m, &l->q, m->xn, NULL, m->q, b->n_row);
    linear(x, m, &l->k, m->xn, NULL, m->k, b->n_row);
    linear(x, m, &l->v, m->xn, NULL, m->v, b->n_row);
    gr_exec_barrier(x);
    /* rope and kv_store split the rows alike, so a thread stores what it has just rotated. */
    rope(x, m, b, m->q, m->hf.n_head);
    rope(x, m, b, m->k, m->hf.n_kv_head);
    m->kernels.kv_store(x, &(struct gr_kv_store_args){.kv = l->kv, .k = m->k, .v = m->v, .cell = b->cell,
                                                      .n_row = b->n_row, .k_stride = n_kv, .v_stride = n_kv});
    gr_exec_barrier(x);
    m->kernels.attention(x, &(struct gr_attention_args){.kv = l->kv, .q = m->q, .out = m->att, .seq = b->seq,
                                                        .n_seq = b->n_seq, .n_head = m->hf.n_head, .q_stride = n_q,
                                                        .out_stride = n_q, .scale = m->attn_scale,
                                                        .work = m->attn_work});
    gr_exec_barrier(x);
    linear(x, m, &l->o, m->att, m->x, m->x, b->n_row);
    gr_exec_barrier(x);
}

static void mlp_block(const struct gr_exec *x, struct llama *m, const struct gr_batch *b, struct layer *l)
{
    norm(x, m, m->x, l->mlp_norm, m->xn, b->n_row);
    gr_exec_barrier(x);
    linear(x, m, &l->gate, m->xn, NULL, m->gate, b->n_row);
    linear(x, m, &l->up, m->xn, NULL, m->up, b->n_row);
    m->kernels.silu_mul(x, &(struct gr_silu_mul_args){.gate = m->gate, .up = m->up, .act = m->gate,
                                                      .n_row = b->n_row, .n_col = m->hf.ffn, .stride = m->hf.ffn});
    gr_exec_barrier(x);
    linear(x, m, &l->down, m->gate, m->x, m->x, b->n_row);
    gr_exec_barrier(x);
}

static void output_block(const struct gr_exec *x, struct llama *m, const struct gr_batch *b)
{
    const size_t n_hidden = (size_t)m->hf.hidden;
    int begin, end;
    gr_unit_range(b->n_out, x->ith, x->nth, &begin, &end);
    for (int i = begin; i < end; i++) {
        memcpy(m->xo + (size_t)i * n_hidden, m->x + (size_t)b->out_row[i] * n_hidden, n_hidden * sizeof(float));
    }
    norm(x, m, m->xo, m->final_norm, m->xo, b->n_out);
    gr_exec_barrier(x);
    m->kernels.linear(x, &(struct gr_linear_args){.w = &m->head, .x = m->xo, .y = m->lm.logits, .n_row = b->n_out,
                                                  .x_stride = m->hf.hidden, .y_stride = m->lm.n_vocab_stride});
}

static void run_pass(const struct gr_exec *x, void *arg)
{
    const struct pass *p = arg;
    struct llama *m = p->m;
    const struct gr_batch *b = p->b;
    m->kernels.embed(x, &(struct gr_embed_args){.table = m->embed, .id = b->token, .y = m->x, .n_row = b->n_row,
                                                .n = m->hf.hidden, .y_stride = m->hf.hidden});
    for (int i = 0; i < m->hf.n_layer; i++) {
        /* The rows of x that capture() and norm() read are those this thread wrote, or a barrier lies between. */
        capture(x, m, b, i);
        attention_block(x, m, b, &m->layer[i]);
        mlp_block(x, m, b, &m->layer[i]);
    }
    if (b->n_out > 0) {
        output_block(x, m, b);
    }
}

static enum gr_status llama_forward(struct gr_lm *lm, const struct gr_batch *b)
{
    struct llama *m = of(lm);
    GR_ASSERT(b->n_row >= 1 && b->n_row <= lm->n_row_max && b->n_out <= lm->n_out_max);
    gr_team_run(lm->team, run_pass, &(struct pass){.m = m, .b = b});
    return GR_OK;
}

struct copy {
    struct llama *m;
    int n;
    const int32_t *src, *dst;
};

static void run_copy(const struct gr_exec *x, void *arg)
{
    const struct copy *c = arg;
    for (int i = 0; i < c->m->hf.n_layer; i++) {
        c->m->kernels.kv_copy(x, &(struct gr_kv_copy_args){.kv = c->m->layer[i].kv, .src = c->src, .dst = c->dst,
                                                           .n = c->n});
    }
}

static void llama_copy_cells(struct gr_lm *lm, int n, const int32_t *src, const int32_t *dst)
{
    if (n > 0) {
        /* A few kilobytes: waking the team would cost more than the copy. */
        run_copy(&(struct gr_exec){.nth = 1}, &(struct copy){.m = of(lm), .n = n, .src = src, .dst = dst});
    }
}

static void llama_destroy(struct gr_lm *lm)
{
    struct llama *m = of(lm);
    gr_team_destroy(lm->team);
    for (int i = 0; i < m->n_region; i++) {
        munmap(m->region[i].p, m->region[i].bytes);
    }
    gr_safetensors_close(m->files);
    free(m->region);
    free(m->layer);
    free(m);
}

static const struct gr_lm_ops llama_ops = {
    .forward = llama_forward,
    .copy_cells = llama_copy_cells,
    .destroy = llama_destroy,
};

/* ---- creation ---- */

static enum gr_status init_kernels(struct gr_kernels *k, const char *isa)
{
    gr_kernels_init_ref(k);
    if (isa != NULL && strcmp(isa, "ref") == 0) {
        return GR_OK;
    }
    return gr_kernels_init_cpu(k, isa);
}

static void fill_limits(struct gr_lm *lm, const struct gr_llama_config *c, const struct gr_hf_config *hf)
{
    lm->ops = &llama_ops;
    lm->n_vocab = hf->n_vocab;
    lm->n_vocab_stride = (hf->n_vocab + 15) / 16 * 16;
    lm->n_ctx_max = c->n_ctx_max > 0 ? GR_MIN(c->n_ctx_max, hf->max_pos) : hf->max_pos;
    lm->n_row_max = c->n_row_max;
    lm->n_out_max = c->n_out_max;
    lm->n_pool_block = c->n_pool_block;
    lm->n_scratch_block = c->n_scratch_block;
    lm->n_capture = c->n_capture;
    lm->capture_width = hf->hidden;
}

static enum gr_status build(struct llama *m, const struct gr_llama_config *c, uint64_t *fingerprint_out)
{
    GR_TRY(gr_hf_config_load(c->dir, &m->hf));
    GR_TRY(check_config(c, &m->hf));
    GR_TRY(init_kernels(&m->kernels, c->isa));
    GR_TRY(gr_team_create(c->n_thread > 0 ? c->n_thread : gr_cpu_count(), &m->lm.team));
    fill_limits(&m->lm, c, &m->hf);
    m->lm.kernels = &m->kernels;
    memcpy(m->capture_layer, c->capture_layer, sizeof(m->capture_layer));
    m->n_region_max = 16 * m->hf.n_layer + 32;
    m->region = calloc((size_t)m->n_region_max, sizeof(*m->region));
    m->layer = calloc((size_t)m->hf.n_layer, sizeof(*m->layer));
    if (m->region == NULL || m->layer == NULL) {
        log_error("out of memory for a model of %d layers", m->hf.n_layer);
        return GR_ENOMEM;
    }
    GR_TRY(gr_safetensors_open(c->dir, &m->files));
    GR_TRY(load_weights(m));
    GR_TRY(take_state(m));
    if (fingerprint_out != NULL) {
        *fingerprint_out = gr_model_fingerprint(&m->hf, m->files);
    }
    /* The three CPU versions give equal bits, so they share one id. */
    snprintf(m->lm.numerics_id, sizeof(m->lm.numerics_id), "%s/lane16/split%d/kv-f32/tp1",
             strcmp(m->kernels.name, "ref") == 0 ? "ref" : "cpu", GR_ATTN_SPLIT);
    return GR_OK;
}

enum gr_status gr_llama_create(const struct gr_llama_config *config, struct gr_hf_config *hf_out,
                               uint64_t *fingerprint_out, struct gr_lm **lm_out)
{
    struct llama *m = calloc(1, sizeof(*m));
    if (m == NULL) {
        log_error("out of memory");
        return GR_ENOMEM;
    }
    m->lm.ops = &llama_ops;
    enum gr_status st = build(m, config, fingerprint_out);
    if (st != GR_OK) {
        llama_destroy(&m->lm);
        return st;
    }
    if (hf_out != NULL) {
        *hf_out = m->hf;
    }
    *lm_out = &m->lm;
    return GR_OK;
}

/* ---- sizes ---- */

size_t gr_llama_kv_bytes_per_token(const struct gr_hf_config *hf)
{
    return (size_t)hf->n_layer * 2 * (size_t)(hf->n_kv_head * hf->head_dim) * sizeof(float);
}

static double weights_per_pass(const struct gr_hf_config *hf)
{
    const double h = hf->hidden;
    const double q = (double)hf->n_head * hf->head_dim;
    const double kv = (double)hf->n_kv_head * hf->head_dim;
    return hf->n_layer * (2 * h * q + 2 * h * kv + 3 * h * hf->ffn) + (double)hf->n_vocab * h;
}

size_t gr_llama_weight_bytes(const struct gr_hf_config *hf)
{
    return (size_t)(2 * weights_per_pass(hf)) + 4 * (size_t)hf->hidden * (2 * (size_t)hf->n_layer + 1);
}

double gr_llama_flops_per_row(const struct gr_hf_config *hf)
{
    return 2 * weights_per_pass(hf);
}
