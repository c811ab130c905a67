/* rmsnorm. Tolerance: (8 + sqrt(n / 16)) eps relative: the sum is 16 chains of n / 16 squares. */
#include "tests/kernels/check.h"

#include "common/base/status.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

CHECK_OP(rmsnorm)

/* y: of a without a residual. With one, and with one that the sums overwrite. */
static void residual_check(struct check *c, struct gr_rmsnorm_args a, const float *y, struct guarded *other)
{
    size_t n_y = (size_t)a.n_row * a.y_stride;
    float *old = check_alloc(n_y * sizeof(float));
    fill_f32(old, n_y, FILL_NORMAL);
    memcpy(other->p, old, n_y * sizeof(float));
    a.residual = a.y = other->p;
    CHECK_CALL(2, rmsnorm, c->k, &a);
    for (int r = 0; r < a.n_row; r++) {
        for (int i = 0; i < a.n; i++) {
            size_t at = (size_t)r * a.y_stride + i;
            float exact = y[at] + old[at];
            check_same(c, "onto a residual", &exact, &other->p[at], sizeof(exact));
        }
    }
    free(old);
}

static void rmsnorm_case(struct check *c, int n_row, int n, enum fill kind)
{
    int x_stride = n + 2, y_stride = n + 3;
    size_t n_x = (size_t)(n_row - 1) * x_stride + n, n_y = (size_t)n_row * y_stride;
    if (!check_case(c, false, "%d x %d, fill %d", n_row, n, (int)kind)) {
        return;
    }
    float *x = check_alloc(n_x * sizeof(float)), *w = check_alloc((size_t)n * sizeof(float));
    struct guarded y = guarded_alloc(n_y), want = guarded_alloc(n_y), other = guarded_alloc(n_y);
    fill_f32(x, n_x, kind);
    fill_f32(w, (size_t)n, FILL_NORMAL);
    struct gr_rmsnorm_args a = {
        .x = x, .w = w, .y = want.p, .n_row = n_row, .n = n, .x_stride = x_stride, .y_stride = y_stride, .eps = 1e-5f};
    CHECK_CALL(1, rmsnorm, c->ref, &a);
    a.y = y.p;
    CHECK_CALL(1, rmsnorm, c->k, &a);
    guarded_check(c, &y, n_row, n, y_stride);
    check_hash(c, y.p, n_y * sizeof(float));
    a.y = other.p;
    CHECK_CALL(3, rmsnorm, c->k, &a);
    check_same(c, "threads", other.p, y.p, n_y * sizeof(float));
    residual_check(c, a, y.p, &other);
    for (int r = 0; r < n_row; r++) {
        float inv = exact_rms_inv(x + (size_t)r * x_stride, n, a.eps);
        for (int i = 0; i < n; i++) {
            size_t at = (size_t)r * y_stride + i;
            float exact = x[(size_t)r * x_stride + i] * inv * w[i];
            check_same(c, "promised bits", &exact, &y.p[at], sizeof(exact));
            check_close(c, "y", r, i, y.p[at], want.p[at], (8 + sqrt(n / 16.0)) * CHECK_EPS * fabs((double)want.p[at]));
        }
        memcpy(other.p, x + (size_t)r * x_stride, (size_t)n * sizeof(float));
        a.x = other.p; /* alone and in place */
        a.y = other.p;
        a.n_row = 1;
        CHECK_CALL(1, rmsnorm, c->k, &a);
        check_same(c, "a row alone", other.p, y.p + (size_t)r * y_stride, (size_t)n * sizeof(float));
    }
    free(x);
    free(w);
    guarded_free(&y);
    guarded_free(&want);
    guarded_free(&other);
}

void check_rmsnorm(struct check *c)
{
    static const int sizes[] = {1, 15, 16, 17, 33, 384, 1000, 4096};
    for (size_t i = 0; i < GR_ARRAY_LEN(sizes); i++) {
        for (int kind = 0; kind < FILL_KIND_N; kind++) {
            rmsnorm_case(c, 1 + 2 * kind, sizes[i], (enum fill)kind);
        }
    }
}
