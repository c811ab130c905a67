/* attention. A session is made of logical keys (a base of n_base positions and a tree on top) and placed into a
 * pool in some random way; how it is placed, with whom it shares the pass and by how many threads it is computed
 * must not change a bit, and a tree row must equal the chain row that has the same context in the pool.
 *
 * Tolerance against ref (row, dimension): eps * max |v| * (32 + 4 sqrt(hd) * S + 3 sqrt(n_key)), S the largest sum of
 * |q k| scale of a visible key: a score errs like a chain of hd, the exp carries that over, the sums add theirs. */
#include "tests/kernels/attention_rig.h"

#include "common/base/status.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void compare_rows(struct check *c, struct shape m, const struct session *s, const float *got, const float *want,
                         int stride)
{
    double tolerance = tolerance_of(m, s);
    for (int r = 0; r < s->n_row; r++) {
        for (int i = 0; i < m.n_head * m.head_dim; i++) {
            size_t at = (size_t)r * stride + i;
            check_close(c, "out", r, i, got[at], want[at], tolerance);
        }
    }
}

/* Row r alone equals its value in the pass; a tree row also equals its path as a chain. */
static void rows_alone(struct check *c, const struct pool *pool, const struct placed *t, const struct session *s,
                       const float *out, int stride, bool tree)
{
    struct shape m = pool->m;
    int width = m.n_head * m.head_dim, step = GR_MAX(1, s->n_row / 5);
    float *one = check_alloc((size_t)width * sizeof(float));
    for (int r = s->n_row - 1; r >= 0; r -= step) {
        const float *q = s->q + (size_t)r * width, *want = out + (size_t)r * stride;
        struct gr_attn_seq seq = t->seq;
        seq.row0 = 0;
        seq.n_row = 1;
        seq.limit += r;
        seq.n_anc += r;
        seq.anc += (size_t)r * GR_ATTN_ANC_MAX;
        attend(c->k, pool, &(struct attend_rows){&seq, 1, q, one, width}, 1);
        check_same(c, "a row alone", one, want, (size_t)width * sizeof(float));
        if (tree) {
            struct pool other;
            struct placed path;
            pool_init(&other, m, (s->n_base + s->n_row) / 16 + 3);
            place_path(&other, s, r, &path);
            attend(c->k, &other, &(struct attend_rows){&path.seq, 1, q, one, width}, 1);
            check_same(c, "tree row as a chain", one, want, (size_t)width * sizeof(float));
            placed_free(&path);
            pool_free(&other);
        }
    }
    free(one);
}

/* Some rows against the order of operations that kernels.h promises. */
static void rows_exact(struct check *c, struct shape m, const struct session *s, const float *out, int stride,
                       bool tree)
{
    int n_max = s->n_base + s->n_row, path[GR_ATTN_ANC_MAX], width = m.n_head * m.head_dim;
    const float **k = check_alloc((size_t)n_max * sizeof(*k));
    const float **v = check_alloc((size_t)n_max * sizeof(*v));
    float want[GR_HEAD_DIM_MAX];
    for (int r = s->n_row - 1; r >= 0; r -= GR_MAX(1, s->n_row / 4)) {
        int n_path = tree ? path_of(s, r, path) : r + 1;
        int first = gr_attn_first(m.window, s->n_base, n_path);
        for (int h = 0; h < m.n_head; h++) {
            int kv_head = h / (m.n_head / m.n_kv_head);
            for (int p = 0; p < s->n_base + n_path; p++) {
                int key = tree && p >= s->n_base ? s->n_base + path[p - s->n_base] : p;
                k[p] = p < first ? NULL : s->k + ((size_t)key * m.n_kv_head + kv_head) * m.head_dim;
                v[p] = s->v + ((size_t)key * m.n_kv_head + kv_head) * m.head_dim;
            }
            exact_attention(&(struct exact_row){.q = s->q + (size_t)r * width + h * m.head_dim,
                                                .k = k,
                                                .v = v,
                                                .n_key = s->n_base + n_path,
                                                .head_dim = m.head_dim,
                                                .scale = 1.0f / sqrtf((float)m.head_dim)},
                            want);
            check_same(c, "promised bits", out + (size_t)r * stride + h * m.head_dim, want,
                       (size_t)m.head_dim * sizeof(float));
        }
    }
    free(k);
    free(v);
}

