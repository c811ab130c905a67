#include "model/cuda/layer.h"

#include "common/base/log.h"
#include "kernels/cuda/attention/begin.h"
#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/linear/silu.h"
#include "common/base/memory.h"
#include "model/rope.h"

#include <math.h>
#include <stdio.h>

/* ---- start ---- */

/* What the layers of a GPU do not compute. */
static enum gr_status check_family(const char *dir, const struct gr_hf_config *hf)
{
    const struct {
        bool has;
        const char *what;
    } missing[] = {
        {hf->post_norms, "norms after attention and MLP"},
    };
    for (size_t i = 0; i < GR_ARRAY_LEN(missing); i++) {
        if (missing[i].has) {
            log_error("%s/config.json: %s with %s is not run on a GPU; take cpu", dir, hf->architecture,
                      missing[i].what);
            return GR_EUNSUPPORTED;
        }
    }
    return GR_OK;
}

/* Whether q, k and v are made of their layer's sums by a kernel of their own (kernels/cuda/linear/heads.h). */
static bool heads_apart(const struct gr_hf_config *hf)
{
    return hf->qkv_bias || hf->qk_norm;
}

size_t gr_cuda_sums_bytes(const struct gr_hf_config *hf, const struct gr_shard *shard)
{
    const size_t n_qkv = (size_t)(shard->n_head + 2 * shard->n_kv_head) * (size_t)hf->head_dim;
    return heads_apart(hf) ? n_qkv * sizeof(float) : 0;
}

static int n_qkv(const struct gr_cuda_layer_work *w)
{
    return (w->attention.n_head + 2 * w->attention.n_kv_head) * w->attention.head_dim;
}

enum gr_status gr_cuda_geometry_check(const char *dir, const struct gr_hf_config *hf)
{
    const int group = hf->n_head / GR_MAX(hf->n_kv_head, 1);
    if ((hf->head_dim != 64 && hf->head_dim != 128) || group > GR_CUDA_GROUP_MAX || hf->n_head % hf->n_kv_head != 0) {
        log_error(
            "%s/config.json: %d query heads, %d KV heads of %d: on a GPU head_dim must be 64 or 128, with at most %d "
            "query heads a KV head; take cpu",
            dir, hf->n_head, hf->n_kv_head, hf->head_dim, (int)GR_CUDA_GROUP_MAX);
        return GR_EUNSUPPORTED;
    }
    if (hf->hidden % 64 != 0 || hf->ffn % 64 != 0) {
        log_error(
            "%s/config.json: hidden size %d, intermediate size %d: on a GPU both must be multiples of 64; take cpu",
            dir, hf->hidden, hf->ffn);
        return GR_EUNSUPPORTED;
    }
    return check_family(dir, hf);
}

uint64_t gr_cuda_kv_block_bytes(const struct gr_hf_config *hf, int n_kv_head, int n_layer)
{
    return (uint64_t)n_layer * (uint64_t)n_kv_head * 2 * 16 * (uint64_t)hf->head_dim * sizeof(uint16_t);
}

static enum gr_status take_rope(struct gr_cuda_layer_work *w, const struct gr_hf_config *hf, int n_pos)
{
    struct gr_memory memory = {0};
    const size_t n = (size_t)n_pos * (size_t)(hf->head_dim / 2);
    const size_t bytes = n * sizeof(float);
    float *cos = gr_memory_take_f32(&memory, n);
    float *sin = gr_memory_take_f32(&memory, n);
    void *dev[2] = {NULL, NULL};
    enum gr_status st = cos != NULL && sin != NULL ? GR_OK : GR_ENOMEM;
    if (st == GR_OK) {
        gr_rope_tables(hf, n_pos, cos, sin);
        st = gr_cuda_take(w->device, "activations and tables", bytes, &dev[0]);
    }
    if (st == GR_OK) {
        st = gr_cuda_take(w->device, "activations and tables", bytes, &dev[1]);
    }
    if (st == GR_OK) {
        st = gr_cuda_upload(w->device, dev[0], cos, bytes, "tables");
    }
    if (st == GR_OK) {
        st = gr_cuda_upload(w->device, dev[1], sin, bytes, "tables");
    }
    gr_memory_finish(&memory);
    w->cos = dev[0];
    w->sin = dev[1];
    return st;
}

