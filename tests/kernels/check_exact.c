/* The order of operations of kernels.h, spelled out in scalar code: what every implementation but ref must give
 * bit by bit. Slow; used for the small cases. */
#include "tests/kernels/check.h"

#include "common/rules/gr_math.h"
#include "common/base/status.h"

#include <math.h>

float exact_lane_sum(const float lane[16])
{
    float s[16];
    memcpy(s, lane, sizeof(s));
    for (int d = 8; d >= 1; d /= 2) {
        for (int i = 0; i < d; i++) {
            s[i] = s[i] + s[i + d];
        }
    }
    return s[0];
}

static float exact_chain(const float *x, const uint16_t *w, int begin, int end)
{
    float s = 0.0f;
    for (int k = begin; k < end; k++) {
        s = fmaf(x[k], gr_bf16_to_f32(w[k]), s);
    }
    return s;
}

/* Parts [i, i + n) of n_part of n_unit units, joined as they were halved; false: they have no units. */
static bool exact_tree(const struct exact_segments *t, const float *x, const uint16_t *w, int i, int n, float *sum)
{
    const int begin = gr_segment_begin(t->n_unit, t->n_part, i), end = gr_segment_begin(t->n_unit, t->n_part, i + n);
    if (n == 1 || begin == end) {
        *sum = exact_chain(x, w, begin * t->unit, end * t->unit < t->n_in ? end * t->unit : t->n_in);
        return begin < end;
    }
    float left, right;
    const bool has_left = exact_tree(t, x, w, i, n / 2, &left),
               has_right = exact_tree(t, x, w, i + n / 2, n / 2, &right);
    *sum = has_left && has_right ? left + right : has_left ? left : right;
    return true;
}

float exact_linear_sum(const struct exact_segments *t, const float *x, const uint16_t *w)
{
    float sum;
    (void)exact_tree(t, x, w, 0, t->n_part, &sum);
    return sum;
}

float exact_linear(const struct gr_linear_args *a, const struct exact_segments *t, const uint16_t *plain, int r, int o)
{
    float s = exact_linear_sum(t, a->x + (size_t)r * a->x_stride, plain + (size_t)o * a->w->n_in);
    s = a->bias ? s + a->bias[o] : s;
    return a->residual ? s + a->residual[(size_t)r * a->y_stride + o] : s;
}

float exact_silu_mul(float gate, float up)
{
    return gate / (1.0f + gr_expf(-gate)) * up;
}

float exact_gelu_mul(float gate, float up)
{
    float t = fmaf(GR_GELU_CUBE, (gate * gate) * gate, gate);
    return gate / (1.0f + gr_expf(-(GR_GELU_SLOPE * t))) * up;
}

float exact_rms_inv(const float *x, int n, float eps)
{
    float lane[16] = {0};
    for (int i = 0; i < n; i++) {
        lane[i % 16] = fmaf(x[i], x[i], lane[i % 16]);
    }
    return 1.0f / sqrtf(exact_lane_sum(lane) / (float)n + eps);
}

float exact_logsumexp(const float *l, int n)
{
    float lane[16] = {0}, max = -INFINITY;
    for (int i = 0; i < n; i++) {
        max = l[i] > max ? l[i] : max;
    }
    for (int i = 0; i < n && max > -INFINITY; i++) {
        lane[i % 16] += gr_expf(l[i] - max);
    }
    return max > -INFINITY ? gr_logf(exact_lane_sum(lane)) + max : max;
}

/* One split of one query row: keys p0 .. p1 of k and v, each (n, stride). */
struct exact_split {
    float m, l, o[GR_HEAD_DIM_MAX];
};

static void split_of(const struct exact_row *x, int p0, int p1, struct exact_split *out)
{
    float s[GR_ATTN_SPLIT], lane[16] = {0};
    *out = (struct exact_split){.m = -INFINITY};
    for (int p = p0; p < p1; p++) {
        if (!x->k[p]) {
            continue;
        }
        float dot = 0.0f;
        for (int d = 0; d < x->head_dim; d++) {
            dot = fmaf(x->q[d], x->k[p][d], dot);
        }
        s[p - p0] = x->scale * dot;
        out->m = s[p - p0] > out->m ? s[p - p0] : out->m;
    }
    for (int p = p0; p < p1; p++) {
        if (!x->k[p]) {
            continue;
        }
        float e = gr_expf(s[p - p0] - out->m);
        lane[p % 16] += e;
        for (int d = 0; d < x->head_dim; d++) {
            out->o[d] = fmaf(e, x->v[p][d], out->o[d]);
        }
    }
    out->l = exact_lane_sum(lane);
}

void exact_attention(const struct exact_row *x, float *out)
{
    struct exact_split all = {0}, one;
    int n_split = 0;
    for (int p = 0; p < x->n_key; p += GR_ATTN_SPLIT) {
        split_of(x, p, GR_MIN(x->n_key, p + GR_ATTN_SPLIT), &one);
        if (!(one.m > -INFINITY)) { /* no visible key */
            continue;
        }
        if (n_split++ == 0) {
            all = one;
            continue;
        }
        float m = all.m > one.m ? all.m : one.m;
        float a = gr_expf(all.m - m), b = gr_expf(one.m - m);
        all.l = fmaf(all.l, a, one.l * b);
        for (int d = 0; d < x->head_dim; d++) {
            all.o[d] = fmaf(all.o[d], a, one.o[d] * b);
        }
        all.m = m;
    }
    float inv = 1.0f / all.l;
    for (int d = 0; d < x->head_dim; d++) {
        out[d] = all.o[d] * inv;
    }
}
