#include "model/layer.h"

#include "common/base/log.h"
#include "model/rope.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- start ---- */

enum gr_status gr_model_kernels(struct gr_kernels *k, const char *isa)
{
    gr_kernels_init_ref(k);
    if (isa != NULL && strcmp(isa, "ref") == 0) {
        return GR_OK;
    }
    return gr_kernels_init_cpu(k, isa);
}

void gr_model_numerics_id(const struct gr_kernels *k, char *text, size_t cap)
{
    snprintf(text, cap, "%s/lane16/seg8/split%d/kv-f32", strcmp(k->name, "ref") == 0 ? "ref" : "cpu", GR_ATTN_SPLIT);
}

enum gr_status gr_head_dim_check(const char *dir, int head_dim)
{
    if (head_dim > GR_HEAD_DIM_MAX || head_dim % 16 != 0) {
        log_error("%s/config.json: head_dim %d: must be a multiple of 16 and at most %d", dir, head_dim,
                  GR_HEAD_DIM_MAX);
        return GR_ELIMIT;
    }
    return GR_OK;
}

/* Cosines and sines of all positions; layers with a window may have their own. */
static enum gr_status take_rope(struct gr_layer_work *w, struct gr_memory *memory, const struct gr_hf_config *hf)
{
    const size_t n = (size_t)w->n_ctx_max * (size_t)hf->head_dim / 2;
    float **tables[] = {&w->rope_cos, &w->rope_sin, &w->rope_local_cos, &w->rope_local_sin};
    const size_t n_table = hf->rope_local_theta > 0.0 ? 4 : 2;
    struct gr_free_memory left;
    gr_memory_available(&left);
    GR_TRY(gr_rope_fit(memory->what != NULL ? memory->what : "model", hf, w->n_ctx_max, &left));
    for (size_t i = 0; i < n_table; i++) {
        *tables[i] = gr_memory_take_f32(memory, n);
        if (*tables[i] == NULL) {
            return GR_ENOMEM;
        }
    }
    gr_rope_tables(hf, w->n_ctx_max, w->rope_cos, w->rope_sin);
    if (n_table > 2) {
        gr_rope_local_tables(hf, w->n_ctx_max, w->rope_local_cos, w->rope_local_sin);
    } else {
        w->rope_local_cos = w->rope_cos;
        w->rope_local_sin = w->rope_sin;
    }
    return GR_OK;
}

static enum gr_status take_activations(struct gr_layer_work *w, struct gr_memory *memory, const struct gr_hf_config *hf,
                                       const struct gr_lm *lm)
{
    const size_t n_row = (size_t)lm->n_row_max;
    const size_t n_q = (size_t)(w->n_head * w->head_dim);
    const size_t n_kv = (size_t)(w->n_kv_head * w->head_dim);
    const struct {
        float **p;
        size_t n;
    } buffers[] = {
        {&w->xn, n_row * (size_t)hf->hidden},
        {&w->q, n_row * n_q},
        {&w->k, n_row * n_kv},
        {&w->v, n_row * n_kv},
        {&w->att, n_row * n_q},
        {&w->gate, n_row * (size_t)w->ffn},
        {&w->up, n_row * (size_t)w->ffn},
        {&w->branch, hf->post_norms ? n_row * (size_t)hf->hidden : 0},
        {&w->joined, w->group != NULL ? n_row * (size_t)hf->hidden : 0},
    };
    for (size_t i = 0; i < GR_ARRAY_LEN(buffers); i++) {
        *buffers[i].p = buffers[i].n > 0 ? gr_memory_take_f32(memory, buffers[i].n) : NULL;
        if (buffers[i].n > 0 && *buffers[i].p == NULL) {
            return GR_ENOMEM;
        }
    }
    const size_t n_thread = (size_t)gr_team_size(lm->team);
    w->attn_work =
        gr_memory_take(memory, n_thread * w->kernels->attention_work_bytes(w->n_head, w->n_kv_head, w->head_dim));
    return w->attn_work != NULL ? GR_OK : GR_ENOMEM;
}