static bool has_layer_without_rope(const struct gr_hf_config *hf)
{
    for (int i = 0; i < hf->n_layer; i++) {
        if (hf->layer_no_rope[i]) {
            return true;
        }
    }
    return false;
}

/* What turns nothing: a cosine of 1 and a sine of 0 for every pair, at position 0 whatever the row's is. What is taken
 * is zeros. */
static enum gr_status take_no_rope(struct gr_cuda_layer_work *w)
{
    float one[GR_HEAD_DIM_MAX / 2];
    const size_t bytes = (size_t)(w->attention.head_dim / 2) * sizeof(float);
    const size_t sizes[] = {bytes, bytes, (size_t)w->attention.n_row_max * sizeof(int32_t)};
    void *p[GR_ARRAY_LEN(sizes)];
    for (size_t i = 0; i < GR_ARRAY_LEN(one); i++) {
        one[i] = 1.0f;
    }
    for (size_t i = 0; i < GR_ARRAY_LEN(sizes); i++) {
        GR_TRY(gr_cuda_take(w->device, "activations and tables", sizes[i], &p[i]));
    }
    w->cos_none = p[0], w->sin_none = p[1], w->pos_none = p[2];
    return gr_cuda_upload(w->device, w->cos_none, one, bytes, "tables");
}

/* Of a model's layers, which have the same one or none. */
static int find_window(const struct gr_hf_config *hf, int n_layer, int n_ctx)
{
    int window = 0;
    for (int i = 0; i < n_layer; i++) {
        window = GR_MAX(window, gr_hf_window_within(hf, i, n_ctx));
    }
    return window;
}

static enum gr_status take_activations(struct gr_cuda_layer_work *w)
{
    const int n_row = w->attention.n_row_max;
    const int n_q = w->attention.n_head * w->attention.head_dim;
    const size_t bytes[] = {
        (size_t)n_row * (size_t)w->hidden * sizeof(float),
        gr_cuda_tile_bytes(n_row, w->n_in),
        gr_cuda_tile_bytes(n_row, w->hidden),
        (size_t)n_row * (size_t)n_q * sizeof(uint16_t),
        gr_cuda_tile_bytes(n_row, n_q),
        gr_cuda_tile_bytes(n_row, w->ffn),
        gr_cuda_attn_plan_bytes(&w->attention),
        gr_cuda_attn_work_bytes(&w->attention),
        (size_t)n_row * sizeof(struct gr_cuda_square),
        (size_t)n_row * sizeof(struct gr_cuda_square),
        (size_t)n_row * gr_cuda_sums_bytes(w->hf, &w->shard),
        w->window > 0 ? gr_cuda_attn_plan_bytes(&w->attention) : 0,
        w->hf->mlp_bias ? (size_t)n_row * 2 * (size_t)w->ffn * sizeof(float) : 0,
    };
    void *p[GR_ARRAY_LEN(bytes)];
    for (size_t i = 0; i < GR_ARRAY_LEN(bytes); i++) {
        p[i] = NULL;
        GR_TRY(bytes[i] > 0 ? gr_cuda_take(w->device, "activations and tables", bytes[i], &p[i]) : GR_OK);
    }
    w->x = p[0];
    w->in = p[1];
    w->xn = p[2];
    w->q = p[3];
    w->att = p[4];
    w->act = p[5];
    w->plan = p[6];
    w->attn_work = p[7];
    w->o_square = p[8];
    w->down_square = p[9];
    w->qkv = p[10];
    w->window_plan = p[11];
    w->gate_up = p[12];
    return GR_OK;
}

