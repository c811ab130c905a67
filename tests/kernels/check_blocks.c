/* kv_summary (exact), block_scores, and the choice of the best blocks.
 *
 * Tolerance of a score: a chain of head_dim products errs by head_dim * eps * sum |q k|, the sum over n query rows by
 * n * eps of its largest partial sum; both bounded through the norms of q and k. */
#include "tests/kernels/check.h"

#include "common/base/status.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

CHECK_OP(kv_summary)
CHECK_OP(block_scores)

struct blocks {
    int n_head, n_kv_head, head_dim, n_block_max;
    struct gr_kv_layer kv;
    size_t n_value, n_summary;
    int32_t *table;
};

static void blocks_init(struct blocks *b, int n_head, int n_kv_head, int head_dim, int n_block_max)
{
    *b = (struct blocks){n_head, n_kv_head, head_dim, n_block_max, .kv = {NULL, NULL, n_kv_head, head_dim}};
    b->n_value = (size_t)n_block_max * n_kv_head * head_dim * GR_KV_BLOCK_TOKENS;
    b->n_summary = b->n_value / GR_KV_BLOCK_TOKENS;
    b->kv.k = check_alloc(b->n_value * sizeof(float));
    fill_f32(b->kv.k, b->n_value, FILL_NORMAL);
    b->table = check_alloc((size_t)n_block_max * sizeof(int32_t));
    for (int i = 0; i < n_block_max; i++) {
        const int j = rng_below(i + 1);
        b->table[i] = b->table[j];
        b->table[j] = i;
    }
}

static void blocks_free(struct blocks *b)
{
    free(b->kv.k);
    free(b->table);
}

/* Is the value at i one of blocks [begin, end)? */
static bool is_of(const struct blocks *b, size_t i, int begin, int end)
{
    const size_t panel = i / GR_KV_BLOCK_TOKENS / b->head_dim % (b->n_block_max / GR_KV_BLOCK_TOKENS);
    const int block = (int)(panel * GR_KV_BLOCK_TOKENS + i % GR_KV_BLOCK_TOKENS);
    return block >= begin && block < end;
}

static void summary_case(struct check *c, int n_kv_head, int head_dim, int begin, int end, int n_thread)
{
    struct blocks b;
    if (!check_case(c, false, "%d heads of %d, blocks %d to %d", n_kv_head, head_dim, begin, end)) {
        return;
    }
    blocks_init(&b, n_kv_head, n_kv_head, head_dim, (end + 31) / 16 * 16);
    for (int i = 0; i < b.n_block_max; i++) { /* blocks not asked for may be anything */
        const size_t n = (size_t)n_kv_head * head_dim * GR_KV_BLOCK_TOKENS;
        for (size_t k = 0; (i < begin || i >= end) && k < n; k++) {
            b.kv.k[b.table[i] * n + k] = NAN;
        }
    }
    struct guarded g[4];
    for (int i = 0; i < 4; i++) {
        g[i] = guarded_alloc(b.n_summary);
    }
    const float untouched = g[0].p[0];
    struct gr_kv_summary_args a = {.kv = b.kv,
                                   .block = b.table,
                                   .k_max = g[0].p,
                                   .k_min = g[1].p,
                                   .begin = begin,
                                   .end = end,
                                   .n_block_max = b.n_block_max};
    CHECK_CALL(n_thread, kv_summary, c->k, &a);
    a.k_max = g[2].p;
    a.k_min = g[3].p;
    CHECK_CALL(1, kv_summary, c->ref, &a);
    for (int i = 0; i < 2; i++) {
        check_same(c, "summary", g[i].p, g[2 + i].p, b.n_summary * sizeof(float));
        check_hash(c, g[i].p, b.n_summary * sizeof(float));
        for (size_t k = 0; k < b.n_summary; k++) {
            if ((g[i].p[k] == untouched) == is_of(&b, k, begin, end)) {
                check_fail(c, "summary: value %zu: block written that was not asked for, or not written", k);
                break;
            }
        }
    }
    for (int i = 0; i < 4; i++) {
        guarded_check(c, &g[i], 0, 0, 0);
        guarded_free(&g[i]);
    }
    blocks_free(&b);
}