struct pass { /* what a case sets up: one or two sessions, tree or chain */
    struct shape m;
    struct session s[2];
    bool tree[2];
    int n_seq;
};

/* Places the sessions in a fresh pool and runs the pass; rows of session i start at row0[i]. */
static void run_pass(const struct gr_kernels *k, struct pass *p, struct pool *pool, struct placed *t, float *out,
                     int stride, int n_thread)
{
    struct gr_attn_seq seq[2];
    int n_block = 0, n_row = 0, width = p->m.n_head * p->m.head_dim;
    for (int i = 0; i < p->n_seq; i++) {
        n_block += (p->s[i].n_base + p->s[i].n_row) / 16 + 8;
        n_row += p->s[i].n_row;
    }
    float *q = check_alloc((size_t)n_row * width * sizeof(float));
    pool_init(pool, p->m, n_block);
    n_row = 0;
    for (int i = 0; i < p->n_seq; i++) {
        (p->tree[i] ? place_tree : place_chain)(pool, &p->s[i], &t[i]);
        memcpy(q + (size_t)n_row * width, p->s[i].q, (size_t)p->s[i].n_row * width * sizeof(float));
        t[i].seq.row0 = n_row;
        n_row += p->s[i].n_row;
        seq[i] = t[i].seq;
    }
    attend(k, pool, &(struct attend_rows){seq, p->n_seq, q, out, stride}, n_thread);
    free(q);
}

static void run_pass_free(struct pass *p, struct pool *pool, struct placed *t)
{
    for (int i = 0; i < p->n_seq; i++) {
        placed_free(&t[i]);
    }
    pool_free(pool);
}

static void pass_check(struct check *c, struct pass *p)
{
    int width = p->m.n_head * p->m.head_dim, stride = width + 7, n_row = 0;
    for (int i = 0; i < p->n_seq; i++) {
        n_row += p->s[i].n_row;
    }
    size_t n = (size_t)n_row * stride;
    struct guarded y = guarded_alloc(n), want = guarded_alloc(n), other = guarded_alloc(n);
    struct pool pool;
    struct placed t[2];
    run_pass(c->ref, p, &pool, t, want.p, stride, 1);
    run_pass_free(p, &pool, t);
    for (int threads = 2; threads <= CHECK_THREAD_MAX; threads++) { /* each time placed otherwise */
        guarded_reset(&other);
        run_pass(c->k, p, &pool, t, other.p, stride, threads);
        run_pass_free(p, &pool, t);
        if (threads == 2) {
            memcpy(y.p, other.p, n * sizeof(float));
        } else {
            check_same(c, "threads and places", other.p, y.p, n * sizeof(float));
        }
    }
    guarded_reset(&other);
    run_pass(c->k, p, &pool, t, other.p, stride, 1);
    check_same(c, "threads and places", other.p, y.p, n * sizeof(float));
    guarded_check(c, &other, n_row, width, stride);
    check_hash(c, y.p, n * sizeof(float));
    for (int i = 0, row = 0; i < p->n_seq; row += p->s[i].n_row, i++) {
        const float *out = y.p + (size_t)row * stride;
        compare_rows(c, p->m, &p->s[i], out, want.p + (size_t)row * stride, stride);
        rows_exact(c, p->m, &p->s[i], out, stride, p->tree[i]);
        rows_alone(c, &pool, &t[i], &p->s[i], out, stride, p->tree[i]);
    }
    run_pass_free(p, &pool, t);
    guarded_free(&y);
    guarded_free(&want);
    guarded_free(&other);
}