enum gr_status gr_cuda_layer_work_init(struct gr_cuda_layer_work *w, struct gr_cuda_device *d,
                                       const struct gr_cuda_layer_config *c)
{
    const struct gr_hf_config *hf = c->hf;
    const struct gr_lm *lm = c->lm;
    const int scale_dim = hf->scale_dim > 0 ? hf->scale_dim : hf->head_dim;
    const uint64_t n_block = (uint64_t)(lm->n_pool_block + lm->n_scratch_block);
    *w = (struct gr_cuda_layer_work){
        .device = d,
        .inputs = c->inputs,
        .hf = hf,
        .shard = c->shard,
        .ranks = c->ranks,
        .hidden = hf->hidden,
        .n_in = c->n_in,
        .ffn = c->shard.n_ffn,
        .rms_eps = hf->rms_eps,
        .attn_scale = (float)(1.0 / sqrt((double)scale_dim)),
        .attention = {.n_head = c->shard.n_head,
                      .n_kv_head = c->shard.n_kv_head,
                      .head_dim = hf->head_dim,
                      .n_row_max = lm->n_row_max,
                      .n_seq_max = c->n_seq_max,
                      .n_slot_max =
                          GR_MIN(lm->n_scratch_block / c->n_seq_max * GR_KV_BLOCK_TOKENS, (int)GR_CUDA_SLOT_MAX),
                      .n_split_max = c->shapes->n_split_max},
        .window = find_window(hf, c->n_layer, lm->n_ctx_max),
        .kv = {.layer_bytes = (size_t)(n_block * gr_cuda_kv_block_bytes(hf, c->shard.n_kv_head, 1)),
               .n_layer = c->n_layer,
               .n_kv_head = c->shard.n_kv_head,
               .head_dim = hf->head_dim}};
    GR_TRY(take_rope(w, hf, lm->n_ctx_max));
    GR_TRY(has_layer_without_rope(hf) ? take_no_rope(w) : GR_OK);
    GR_TRY(take_activations(w));
    return gr_cuda_take(d, "KV", w->kv.layer_bytes * (size_t)c->n_layer, &w->kv.blocks);
}

/* Rows of a tensor of the layer, as r says but for its name. */
static enum gr_status load_rows(struct gr_cuda_weights *l, const char *prefix, const char *what, struct gr_cuda_rows r,
                                const struct gr_cuda_matrix *m)
{
    char name[160];
    snprintf(name, sizeof(name), "%s.%s.weight", prefix, what);
    r.name = name;
    return gr_cuda_rows_load(l, &r, m);
}

/* This rank's heads of n_head, from row row0 on. head_dim: q's and k's, 0: they stay in order. */
static struct gr_cuda_rows rows_of_heads(const struct gr_cuda_layer_work *w, bool query, int row0, int head_dim)
{
    const struct gr_hf_config *hf = w->hf;
    const struct gr_shard *s = &w->shard;
    const int d = hf->head_dim;
    return (struct gr_cuda_rows){.n_out = (query ? hf->n_head : hf->n_kv_head) * d,
                                 .n_in = w->n_in,
                                 .part = {.row = (query ? s->head : s->kv_head) * d,
                                          .n_row = (query ? s->n_head : s->n_kv_head) * d,
                                          .n_col = w->n_in},
                                 .row0 = row0,
                                 .step = 1,
                                 .head_dim = head_dim};
}

/* Heads that the linear layer itself turns have their rows in another order. */
static enum gr_status load_qkv(struct gr_cuda_weights *l, const struct gr_cuda_layer_work *w, const char *prefix,
                               struct gr_cuda_layer *out)
{
    const struct gr_hf_config *hf = w->hf;
    const int n_q = w->attention.n_head * hf->head_dim, n_kv = w->attention.n_kv_head * hf->head_dim;
    const int turned = w->qkv == NULL ? hf->head_dim : 0, n_all = (hf->n_head + 2 * hf->n_kv_head) * hf->head_dim;
    GR_TRY(gr_cuda_matrix_take_rows(l, n_all, w->n_in, n_q + 2 * n_kv, &out->qkv));
    GR_TRY(load_rows(l, prefix, "self_attn.q_proj", rows_of_heads(w, true, 0, turned), &out->qkv));
    GR_TRY(load_rows(l, prefix, "self_attn.k_proj", rows_of_heads(w, false, n_q, turned), &out->qkv));
    return load_rows(l, prefix, "self_attn.v_proj", rows_of_heads(w, false, n_q + n_kv, 0), &out->qkv);
}

static enum gr_status load_qkv_bias(struct gr_cuda_weights *l, const struct gr_cuda_layer_work *w, const char *prefix,
                                    struct gr_cuda_layer *out)
{
    static const char *const parts[] = {"q", "k", "v"};
    void *p = NULL;
    GR_TRY(gr_cuda_take(w->device, "weights", (size_t)n_qkv(w) * sizeof(float), &p));
    out->qkv_bias = p;
    for (int i = 0, row = 0; i < 3; i++) {
        char name[160];
        const struct gr_cuda_rows r = rows_of_heads(w, i == 0, row, 0);
        snprintf(name, sizeof(name), "%s.self_attn.%s_proj.bias", prefix, parts[i]);
        GR_TRY(gr_cuda_vector_part_load(l, name, r.n_out, &r.part, out->qkv_bias + row));
        row += r.part.n_row;
    }
    return GR_OK;
}

