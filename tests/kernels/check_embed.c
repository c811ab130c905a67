/* embed: exact. */
#include "tests/kernels/check.h"

#include "common/base/status.h"

#include <stdlib.h>

CHECK_OP(embed)

enum { N_VOCAB = 29 };

static void embed_case(struct check *c, int n_row, int n)
{
    int stride = n + 4;
    if (!check_case(c, false, "%d x %d", n_row, n)) {
        return;
    }
    uint16_t *table = check_alloc((size_t)N_VOCAB * n * sizeof(*table));
    int32_t *id = check_alloc((size_t)n_row * sizeof(*id));
    struct guarded y = guarded_alloc((size_t)n_row * stride), want = guarded_alloc((size_t)n_row * stride);
    struct guarded other = guarded_alloc((size_t)n_row * stride);
    fill_bf16(table, (size_t)N_VOCAB * n, FILL_WIDE);
    for (int r = 0; r < n_row; r++) {
        id[r] = r == 0 ? N_VOCAB - 1 : rng_below(N_VOCAB);
    }
    struct gr_embed_args a = {.table = table, .id = id, .y = want.p, .n_row = n_row, .n = n, .y_stride = stride};
    CHECK_CALL(1, embed, c->ref, &a);
    for (int t = 1; t <= CHECK_THREAD_MAX; t++) {
        guarded_reset(&y);
        a.y = y.p;
        CHECK_CALL(t, embed, c->k, &a);
        guarded_check(c, &y, n_row, n, stride);
        check_same(c, "y", y.p, want.p, (size_t)n_row * stride * sizeof(float));
    }
    check_hash(c, y.p, (size_t)n_row * stride * sizeof(float));
    float *table_f32 = check_alloc((size_t)N_VOCAB * n * sizeof(*table_f32));
    for (size_t i = 0; i < (size_t)N_VOCAB * n; i++) {
        table_f32[i] = gr_bf16_to_f32(table[i]);
    }
    a.table = NULL;
    a.table_f32 = table_f32;
    guarded_reset(&y);
    CHECK_CALL(2, embed, c->k, &a);
    check_same(c, "of an f32 table", y.p, want.p, (size_t)n_row * stride * sizeof(float));
    guarded_reset(&y);
    CHECK_CALL(1, embed, c->ref, &a);
    check_same(c, "of an f32 table by ref", y.p, want.p, (size_t)n_row * stride * sizeof(float));
    a.scale = 25.25f;
    guarded_reset(&y);
    CHECK_CALL(2, embed, c->k, &a);
    a.y = other.p;
    CHECK_CALL(1, embed, c->ref, &a);
    check_same(c, "scaled", y.p, other.p, (size_t)n_row * stride * sizeof(float));
    for (int i = 0; i < n; i++) {
        float exact = want.p[i] * a.scale;
        check_same(c, "scaled, the product", &y.p[i], &exact, sizeof(exact));
    }
    free(table_f32);
    free(table);
    free(id);
    guarded_free(&y);
    guarded_free(&want);
    guarded_free(&other);
}

void check_embed(struct check *c)
{
    static const int sizes[] = {1, 15, 16, 17, 384, 1000};
    for (size_t i = 0; i < GR_ARRAY_LEN(sizes); i++) {
        embed_case(c, 1, sizes[i]);
        embed_case(c, 7, sizes[i]);
    }
}
