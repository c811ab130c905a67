/* linear. Tolerance against ref: a chain of n fused multiply-adds errs by at most n eps of the sum of |x w|;
 * rounding errors add up like a random walk, so (4 + 2 sqrt n) eps is asked for, more than six sigma. */
#include "tests/kernels/check.h"

#include "common/base/status.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

CHECK_OP(linear)

/* One chain, or segments of whole units, as many as a rank of 8 / n_part has. */
struct linear_order {
    int unit, n_part;
};
static const struct linear_order one_chain = {16, 1};

struct linear_data {
    struct gr_weight w, w_ref;
    struct exact_segments order;
    float *x, *bias, *residual;
    struct guarded y, want;
    int n_row, x_stride, y_stride;
};

static void linear_data_order(struct linear_data *d, struct linear_order order)
{
    const int n_in = d->w.n_in;
    d->order = (struct exact_segments){n_in, order.unit, (n_in + order.unit - 1) / order.unit, order.n_part};
    if (order.n_part > 1) {
        d->w.segments = d->w_ref.segments = gr_segments_of(n_in, order.unit, order.n_part);
    }
}

static void linear_data_init(struct linear_data *d, const struct gr_kernels *k, int n_row, int n_out, int n_in,
                             enum fill kind)
{
    uint16_t *plain = check_alloc((size_t)n_out * n_in * sizeof(*plain));
    void *packed = check_alloc(k->linear_packed_bytes(n_out, n_in));
    d->n_row = n_row;
    d->x_stride = n_in + 3;
    d->y_stride = n_out + 5;
    d->x = check_alloc(((size_t)(n_row - 1) * d->x_stride + n_in) * sizeof(float));
    d->bias = check_alloc((size_t)n_out * sizeof(float));
    d->residual = check_alloc((size_t)n_row * d->y_stride * sizeof(float));
    d->y = guarded_alloc((size_t)n_row * d->y_stride);
    d->want = guarded_alloc((size_t)n_row * d->y_stride);
    fill_bf16(plain, (size_t)n_out * n_in, kind);
    fill_f32(d->x, (size_t)(n_row - 1) * d->x_stride + n_in, kind);
    fill_f32(d->bias, (size_t)n_out, FILL_NORMAL);
    fill_f32(d->residual, (size_t)n_row * d->y_stride, FILL_NORMAL);
    k->linear_pack(plain, n_out, n_in, packed);
    d->w_ref = (struct gr_weight){.plain = plain, .n_out = n_out, .n_in = n_in};
    d->w = (struct gr_weight){.packed = packed, .n_out = n_out, .n_in = n_in};
    linear_data_order(d, one_chain);
}

static void linear_data_free(struct linear_data *d)
{
    free((void *)(uintptr_t)d->w_ref.plain);
    free((void *)(uintptr_t)d->w.packed);
    free(d->x);
    free(d->bias);
    free(d->residual);
    guarded_free(&d->y);
    guarded_free(&d->want);
}

static struct gr_linear_args linear_args(const struct linear_data *d, const struct gr_weight *w, float *y, int extras)
{
    return (struct gr_linear_args){
        .w = w,
        .x = d->x,
        .bias = extras & 1 ? d->bias : NULL,
        .residual = extras & 2 ? d->residual : NULL,
        .y = y,
        .n_row = d->n_row,
        .x_stride = d->x_stride,
        .y_stride = d->y_stride,
    };
}

static double weight_at(const struct gr_weight *w, size_t i)
{
    return w->is_f32 ? (double)((const float *)w->plain)[i] : (double)gr_bf16_to_f32(((const uint16_t *)w->plain)[i]);
}

static void linear_against_ref(struct check *c, const struct linear_data *d)
{
    int n_in = d->w_ref.n_in;
    for (int r = 0; r < d->n_row; r++) {
        for (int o = 0; o < d->w_ref.n_out; o++) {
            double sum = 4.0; /* bias and residual are of this size */
            for (int i = 0; i < n_in; i++) {
                double w = weight_at(&d->w_ref, (size_t)o * n_in + i);
                sum += fabs((double)d->x[(size_t)r * d->x_stride + i] * w);
            }
            size_t at = (size_t)r * d->y_stride + o;
            check_close(c, "y", r, o, d->y.p[at], d->want.p[at], (4.0 + 2.0 * sqrt(n_in)) * CHECK_EPS * sum);
        }
    }
}

