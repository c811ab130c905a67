/* add_gumbel: the bits of gr_gumbel(). argmax: exact, and what is not finite is told. logsumexp: terms are right to 3
 * eps and add up in 16 chains: (8 + sqrt(n / 16)) eps of the sum, which is that much in absolute terms of its log, plus
 * the rounding of the result. */
#include "tests/kernels/check.h"

#include "common/rules/gr_math.h"
#include "common/base/status.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const int sizes[] = {1, 2, 15, 16, 17, 63, 64, 65, 130, 1000, 4096, 4099};

static void gumbel_case(struct check *c, int n, uint64_t seed, uint32_t pos, uint32_t choice)
{
    if (!check_case(c, false, "n %d, seed %llx", n, (unsigned long long)seed)) {
        return;
    }
    size_t bytes = (size_t)n * sizeof(float);
    float *l = check_alloc(bytes);
    struct guarded y = guarded_alloc((size_t)n), want = guarded_alloc((size_t)n);
    fill_f32(l, (size_t)n, FILL_NORMAL);
    for (int i = 0; i < n; i += 5) {
        l[i] = -INFINITY;
    }
    c->ref->add_gumbel(l, want.p, n, seed, pos, choice);
    c->k->add_gumbel(l, y.p, n, seed, pos, choice);
    guarded_check(c, &y, 0, 0, 0);
    check_same(c, "y", y.p, want.p, bytes);
    c->k->add_gumbel(l, l, n, seed, pos, choice);
    check_same(c, "in place", l, want.p, bytes);
    check_hash(c, y.p, bytes);
    free(l);
    guarded_free(&y);
    guarded_free(&want);
}

void check_add_gumbel(struct check *c)
{
    for (size_t i = 0; i < GR_ARRAY_LEN(sizes); i++) {
        gumbel_case(c, sizes[i], 0, 0, 0);
        gumbel_case(c, sizes[i], 0x123456789abcdef0u + i, 4711, 3);
        gumbel_case(c, sizes[i], UINT64_MAX, UINT32_MAX, UINT32_MAX);
    }
    gumbel_case(c, 150000, 77, 12, 0);
}

static void argmax_is(struct check *c, const float *l, int n, bool filtered, int want)
{
    int got = c->k->argmax(l, n, filtered), ref = c->ref->argmax(l, n, filtered);
    if (got != want || ref != want) {
        check_fail(c, "n %d%s: got %d, reference %d, wanted %d", n, filtered ? ", filtered" : "", got, ref, want);
    }
    check_hash(c, &got, sizeof(got));
}

/* As the reference, and as both say where all values are finite. */
static void argmax_one(struct check *c, const float *l, int n)
{
    const int want = c->ref->argmax(l, n, false);
    if (want < 0) {
        check_fail(c, "n %d: a row of numbers is taken for one that is not", n);
    }
    argmax_is(c, l, n, false, want);
    argmax_is(c, l, n, true, want);
}

/* One value that is no number, wherever it stands: raw logits are not finite. Filtered, -inf and NaN are ids that are
 * out. */
static void argmax_odd(struct check *c, float *l, int n)
{
    static const float odd[] = {NAN, -NAN, INFINITY, -INFINITY};
    for (size_t k = 0; k < GR_ARRAY_LEN(odd); k++) {
        for (int i = 0; i < 20; i++) {
            const int at = i == 0 ? 0 : i == 1 ? n - 1 : i == 2 ? n / 2 : rng_below(n);
            const float was = l[at];
            l[at] = odd[k];
            argmax_is(c, l, n, false, GR_PICK_NOT_FINITE);
            argmax_is(c, l, n, true, odd[k] > 0.0f ? GR_PICK_NOT_FINITE : c->ref->argmax(l, n, true));
            l[at] = was;
        }
    }
}

