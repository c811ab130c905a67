/* The definition of every operation: plain loops, sums in double, weights as they are in the file. Nothing
 * here is fast and nothing here is bit-exact against the CPU versions, apart from the Gumbel noise, which
 * gr_gumbel() fixes bit by bit. Used by tests and to read what an operation means. */
#include "kernels/kernels.h"

#include "common/rules/gr_math.h"

#include <math.h>
#include <string.h>

static size_t ref_linear_packed_bytes(int n_out, int n_in)
{
    (void)n_out;
    (void)n_in;
    return 0;
}

static void ref_linear_pack(const uint16_t *plain, int n_out, int n_in, void *packed)
{
    (void)plain;
    (void)n_out;
    (void)n_in;
    (void)packed;
}

static void ref_linear_pack_f32(const float *plain, int n_out, int n_in, void *packed)
{
    (void)plain;
    (void)n_out;
    (void)n_in;
    (void)packed;
}

static double weight_at(const struct gr_weight *w, int o, int k)
{
    const size_t i = (size_t)o * w->n_in + k;
    return w->is_f32 ? (double)((const float *)w->plain)[i] : (double)gr_bf16_to_f32(((const uint16_t *)w->plain)[i]);
}

static double ref_chain(const struct gr_weight *w, const float *x, int o, int begin, int end)
{
    double sum = 0.0;
    for (int k = begin; k < end; k++) {
        sum += (double)x[k] * weight_at(w, o, k);
    }
    return sum;
}

static double ref_sum(const struct gr_weight *w, const float *x, int o)
{
    const struct gr_segments *s = &w->segments;
    double stack[GR_SEGMENT_PENDING + 1];
    int height = 0;
    for (int i = 0; i < s->n; i++) {
        stack[height++] = ref_chain(w, x, o, i > 0 ? s->end[i - 1] : 0, s->end[i]);
        for (int n = s->n_join[i]; n > 0; n--, height--) {
            stack[height - 2] += stack[height - 1];
        }
    }
    return s->n > 0 ? stack[0] : ref_chain(w, x, o, 0, w->n_in);
}

static void ref_linear(const struct gr_exec *x, const struct gr_linear_args *a)
{
    int begin, end;
    gr_column_range(a->w->n_out, x->ith, x->nth, &begin, &end);
    for (int r = 0; r < a->n_row; r++) {
        const float *xr = a->x + (size_t)r * a->x_stride;
        for (int o = begin; o < end; o++) {
            double sum = ref_sum(a->w, xr, o);
            sum += a->bias ? (double)a->bias[o] : 0.0;
            sum += a->residual ? (double)a->residual[(size_t)r * a->y_stride + o] : 0.0;
            a->y[(size_t)r * a->y_stride + o] = (float)sum;
        }
    }
}

static void ref_silu_mul(const struct gr_exec *x, const struct gr_silu_mul_args *a)
{
    int begin, end;
    gr_column_range(a->n_col, x->ith, x->nth, &begin, &end);
    for (int r = 0; r < a->n_row; r++) {
        for (int c = begin; c < end; c++) {
            size_t i = (size_t)r * a->stride + c;
            double g = a->gate[i];
            double u = a->gelu ? (double)GR_GELU_SLOPE * (g + (double)GR_GELU_CUBE * g * g * g) : g;
            a->act[i] = (float)(g / (1.0 + exp(-u)) * (double)a->up[i]);
        }
    }
}

static void ref_rmsnorm(const struct gr_exec *x, const struct gr_rmsnorm_args *a)
{
    int begin, end;
    gr_unit_range(a->n_row, x->ith, x->nth, &begin, &end);
    for (int r = begin; r < end; r++) {
        const float *xr = a->x + (size_t)r * a->x_stride;
        float *yr = a->y + (size_t)r * a->y_stride;
        double sum = 0.0;
        for (int i = 0; i < a->n; i++) {
            sum += (double)xr[i] * (double)xr[i];
        }
        double inv = 1.0 / sqrt(sum / a->n + (double)a->eps);
        for (int i = 0; i < a->n; i++) {
            double old = a->residual ? (double)a->residual[(size_t)r * a->y_stride + i] : 0.0;
            yr[i] = (float)((double)xr[i] * inv * (double)a->w[i] + old);
        }
    }
}