/* Each row computed alone by one thread equals the same row in the pass. */
static void linear_rows_alone(struct check *c, const struct linear_data *d, int extras)
{
    size_t n_out = (size_t)d->w.n_out;
    struct guarded one = guarded_alloc(n_out);
    int step = d->n_row > 16 ? d->n_row / 8 : 1;
    for (int r = 0; r < d->n_row; r += step) {
        struct gr_linear_args a = linear_args(d, &d->w, one.p, extras);
        a.x += (size_t)r * d->x_stride;
        a.residual = a.residual ? a.residual + (size_t)r * d->y_stride : NULL;
        a.n_row = 1;
        CHECK_CALL(1, linear, c->k, &a);
        check_same(c, "a row alone", one.p, d->y.p + (size_t)r * d->y_stride, n_out * sizeof(float));
    }
    guarded_check(c, &one, 1, (int)n_out, (int)n_out);
    guarded_free(&one);
}

static void linear_case_in(struct check *c, struct linear_order order, const int shape[3], enum fill kind, int extras)
{
    struct linear_data d;
    const int n_row = shape[0], n_out = shape[1], n_in = shape[2];
    bool big = (double)n_row * n_out * n_in > 2e5;
    if (!check_case(c, big, "%d rows, %d x %d, fill %d, extras %d, %d segments of %d", n_row, n_out, n_in, (int)kind,
                    extras, order.n_part, order.unit)) {
        return;
    }
    linear_data_init(&d, c->k, n_row, n_out, n_in, kind);
    linear_data_order(&d, order);
    struct gr_linear_args ref = linear_args(&d, &d.w_ref, d.want.p, extras);
    struct gr_linear_args a = linear_args(&d, &d.w, d.y.p, extras);
    struct guarded other = guarded_alloc(d.y.n);
    CHECK_CALL(1, linear, c->ref, &ref);
    CHECK_CALL(1, linear, c->k, &a);
    guarded_check(c, &d.y, n_row, n_out, d.y_stride);
    linear_against_ref(c, &d);
    for (int i = 0; i < n_row * n_out && !big; i++) {
        float exact = exact_linear(&a, &d.order, d.w_ref.plain, i / n_out, i % n_out);
        check_same(c, "promised bits", &exact, d.y.p + (size_t)(i / n_out) * d.y_stride + i % n_out, sizeof(exact));
    }
    for (int n = 2; n <= CHECK_THREAD_MAX; n++) {
        a.y = other.p;
        guarded_reset(&other);
        CHECK_CALL(n, linear, c->k, &a);
        check_same(c, "number of threads", other.p, d.y.p, d.y.n * sizeof(float));
    }
    if (extras & 2) { /* y is the residual */
        memcpy(other.p, d.residual, d.y.n * sizeof(float));
        a.y = other.p;
        a.residual = other.p;
        CHECK_CALL(1, linear, c->k, &a);
        for (int r = 0; r < n_row; r++) {
            size_t at = (size_t)r * d.y_stride;
            check_same(c, "residual in place", other.p + at, d.y.p + at, (size_t)n_out * sizeof(float));
        }
    }
    linear_rows_alone(c, &d, extras);
    check_hash(c, d.y.p, d.y.n * sizeof(float));
    guarded_free(&other);
    linear_data_free(&d);
}

static void linear_case(struct check *c, int n_row, int n_out, int n_in, enum fill kind, int extras)
{
    linear_case_in(c, one_chain, (int[]){n_row, n_out, n_in}, kind, extras);
}

/* Segments of one unit, unequal ones, empty ones, a unit that is short; in a block of k and across several. */
static void linear_segments(struct check *c)
{
    static const int sizes[][2] = {{16, 1}, {17, 40}, {31, 64}, {48, 100}, {16, 128}, {33, 200}, {48, 333}, {20, 576}};
    static const int units[] = {16, 32, 48, 64, 192};
    for (size_t i = 0; i < GR_ARRAY_LEN(sizes); i++) {
        for (size_t j = 0; j < GR_ARRAY_LEN(units); j++) {
            const int shape[] = {(int)(3 * i + 5 * j) % 17 + 1, sizes[i][0], sizes[i][1]};
            linear_case_in(c, (struct linear_order){units[j], 8}, shape, FILL_NORMAL, (int)(i + j) & 3);
        }
    }
    for (int kind = 0; kind < FILL_KIND_N; kind++) {
        linear_case_in(c, (struct linear_order){16, 8}, (int[]){3, 40, 301}, (enum fill)kind, 3);
        linear_case_in(c, (struct linear_order){64, 8}, (int[]){47, 65, 730}, (enum fill)kind, kind & 3);
    }
    for (int n_part = 2; n_part <= 8; n_part *= 2) {
        linear_case_in(c, (struct linear_order){64, n_part}, (int[]){9, 30, 720}, FILL_NORMAL, 2);
    }
    for (int n_row = 1; n_row <= 64; n_row++) {
        linear_case_in(c, (struct linear_order){64, 8}, (int[]){n_row, 24, 1088}, FILL_NORMAL, n_row & 3);
    }
    linear_case_in(c, (struct linear_order){64, 8}, (int[]){1, 4096, 384}, FILL_NORMAL, 0);
    linear_case_in(c, (struct linear_order){192, 8}, (int[]){2, 13000, 576}, FILL_NORMAL, 0);
    linear_case_in(c, (struct linear_order){64, 8}, (int[]){5, 100, 5760}, FILL_NORMAL, 3); /* 90 units */
    linear_case_in(c, (struct linear_order){64, 8}, (int[]){130, 257, 1472}, FILL_NORMAL, 1);
}

