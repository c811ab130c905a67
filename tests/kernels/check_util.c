#include "tests/kernels/check.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GUARD 64
#define FAIL_PRINT_MAX 8

static uint64_t rng_state, rng_base; /* base: the seed of the run */

bool check_case(struct check *c, bool big, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(c->label, sizeof(c->label), fmt, ap);
    va_end(ap);
    if (c->n_case == CHECK_CASE_MAX) {
        check_fail(c, "more than %d cases", CHECK_CASE_MAX);
        return false;
    }
    c->hash[c->n_case++] = 0;
    /* Every case has its own stream, so that one left out does not move the others. */
    rng_state = rng_base * 0xD1342543DE82EF95u + 0x9E3779B97F4A7C15u * (uint64_t)c->n_case;
    return !(big && c->slow);
}

void check_fail(struct check *c, const char *fmt, ...)
{
    char text[256];
    va_list ap;
    if (c->n_fail++ >= FAIL_PRINT_MAX) {
        return;
    }
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    printf("# %s: %s: %s\n", c->k->name, c->label, text);
}

void check_close(struct check *c, const char *what, int row, int col, float got, float want, double tolerance)
{
    double d = fabs((double)got - (double)want);
    if (!(d <= tolerance)) {
        check_fail(c, "%s: [%d][%d] is %.9g, wanted %.9g (off by %.3g, allowed %.3g)", what, row, col, (double)got,
                   (double)want, d, tolerance);
    }
}

void check_same(struct check *c, const char *what, const void *a, const void *b, size_t bytes)
{
    if (memcmp(a, b, bytes) != 0) {
        check_fail(c, "%s: bits differ", what);
    }
}

void check_hash(struct check *c, const void *data, size_t bytes)
{
    const unsigned char *p = data;
    uint64_t h = c->hash[c->n_case - 1] ^ 0xcbf29ce484222325u;
    for (size_t i = 0; i < bytes; i++) {
        h = (h ^ p[i]) * 0x100000001b3u;
    }
    c->hash[c->n_case - 1] = h | 1;
}

/* ---- data ---- */

void rng_seed(uint64_t seed)
{
    rng_base = seed;
    rng_state = seed;
}

uint32_t rng_u32(void)
{
    uint64_t z = (rng_state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return (uint32_t)((z ^ (z >> 31)) >> 32);
}

int rng_below(int n)
{
    return (int)(rng_u32() % (uint32_t)n);
}

/* Near enough: the sum of four uniforms, scaled to variance 1. */
float rng_normal(void)
{
    float s = 0.0f;
    for (int i = 0; i < 4; i++) {
        s += (float)(rng_u32() >> 8) * 0x1p-24f - 0.5f;
    }
    return s * 1.7320508f;
}

void fill_f32(float *p, size_t n, enum fill kind)
{
    for (size_t i = 0; i < n; i++) {
        float v = rng_normal();
        switch (kind) {
        case FILL_WIDE:
            v = ldexpf(v, rng_below(41) - 20);
            break;
        case FILL_CANCEL:
            v = i & 1 ? -1000.0f + v * 0x1p-10f : 1000.0f + v * 0x1p-10f;
            break;
        case FILL_ZERO:
            v = 0.0f;
            break;
        default:
            break;
        }
        p[i] = v;
    }
}

void fill_bf16(uint16_t *p, size_t n, enum fill kind)
{
    for (size_t i = 0; i < n; i++) {
        float v;
        uint32_t u;
        fill_f32(&v, 1, kind == FILL_CANCEL ? FILL_NORMAL : kind);
        memcpy(&u, &v, sizeof(u));
        p[i] = (uint16_t)(u >> 16);
    }
}

void *check_alloc(size_t bytes)
{
    void *p = malloc(bytes ? bytes : 1);
    if (!p) {
        fprintf(stderr, "check_kernels: no memory for %zu bytes\n", bytes);
        exit(2);
    }
    return p;
}

static const float guard_value = -1.2345678e33f;

struct guarded guarded_alloc(size_t n)
{
    struct guarded g = {.n = n};
    g.p = (float *)check_alloc((n + 2 * GUARD) * sizeof(float)) + GUARD;
    guarded_reset(&g);
    return g;
}

void guarded_reset(struct guarded *g)
{
    float *begin = g->p - GUARD;
    for (size_t i = 0; i < g->n + 2 * GUARD; i++) {
        begin[i] = guard_value;
    }
}

void guarded_check(struct check *c, const struct guarded *g, int n_row, int n_col, int stride)
{
    for (int i = 0; i < GUARD; i++) {
        if (g->p[-1 - i] != guard_value || g->p[g->n + i] != guard_value) {
            check_fail(c, "wrote outside of its output, %d from the edge", i + 1);
            return;
        }
    }
    for (int r = 0; r < n_row; r++) {
        for (int i = n_col; i < stride; i++) {
            if (g->p[(size_t)r * stride + i] != guard_value) {
                check_fail(c, "wrote between the rows: [%d][%d]", r, i);
                return;
            }
        }
    }
}

void guarded_free(struct guarded *g)
{
    free(g->p - GUARD);
}

/* ---- teams ---- */

struct run {
    check_op_fn *op;
    const void *args;
};

static void run_thread(const struct gr_exec *x, void *arg)
{
    const struct run *r = arg;
    r->op(x, r->args);
}

void check_run(int n_thread, check_op_fn *op, const void *args)
{
    static struct gr_team *team[CHECK_THREAD_MAX + 1];
    if (n_thread > 1 && !team[n_thread] && gr_team_create(n_thread, &team[n_thread]) != GR_OK) {
        exit(2);
    }
    gr_team_run(n_thread > 1 ? team[n_thread] : NULL, run_thread, &(struct run){.op = op, .args = args});
}