enum gr_status gr_layer_work_init(struct gr_layer_work *w, const struct gr_kernels *kernels, struct gr_memory *memory,
                                  const struct gr_hf_config *hf, int n_in, const struct gr_lm *lm)
{
    w->kernels = kernels;
    w->hf = hf;
    w->shard = w->group != NULL ? w->shard : gr_shard_whole(hf);
    w->hidden = hf->hidden;
    w->n_in = n_in;
    w->n_head = w->shard.n_head;
    w->n_kv_head = w->shard.n_kv_head;
    w->head_dim = hf->head_dim;
    w->ffn = w->shard.n_ffn;
    w->n_ctx_max = lm->n_ctx_max;
    w->rms_eps = hf->rms_eps;
    w->attn_scale = (float)(1.0 / sqrt((double)(hf->scale_dim > 0 ? hf->scale_dim : hf->head_dim)));
    GR_TRY(take_activations(w, memory, hf, lm));
    return take_rope(w, memory, hf);
}

/* A linear layer of the whole model, and what this rank has of it. */
struct linear_of {
    const char *what;
    int n_out, n_in;
    bool with_bias;
    struct gr_part part;
    struct gr_linear *linear;
};

static enum gr_status load_linear(const struct gr_loader *l, const char *prefix, const struct linear_of *a)
{
    char name[160];
    snprintf(name, sizeof(name), "%s.%s.weight", prefix, a->what);
    GR_TRY(gr_load_part(l, name, a->n_out, a->n_in, &a->part, &a->linear->w));
    if (a->with_bias) {
        float *bias = NULL;
        snprintf(name, sizeof(name), "%s.%s.bias", prefix, a->what);
        GR_TRY(gr_load_vector(l, name, a->n_out, &bias));
        a->linear->bias = l->needs == NULL ? bias + a->part.row : NULL;
    }
    return GR_OK;
}

static enum gr_status take_kv(const struct gr_loader *l, const struct gr_layer_work *w, size_t n_cell,
                              struct gr_kv_layer *out)
{
    const size_t n = n_cell * (size_t)(w->n_kv_head * w->head_dim);
    if (l->needs != NULL) {
        return GR_OK; /* counted in blocks */
    }
    *out = (struct gr_kv_layer){.n_kv_head = w->n_kv_head, .head_dim = w->head_dim};
    out->k = gr_memory_take_f32(l->memory, n);
    out->v = gr_memory_take_f32(l->memory, n);
    return out->k != NULL && out->v != NULL ? GR_OK : GR_ENOMEM;
}

static struct gr_part some_rows(int row, int n_row, int n_in)
{
    return (struct gr_part){.row = row, .n_row = n_row, .n_col = n_in};
}

static struct gr_part some_columns(int n_out, int col, int n_col)
{
    return (struct gr_part){.n_row = n_out, .col = col, .n_col = n_col};
}

static enum gr_status load_linears(const struct gr_loader *l, const struct gr_layer_work *w, const char *prefix,
                                   struct gr_layer *out)
{
    const struct gr_hf_config *hf = w->hf;
    const struct gr_shard *s = &w->shard;
    const int d = w->head_dim, h = w->hidden, n_q = hf->n_head * d, n_kv = hf->n_kv_head * d;
    const struct gr_part q = some_rows(s->head * d, s->n_head * d, w->n_in);
    const struct gr_part kv = some_rows(s->kv_head * d, s->n_kv_head * d, w->n_in);
    const struct gr_part ffn = some_rows(s->ffn, s->n_ffn, h);
    const struct linear_of linears[] = {
        {"self_attn.q_proj", n_q, w->n_in, hf->qkv_bias, q, &out->q},
        {"self_attn.k_proj", n_kv, w->n_in, hf->qkv_bias, kv, &out->k},
        {"self_attn.v_proj", n_kv, w->n_in, hf->qkv_bias, kv, &out->v},
        {"self_attn.o_proj", h, n_q, hf->o_bias, some_columns(h, s->head * d, s->n_head * d), &out->o},
        {"mlp.gate_proj", hf->ffn, h, hf->mlp_bias, ffn, &out->gate},
        {"mlp.up_proj", hf->ffn, h, hf->mlp_bias, ffn, &out->up},
        {"mlp.down_proj", h, hf->ffn, hf->mlp_bias, some_columns(h, s->ffn, s->n_ffn), &out->down},
    };
    for (size_t i = 0; i < GR_ARRAY_LEN(linears); i++) {
        GR_TRY(load_linear(l, prefix, &linears[i]));
    }
    out->o.w.segments = gr_shard_segments_of_o(s, d);
    out->down.w.segments = gr_shard_segments_of_down(s);
    return GR_OK;
}

