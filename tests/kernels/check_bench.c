/* Timing; the ceilings (bench/machine.h) are measured in the same run. */
#include "tests/kernels/check.h"

#include "bench/machine.h"

#include "common/base/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SAMPLES 15

static double now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Runs are grouped into samples of at least 2 ms; a warm-up sample is not counted. */
double bench_ns(int n_thread, check_op_fn *op, const void *args)
{
    double sample[SAMPLES], t = now_ns();
    int n = 0;
    while (now_ns() - t < 2e6) {
        check_run(n_thread, op, args);
        n++;
    }
    for (int s = 0; s < SAMPLES; s++) {
        t = now_ns();
        for (int i = 0; i < n; i++) {
            check_run(n_thread, op, args);
        }
        sample[s] = (now_ns() - t) / n;
    }
    qsort(sample, SAMPLES, sizeof(sample[0]), by_value);
    return sample[SAMPLES / 2];
}

void bench_begin(struct bench *b, enum gr_table_format format)
{
    static const char *const columns[] = {"op",   "kernels",      "shape",   "rows",    "median us",
                                          "GB/s", "% of reading", "GFLOP/s", "% of FMA"};
    char note[256];
    b->peak_gflops = gr_machine_peak_flops(b->n_thread) / 1e9;
    b->cache_gbs = gr_machine_read_bytes_per_s(b->n_thread, 28u << 20) / 1e9;
    b->memory_gbs = gr_machine_read_bytes_per_s(b->n_thread, 512u << 20) / 1e9;
    snprintf(note, sizeof(note),
             "%d threads: %.1f GFLOP/s f32 FMA, %.1f GB/s reading 28 MB (linear), %.1f GB/s reading "
             "512 MB (attention)",
             b->n_thread, b->peak_gflops, b->cache_gbs, b->memory_gbs);
    gr_table_begin(b->table, format, stdout, "kernels", note, columns, (int)GR_ARRAY_LEN(columns));
}

void bench_print(const struct bench *b, const struct bench_row *r)
{
    struct gr_table *t = b->table;
    gr_table_text(t, r->op);
    gr_table_text(t, b->k->name);
    gr_table_text(t, r->shape);
    gr_table_number(t, r->n_row, 0);
    gr_table_number(t, 1e-3 * r->ns, 2);
    gr_table_number(t, r->gbs, 1);
    gr_table_number(t, 100.0 * r->gbs / r->of_gbs, 0);
    gr_table_number(t, r->gflops, 1);
    gr_table_number(t, 100.0 * r->gflops / b->peak_gflops, 0);
}
