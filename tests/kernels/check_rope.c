/* rope. Tolerance: two roundings, 3 eps of |a| + |b|. */
#include "tests/kernels/check.h"

#include "common/base/status.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

CHECK_OP(rope)

enum { N_POS = 37 };

static void rope_case(struct check *c, int n_row, int n_head, int head_dim)
{
    int stride = n_head * head_dim + 5, half = head_dim / 2;
    size_t n = (size_t)n_row * stride, row_bytes = (size_t)n_head * head_dim * sizeof(float);
    if (!check_case(c, false, "%d rows, %d heads of %d", n_row, n_head, head_dim)) {
        return;
    }
    float *cos_tab = check_alloc((size_t)N_POS * half * sizeof(float));
    float *sin_tab = check_alloc((size_t)N_POS * half * sizeof(float));
    float *x = check_alloc(n * sizeof(float));
    int32_t *pos = check_alloc((size_t)n_row * sizeof(*pos));
    struct guarded y = guarded_alloc(n), want = guarded_alloc(n), other = guarded_alloc(n);
    for (int i = 0; i < N_POS * half; i++) {
        double angle = rng_normal() * 10.0;
        cos_tab[i] = (float)cos(angle);
        sin_tab[i] = (float)sin(angle);
    }
    fill_f32(x, n, FILL_NORMAL);
    for (int r = 0; r < n_row; r++) {
        pos[r] = r == 0 ? N_POS - 1 : rng_below(N_POS);
        for (int v = 0; v < n_head * head_dim; v++) {
            size_t at = (size_t)r * stride + v;
            y.p[at] = want.p[at] = other.p[at] = x[at];
        }
    }
    struct gr_rope_args a = {.x = want.p,
                             .pos = pos,
                             .cos = cos_tab,
                             .sin = sin_tab,
                             .n_row = n_row,
                             .n_head = n_head,
                             .head_dim = head_dim,
                             .stride = stride};
    CHECK_CALL(1, rope, c->ref, &a);
    a.x = y.p;
    CHECK_CALL(1, rope, c->k, &a);
    a.x = other.p;
    CHECK_CALL(3, rope, c->k, &a);
    guarded_check(c, &y, n_row, n_head * head_dim, stride);
    check_same(c, "threads", other.p, y.p, n * sizeof(float));
    check_hash(c, y.p, n * sizeof(float));
    for (int r = 0; r < n_row; r++) {
        float *row = x + (size_t)r * stride;
        for (int v = 0; v < n_head * head_dim; v++) {
            size_t at = (size_t)r * stride + v;
            int partner = v % head_dim < half ? v + half : v - half;
            check_close(c, "x", r, v, y.p[at], want.p[at],
                        3 * CHECK_EPS * (fabs((double)row[v]) + fabs((double)row[partner])));
        }
    }
    for (int r = 0; r < n_row; r++) {
        a.x = x + (size_t)r * stride;
        a.pos = pos + r;
        a.n_row = 1;
        CHECK_CALL(1, rope, c->k, &a);
        check_same(c, "a row alone", a.x, y.p + (size_t)r * stride, row_bytes);
    }
    free(cos_tab);
    free(sin_tab);
    free(x);
    free(pos);
    guarded_free(&y);
    guarded_free(&want);
    guarded_free(&other);
}

void check_rope(struct check *c)
{
    static const int dims[] = {2, 16, 32, 34, 64, 80, 128, 256};
    for (size_t i = 0; i < GR_ARRAY_LEN(dims); i++) {
        rope_case(c, 1, 1, dims[i]);
        rope_case(c, 5, 3, dims[i]);
    }
}