enum gr_status gr_layer_load_norm(const struct gr_loader *l, const struct gr_hf_config *hf, const char *name, int n,
                                  float **out)
{
    GR_TRY(gr_load_vector(l, name, n, out));
    for (int i = 0; hf->norm_plus_one && l->needs == NULL && i < n; i++) {
        (*out)[i] += 1.0f;
    }
    return GR_OK;
}

/* Gemma's post_attention_layernorm is another one than Llama's. */
static enum gr_status load_norms(const struct gr_loader *l, const struct gr_layer_work *w, const char *prefix,
                                 struct gr_layer *out)
{
    const struct gr_hf_config *hf = w->hf;
    const struct {
        const char *what;
        int n;
        bool there;
        float **norm;
    } norms[] = {
        {"input_layernorm", w->hidden, true, &out->in_norm},
        {"self_attn.q_norm", w->head_dim, hf->qk_norm, &out->q_norm},
        {"self_attn.k_norm", w->head_dim, hf->qk_norm, &out->k_norm},
        {"post_attention_layernorm", w->hidden, hf->post_norms, &out->o_norm},
        {hf->post_norms ? "pre_feedforward_layernorm" : "post_attention_layernorm", w->hidden, true, &out->mlp_norm},
        {"post_feedforward_layernorm", w->hidden, hf->post_norms, &out->down_norm},
    };
    for (size_t i = 0; i < GR_ARRAY_LEN(norms); i++) {
        char name[160];
        snprintf(name, sizeof(name), "%s.%s.weight", prefix, norms[i].what);
        if (norms[i].there) {
            GR_TRY(gr_layer_load_norm(l, hf, name, norms[i].n, norms[i].norm));
        }
    }
    return GR_OK;
}

enum gr_status gr_layer_load(const struct gr_loader *l, const struct gr_layer_work *w, const char *prefix, int index,
                             size_t n_cell, struct gr_layer *out)
{
    const struct gr_hf_config *hf = w->hf;
    GR_TRY(load_linears(l, w, prefix, out));
    GR_TRY(load_norms(l, w, prefix, out));
    out->index = index;
    out->window = gr_hf_window_within(hf, index, w->n_ctx_max);
    if (!hf->layer_no_rope[index]) {
        out->rope_cos = hf->layer_sliding[index] ? w->rope_local_cos : w->rope_cos;
        out->rope_sin = hf->layer_sliding[index] ? w->rope_local_sin : w->rope_sin;
    }
    return take_kv(l, w, n_cell, &out->kv);
}

/* ---- parts of a pass ---- */

/* Rows of the residual stream's width. residual: NULL, or what is added to the normed rows. */
static void norm_rows(const struct gr_exec *x, const struct gr_layer_work *w, const float *in, const float *weight,
                      const float *residual, float *out, int n_row)
{
    w->kernels->rmsnorm(x, &(struct gr_rmsnorm_args){.x = in,
                                                     .w = weight,
                                                     .residual = residual,
                                                     .y = out,
                                                     .n_row = n_row,
                                                     .n = w->hidden,
                                                     .x_stride = w->hidden,
                                                     .y_stride = w->hidden,
                                                     .eps = w->rms_eps});
}