static enum gr_status load_norm(struct gr_cuda_weights *l, const char *prefix, const char *what, int n, float **out)
{
    char name[160];
    snprintf(name, sizeof(name), "%s.%s.weight", prefix, what);
    return gr_cuda_vector_load(l, name, n, out);
}

static enum gr_status load_bias(struct gr_cuda_weights *l, const char *prefix, const char *what, int n, float **out)
{
    char name[160];
    snprintf(name, sizeof(name), "%s.%s.bias", prefix, what);
    return gr_cuda_vector_load(l, name, n, out);
}

/* Of gate or up. */
static enum gr_status load_ffn_bias(struct gr_cuda_weights *l, const struct gr_cuda_layer_work *w, const char *prefix,
                                    const char *what, float **out)
{
    char name[160];
    void *p = NULL;
    snprintf(name, sizeof(name), "%s.mlp.%s_proj.bias", prefix, what);
    GR_TRY(gr_cuda_take(w->device, "weights", (size_t)w->ffn * sizeof(float), &p));
    *out = p;
    return gr_cuda_vector_part_load(l, name, w->hf->ffn, &(struct gr_part){.row = w->shard.ffn, .n_row = w->ffn}, p);
}

static enum gr_status load_biases(struct gr_cuda_weights *l, const struct gr_cuda_layer_work *w, const char *prefix,
                                  struct gr_cuda_layer *out)
{
    if (w->hf->qkv_bias) {
        GR_TRY(load_qkv_bias(l, w, prefix, out));
    }
    if (w->hf->o_bias) {
        GR_TRY(load_bias(l, prefix, "self_attn.o_proj", w->hidden, &out->o_bias));
    }
    if (w->hf->mlp_bias) {
        GR_TRY(load_ffn_bias(l, w, prefix, "gate", &out->gate_bias));
        GR_TRY(load_ffn_bias(l, w, prefix, "up", &out->up_bias));
        GR_TRY(load_bias(l, prefix, "mlp.down_proj", w->hidden, &out->down_bias));
    }
    return GR_OK;
}

static enum gr_status load_o(struct gr_cuda_weights *l, const struct gr_cuda_layer_work *w, const char *prefix,
                             struct gr_cuda_matrix *out)
{
    const int d = w->hf->head_dim, n_q = w->shard.n_head * d;
    const struct gr_segments segments = gr_shard_segments_of_o(&w->shard, d);
    const struct gr_cuda_rows r = {.n_out = w->hidden,
                                   .n_in = w->hf->n_head * d,
                                   .part = {.n_row = w->hidden, .col = w->shard.head * d, .n_col = n_q},
                                   .step = 1};
    GR_TRY(gr_cuda_matrix_take_columns(l, r.n_out, r.n_in, n_q, segments, out));
    return load_rows(l, prefix, "self_attn.o_proj", r, out);
}

static enum gr_status load_mlp(struct gr_cuda_weights *l, const struct gr_cuda_layer_work *w, const char *prefix,
                               struct gr_cuda_layer *out)
{
    const int ffn = w->hf->ffn, first = w->shard.ffn, n = w->ffn;
    struct gr_cuda_rows r = {
        .n_out = ffn, .n_in = w->hidden, .part = {.row = first, .n_row = n, .n_col = w->hidden}, .step = 2};
    const struct gr_cuda_rows down = {
        .n_out = w->hidden, .n_in = ffn, .part = {.n_row = w->hidden, .col = first, .n_col = n}, .step = 1};
    GR_TRY(gr_cuda_matrix_take_rows(l, 2 * ffn, w->hidden, 2 * n, &out->gate_up));
    GR_TRY(gr_cuda_matrix_take_columns(l, w->hidden, ffn, n, gr_shard_segments_of_down(&w->shard), &out->down));
    GR_TRY(load_rows(l, prefix, "mlp.gate_proj", r, &out->gate_up));
    r.row0 = 1;
    GR_TRY(load_rows(l, prefix, "mlp.up_proj", r, &out->gate_up));
    return load_rows(l, prefix, "mlp.down_proj", down, &out->down);
}