/* The sums that n_rank ranks make, each of its own units, joined as the ranks are halved. An empty rank's are left out.
 */
static void linear_join_ranks(float *sum, const bool *has, int n_rank, size_t n)
{
    for (int step = 1; step < n_rank; step *= 2) {
        for (int i = 0; i + step < n_rank; i += 2 * step) {
            for (size_t k = 0; has[i + step] && k < n; k++) {
                sum[(size_t)i * n + k] += sum[(size_t)(i + step) * n + k];
            }
        }
    }
}

/* A layer whose inputs are shared out to ranks has, joined, the bits of the whole. */
static void linear_ranks_case(struct check *c, int n_rank, int unit, int n_in)
{
    enum { ROWS = 7, OUT = 37 };
    struct linear_data d;
    if (!check_case(c, false, "%d ranks, %d inputs in units of %d", n_rank, n_in, unit)) {
        return;
    }
    linear_data_init(&d, c->k, ROWS, OUT, n_in, FILL_NORMAL);
    linear_data_order(&d, (struct linear_order){unit, 8});
    struct gr_linear_args a = linear_args(&d, &d.w, d.want.p, 0);
    CHECK_CALL(1, linear, c->k, &a);
    const size_t n = (size_t)ROWS * (size_t)d.y_stride;
    float *sum = check_alloc((size_t)n_rank * n * sizeof(*sum));
    bool has[8];
    const uint16_t *plain = d.w_ref.plain;
    for (int i = 0; i < n_rank; i++) {
        const int begin = gr_segment_begin(d.order.n_unit, n_rank, i) * unit;
        const int end = GR_MIN(gr_segment_begin(d.order.n_unit, n_rank, i + 1) * unit, n_in);
        has[i] = begin < end;
        if (!has[i]) {
            continue;
        }
        uint16_t *mine = check_alloc((size_t)OUT * (size_t)(end - begin) * sizeof(*mine));
        for (int o = 0; o < OUT; o++) {
            memcpy(mine + (size_t)o * (size_t)(end - begin), plain + (size_t)o * (size_t)n_in + begin,
                   (size_t)(end - begin) * sizeof(*mine));
        }
        void *packed = check_alloc(c->k->linear_packed_bytes(OUT, end - begin));
        c->k->linear_pack(mine, OUT, end - begin, packed);
        struct gr_weight w = {.packed = packed, .n_out = OUT, .n_in = end - begin};
        w.segments = gr_segments_of(end - begin, unit, 8 / n_rank);
        struct gr_linear_args part = linear_args(&d, &w, sum + (size_t)i * n, 0);
        part.x += begin;
        CHECK_CALL(1, linear, c->k, &part);
        free(mine);
        free(packed);
    }
    linear_join_ranks(sum, has, n_rank, n);
    for (int r = 0; r < ROWS; r++) {
        const size_t at = (size_t)r * (size_t)d.y_stride;
        check_same(c, "ranks joined", sum + at, d.want.p + at, OUT * sizeof(float));
    }
    free(sum);
    linear_data_free(&d);
}

static void linear_ranks(struct check *c)
{
    static const int inputs[][2] = {{16, 128}, {64, 720}, {32, 64}, {192, 576}, {64, 1472}, {16, 16}};
    for (size_t i = 0; i < GR_ARRAY_LEN(inputs); i++) {
        for (int n_rank = 1; n_rank <= 8; n_rank *= 2) {
            linear_ranks_case(c, n_rank, inputs[i][0], inputs[i][1]);
        }
    }
}

