/* kv_store and kv_copy: exact. */
#include "tests/kernels/check.h"

#include "common/base/status.h"

#include <stdlib.h>
#include <string.h>

CHECK_OP(kv_store)
CHECK_OP(kv_copy)

enum { N_BLOCK = 9 };

struct kv_pair { /* two layers' storage: by the implementation, and by ref */
    struct guarded k[2], v[2];
    size_t n;
};

static struct gr_kv_layer kv_layer(const struct kv_pair *p, int which, int n_kv_head, int head_dim)
{
    return (struct gr_kv_layer){.k = p->k[which].p, .v = p->v[which].p, .n_kv_head = n_kv_head, .head_dim = head_dim};
}

static void kv_pair_init(struct kv_pair *p, int n_kv_head, int head_dim)
{
    p->n = (size_t)N_BLOCK * n_kv_head * head_dim * GR_KV_BLOCK_TOKENS;
    for (int i = 0; i < 2; i++) {
        p->k[i] = guarded_alloc(p->n);
        p->v[i] = guarded_alloc(p->n);
    }
}

static void kv_pair_check(struct check *c, struct kv_pair *p)
{
    check_same(c, "k", p->k[0].p, p->k[1].p, p->n * sizeof(float));
    check_same(c, "v", p->v[0].p, p->v[1].p, p->n * sizeof(float));
    check_hash(c, p->k[0].p, p->n * sizeof(float));
    check_hash(c, p->v[0].p, p->n * sizeof(float));
    for (int i = 0; i < 2; i++) {
        guarded_check(c, &p->k[i], 0, 0, 0);
        guarded_check(c, &p->v[i], 0, 0, 0);
        guarded_free(&p->k[i]);
        guarded_free(&p->v[i]);
    }
}

/* n different cells in random order. */
static void random_cells(int32_t *cell, int n)
{
    int32_t all[N_BLOCK * GR_KV_BLOCK_TOKENS];
    for (int i = 0; i < N_BLOCK * GR_KV_BLOCK_TOKENS; i++) {
        all[i] = i;
    }
    for (int i = 0; i < n; i++) {
        int j = i + rng_below(N_BLOCK * GR_KV_BLOCK_TOKENS - i);
        int32_t t = all[j];
        all[j] = all[i];
        all[i] = t;
        cell[i] = t;
    }
}

static void kv_store_case(struct check *c, int n_row, int n_kv_head, int head_dim, int n_thread)
{
    int width = n_kv_head * head_dim;
    int32_t cell[N_BLOCK * GR_KV_BLOCK_TOKENS];
    struct kv_pair p;
    if (!check_case(c, false, "%d rows, %d heads of %d", n_row, n_kv_head, head_dim)) {
        return;
    }
    struct gr_kv_store_args a = {.cell = cell, .n_row = n_row, .k_stride = width + 1, .v_stride = width + 2};
    size_t n_k = (size_t)(n_row - 1) * a.k_stride + width, n_v = (size_t)(n_row - 1) * a.v_stride + width;
    float *k = check_alloc(n_k * sizeof(float)), *v = check_alloc(n_v * sizeof(float));
    fill_f32(k, n_k, FILL_WIDE);
    fill_f32(v, n_v, FILL_WIDE);
    random_cells(cell, n_row);
    kv_pair_init(&p, n_kv_head, head_dim);
    a.k = k;
    a.v = v;
    a.kv = kv_layer(&p, 0, n_kv_head, head_dim);
    CHECK_CALL(n_thread, kv_store, c->k, &a);
    a.kv = kv_layer(&p, 1, n_kv_head, head_dim);
    CHECK_CALL(1, kv_store, c->ref, &a);
    kv_pair_check(c, &p);
    free(k);
    free(v);
}

void check_kv_store(struct check *c)
{
    static const int rows[] = {1, 3, 15, 16, 17, 100};
    for (size_t i = 0; i < GR_ARRAY_LEN(rows); i++) {
        kv_store_case(c, rows[i], 1, 16, 1);
        kv_store_case(c, rows[i], 2, 64, 2);
        kv_store_case(c, rows[i], 3, 80, 3);
    }
}

static void kv_copy_case(struct check *c, int n, int n_kv_head, int head_dim, int n_thread)
{
    int32_t cell[N_BLOCK * GR_KV_BLOCK_TOKENS];
    struct kv_pair p;
    if (!check_case(c, false, "%d cells, %d heads of %d", n, n_kv_head, head_dim)) {
        return;
    }
    kv_pair_init(&p, n_kv_head, head_dim);
    random_cells(cell, 2 * n);
    if (n > 2) {
        cell[n + n - 1] = cell[0]; /* a source that was read already is overwritten */
    }
    fill_f32(p.k[0].p, p.n, FILL_WIDE);
    fill_f32(p.v[0].p, p.n, FILL_WIDE);
    memcpy(p.k[1].p, p.k[0].p, p.n * sizeof(float));
    memcpy(p.v[1].p, p.v[0].p, p.n * sizeof(float));
    struct gr_kv_copy_args a = {.src = cell, .dst = cell + n, .n = n};
    a.kv = kv_layer(&p, 0, n_kv_head, head_dim);
    CHECK_CALL(n_thread, kv_copy, c->k, &a);
    a.kv = kv_layer(&p, 1, n_kv_head, head_dim);
    CHECK_CALL(1, kv_copy, c->ref, &a);
    kv_pair_check(c, &p);
}

void check_kv_copy(struct check *c)
{
    static const int counts[] = {0, 1, 2, 7, 16, 60};
    for (size_t i = 0; i < GR_ARRAY_LEN(counts); i++) {
        kv_copy_case(c, counts[i], 1, 16, 1);
        kv_copy_case(c, counts[i], 2, 64, 2);
        kv_copy_case(c, counts[i], 4, 80, 3);
    }
}