void check_kv_summary(struct check *c)
{
    summary_case(c, 1, 16, 0, 1, 1);
    summary_case(c, 2, 64, 0, 16, 2);
    summary_case(c, 2, 64, 5, 12, 3);
    summary_case(c, 2, 64, 15, 17, 2);
    summary_case(c, 2, 80, 7, 7, 2);
    summary_case(c, 3, 128, 16, 61, 3);
}

static double norm_max(const float *x, size_t n, int head_dim)
{
    double most = 0.0;
    for (size_t i = 0; i + head_dim <= n; i += head_dim) {
        double sum = 0.0;
        for (int d = 0; d < head_dim; d++) {
            sum += (double)x[i + d] * (double)x[i + d];
        }
        most = fmax(most, sqrt(sum));
    }
    return most;
}

/* One score in the order that kernels.h promises. */
static float exact_score(const struct gr_block_scores_args *a, int h, int b)
{
    const int group = a->n_head / a->n_kv_head, n = a->n_row * group;
    const size_t at = ((size_t)h * (a->n_block_max / 16) + b / 16) * a->head_dim * 16 + b % 16;
    float sum = a->use_max ? -INFINITY : 0.0f;
    for (int i = 0; i < n; i++) {
        const float *q = a->q + (size_t)(i / group) * a->q_stride + (h * group + i % group) * a->head_dim;
        float max = 0.0f, min = 0.0f;
        for (int d = 0; d < a->head_dim; d++) {
            max = fmaf(q[d], a->k_max[at + (size_t)d * 16], max);
            min = fmaf(q[d], a->k_min[at + (size_t)d * 16], min);
        }
        const float s = max > min ? max : min;
        sum = a->use_max ? (s > sum ? s : sum) : sum + s;
    }
    return a->use_max ? sum : sum * (1.0f / (float)n);
}

static void check_scores(struct check *c, const struct gr_block_scores_args *a, const float *got, const float *want,
                         double tolerance)
{
    for (int h = 0; h < a->n_kv_head; h++) {
        for (int b = a->begin; b < a->end; b++) {
            const size_t at = (size_t)h * a->n_block_max + b;
            check_close(c, "score", h, b, got[at], want[at], tolerance);
            if (b % 5 == 0 || b + 1 == a->end) {
                const float exact = exact_score(a, h, b);
                check_same(c, "promised bits", &got[at], &exact, sizeof(exact));
            }
        }
    }
}

static void scores_case(struct check *c, struct blocks shape, int n_row, int begin, int end, bool use_max)
{
    const int n_head = shape.n_head, hd = shape.head_dim, n_max = (end + 31) / 16 * 16;
    struct blocks b;
    if (!check_case(c, (double)n_row * n_head * hd * (end - begin) > 1e6,
                    "heads %d/%d of %d, %d rows, blocks %d to %d, %s", n_head, shape.n_kv_head, hd, n_row, begin, end,
                    use_max ? "max" : "mean")) {
        return;
    }
    blocks_init(&b, n_head, shape.n_kv_head, hd, n_max);
    const size_t n_q = (size_t)n_row * (n_head * hd + 3);
    float *q = check_alloc(n_q * sizeof(float)), *k_max = check_alloc(b.n_summary * sizeof(float));
    float *k_min = check_alloc(b.n_summary * sizeof(float));
    fill_f32(q, n_q, FILL_NORMAL);
    memset(k_max, 0, b.n_summary * sizeof(float));
    memset(k_min, 0, b.n_summary * sizeof(float));
    const struct gr_kv_summary_args s = {
        .kv = b.kv, .block = b.table, .k_max = k_max, .k_min = k_min, .end = end, .n_block_max = n_max};
    CHECK_CALL(1, kv_summary, c->ref, &s);
    const size_t work_bytes = c->k->attention_work_bytes(n_head, b.n_kv_head, hd);
    struct guarded y = guarded_alloc((size_t)b.n_kv_head * n_max);
    struct guarded want = guarded_alloc(y.n), other = guarded_alloc(y.n);
    struct gr_block_scores_args a = {.q = q,
                                     .k_max = k_max,
                                     .k_min = k_min,
                                     .score = y.p,
                                     .n_row = n_row,
                                     .q_stride = n_head * hd + 3,
                                     .n_head = n_head,
                                     .n_kv_head = b.n_kv_head,
                                     .head_dim = hd,
                                     .begin = begin,
                                     .end = end,
                                     .n_block_max = n_max,
                                     .use_max = use_max,
                                     .work = check_alloc(work_bytes * CHECK_THREAD_MAX)};
    memset(a.work, 0xff, work_bytes * CHECK_THREAD_MAX);
    CHECK_CALL(1, block_scores, c->k, &a);
    a.score = other.p;
    CHECK_CALL(CHECK_THREAD_MAX, block_scores, c->k, &a);
    check_same(c, "threads", other.p, y.p, y.n * sizeof(float));
    a.score = want.p;
    CHECK_CALL(1, block_scores, c->ref, &a);
    const double chain = norm_max(q, n_q, 1) * hd * norm_max(k_max, b.n_summary, 1);
    check_scores(c, &a, y.p, want.p, CHECK_EPS * chain * (2.0 * hd + 2.0 * n_row * n_head / b.n_kv_head));
    check_hash(c, y.p, y.n * sizeof(float));
    guarded_check(c, &y, 0, 0, 0);
    guarded_free(&y);
    guarded_free(&want);
    guarded_free(&other);
    free(a.work);
    free(q);
    free(k_max);
    free(k_min);
    blocks_free(&b);
}