static void argmax_case(struct check *c, int n)
{
    float *l = check_alloc((size_t)n * sizeof(float));
    if (!check_case(c, false, "n %d", n)) {
        return;
    }
    fill_f32(l, (size_t)n, FILL_NORMAL);
    argmax_one(c, l, n);
    for (int i = 0; i < 20; i++) {
        int at = i == 0 ? 0 : i == 1 ? n - 1 : rng_below(n);
        l[at] = 10.0f; /* ties with the marks before */
        argmax_one(c, l, n);
    }
    argmax_odd(c, l, n);
    for (int i = 0; i < n; i++) {
        l[i] = i % 3 ? NAN : -INFINITY;
    }
    argmax_is(c, l, n, false, GR_PICK_NOT_FINITE);
    argmax_is(c, l, n, true, GR_PICK_NOT_FINITE);
    l[n / 2] = -3.0e38f;
    argmax_is(c, l, n, false, n == 1 ? 0 : GR_PICK_NOT_FINITE);
    argmax_is(c, l, n, true, n / 2);
    for (int i = 0; i < n; i++) {
        l[i] = i % 2 ? 3.4e38f : -3.4e38f; /* the largest there are, and not one too many */
    }
    argmax_one(c, l, n);
    for (int i = 0; i < n; i++) {
        l[i] = i % 2 ? 0.0f : -0.0f;
    }
    argmax_one(c, l, n);
    free(l);
}

void check_argmax(struct check *c)
{
    for (size_t i = 0; i < GR_ARRAY_LEN(sizes); i++) {
        argmax_case(c, sizes[i]);
    }
}

static void logsumexp_case(struct check *c, int n, float scale)
{
    if (!check_case(c, false, "n %d, scale %g", n, (double)scale)) {
        return;
    }
    float *l = check_alloc((size_t)n * sizeof(float));
    fill_f32(l, (size_t)n, FILL_NORMAL);
    for (int i = 0; i < n; i++) {
        l[i] = i % 7 == 3 ? -INFINITY : l[i] * scale;
    }
    float got = c->k->logsumexp(l, n), want = c->ref->logsumexp(l, n);
    check_close(c, "result", 0, 0, got, want, (8 + sqrt(n / 16.0)) * CHECK_EPS + 2 * CHECK_EPS * fabs((double)want));
    float exact = exact_logsumexp(l, n);
    check_same(c, "promised bits", &exact, &got, sizeof(got));
    check_hash(c, &got, sizeof(got));
    free(l);
}

void check_logsumexp(struct check *c)
{
    for (size_t i = 0; i < GR_ARRAY_LEN(sizes); i++) {
        logsumexp_case(c, sizes[i], 0.0f);
        logsumexp_case(c, sizes[i], 1.0f);
        logsumexp_case(c, sizes[i], 20.0f);
        logsumexp_case(c, sizes[i], 1000.0f);
    }
}

struct sample_args {
    const struct gr_kernels *k;
    float *l, *y;
    int n;
};

static void run_gumbel(const struct gr_exec *x, const void *args)
{
    const struct sample_args *a = args;
    (void)x;
    a->k->add_gumbel(a->l, a->y, a->n, 1, 2, 0);
}

static void run_argmax(const struct gr_exec *x, const void *args)
{
    const struct sample_args *a = args;
    (void)x;
    a->y[0] = (float)a->k->argmax(a->l, a->n, false);
}

static void run_logsumexp(const struct gr_exec *x, const void *args)
{
    const struct sample_args *a = args;
    (void)x;
    a->y[0] = a->k->logsumexp(a->l, a->n);
}

static void bench_row(const struct bench *b, int n)
{
    struct sample_args a = {.k = b->k, .n = n};
    a.l = check_alloc((size_t)n * sizeof(float));
    a.y = check_alloc((size_t)n * sizeof(float));
    fill_f32(a.l, (size_t)n, FILL_NORMAL);
    char shape[32];
    snprintf(shape, sizeof(shape), "%d logits, 1 thread", n);
    bench_print(b, &(struct bench_row){.op = "add_gumbel",
                                       .shape = shape,
                                       .n_row = 1,
                                       .ns = bench_ns(1, run_gumbel, &a),
                                       .gbs = NAN,
                                       .of_gbs = 1.0,
                                       .gflops = NAN});
    bench_print(b, &(struct bench_row){.op = "argmax",
                                       .shape = shape,
                                       .n_row = 1,
                                       .ns = bench_ns(1, run_argmax, &a),
                                       .gbs = NAN,
                                       .of_gbs = 1.0,
                                       .gflops = NAN});
    bench_print(b, &(struct bench_row){.op = "logsumexp",
                                       .shape = shape,
                                       .n_row = 1,
                                       .ns = bench_ns(1, run_logsumexp, &a),
                                       .gbs = NAN,
                                       .of_gbs = 1.0,
                                       .gflops = NAN});
    free(a.l);
    free(a.y);
}

void bench_sample(const struct bench *b)
{
    bench_row(b, 4096);
    bench_row(b, 128256);
}