static void ref_rope(const struct gr_exec *x, const struct gr_rope_args *a)
{
    int begin, end, half = a->head_dim / 2;
    gr_unit_range(a->n_row, x->ith, x->nth, &begin, &end);
    for (int r = begin; r < end; r++) {
        const float *c = a->cos + (size_t)a->pos[r] * half;
        const float *s = a->sin + (size_t)a->pos[r] * half;
        for (int h = 0; h < a->n_head; h++) {
            float *v = a->x + (size_t)r * a->stride + (size_t)h * a->head_dim;
            for (int i = 0; i < half; i++) {
                double p = v[i], q = v[i + half];
                v[i] = (float)(p * (double)c[i] - q * (double)s[i]);
                v[i + half] = (float)(q * (double)c[i] + p * (double)s[i]);
            }
        }
    }
}

static void ref_embed(const struct gr_exec *x, const struct gr_embed_args *a)
{
    int begin, end;
    gr_unit_range(a->n_row, x->ith, x->nth, &begin, &end);
    for (int r = begin; r < end; r++) {
        const size_t at = (size_t)a->id[r] * a->n;
        for (int i = 0; i < a->n; i++) {
            float v = a->table_f32 ? a->table_f32[at + i] : gr_bf16_to_f32(a->table[at + i]);
            a->y[(size_t)r * a->y_stride + i] = a->scale != 0.0f ? v * a->scale : v;
        }
    }
}

/* First value of KV head h in the block that holds `cell`. */
static size_t block_offset(const struct gr_kv_layer *kv, int32_t cell, int h)
{
    return ((size_t)(cell / GR_KV_BLOCK_TOKENS) * kv->n_kv_head + h) * kv->head_dim * GR_KV_BLOCK_TOKENS;
}

static float *k_at(const struct gr_kv_layer *kv, int32_t cell, int h, int d)
{
    return kv->k + block_offset(kv, cell, h) + (size_t)d * GR_KV_BLOCK_TOKENS + cell % GR_KV_BLOCK_TOKENS;
}

static float *v_at(const struct gr_kv_layer *kv, int32_t cell, int h, int d)
{
    return kv->v + block_offset(kv, cell, h) + (size_t)(cell % GR_KV_BLOCK_TOKENS) * kv->head_dim + d;
}

static void ref_kv_store(const struct gr_exec *x, const struct gr_kv_store_args *a)
{
    int begin, end, hd = a->kv.head_dim;
    gr_unit_range(a->n_row, x->ith, x->nth, &begin, &end);
    for (int r = begin; r < end; r++) {
        for (int h = 0; h < a->kv.n_kv_head; h++) {
            for (int d = 0; d < hd; d++) {
                *k_at(&a->kv, a->cell[r], h, d) = a->k[(size_t)r * a->k_stride + h * hd + d];
                *v_at(&a->kv, a->cell[r], h, d) = a->v[(size_t)r * a->v_stride + h * hd + d];
            }
        }
    }
}

static void ref_kv_copy(const struct gr_exec *x, const struct gr_kv_copy_args *a)
{
    int begin, end;
    gr_unit_range(a->kv.n_kv_head, x->ith, x->nth, &begin, &end);
    for (int i = 0; i < a->n; i++) {
        for (int h = begin; h < end; h++) {
            for (int d = 0; d < a->kv.head_dim; d++) {
                *k_at(&a->kv, a->dst[i], h, d) = *k_at(&a->kv, a->src[i], h, d);
                *v_at(&a->kv, a->dst[i], h, d) = *v_at(&a->kv, a->src[i], h, d);
            }
        }
    }
}

static size_t ref_attention_work_bytes(int n_head, int n_kv_head, int head_dim)
{
    (void)n_head;
    (void)n_kv_head;
    (void)head_dim;
    return 0;
}

