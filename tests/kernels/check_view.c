/* attention under a view: lists of blocks by KV head below dense_from, everything after. Against ref
 * (tolerance: check_attention.c), against the promised bits, and with what is invisible poisoned, K and V: it is never
 * used. A view that leaves nothing out gives the bits of no view. */
#include "tests/kernels/attention_rig.h"

#include "common/base/status.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct view {
    int n_list, n_list_max, dense_from;
    int32_t *list; /* (2 layers, n_kv_head, n_list_max): those of layer 0 are wrong on purpose */
};

static void view_init(struct view *v, struct shape m, int dense_from, int n_list)
{
    const int n_below = dense_from / GR_KV_BLOCK_TOKENS;
    v->dense_from = dense_from;
    v->n_list = n_list;
    v->n_list_max = n_list + 3;
    v->list = check_alloc((size_t)2 * m.n_kv_head * v->n_list_max * sizeof(int32_t));
    for (int i = 0; i < 2 * m.n_kv_head * v->n_list_max; i++) {
        v->list[i] = -1000000;
    }
    for (int h = 0; h < m.n_kv_head; h++) {
        int32_t *list = v->list + (size_t)(m.n_kv_head + h) * v->n_list_max;
        for (int b = 0, n = 0; b < n_below && n < n_list; b++) { /* n_list of n_below, in order */
            if (rng_below(n_below - b) < n_list - n) {
                list[n++] = b;
            }
        }
    }
}

static void view_attend(const struct view *v, struct gr_attn_seq *seq)
{
    seq->sparse = v->list;
    seq->n_sparse = v->n_list;
    seq->sparse_stride = v->n_list_max;
    seq->dense_from = v->dense_from;
}

static bool view_has(const struct view *v, struct shape m, int h, int block)
{
    const int32_t *list = v->list + (size_t)(m.n_kv_head + h) * v->n_list_max;
    for (int i = 0; i < v->n_list; i++) {
        if (list[i] == block) {
            return true;
        }
    }
    return block * GR_KV_BLOCK_TOKENS >= v->dense_from;
}

static void poison_invisible(struct pool *p, const struct view *v, const struct placed *t)
{
    const size_t n = (size_t)p->m.head_dim * GR_KV_BLOCK_TOKENS;
    for (int b = 0; b * GR_KV_BLOCK_TOKENS < v->dense_from; b++) {
        for (int h = 0; h < p->m.n_kv_head; h++) {
            const size_t at = ((size_t)t->block[b] * p->m.n_kv_head + h) * n;
            for (size_t i = 0; i < n && !view_has(v, p->m, h, b); i++) {
                p->kv.k[at + i] = p->kv.v[at + i] = NAN;
            }
        }
    }
}

struct view_case {
    struct shape m;
    struct session s;
    struct view v;
    bool tree;
};

/* Places the session anew and attends under the view (or under none). */
static void run_view(const struct gr_kernels *k, const struct view_case *x, bool with_view, float *out, int stride,
                     int n_thread)
{
    struct pool pool;
    struct placed t;
    pool_init(&pool, x->m, (x->s.n_base + x->s.n_row) / 16 + 8);
    (x->tree ? place_tree : place_chain)(&pool, &x->s, &t);
    if (with_view) {
        view_attend(&x->v, &t.seq);
        poison_invisible(&pool, &x->v, &t);
    }
    attend(k, &pool, &(struct attend_rows){&t.seq, 1, x->s.q, out, stride}, n_thread);
    placed_free(&t);
    pool_free(&pool);
}