void gr_layer_norm(const struct gr_exec *x, const struct gr_layer_work *w, const float *in, const float *weight,
                   float *out, int n_row)
{
    norm_rows(x, w, in, weight, NULL, out, n_row);
}

void gr_layer_linear(const struct gr_exec *x, const struct gr_layer_work *w, const struct gr_linear *l, const float *in,
                     const float *residual, float *out, int n_row)
{
    w->kernels->linear(x, &(struct gr_linear_args){.w = &l->w,
                                                   .x = in,
                                                   .bias = l->bias,
                                                   .residual = residual,
                                                   .y = out,
                                                   .n_row = n_row,
                                                   .x_stride = l->w.n_in,
                                                   .y_stride = l->w.n_out});
}

/* Each head of rows by itself. The rows are dealt as rope and kv_store deal them: no barrier. */
static void norm_heads(const struct gr_exec *x, const struct gr_layer_work *w, const float *weight, int n_row,
                       float *rows, int n_head)
{
    const int d = w->head_dim;
    int begin, end;
    gr_unit_range(n_row, x->ith, x->nth, &begin, &end);
    float *mine = rows + (size_t)begin * (size_t)(n_head * d);
    w->kernels->rmsnorm(&(struct gr_exec){.nth = 1}, &(struct gr_rmsnorm_args){.x = mine,
                                                                               .w = weight,
                                                                               .y = mine,
                                                                               .n_row = (end - begin) * n_head,
                                                                               .n = d,
                                                                               .x_stride = d,
                                                                               .y_stride = d,
                                                                               .eps = w->rms_eps});
}

/* From the projections of q or k to what attention takes: their norm, then rotary embedding, each where the layer has
 * it. */
static void place_heads(const struct gr_exec *x, const struct gr_layer_work *w, const struct gr_layer *l,
                        const float *norm, int n_row, const int32_t *pos, float *rows, int n_head)
{
    if (norm != NULL) {
        norm_heads(x, w, norm, n_row, rows, n_head);
    }
    if (l->rope_cos != NULL) {
        w->kernels->rope(x, &(struct gr_rope_args){.x = rows,
                                                   .pos = pos,
                                                   .cos = l->rope_cos,
                                                   .sin = l->rope_sin,
                                                   .n_row = n_row,
                                                   .n_head = n_head,
                                                   .head_dim = w->head_dim,
                                                   .stride = n_head * w->head_dim});
    }
}

/* Rows of the joined sum: what the unsplit linear() adds to its finished sum, in the same order. */
static void add_to_joined(const struct gr_exec *x, const struct gr_layer_work *w, const float *bias,
                          const float *residual, float *out, int n_row)
{
    const size_t h = (size_t)w->hidden;
    int begin, end;
    gr_unit_range(n_row, x->ith, x->nth, &begin, &end);
    for (size_t r = (size_t)begin; r < (size_t)end; r++) {
        for (size_t i = 0; i < h; i++) {
            float v = w->joined[r * h + i];
            v = bias != NULL ? v + bias[i] : v;
            out[r * h + i] = residual != NULL ? v + residual[r * h + i] : v;
        }
    }
}

/* The same as gr_layer_linear, of a layer whose inputs the ranks share. An error of the group stays with it: the pass
 * goes on with what is there, so that all threads meet, and is void. */
static void linear_of_ranks(const struct gr_exec *x, const struct gr_layer_work *w, const struct gr_linear *l,
                            const float *in, const float *residual, float *out, int n_row)
{
    const struct gr_linear without_bias = {.w = l->w};
    gr_layer_linear(x, w, &without_bias, in, NULL, w->group->part, n_row);
    gr_exec_barrier(x);
    if (x->ith == 0) {
        const enum gr_status of_group = gr_group_join(w->group, w->joined, (size_t)n_row * (size_t)w->hidden);
        (void)of_group; /* group->status */
    }
    gr_exec_barrier(x);
    add_to_joined(x, w, l->bias, residual, out, n_row);
}