enum gr_status gr_cuda_layer_load(struct gr_cuda_weights *l, const struct gr_cuda_layer_work *w, const char *prefix,
                                  int index, struct gr_cuda_layer *out)
{
    GR_TRY(load_qkv(l, w, prefix, out));
    GR_TRY(load_o(l, w, prefix, &out->o));
    GR_TRY(load_mlp(l, w, prefix, out));
    GR_TRY(load_norm(l, prefix, "input_layernorm", w->hidden, &out->in_norm));
    GR_TRY(load_norm(l, prefix, "post_attention_layernorm", w->hidden, &out->mlp_norm));
    GR_TRY(load_biases(l, w, prefix, out));
    if (w->hf->qk_norm) {
        GR_TRY(load_norm(l, prefix, "self_attn.q_norm", w->attention.head_dim, &out->q_norm));
        GR_TRY(load_norm(l, prefix, "self_attn.k_norm", w->attention.head_dim, &out->k_norm));
    }
    out->no_rope = w->hf->layer_no_rope[index];
    out->window = w->hf->layer_sliding[index] ? w->window : 0;
    out->index = index;
    out->kv = (uint8_t *)w->kv.blocks + (size_t)index * w->kv.layer_bytes;
    return GR_OK;
}

/* ---- parts of a pass ---- */

static struct gr_cuda_norm_args norm_args(const struct gr_cuda_layer_work *w, const struct gr_cuda_norm_step *s, int n)
{
    return (struct gr_cuda_norm_args){.x = s->x,
                                      .w = s->weight,
                                      .row = s->out_rows ? w->inputs->out_row : NULL,
                                      .y = s->y,
                                      .capture = s->capture,
                                      .n_row = n,
                                      .n = w->hidden,
                                      .x_stride = w->hidden,
                                      .y_n = s->y_n,
                                      .y_col = s->y_col,
                                      .capture_n = s->capture_n,
                                      .capture_col = s->capture_col,
                                      .eps = w->rms_eps,
                                      .n_row_true = s->out_rows ? w->inputs->n_out : w->inputs->n_row};
}

enum gr_status gr_cuda_enqueue_norm(const struct gr_cuda_layer_work *w, const struct gr_cuda_norm_step *s, int n)
{
    const struct gr_cuda_norm_args a = norm_args(w, s, n);
    return gr_cuda_norm(&a, w->device->stream);
}

enum gr_status gr_cuda_enqueue_begin(const struct gr_cuda_layer_work *w, const struct gr_cuda_begin_step *s, int n)
{
    struct gr_cuda_begin_args a = {.plan = {.shape = w->attention,
                                            .seq = w->inputs->seq,
                                            .n_seq = w->inputs->n_seq,
                                            .plan = w->plan,
                                            .error = s->plan_error},
                                   .table = s->table,
                                   .id = w->inputs->token,
                                   .x = s->x,
                                   .token = norm_args(w, &s->token, n)};
    if (w->window > 0) {
        a.window_plan = a.plan;
        a.window_plan.plan = w->window_plan;
        a.window_plan.error = s->plan_error + 1;
        a.window_plan.window = w->window;
    }
    if (s->feature != NULL) {
        a.feature = norm_args(w, s->feature, n);
        a.states = s->states;
        a.from_state = w->inputs->from_state;
        a.half = w->inputs->half;
        a.feature_x = w->x;
    }
    return gr_cuda_begin(&a, w->device->stream);
}

static struct gr_cuda_linear_args linear_args(const struct gr_cuda_layer_work *w, const struct gr_cuda_matrix *m,
                                              const struct gr_cuda_linear_step *s, int n)
{
    return (struct gr_cuda_linear_args){.w = m->packed,
                                        .n_out = m->n_out,
                                        .n_in = m->n_in,
                                        .x = s->x,
                                        .bias = s->bias,
                                        .y = s->y,
                                        .out = s->out,
                                        .y_stride = s->y_stride,
                                        .n_row = n,
                                        .n_row_true = s->out_rows ? w->inputs->n_out : w->inputs->n_row,
                                        .cut = m->cut,
                                        .norm = s->norm,
                                        .next = s->next,
                                        .clear = s->clear,
                                        .heads = s->heads,
                                        .segments = m->segments};
}