static void view_exact(struct check *c, const struct view_case *x, const float *out, int stride)
{
    const struct session *s = &x->s;
    const int hd = x->m.head_dim, n_max = s->n_base + s->n_row, width = x->m.n_head * hd;
    const float **k = check_alloc((size_t)n_max * sizeof(*k));
    const float **v = check_alloc((size_t)n_max * sizeof(*v));
    int path[GR_ATTN_ANC_MAX];
    float want[GR_HEAD_DIM_MAX];
    for (int r = s->n_row - 1; r >= 0; r -= GR_MAX(1, s->n_row / 4)) {
        const int n_path = x->tree ? path_of(s, r, path) : r + 1;
        for (int h = 0; h < x->m.n_head; h++) {
            const int kv_head = h / (x->m.n_head / x->m.n_kv_head);
            for (int p = 0; p < s->n_base + n_path; p++) {
                const int key = x->tree && p >= s->n_base ? s->n_base + path[p - s->n_base] : p;
                const size_t at = ((size_t)key * x->m.n_kv_head + kv_head) * hd;
                k[p] = view_has(&x->v, x->m, kv_head, p / GR_KV_BLOCK_TOKENS) ? s->k + at : NULL;
                v[p] = s->v + at;
            }
            exact_attention(&(struct exact_row){.q = s->q + (size_t)r * width + h * hd,
                                                .k = k,
                                                .v = v,
                                                .n_key = s->n_base + n_path,
                                                .head_dim = hd,
                                                .scale = 1.0f / sqrtf((float)hd)},
                            want);
            check_same(c, "promised bits", out + (size_t)r * stride + h * hd, want, (size_t)hd * sizeof(float));
        }
    }
    free(k);
    free(v);
}

/* Each row by itself, and the rows in two parts. */
static void view_rows(struct check *c, const struct view_case *x, const float *out, int stride)
{
    const int width = x->m.n_head * x->m.head_dim;
    struct pool pool;
    struct placed t;
    float *some = check_alloc((size_t)x->s.n_row * width * sizeof(float));
    pool_init(&pool, x->m, (x->s.n_base + x->s.n_row) / 16 + 8);
    (x->tree ? place_tree : place_chain)(&pool, &x->s, &t);
    view_attend(&x->v, &t.seq);
    poison_invisible(&pool, &x->v, &t);
    for (int r = 0, n; r < x->s.n_row; r += n) {
        struct gr_attn_seq seq = t.seq;
        const int n_most = 1 + rng_below(7);
        n = GR_MIN(n_most, x->s.n_row - r);
        seq.n_row = n;
        seq.limit += r;
        seq.n_anc += r;
        seq.anc += (size_t)r * GR_ATTN_ANC_MAX;
        attend(c->k, &pool, &(struct attend_rows){&seq, 1, x->s.q + (size_t)r * width, some, width}, 1);
        for (int i = 0; i < n; i++) {
            check_same(c, "rows apart", some + (size_t)i * width, out + (size_t)(r + i) * stride,
                       (size_t)width * sizeof(float));
        }
    }
    free(some);
    placed_free(&t);
    pool_free(&pool);
}

static void view_check(struct check *c, const struct view_case *x)
{
    const int width = x->m.n_head * x->m.head_dim, stride = width + 5;
    const size_t n = (size_t)x->s.n_row * stride;
    struct guarded y = guarded_alloc(n), other = guarded_alloc(n), want = guarded_alloc(n);
    const double tolerance = tolerance_of(x->m, &x->s);
    run_view(c->ref, x, true, want.p, stride, 1);
    run_view(c->k, x, true, y.p, stride, 1);
    guarded_check(c, &y, x->s.n_row, width, stride);
    check_hash(c, y.p, n * sizeof(float));
    for (int threads = 2; threads <= CHECK_THREAD_MAX; threads++) {
        guarded_reset(&other);
        run_view(c->k, x, true, other.p, stride, threads);
        check_same(c, "threads and places", other.p, y.p, n * sizeof(float));
    }
    for (int r = 0; r < x->s.n_row; r++) {
        for (int i = 0; i < width; i++) {
            check_close(c, "out", r, i, y.p[(size_t)r * stride + i], want.p[(size_t)r * stride + i], tolerance);
        }
    }
    view_exact(c, x, y.p, stride);
    view_rows(c, x, y.p, stride);
    guarded_reset(&other);
    run_view(c->k, x, false, other.p, stride, 2);
    const bool all = x->v.n_list == x->v.dense_from / GR_KV_BLOCK_TOKENS;
    if (all) {
        check_same(c, "a view of everything", other.p, y.p, n * sizeof(float));
    } else if (memcmp(other.p, y.p, n * sizeof(float)) == 0) {
        check_fail(c, "the view changed nothing");
    }
    guarded_free(&y);
    guarded_free(&other);
    guarded_free(&want);
}

