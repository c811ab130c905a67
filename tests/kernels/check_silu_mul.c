/* silu_mul. Tolerance: exp to 2 units, one add, divide and multiply rounded: 8 eps relative, and 1e-36 where the
 * clamp of the exp at 88 holds the quotient up (the exact value is smaller still). */
#include "tests/kernels/check.h"

#include "common/base/status.h"

#include <math.h>
#include <stdlib.h>

CHECK_OP(silu_mul)

/* GELU's exponent has errors of its own: three roundings, each of which the exp makes one of exponent times as much. */
static double tolerance(float gate, bool gelu)
{
    const double g = (double)gate;
    const double u = gelu ? (double)GR_GELU_SLOPE * (g + (double)GR_GELU_CUBE * g * g * g) : 0.0;
    return CHECK_EPS * (8 + 4 * fmin(fabs(u), 88.0));
}

static void silu_case(struct check *c, int n_row, int n_col, float gate_scale, bool gelu)
{
    int stride = n_col + 3;
    size_t n = (size_t)n_row * stride;
    if (!check_case(c, false, "%d x %d, gate scale %g%s", n_row, n_col, (double)gate_scale, gelu ? ", gelu" : "")) {
        return;
    }
    float *gate = check_alloc(n * sizeof(float)), *up = check_alloc(n * sizeof(float));
    struct guarded y = guarded_alloc(n), want = guarded_alloc(n), other = guarded_alloc(n);
    fill_f32(gate, n, FILL_NORMAL);
    fill_f32(up, n, FILL_NORMAL);
    for (size_t i = 0; i < n; i++) {
        gate[i] *= gate_scale;
    }
    struct gr_silu_mul_args a = {
        .gate = gate, .up = up, .act = want.p, .n_row = n_row, .n_col = n_col, .stride = stride, .gelu = gelu};
    CHECK_CALL(1, silu_mul, c->ref, &a);
    a.act = y.p;
    CHECK_CALL(1, silu_mul, c->k, &a);
    guarded_check(c, &y, n_row, n_col, stride);
    check_hash(c, y.p, n * sizeof(float));
    for (int r = 0; r < n_row; r++) {
        for (int i = 0; i < n_col; i++) {
            size_t at = (size_t)r * stride + i;
            check_close(c, "act", r, i, y.p[at], want.p[at],
                        tolerance(gate[at], gelu) * fabs((double)want.p[at]) + 1e-35 * fabs((double)up[at]));
            float exact = (gelu ? exact_gelu_mul : exact_silu_mul)(gate[at], up[at]);
            check_same(c, "promised bits", &exact, &y.p[at], sizeof(exact));
        }
        a.gate = gate + (size_t)r * stride;
        a.up = up + (size_t)r * stride;
        a.act = other.p;
        a.n_row = 1;
        CHECK_CALL(1, silu_mul, c->k, &a);
        check_same(c, "a row alone", other.p, y.p + (size_t)r * stride, (size_t)n_col * sizeof(float));
    }
    a = (struct gr_silu_mul_args){
        .gate = gate, .up = up, .act = gate, .n_row = n_row, .n_col = n_col, .stride = stride, .gelu = gelu};
    CHECK_CALL(3, silu_mul, c->k, &a); /* in place, by three threads */
    for (int r = 0; r < n_row; r++) {
        check_same(c, "in place, threads", gate + (size_t)r * stride, y.p + (size_t)r * stride,
                   (size_t)n_col * sizeof(float));
    }
    free(gate);
    free(up);
    guarded_free(&y);
    guarded_free(&want);
    guarded_free(&other);
}

void check_silu_mul(struct check *c)
{
    static const int cols[] = {1, 15, 16, 17, 47, 64, 1024};
    for (size_t i = 0; i < GR_ARRAY_LEN(cols); i++) {
        silu_case(c, 1, cols[i], 1.0f, false);
        silu_case(c, 3, cols[i], 10.0f, false);
        silu_case(c, 5, cols[i], 100.0f, false); /* both ends of the exp */
        silu_case(c, 3, cols[i], 1.0f, true);
        silu_case(c, 2, cols[i], 30.0f, true);
    }
}