enum gr_status gr_cuda_enqueue_linear(const struct gr_cuda_layer_work *w, const struct gr_cuda_matrix *m,
                                      const struct gr_cuda_linear_step *s, int n)
{
    const struct gr_cuda_linear_args a = linear_args(w, m, s, n);
    return gr_cuda_linear(&a, w->device->stream);
}

static enum gr_status attend(const struct gr_cuda_layer_work *w, const struct gr_cuda_layer *l, int n)
{
    const struct gr_cuda_attn_shape *s = &w->attention;
    const int n_q = s->n_head * s->head_dim;
    const struct gr_cuda_view_layer view = {.kv = l->kv, .q = w->q, .q_stride = n_q, .layer = l->index};
    if (w->views != NULL) {
        GR_TRY(gr_cuda_view_scores(w->views, &view, w->device->stream));
    }
    const struct gr_cuda_attention_args attention = {.shape = *s,
                                                     .kv = l->kv,
                                                     .q = w->q,
                                                     .out = w->att,
                                                     .seq = w->inputs->seq,
                                                     .plan = l->window > 0 ? w->window_plan : w->plan,
                                                     .work = w->attn_work,
                                                     .n_row = n,
                                                     .n_seq = GR_MIN(n, s->n_seq_max),
                                                     .q_stride = n_q,
                                                     .layer = l->index,
                                                     .scale = w->attn_scale,
                                                     .window = l->window};
    return gr_cuda_attention(&attention, w->device->stream);
}

static struct gr_cuda_heads heads_of(const struct gr_cuda_layer_work *w, const struct gr_cuda_layer *l)
{
    return (struct gr_cuda_heads){.q = w->q,
                                  .kv = l->kv,
                                  .pos = l->no_rope ? w->pos_none : w->inputs->pos,
                                  .cell = w->inputs->cell,
                                  .cos = l->no_rope ? w->cos_none : w->cos,
                                  .sin = l->no_rope ? w->sin_none : w->sin,
                                  .q_stride = w->attention.n_head * w->attention.head_dim,
                                  .n_head = w->attention.n_head,
                                  .n_kv_head = w->attention.n_kv_head,
                                  .head_dim = w->attention.head_dim};
}

/* q, k and v, or the sums that they are made of; scaled: the layer before left w->in, with sums of squares in
 * w->down_square. */
static struct gr_cuda_linear_args heads_args(const struct gr_cuda_layer_work *w, const struct gr_cuda_layer *l,
                                             bool scaled, int n)
{
    struct gr_cuda_linear_step s = {.x = w->in, .norm = {.square = scaled ? w->down_square : NULL, .eps = w->rms_eps}};
    if (w->qkv == NULL) {
        s.out = GR_CUDA_OUT_HEADS;
        s.heads = heads_of(w, l);
    } else {
        s.out = GR_CUDA_OUT_F32;
        s.bias = l->qkv_bias;
        s.y = w->qkv;
        s.y_stride = n_qkv(w);
    }
    return linear_args(w, &l->qkv, &s, n);
}

static enum gr_status place_heads(const struct gr_cuda_layer_work *w, const struct gr_cuda_layer *l, int n)
{
    const struct gr_cuda_place_heads_args a = {.x = w->qkv,
                                               .q_norm = l->q_norm,
                                               .k_norm = l->k_norm,
                                               .heads = heads_of(w, l),
                                               .n_row = n,
                                               .x_stride = n_qkv(w),
                                               .eps = w->rms_eps,
                                               .n_row_true = w->inputs->n_row};
    return gr_cuda_place_heads(&a, w->device->stream);
}

/* By kernels of their own: the first layer's, and those that are made apart. */
static enum gr_status enqueue_heads(const struct gr_cuda_layer_work *w, const struct gr_cuda_layer *l, bool scaled,
                                    int n)
{
    const struct gr_cuda_linear_args a = heads_args(w, l, scaled, n);
    GR_TRY(gr_cuda_linear(&a, w->device->stream));
    return w->qkv != NULL ? place_heads(w, l, n) : GR_OK;
}

enum gr_status gr_cuda_enqueue_first_heads(const struct gr_cuda_layer_work *w, const struct gr_cuda_layer *l, int n)
{
    return enqueue_heads(w, l, false, n);
}

/* Adds to the residual stream and leaves w->xn for the norm after it; with a bias, which is added to the joined sum
 * before the stream is, that norm is a kernel of its own. */