/* Does KV head h's query row r see position p at all? */
static bool is_visible(const struct gr_attention_args *a, const struct gr_attn_seq *s, int r, int h, int p)
{
    if (p < gr_attn_first(a->window, s->limit[r], s->n_anc[r])) {
        return false;
    }
    if (!s->sparse || p >= s->dense_from) {
        return true;
    }
    const int32_t *list = s->sparse + ((size_t)a->layer * a->kv.n_kv_head + h) * s->sparse_stride;
    for (int i = 0; i < s->n_sparse; i++) {
        if (list[i] == p / GR_KV_BLOCK_TOKENS) {
            return true;
        }
    }
    return false;
}

/* Cell of the key that row r of the session sees at position p. */
static int32_t visible_cell(const struct gr_attn_seq *s, int r, int p)
{
    if (p < s->limit[r]) {
        return s->block[p / GR_KV_BLOCK_TOKENS] * GR_KV_BLOCK_TOKENS + p % GR_KV_BLOCK_TOKENS;
    }
    int slot = s->anc[(size_t)r * GR_ATTN_ANC_MAX + (p - s->limit[r])];
    return s->scratch_block[slot / GR_KV_BLOCK_TOKENS] * GR_KV_BLOCK_TOKENS + slot % GR_KV_BLOCK_TOKENS;
}

static double score(const struct gr_attention_args *a, const float *q, int32_t cell, int h)
{
    double sum = 0.0;
    for (int d = 0; d < a->kv.head_dim; d++) {
        sum += (double)q[d] * (double)*k_at(&a->kv, cell, h, d);
    }
    return sum * (double)a->scale;
}

static void attend(const struct gr_attention_args *a, const struct gr_attn_seq *s, int r, int head)
{
    int n_key = s->limit[r] + s->n_anc[r], hd = a->kv.head_dim;
    int h = head / (a->n_head / a->kv.n_kv_head);
    const float *q = a->q + (size_t)(s->row0 + r) * a->q_stride + (size_t)head * hd;
    float *out = a->out + (size_t)(s->row0 + r) * a->out_stride + (size_t)head * hd;
    double o[GR_HEAD_DIM_MAX] = {0}, m = -INFINITY, l = 0.0;
    for (int p = 0; p < n_key; p++) {
        m = is_visible(a, s, r, h, p) ? fmax(m, score(a, q, visible_cell(s, r, p), h)) : m;
    }
    for (int p = 0; p < n_key; p++) {
        if (!is_visible(a, s, r, h, p)) {
            continue;
        }
        int32_t cell = visible_cell(s, r, p);
        double e = exp(score(a, q, cell, h) - m);
        l += e;
        for (int d = 0; d < hd; d++) {
            o[d] += e * (double)*v_at(&a->kv, cell, h, d);
        }
    }
    for (int d = 0; d < hd; d++) {
        out[d] = (float)(o[d] / l);
    }
}

static void ref_attention(const struct gr_exec *x, const struct gr_attention_args *a)
{
    for (int i = 0; i < a->n_seq; i++) {
        int begin, end;
        gr_unit_range(a->seq[i].n_row, x->ith, x->nth, &begin, &end);
        for (int r = begin; r < end; r++) {
            for (int head = 0; head < a->n_head; head++) {
                attend(a, &a->seq[i], r, head);
            }
        }
    }
}

/* Where dimension d of block b's summary stands. */
static size_t summary_at(int n_block_max, int head_dim, int h, int b, int d)
{
    size_t panel = (size_t)h * (n_block_max / GR_KV_BLOCK_TOKENS) + b / GR_KV_BLOCK_TOKENS;
    return (panel * head_dim + d) * GR_KV_BLOCK_TOKENS + b % GR_KV_BLOCK_TOKENS;
}