/* out = residual + linear(in), with norm: residual + norm(linear(in)). A barrier after. */
static void add_branch(const struct gr_exec *x, const struct gr_layer_work *w, const struct gr_linear *l,
                       const float *norm, const float *in, const float *residual, float *out, int n_row)
{
    const float *added = norm == NULL ? residual : NULL;
    float *sum = norm == NULL ? out : w->branch;
    if (w->group != NULL) {
        linear_of_ranks(x, w, l, in, added, sum, n_row);
    } else {
        gr_layer_linear(x, w, l, in, added, sum, n_row);
    }
    gr_exec_barrier(x);
    if (norm != NULL) {
        norm_rows(x, w, w->branch, norm, residual, out, n_row);
        gr_exec_barrier(x);
    }
}

void gr_layer_attention(const struct gr_exec *x, const struct gr_layer_work *w, const struct gr_layer *l,
                        const struct gr_batch *b, const float *in, const struct gr_layer_queries *asking,
                        const float *residual, float *out)
{
    const int n_kv = w->n_kv_head * w->head_dim;
    const int n_q = w->n_head * w->head_dim;
    gr_layer_linear(x, w, &l->q, asking->in, NULL, w->q, asking->n_row);
    gr_layer_linear(x, w, &l->k, in, NULL, w->k, b->n_row);
    gr_layer_linear(x, w, &l->v, in, NULL, w->v, b->n_row);
    gr_exec_barrier(x);
    /* Norms, rope and kv_store split the rows alike, so a thread stores what it has just rotated. */
    place_heads(x, w, l, l->q_norm, asking->n_row, asking->pos, w->q, w->n_head);
    place_heads(x, w, l, l->k_norm, b->n_row, b->pos, w->k, w->n_kv_head);
    w->kernels->kv_store(
        x,
        &(struct gr_kv_store_args){
            .kv = l->kv, .k = w->k, .v = w->v, .cell = b->cell, .n_row = b->n_row, .k_stride = n_kv, .v_stride = n_kv});
    gr_exec_barrier(x);
    if (b->n_refresh > 0) {
        gr_kv_refresh_layer(x, w->views,
                            &(struct gr_kv_refresh_layer){.kernels = w->kernels,
                                                          .layer = l->index,
                                                          .n_refresh = b->n_refresh,
                                                          .refresh = b->refresh,
                                                          .seq = b->seq,
                                                          .kv = l->kv,
                                                          .q = w->q,
                                                          .n_head = w->n_head,
                                                          .q_stride = n_q,
                                                          .work = w->attn_work});
    }
    w->kernels->attention(x, &(struct gr_attention_args){.kv = l->kv,
                                                         .q = w->q,
                                                         .out = w->att,
                                                         .seq = asking->seq,
                                                         .n_seq = asking->n_seq,
                                                         .n_head = w->n_head,
                                                         .q_stride = n_q,
                                                         .out_stride = n_q,
                                                         .layer = l->index,
                                                         .window = l->window,
                                                         .scale = w->attn_scale,
                                                         .work = w->attn_work});
    gr_exec_barrier(x);
    add_branch(x, w, &l->o, l->o_norm, w->att, residual, out, asking->n_row);
}

void gr_layer_mlp(const struct gr_exec *x, const struct gr_layer_work *w, const struct gr_layer *l, float *rows,
                  int n_row)
{
    gr_layer_norm(x, w, rows, l->mlp_norm, w->xn, n_row);
    gr_exec_barrier(x);
    gr_layer_linear(x, w, &l->gate, w->xn, NULL, w->gate, n_row);
    gr_layer_linear(x, w, &l->up, w->xn, NULL, w->up, n_row);
    w->kernels->silu_mul(x, &(struct gr_silu_mul_args){.gate = w->gate,
                                                       .up = w->up,
                                                       .act = w->gate,
                                                       .n_row = n_row,
                                                       .n_col = w->ffn,
                                                       .stride = w->ffn,
                                                       .gelu = w->hf->gelu});
    gr_exec_barrier(x);
    add_branch(x, w, &l->down, l->down_norm, w->gate, rows, rows, n_row);
}