static void view_case(struct check *c, struct shape m, int n_base, int n_row, int n_branch, int dense_from, int n_list)
{
    struct view_case x = {.m = m, .tree = n_branch > 0};
    const double work = (double)n_row * m.n_head * m.head_dim * (n_base + n_row);
    if (!check_case(c, work > 1e6, "heads %d/%d of %d, base %d, %d rows, branch %d, dense from %d, %d listed", m.n_head,
                    m.n_kv_head, m.head_dim, n_base, n_row, n_branch, dense_from, n_list)) {
        return;
    }
    session_init(&x.s, m, n_base, n_row, n_branch, 1.0f);
    view_init(&x.v, m, dense_from, n_list);
    view_check(c, &x);
    session_free(&x.s);
    free(x.v.list);
}

/* A refresh: chain rows, then the tree after them, in one sequence; each as it would be by itself. */
static void refresh_case(struct check *c, struct shape m, int n_base, int n_chain, int n_row)
{
    const int width = m.n_head * m.head_dim, n_all = n_chain + n_row;
    struct session s;
    struct pool pool;
    struct placed t;
    if (!check_case(c, true, "refresh: %d in the pool, the last %d of them chain rows, %d tree rows", n_base, n_chain,
                    n_row)) {
        return;
    }
    session_init(&s, m, n_base, n_row, 3, 1.0f);
    pool_init(&pool, m, (n_base + n_row) / 16 + 8);
    place_tree(&pool, &s, &t);
    float *q = check_alloc((size_t)n_all * width * sizeof(float));
    float *y = check_alloc((size_t)n_all * width * sizeof(float));
    float *part = check_alloc((size_t)n_all * width * sizeof(float));
    int32_t *limit = check_alloc((size_t)n_all * sizeof(int32_t));
    int32_t *n_anc = check_alloc((size_t)n_all * sizeof(int32_t));
    int16_t *anc = check_alloc((size_t)n_all * GR_ATTN_ANC_MAX * sizeof(int16_t));
    fill_f32(q, (size_t)n_chain * width, FILL_NORMAL);
    memcpy(q + (size_t)n_chain * width, s.q, (size_t)n_row * width * sizeof(float));
    memset(anc, 0x7f, (size_t)n_all * GR_ATTN_ANC_MAX * sizeof(int16_t));
    memcpy(anc + (size_t)n_chain * GR_ATTN_ANC_MAX, t.anc, (size_t)n_row * GR_ATTN_ANC_MAX * sizeof(int16_t));
    for (int r = 0; r < n_all; r++) {
        limit[r] = r < n_chain ? n_base - n_chain + r + 1 : t.limit[r - n_chain];
        n_anc[r] = r < n_chain ? 0 : t.n_anc[r - n_chain];
    }
    struct gr_attn_seq seq = t.seq;
    seq.limit = limit;
    seq.n_anc = n_anc;
    seq.anc = anc;
    seq.n_row = n_all;
    attend(c->k, &pool, &(struct attend_rows){&seq, 1, q, y, width}, 2);
    check_hash(c, y, (size_t)n_all * width * sizeof(float));
    attend(c->k, &pool, &(struct attend_rows){&t.seq, 1, s.q, part + (size_t)n_chain * width, width}, 1);
    seq.n_row = n_chain;
    seq.n_slot = 0;
    attend(c->k, &pool, &(struct attend_rows){&seq, 1, q, part, width}, 1);
    check_same(c, "chain and tree in one sequence", y, part, (size_t)n_all * width * sizeof(float));
    free(q);
    free(y);
    free(part);
    free(limit);
    free(n_anc);
    free(anc);
    placed_free(&t);
    pool_free(&pool);
    session_free(&s);
}

