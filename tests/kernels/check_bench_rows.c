/* Benchmark of the operations that go row by row: bytes read and written per second. */
#include "tests/kernels/check.h"

#include <math.h>
#include <stdlib.h>

CHECK_OP(silu_mul)
CHECK_OP(rmsnorm)
CHECK_OP(rope)

enum { N_ROW = 64, N_COL = 1024, N_HIDDEN = 384, N_HEAD = 6, HEAD_DIM = 64 };

static void line(const struct bench *b, const char *op, double ns, double bytes)
{
    bench_print(
        b,
        &(struct bench_row){
            .op = op, .shape = "", .n_row = N_ROW, .ns = ns, .gbs = bytes / ns, .of_gbs = b->cache_gbs, .gflops = NAN});
}

void bench_rows(const struct bench *b)
{
    static int32_t pos[N_ROW];
    size_t n = (size_t)N_ROW * N_COL;
    float *x = check_alloc(n * sizeof(float)), *y = check_alloc(n * sizeof(float));
    float *w = check_alloc(N_COL * sizeof(float));
    struct check_call call = {.k = b->k};
    fill_f32(x, n, FILL_NORMAL);
    fill_f32(y, n, FILL_NORMAL);
    for (int i = 0; i < N_COL; i++) {
        w[i] = 1.0f; /* also cosines and sines: the values stay finite */
    }
    call.args =
        &(struct gr_silu_mul_args){.gate = x, .up = x, .act = y, .n_row = N_ROW, .n_col = N_COL, .stride = N_COL};
    line(b, "silu_mul", bench_ns(b->n_thread, op_silu_mul, &call), 8.0 * (double)n);
    call.args = &(struct gr_rmsnorm_args){.x = x,
                                          .w = w,
                                          .y = y,
                                          .n_row = N_ROW,
                                          .n = N_HIDDEN,
                                          .x_stride = N_HIDDEN,
                                          .y_stride = N_HIDDEN,
                                          .eps = 1e-5f};
    line(b, "rmsnorm", bench_ns(b->n_thread, op_rmsnorm, &call), 8.0 * N_ROW * N_HIDDEN);
    for (int i = 0; i < N_COL; i++) {
        w[i] = 0.7f;
    }
    call.args = &(struct gr_rope_args){.x = y,
                                       .pos = pos,
                                       .cos = w,
                                       .sin = w,
                                       .n_row = N_ROW,
                                       .n_head = N_HEAD,
                                       .head_dim = HEAD_DIM,
                                       .stride = N_HIDDEN};
    line(b, "rope", bench_ns(b->n_thread, op_rope, &call), 8.0 * N_ROW * N_HEAD * HEAD_DIM);
    free(x);
    free(y);
    free(w);
}