static void attention_case(struct check *c, struct shape m, int n_base, int n_row, int n_branch, float score_scale)
{
    struct pass p = {.m = m, .n_seq = 1, .tree = {n_branch > 0}};
    double work = (double)n_row * m.n_head * m.head_dim * (n_base + n_row);
    if (!check_case(c, work > 1e6, "heads %d/%d of %d, base %d, %d rows, branch %d, scores x %g, window %d", m.n_head,
                    m.n_kv_head, m.head_dim, n_base, n_row, n_branch, (double)score_scale, m.window)) {
        return;
    }
    session_init(&p.s[0], m, n_base, n_row, n_branch, score_scale);
    pass_check(c, &p);
    session_free(&p.s[0]);
}

/* A tree and a prompt chunk in one pass. */
static void ragged_case(struct check *c, struct shape m, int base_a, int row_a, int base_b, int row_b)
{
    struct pass p = {.m = m, .n_seq = 2, .tree = {true, false}};
    if (!check_case(c, true, "ragged: heads %d/%d of %d, tree %d + %d, chunk %d + %d", m.n_head, m.n_kv_head,
                    m.head_dim, base_a, row_a, base_b, row_b)) {
        return;
    }
    session_init(&p.s[0], m, base_a, row_a, 3, 1.0f);
    session_init(&p.s[1], m, base_b, row_b, 0, 1.0f);
    pass_check(c, &p);
    session_free(&p.s[0]);
    session_free(&p.s[1]);
}

/* Windows that are shorter than a tree is deep, end on and off the borders of blocks and splits, or hold everything. */
static void window_cases(struct check *c)
{
    static const int windows[] = {1, 2, 4, 16, 17, 24, 64, 500, 512, 513, 1024, 4000};
    for (size_t i = 0; i < GR_ARRAY_LEN(windows); i++) {
        const struct shape demo = {6, 2, 64, windows[i]}, odd = {10, 2, 80, windows[i]};
        attention_case(c, demo, 0, 40, 0, 1.0f);
        attention_case(c, demo, 30, 20, 1, 1.0f); /* one path of 20 */
        attention_case(c, demo, 509, 40, 3, 1.0f);
        attention_case(c, demo, 1000, 64, 0, 3.0f);
        attention_case(c, odd, 1030, 17, 4, 1.0f);
        attention_case(c, demo, 3000, 3, 2, 1.0f);
        ragged_case(c, demo, 600, 30, 0, 50);
    }
}

void check_attention(struct check *c)
{
    static const struct shape demo = {6, 2, 64, 0}, draft = {6, 2, 32, 0}, one = {1, 1, 16, 0};
    static const struct shape odd = {10, 2, 80, 0}, wide = {8, 2, 128, 0}, widest = {4, 4, 256, 0};
    static const int bases[] = {0, 1, 15, 16, 17, 31, 63, 64, 65, 130};
    for (size_t i = 0; i < GR_ARRAY_LEN(bases); i++) {
        attention_case(c, one, bases[i], 1, 1, 1.0f);
        attention_case(c, one, bases[i], 5, 2, 1.0f);
        attention_case(c, one, bases[i], 18, 0, 1.0f);
        attention_case(c, demo, bases[i], 1, 0, 1.0f);
        attention_case(c, draft, bases[i], 7, 3, 3.0f);
    }
    /* splits: the tree lies across the border of two, or begins one */
    attention_case(c, demo, 505, 16, 1, 1.0f);
    attention_case(c, demo, 509, 40, 3, 1.0f);
    attention_case(c, demo, 511, 64, 5, 10.0f);
    attention_case(c, demo, 512, 64, 5, 1.0f);
    attention_case(c, demo, 1023, 3, 1, 1.0f);
    attention_case(c, demo, 500, 33, 0, 1.0f);
    attention_case(c, demo, 1000, 64, 0, 1.0f);
    attention_case(c, odd, 700, 17, 4, 1.0f);
    attention_case(c, odd, 490, 60, 0, 1.0f);
    attention_case(c, wide, 300, 64, 4, 1.0f);
    attention_case(c, wide, 300, 1, 1, 1.0f);
    attention_case(c, wide, 1025, 2, 0, 30.0f); /* one key takes all */
    attention_case(c, widest, 530, 9, 2, 1.0f);
    attention_case(c, demo, 5, 64, 1, 1.0f); /* 64 ancestors */
    attention_case(c, demo, 3000, 3, 2, 1.0f);
    ragged_case(c, demo, 600, 30, 0, 50);
    ragged_case(c, draft, 10, 64, 520, 7);
    ragged_case(c, wide, 0, 1, 511, 2);
    window_cases(c);
}