void check_view(struct check *c)
{
    static const struct shape demo = {6, 2, 64, 0}, one = {1, 1, 16, 0}, odd = {10, 2, 80, 0}, wide = {8, 2, 128, 0};
    /* everything is visible */
    view_case(c, one, 40, 3, 2, 32, 2);
    view_case(c, one, 40, 3, 0, 0, 0);
    view_case(c, demo, 1300, 5, 2, 1280, 80);
    view_case(c, demo, 1300, 20, 2, 512, 32);
    view_case(c, wide, 700, 17, 0, 688, 43);
    /* parts of one split, whole splits without a key, none below dense_from at all */
    view_case(c, one, 40, 1, 0, 32, 1);
    view_case(c, one, 100, 4, 2, 96, 3);
    view_case(c, one, 96, 4, 2, 96, 3);
    view_case(c, one, 2100, 4, 2, 2096, 2);
    view_case(c, one, 2048, 5, 2, 2048, 0);
    view_case(c, one, 2064, 18, 0, 2048, 0);
    view_case(c, one, 2050, 3, 1, 2048, 1);
    view_case(c, demo, 1000, 1, 0, 976, 7);
    view_case(c, demo, 1023, 64, 4, 896, 9);
    view_case(c, demo, 1024, 64, 4, 1024, 20);
    view_case(c, demo, 3000, 33, 3, 2864, 40);
    view_case(c, demo, 3000, 60, 0, 2864, 40);
    view_case(c, demo, 2560, 1, 1, 2560, 5);
    view_case(c, odd, 1550, 17, 4, 1520, 11);
    view_case(c, wide, 1800, 9, 2, 1536, 33);
    refresh_case(c, demo, 700, 40, 16);
    refresh_case(c, demo, 1040, 128, 60);
    refresh_case(c, odd, 530, 1, 3);
}

/* ---- benchmark ---- */

struct view_bench {
    struct pool pool;
    struct placed t;
    struct gr_attention_args a;
    const struct gr_kernels *k;
};

static void run_attention(const struct gr_exec *x, const void *args)
{
    const struct view_bench *b = args;
    b->k->attention(x, &b->a);
}

/* n_row rows of a tree (1: the tail alone) after n_base tokens: all of them, then views of some budgets. Expected: in
 * proportion to the keys that are read. */
static void bench_context(const struct bench *b, struct shape m, int n_base, int n_row)
{
    static const int budgets[] = {0, 4096, 2048, 1024, 512};
    struct view_bench t = {.k = b->k};
    struct session s;
    const int width = m.n_head * m.head_dim;
    double all_ns = 0.0;
    float *out = check_alloc((size_t)n_row * width * sizeof(float));
    session_init(&s, m, n_base, n_row, 4, 1.0f);
    pool_init(&t.pool, m, (n_base + n_row) / 16 + 8);
    place_tree(&t.pool, &s, &t.t);
    t.a = (struct gr_attention_args){
        .kv = t.pool.kv,
        .q = s.q,
        .out = out,
        .seq = &t.t.seq,
        .n_seq = 1,
        .n_head = m.n_head,
        .q_stride = width,
        .out_stride = width,
        .layer = 1,
        .scale = 0.125f,
        .work = check_alloc(b->n_thread * b->k->attention_work_bytes(m.n_head, m.n_kv_head, m.head_dim))};
    for (size_t i = 0; i < GR_ARRAY_LEN(budgets); i++) {
        struct view v = {0};
        int n_key = n_base;
        if (budgets[i] >= n_base) {
            continue;
        }
        if (budgets[i] > 0) { /* sink 2 and window 8 blocks of it, and 128 tokens after the window */
            view_init(&v, m, (n_base - 128) / 16 * 16 - 128, budgets[i] / 16 + 2);
            view_attend(&v, &t.t.seq);
            n_key = v.n_list * 16 + n_base - v.dense_from;
        }
        const double ns = bench_ns(b->n_thread, run_attention, &t);
        all_ns = budgets[i] == 0 ? ns : all_ns;
        char shape[96];
        snprintf(shape, sizeof(shape), "heads %d/%d of %d, %d tokens, retrieval %d: %d keys", m.n_head, m.n_kv_head,
                 m.head_dim, n_base, budgets[i], n_key);
        bench_print(b, &(struct bench_row){.op = "view",
                                           .shape = shape,
                                           .n_row = n_row,
                                           .ns = ns,
                                           .gbs = 8.0 * n_key * m.n_kv_head * m.head_dim / ns,
                                           .of_gbs = b->memory_gbs,
                                           .gflops = 4.0 * n_row * n_key * m.n_head * m.head_dim / ns});
        free(v.list);
    }
    free(t.a.work);
    free(out);
    placed_free(&t.t);
    pool_free(&t.pool);
    session_free(&s);
}

void bench_view(const struct bench *b)
{
    static const struct shape demo = {6, 2, 64, 0};
    static const int contexts[] = {4096, 16384, 30000};
    for (size_t i = 0; i < GR_ARRAY_LEN(contexts) && strcmp(b->k->name, "c") != 0; i++) {
        bench_context(b, demo, contexts[i], 1);
        bench_context(b, demo, contexts[i], 16);
    }
}