static void ref_kv_summary(const struct gr_exec *x, const struct gr_kv_summary_args *a)
{
    int begin, end;
    gr_unit_range(a->end - a->begin, x->ith, x->nth, &begin, &end);
    for (int b = a->begin + begin; b < a->begin + end; b++) {
        for (int h = 0; h < a->kv.n_kv_head; h++) {
            for (int d = 0; d < a->kv.head_dim; d++) {
                float max = -INFINITY, min = INFINITY;
                for (int i = 0; i < GR_KV_BLOCK_TOKENS; i++) {
                    float k = *k_at(&a->kv, a->block[b] * GR_KV_BLOCK_TOKENS + i, h, d);
                    max = fmaxf(max, k);
                    min = fminf(min, k);
                }
                size_t at = summary_at(a->n_block_max, a->kv.head_dim, h, b, d);
                a->k_max[at] = max;
                a->k_min[at] = min;
            }
        }
    }
}

static double block_score(const struct gr_block_scores_args *a, const float *q, int h, int b)
{
    double max = 0.0, min = 0.0;
    for (int d = 0; d < a->head_dim; d++) {
        size_t at = summary_at(a->n_block_max, a->head_dim, h, b, d);
        max += (double)q[d] * (double)a->k_max[at];
        min += (double)q[d] * (double)a->k_min[at];
    }
    return fmax(max, min);
}

static void ref_block_scores(const struct gr_exec *x, const struct gr_block_scores_args *a)
{
    int begin, end, group = a->n_head / a->n_kv_head;
    gr_unit_range(a->end - a->begin, x->ith, x->nth, &begin, &end);
    for (int h = 0; h < a->n_kv_head; h++) {
        for (int b = a->begin + begin; b < a->begin + end; b++) {
            double sum = 0.0, best = -INFINITY;
            for (int i = 0; i < a->n_row * group; i++) {
                int head = h * group + i % group;
                double s = block_score(a, a->q + (size_t)(i / group) * a->q_stride + (size_t)head * a->head_dim, h, b);
                sum += s;
                best = fmax(best, s);
            }
            a->score[(size_t)h * a->n_block_max + b] = (float)(a->use_max ? best : sum / (a->n_row * group));
        }
    }
}

static void ref_add_gumbel(const float *l, float *y, int n, uint64_t seed, uint32_t pos, uint32_t choice)
{
    for (int i = 0; i < n; i++) {
        y[i] = l[i] == -INFINITY ? l[i] : l[i] + gr_gumbel(seed, pos, (uint32_t)i, choice);
    }
}

static int ref_argmax(const float *l, int n, bool filtered)
{
    int best = 0;
    bool finite = true;
    float max = -INFINITY;
    for (int i = 0; i < n; i++) {
        finite = finite && isfinite(l[i]);
        if (l[i] > max) {
            max = l[i];
            best = i;
        }
    }
    return isfinite(max) && (finite || filtered) ? best : GR_PICK_NOT_FINITE;
}

static float ref_logsumexp(const float *l, int n)
{
    float max = -INFINITY;
    double sum = 0.0;
    for (int i = 0; i < n; i++) {
        max = l[i] > max ? l[i] : max;
    }
    if (!(max > -INFINITY)) {
        return -INFINITY;
    }
    for (int i = 0; i < n; i++) {
        sum += exp((double)l[i] - (double)max);
    }
    return (float)(log(sum) + (double)max);
}

void gr_kernels_init_ref(struct gr_kernels *k)
{
    *k = (struct gr_kernels){
        .name = "ref",
        .linear_packed_bytes = ref_linear_packed_bytes,
        .linear_pack = ref_linear_pack,
        .linear_pack_f32 = ref_linear_pack_f32,
        .linear = ref_linear,
        .silu_mul = ref_silu_mul,
        .rmsnorm = ref_rmsnorm,
        .rope = ref_rope,
        .embed = ref_embed,
        .kv_store = ref_kv_store,
        .kv_copy = ref_kv_copy,
        .attention_work_bytes = ref_attention_work_bytes,
        .attention = ref_attention,
        .kv_summary = ref_kv_summary,
        .block_scores = ref_block_scores,
        .add_gumbel = ref_add_gumbel,
        .argmax = ref_argmax,
        .logsumexp = ref_logsumexp,
    };
}