/* ---- benchmark ---- */

struct attention_bench {
    struct pool pool;
    struct placed t;
    struct gr_attention_args a;
    const struct gr_kernels *k;
};

static void run_attention(const struct gr_exec *x, const void *args)
{
    const struct attention_bench *b = args;
    b->k->attention(x, &b->a);
}

static void bench_shape(const struct bench *b, struct shape m, int n_base, int n_row, bool tree)
{
    struct attention_bench t = {.k = b->k};
    struct session s;
    int width = m.n_head * m.head_dim;
    float *out = check_alloc((size_t)n_row * width * sizeof(float));
    session_init(&s, m, n_base, n_row, tree ? 4 : 0, 1.0f);
    pool_init(&t.pool, m, (n_base + n_row) / 16 + 8);
    (tree ? place_tree : place_chain)(&t.pool, &s, &t.t);
    t.a = (struct gr_attention_args){
        .kv = t.pool.kv,
        .q = s.q,
        .out = out,
        .seq = &t.t.seq,
        .n_seq = 1,
        .n_head = m.n_head,
        .q_stride = width,
        .out_stride = width,
        .scale = 0.125f,
        .work = check_alloc(b->n_thread * b->k->attention_work_bytes(m.n_head, m.n_kv_head, m.head_dim)),
    };
    double ns = bench_ns(b->n_thread, run_attention, &t);
    double bytes = 8.0 * (n_base + n_row) * m.n_kv_head * m.head_dim;
    double flops = 4.0 * n_row * (n_base + (tree ? 0 : n_row / 2)) * width;
    char shape[64];
    snprintf(shape, sizeof(shape), "heads %d/%d of %d, %d keys, %s", m.n_head, m.n_kv_head, m.head_dim, n_base,
             tree ? "tree" : "chain");
    bench_print(b, &(struct bench_row){.op = "attention",
                                       .shape = shape,
                                       .n_row = n_row,
                                       .ns = ns,
                                       .gbs = bytes / ns,
                                       .of_gbs = b->memory_gbs,
                                       .gflops = flops / ns});
    free(t.a.work);
    free(out);
    placed_free(&t.t);
    pool_free(&t.pool);
    session_free(&s);
}

void bench_attention(const struct bench *b)
{
    static const struct shape demo = {6, 2, 64, 0}, wide = {32, 8, 128, 0};
    static const int rows[] = {1, 2, 4, 8, 16, 64};
    if (strcmp(b->k->name, "c") == 0) {
        bench_shape(b, demo, 512, 1, false);
        return;
    }
    bench_shape(b, demo, 512, 1, false);
    bench_shape(b, demo, 512, 64, true);
    bench_shape(b, demo, 4096, 1, false);
    for (size_t i = 0; i < GR_ARRAY_LEN(rows); i++) {
        bench_shape(b, demo, 32000, rows[i], true);
    }
    bench_shape(b, demo, 1024, 256, false);
    bench_shape(b, wide, 8000, 1, true);
    bench_shape(b, wide, 8000, 64, true);
}