/* The packed form of d's weights as f32. */
static struct gr_weight pack_f32(const struct check *c, const float *plain, int n_out, int n_in)
{
    void *packed = check_alloc(2 * c->k->linear_packed_bytes(n_out, n_in));
    c->k->linear_pack_f32(plain, n_out, n_in, packed);
    return (struct gr_weight){.packed = packed, .n_out = n_out, .n_in = n_in, .is_f32 = true};
}

/* Weights of bf16 held as f32 give the same bits; then weights that use all of an f32 against the definition. */
static void linear_f32_case(struct check *c, struct linear_order order, const int shape[3], int extras)
{
    struct linear_data d;
    const int n_row = shape[0], n_out = shape[1], n_in = shape[2];
    if (!check_case(c, (double)n_row * n_out * n_in > 2e5, "f32: %d rows, %d x %d, %d segments of %d", n_row, n_out,
                    n_in, order.n_part, order.unit)) {
        return;
    }
    linear_data_init(&d, c->k, n_row, n_out, n_in, FILL_NORMAL);
    linear_data_order(&d, order);
    const size_t n = (size_t)n_out * n_in;
    float *values = check_alloc(n * sizeof(*values));
    for (size_t i = 0; i < n; i++) {
        values[i] = (float)weight_at(&d.w_ref, i);
    }
    struct gr_weight w = pack_f32(c, values, n_out, n_in);
    w.segments = d.w.segments;
    struct gr_linear_args a = linear_args(&d, &d.w, d.want.p, extras);
    CHECK_CALL(1, linear, c->k, &a);
    for (int t = 1; t <= CHECK_THREAD_MAX; t++) {
        guarded_reset(&d.y);
        a = linear_args(&d, &w, d.y.p, extras);
        CHECK_CALL(t, linear, c->k, &a);
        guarded_check(c, &d.y, n_row, n_out, d.y_stride);
        check_same(c, "bf16 held as f32", d.y.p, d.want.p, d.y.n * sizeof(float));
    }
    free((void *)(uintptr_t)w.packed);
    fill_f32(values, n, FILL_NORMAL);
    w = pack_f32(c, values, n_out, n_in);
    w.segments = d.w.segments;
    free((void *)(uintptr_t)d.w_ref.plain);
    free((void *)(uintptr_t)d.w.packed);
    d.w = w;
    d.w_ref = (struct gr_weight){.plain = values, .n_out = n_out, .n_in = n_in, .is_f32 = true, .segments = w.segments};
    struct gr_linear_args ref = linear_args(&d, &d.w_ref, d.want.p, extras);
    a = linear_args(&d, &d.w, d.y.p, extras);
    CHECK_CALL(1, linear, c->ref, &ref);
    CHECK_CALL(2, linear, c->k, &a);
    linear_against_ref(c, &d);
    linear_rows_alone(c, &d, extras);
    check_hash(c, d.y.p, d.y.n * sizeof(float));
    linear_data_free(&d);
}

/* Panels packed one by one are the bytes of the whole matrix packed at once. */
static void linear_pack_pieces(struct check *c, int n_out, int n_in)
{
    if (!check_case(c, false, "%d x %d packed in pieces", n_out, n_in)) {
        return;
    }
    size_t bytes = c->k->linear_packed_bytes(n_out, n_in);
    uint16_t *plain = check_alloc((size_t)n_out * n_in * sizeof(*plain));
    char *whole = check_alloc(bytes), *pieces = check_alloc(bytes);
    fill_bf16(plain, (size_t)n_out * n_in, FILL_NORMAL);
    c->k->linear_pack(plain, n_out, n_in, whole);
    for (int o = 0; o < n_out; o += 16) {
        c->k->linear_pack(plain + (size_t)o * n_in, n_out - o < 16 ? n_out - o : 16, n_in,
                          pieces + c->k->linear_packed_bytes(o, n_in));
    }
    check_same(c, "packed", whole, pieces, bytes);
    check_hash(c, whole, bytes);
    free(plain);
    free(whole);
    free(pieces);
}