static struct gr_cuda_linear_args o_args(const struct gr_cuda_layer_work *w, const struct gr_cuda_layer *l, int n)
{
    struct gr_cuda_linear_step s = {.x = w->att,
                                    .bias = l->o_bias,
                                    .out = GR_CUDA_OUT_ADD,
                                    .y = w->x,
                                    .y_stride = w->hidden,
                                    .clear = w->down_square};
    if (l->o_bias == NULL) {
        s.next = (struct gr_cuda_linear_next){.w = l->mlp_norm, .tiles = w->xn, .square = w->o_square};
    }
    return linear_args(w, &l->o, &s, n);
}

static struct gr_cuda_linear_args gate_up_args(const struct gr_cuda_layer_work *w, const struct gr_cuda_layer *l, int n)
{
    struct gr_cuda_linear_step s = {.x = w->xn,
                                    .out = GR_CUDA_OUT_SILU,
                                    .y = w->act,
                                    .norm = {.square = l->o_bias == NULL ? w->o_square : NULL, .eps = w->rms_eps}};
    if (l->gate_bias != NULL) {
        s.out = GR_CUDA_OUT_F32;
        s.y = w->gate_up;
        s.y_stride = 2 * w->ffn;
    }
    return linear_args(w, &l->gate_up, &s, n);
}

static struct gr_cuda_linear_args down_args(const struct gr_cuda_layer_work *w, const struct gr_cuda_layer *l,
                                            const struct gr_cuda_layer_place *place, int n)
{
    struct gr_cuda_linear_step s = {.x = w->act,
                                    .bias = l->down_bias,
                                    .out = GR_CUDA_OUT_ADD,
                                    .y = w->x,
                                    .y_stride = w->hidden,
                                    .clear = w->o_square};
    if (place->next != NULL && l->down_bias == NULL) {
        s.next = (struct gr_cuda_linear_next){.w = place->next->in_norm,
                                              .tiles = w->in,
                                              .square = w->down_square,
                                              .capture = place->capture,
                                              .capture_n = place->capture_n,
                                              .capture_col = place->capture_col};
    }
    return linear_args(w, &l->down, &s, n);
}

/* From attention to attention; where heads are made apart, to what they are made of. */
static int between_args(const struct gr_cuda_layer_work *w, const struct gr_cuda_layer *l,
                        const struct gr_cuda_layer_place *place, int n, struct gr_cuda_linear_args a[GR_CUDA_CHAIN_MAX])
{
    a[0] = o_args(w, l, n);
    a[1] = gate_up_args(w, l, n);
    a[2] = down_args(w, l, place, n);
    if (place->next == NULL || w->qkv != NULL) {
        return 3;
    }
    a[3] = heads_args(w, place->next, true, n);
    return 4;
}

bool gr_cuda_layer_can_chain(const struct gr_cuda_layer_work *w, const struct gr_cuda_layer *l, int n)
{
    struct gr_cuda_linear_args a[GR_CUDA_CHAIN_MAX];
    const struct gr_cuda_layer_place last = {0};
    return gr_cuda_can_chain(a, between_args(w, l, &last, n, a));
}

/* A layer that adds to the residual stream; of a group the rank's sums go into a part buffer, and are joined. buffer:
 * 0 of o, 1 of down, so that they are taken in turns. */
static enum gr_status enqueue_added(const struct gr_cuda_layer_work *w, const struct gr_cuda_matrix *m,
                                    const struct gr_cuda_linear_args *a, int buffer)
{
    if (w->ranks == NULL) {
        return gr_cuda_linear(a, w->device->stream);
    }
    struct gr_cuda_linear_args part = *a;
    part.bias = NULL;
    part.out = GR_CUDA_OUT_PART;
    part.y = w->ranks->part[buffer];
    part.next = (struct gr_cuda_linear_next){0};
    part.clear = NULL;
    const struct gr_cuda_join_args join = {.buffer = buffer,
                                           .x = a->y,
                                           .bias = a->bias,
                                           .n = a->n_out,
                                           .next = a->next,
                                           .clear = a->clear,
                                           .square_columns = gr_cuda_square_columns(m->whole_cut),
                                           .n_row = a->n_row,
                                           .n_row_true = a->n_row_true};
    GR_TRY(gr_cuda_linear(&part, w->device->stream));
    return w->ranks->ops->enqueue_join(w->ranks, &join);
}

