/* The checkasm-like test of the operations: one file an operation, one binary for test and benchmark.
 *
 * A check runs one operation of one implementation through its cases. It compares with ref (check_close: the
 * tolerance is stated where it is used), with itself (rows alone, other numbers of threads: check_same), and
 * records a hash of the outputs of each case, so that the runner can compare the implementations bit by bit. */
#ifndef GR_TESTS_KERNELS_CHECK_H
#define GR_TESTS_KERNELS_CHECK_H

#include "bench/table.h"
#include "kernels/kernels.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CHECK_THREAD_MAX 3
#define CHECK_CASE_MAX 1024
#define CHECK_EPS 5.9604644775390625e-8 /* 2^-24: half a unit in the last place of 1 */

struct check {
    const struct gr_kernels *ref, *k;
    bool slow; /* fmaf() in software: leave the big cases out */
    int n_fail;
    int n_case;
    uint64_t hash[CHECK_CASE_MAX]; /* 0: the case was left out */
    char label[128];               /* of the running case, for messages */
};

typedef void check_fn(struct check *c);

/* ---- cases ---- */

/* Starts a case; false: skip it (big on a slow implementation). */
bool check_case(struct check *c, bool big, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void check_fail(struct check *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* |got - want| <= tolerance; NaN never passes. */
void check_close(struct check *c, const char *what, int row, int col, float got, float want, double tolerance);
/* Equal bits. */
void check_same(struct check *c, const char *what, const void *a, const void *b, size_t bytes);
void check_hash(struct check *c, const void *data, size_t bytes);

/* ---- the bits that kernels.h promises (check_exact.c) ---- */

struct exact_row { /* one query row and the keys it sees, in order of position */
    const float *q;
    const float *const *k, *const *v; /* (n_key) pointers to head_dim values; NULL: not visible */
    int n_key, head_dim;
    float scale;
};
float exact_lane_sum(const float lane[16]);
/* A sum's tree by recursion, where common/rules/segments.h has a stack. One chain: n_part 1. */
struct exact_segments {
    int n_in, unit, n_unit, n_part;
};
float exact_linear_sum(const struct exact_segments *t, const float *x, const uint16_t *w);
float exact_linear(const struct gr_linear_args *a, const struct exact_segments *t, const uint16_t *plain, int r, int o);
float exact_silu_mul(float gate, float up);
float exact_gelu_mul(float gate, float up);
float exact_rms_inv(const float *x, int n, float eps);
float exact_logsumexp(const float *l, int n);
void exact_attention(const struct exact_row *x, float *out);

/* ---- data ---- */

void rng_seed(uint64_t seed);
uint32_t rng_u32(void);
int rng_below(int n);
float rng_normal(void);

enum fill { FILL_NORMAL, FILL_WIDE, FILL_CANCEL, FILL_ZERO, FILL_KIND_N };
/* wide: 2^-20 to 2^20 with both signs; cancel: big pairs that add up to little. */
void fill_f32(float *p, size_t n, enum fill kind);
void fill_bf16(uint16_t *p, size_t n, enum fill kind);

/* Exactly n bytes, so that a sanitizer sees a read past the end. Exits when memory is short. */
void *check_alloc(size_t bytes);
/* n floats between guard bands, filled with a pattern that no operation writes. */
struct guarded {
    float *p;
    size_t n;
};
struct guarded guarded_alloc(size_t n);
void guarded_reset(struct guarded *g);
/* The guard bands are whole, and so are columns [n_col, stride) of all rows. Frees nothing. */
void guarded_check(struct check *c, const struct guarded *g, int n_row, int n_col, int stride);
void guarded_free(struct guarded *g);

/* ---- teams ---- */

/* Runs an operation, void (const struct gr_exec *, const args *), on a team of n_thread (1 to 3). */
typedef void check_op_fn(const struct gr_exec *x, const void *args);
void check_run(int n_thread, check_op_fn *op, const void *args);
/* Defines `name` as a check_op_fn that calls k->slot through a struct { k, args }. */
struct check_call {
    const struct gr_kernels *k;
    const void *args;
};
#define CHECK_OP(slot)                                               \
    static void op_##slot(const struct gr_exec *x, const void *call) \
    {                                                                \
        const struct check_call *c = call;                           \
        c->k->slot(x, c->args);                                      \
    }
#define CHECK_CALL(n_thread, slot, table, args_ptr) \
    check_run(n_thread, op_##slot, &(struct check_call){.k = (table), .args = (args_ptr)})

/* ---- the checks ---- */

check_fn check_linear, check_silu_mul, check_rmsnorm, check_rope, check_embed, check_kv_store, check_kv_copy,
    check_attention, check_view, check_kv_summary, check_block_scores, check_add_gumbel, check_argmax, check_logsumexp;
/* Not of an implementation: k is ref. */
check_fn check_math, check_team, check_top_blocks;

/* ---- benchmark ---- */

struct bench {
    const struct gr_kernels *k;
    int n_thread;
    double peak_gflops, cache_gbs, memory_gbs; /* measured in this run */
    struct gr_table *table;
};
/* One row of the table. */
struct bench_row {
    const char *op, *shape;
    int n_row;
    double ns;
    double gbs, of_gbs; /* GB/s; of_gbs: the ceiling that they are held against. NAN: they say nothing */
    double gflops;      /* GFLOP/s; NAN: they say nothing */
};
void bench_print(const struct bench *b, const struct bench_row *r);
typedef void bench_fn(const struct bench *b);
bench_fn bench_linear, bench_attention, bench_view, bench_rows, bench_sample;
/* Measures the ceilings and begins the table. */
void bench_begin(struct bench *b, enum gr_table_format format);
/* Median nanoseconds of one run of the operation. */
double bench_ns(int n_thread, check_op_fn *op, const void *args);

#endif