void check_linear(struct check *c)
{
    static const int rows[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17};
    static const int sizes[][2] = {{1, 1}, {15, 15}, {16, 16}, {17, 17}, {48, 33}, {31, 64}, {144, 48}, {200, 7}};
    for (size_t i = 0; i < GR_ARRAY_LEN(rows); i++) {
        for (size_t j = 0; j < GR_ARRAY_LEN(sizes); j++) {
            linear_case(c, rows[i], sizes[j][0], sizes[j][1], FILL_NORMAL, (int)(i + j) & 3);
        }
    }
    for (int kind = 0; kind < FILL_KIND_N; kind++) {
        linear_case(c, 3, 40, 100, (enum fill)kind, 3);
        linear_case(c, 47, 65, 301, (enum fill)kind, kind & 3);
    }
    linear_case(c, 48, 257, 256, FILL_NORMAL, 1);
    linear_case(c, 49, 384, 257, FILL_NORMAL, 2);
    linear_case(c, 97, 290, 600, FILL_NORMAL, 3);
    linear_case(c, 256, 64, 384, FILL_NORMAL, 0);
    linear_case(c, 1, 4096, 384, FILL_NORMAL, 0);
    linear_case(c, 2, 13000, 24, FILL_NORMAL, 0); /* more columns than a block of sums holds */
    linear_case(c, 5, 100, 5000, FILL_NORMAL, 3); /* more k than a step */
    linear_segments(c);
    linear_ranks(c);
    linear_pack_pieces(c, 53, 37);
    for (size_t i = 0; i < GR_ARRAY_LEN(rows); i++) {
        for (size_t j = 0; j < GR_ARRAY_LEN(sizes); j++) {
            const int shape[] = {rows[i], sizes[j][0], sizes[j][1]};
            linear_f32_case(c, one_chain, shape, (int)(i + j) & 3);
            linear_f32_case(c, (struct linear_order){16, 8}, shape, (int)(i + j) & 3);
        }
    }
    linear_f32_case(c, one_chain, (int[]){49, 384, 257}, 2);
    linear_f32_case(c, one_chain, (int[]){5, 100, 5000}, 3);
    linear_f32_case(c, (struct linear_order){64, 8}, (int[]){49, 96, 1473}, 2);
    linear_f32_case(c, (struct linear_order){64, 8}, (int[]){1, 100, 5000}, 3);
}

enum { B_OUT = 1024, B_IN = 384, B_MATRIX = 36, B_ROW = 256 }; /* 28 MB: the demo model's size */

struct bench_pass {
    const struct gr_kernels *k;
    struct gr_linear_args a[B_MATRIX];
    int n_matrix;
};

static void run_pass(const struct gr_exec *x, const void *args)
{
    const struct bench_pass *p = args;
    for (int i = 0; i < p->n_matrix; i++) {
        p->k->linear(x, &p->a[i]);
    }
}

static void bench_rows_of(const struct bench *b, const struct bench_pass *p, size_t bytes, int n_row)
{
    double ns = bench_ns(b->n_thread, run_pass, p);
    double gbs = (double)bytes * p->n_matrix / ns;
    double gflops = 2.0 * n_row * B_OUT * B_IN * p->n_matrix / ns;
    char shape[64];
    snprintf(shape, sizeof(shape), "%d matrices %d x %d", p->n_matrix, B_OUT, B_IN);
    bench_print(b, &(struct bench_row){.op = "linear",
                                       .shape = shape,
                                       .n_row = n_row,
                                       .ns = ns,
                                       .gbs = gbs,
                                       .of_gbs = b->cache_gbs,
                                       .gflops = gflops});
}

void bench_linear(const struct bench *b)
{
    static const int rows[] = {1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 256};
    bool slow = strcmp(b->k->name, "c") == 0;
    struct bench_pass p = {.k = b->k, .n_matrix = slow ? 1 : B_MATRIX};
    struct gr_weight w[B_MATRIX];
    size_t bytes = b->k->linear_packed_bytes(B_OUT, B_IN);
    uint16_t *plain = check_alloc((size_t)B_OUT * B_IN * sizeof(*plain));
    char *packed = aligned_alloc(64, bytes * B_MATRIX);
    float *x = check_alloc((size_t)B_ROW * B_IN * sizeof(float));
    float *y = check_alloc((size_t)B_ROW * B_OUT * sizeof(float));
    fill_bf16(plain, (size_t)B_OUT * B_IN, FILL_NORMAL);
    fill_f32(x, (size_t)B_ROW * B_IN, FILL_NORMAL);
    for (int i = 0; i < B_MATRIX; i++) {
        w[i] = (struct gr_weight){.packed = packed + i * bytes, .n_out = B_OUT, .n_in = B_IN};
        b->k->linear_pack(plain, B_OUT, B_IN, packed + i * bytes);
    }
    for (size_t i = 0; i < GR_ARRAY_LEN(rows) && (!slow || rows[i] <= 4); i++) {
        for (int m = 0; m < p.n_matrix; m++) {
            p.a[m] = (struct gr_linear_args){
                .w = &w[m], .x = x, .y = y, .n_row = rows[i], .x_stride = B_IN, .y_stride = B_OUT};
        }
        bench_rows_of(b, &p, bytes, rows[i]);
    }
    free(plain);
    free(packed);
    free(x);
    free(y);
}