void check_block_scores(struct check *c)
{
    static const struct blocks demo = {.n_head = 6, .n_kv_head = 2, .head_dim = 64};
    static const struct blocks one = {.n_head = 1, .n_kv_head = 1, .head_dim = 16};
    static const struct blocks odd = {.n_head = 10, .n_kv_head = 2, .head_dim = 80};
    for (int use_max = 0; use_max < 2; use_max++) {
        scores_case(c, one, 1, 0, 1, use_max);
        scores_case(c, one, 3, 2, 40, use_max);
        scores_case(c, demo, 1, 2, 300, use_max);
        scores_case(c, demo, 16, 2, 17, use_max);
        scores_case(c, demo, 17, 2, 600, use_max);
        scores_case(c, demo, 64, 16, 530, use_max);
        scores_case(c, odd, 11, 3, 270, use_max);
    }
}

/* Against sorting by (value, index): the definition. */
static int n_before(const float *s, int begin, int end, int i)
{
    int n = 0;
    const float si = isnan(s[i]) ? -INFINITY : s[i];
    for (int j = begin; j < end; j++) {
        const float sj = isnan(s[j]) ? -INFINITY : s[j];
        n += sj > si || (sj == si && j < i);
    }
    return n;
}

void check_top_blocks(struct check *c)
{
    for (int k = 0; k < 400; k++) {
        float s[260], work[260];
        int32_t out[262];
        check_case(c, false, "top blocks %d", k);
        const int begin = rng_below(4), n = 1 + rng_below(k < 200 ? 20 : 256), end = begin + n;
        const int n_top = k % 7 == 0 ? n : rng_below(n + 1), n_value = k % 3 == 0 ? 1 + rng_below(4) : 1000000;
        for (int i = 0; i < begin + n; i++) { /* few values: many ties */
            s[i] = rng_below(40) == 0 ? NAN : (float)rng_below(n_value);
            s[i] = rng_below(50) == 0 ? -INFINITY : s[i];
        }
        for (int i = 0; i < begin; i++) {
            s[i] = INFINITY; /* not a candidate */
        }
        for (int i = 0; i < 262; i++) {
            out[i] = -7;
        }
        gr_top_blocks(s, begin, end, n_top, work, out + 1);
        int n_out = 0;
        for (int i = begin; i < end; i++) {
            if (n_before(s, begin, end, i) < n_top && out[1 + n_out++] != i) {
                check_fail(c, "%d of %d: place %d is %d, wanted %d", n_top, n, n_out - 1, out[n_out], i);
                break;
            }
        }
        if (out[0] != -7 || out[1 + n_top] != -7 || n_out != n_top) {
            check_fail(c, "%d of %d: wrote %d, or outside of its output", n_top, n, n_out);
        }
    }
}