/* o, gate and up, down, and perhaps heads, of a group. */
static enum gr_status enqueue_shared_out(const struct gr_cuda_layer_work *w, const struct gr_cuda_layer *l,
                                         const struct gr_cuda_linear_args *a, int n)
{
    GR_TRY(enqueue_added(w, &l->o, &a[0], 0));
    GR_TRY(gr_cuda_linear(&a[1], w->device->stream));
    GR_TRY(enqueue_added(w, &l->down, &a[2], 1));
    return n > 3 ? gr_cuda_linear(&a[3], w->device->stream) : GR_OK;
}

static enum gr_status enqueue_between(const struct gr_cuda_layer_work *w, const struct gr_cuda_layer *l,
                                      const struct gr_cuda_linear_args *a, int n)
{
    if (w->ranks != NULL) {
        return enqueue_shared_out(w, l, a, n);
    }
    if (w->chain != NULL && gr_cuda_can_chain(a, n)) {
        return gr_cuda_linear_chain(a, n, w->chain, w->device->stream);
    }
    for (int i = 0; i < n; i++) {
        GR_TRY(gr_cuda_linear(&a[i], w->device->stream));
    }
    return GR_OK;
}

static bool has_biases(const struct gr_cuda_layer *l)
{
    return l->o_bias != NULL || l->gate_bias != NULL;
}

/* What stands between o and down: the norm and the activations, where biases keep the linear layers from making them.
 */
static enum gr_status enqueue_mlp(const struct gr_cuda_layer_work *w, const struct gr_cuda_layer *l, int n)
{
    const struct gr_cuda_norm_step norm = {.x = w->x, .weight = l->mlp_norm, .y = w->xn, .y_n = w->hidden};
    const struct gr_cuda_linear_args gate_up = gate_up_args(w, l, n);
    const struct gr_cuda_silu_args silu = {.x = w->gate_up,
                                           .gate_bias = l->gate_bias,
                                           .up_bias = l->up_bias,
                                           .y = w->act,
                                           .n_row = n,
                                           .n = w->ffn,
                                           .n_row_true = w->inputs->n_row};
    GR_TRY(l->o_bias != NULL ? gr_cuda_enqueue_norm(w, &norm, n) : GR_OK);
    GR_TRY(gr_cuda_linear(&gate_up, w->device->stream));
    return l->gate_bias != NULL ? gr_cuda_silu(&silu, w->device->stream) : GR_OK;
}

/* From attention to attention of a layer with biases of o or of the MLP. */
static enum gr_status enqueue_with_biases(const struct gr_cuda_layer_work *w, const struct gr_cuda_layer *l,
                                          const struct gr_cuda_layer_place *place, int n)
{
    const struct gr_cuda_linear_args o = o_args(w, l, n), down = down_args(w, l, place, n);
    GR_TRY(enqueue_added(w, &l->o, &o, 0));
    GR_TRY(enqueue_mlp(w, l, n));
    GR_TRY(enqueue_added(w, &l->down, &down, 1));
    if (place->next == NULL) {
        return GR_OK;
    }
    const struct gr_cuda_norm_step norm = {.x = w->x,
                                           .weight = place->next->in_norm,
                                           .y = w->in,
                                           .y_n = w->hidden,
                                           .capture = place->capture,
                                           .capture_n = place->capture_n,
                                           .capture_col = place->capture_col};
    GR_TRY(l->down_bias != NULL ? gr_cuda_enqueue_norm(w, &norm, n) : GR_OK);
    return enqueue_heads(w, place->next, l->down_bias == NULL, n);
}

enum gr_status gr_cuda_enqueue_layer(const struct gr_cuda_layer_work *w, const struct gr_cuda_layer *l,
                                     const struct gr_cuda_layer_place *place, int n)
{
    struct gr_cuda_linear_args a[GR_CUDA_CHAIN_MAX];
    GR_TRY(attend(w, l, n));
    if (has_biases(l)) {
        return enqueue_with_biases(w, l, place, n);
    }
    const int n_linear = between_args(w, l, place, n, a);
    GR_TRY(enqueue_between(w, l, a, n_linear));
    return place->next != NULL && w->qkv != NULL ? enqueue_heads(w, place->next, true, n) : GR_OK;
}
