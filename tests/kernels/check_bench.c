/* Timing, and what this machine can do at most: fused multiply-adds and reads, measured in the same run. */
#include "tests/kernels/check.h"

#include "common/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define FMA_ROUNDS 2000000
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

struct read_args {
    const char *p;
    size_t bytes;
    float *sink; /* one a thread */
};

#if defined(__x86_64__)

__attribute__((target("avx512f"))) static float fma_avx512(void)
{
    __m512 s[16], a = _mm512_set1_ps(0.999f), b = _mm512_set1_ps(0.5f);
    for (int i = 0; i < 16; i++) {
        s[i] = _mm512_set1_ps((float)i);
    }
    for (int n = 0; n < FMA_ROUNDS; n++) {
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) {
            s[i] = _mm512_fmadd_ps(s[i], a, b);
        }
    }
    for (int i = 1; i < 16; i++) {
        s[0] = _mm512_add_ps(s[0], s[i]);
    }
    return _mm512_reduce_add_ps(s[0]);
}

__attribute__((target("avx2,fma"))) static float fma_avx2(void)
{
    __m256 s[12], a = _mm256_set1_ps(0.999f), b = _mm256_set1_ps(0.5f);
    for (int i = 0; i < 12; i++) {
        s[i] = _mm256_set1_ps((float)i);
    }
    for (int n = 0; n < FMA_ROUNDS; n++) {
#pragma GCC unroll 12
        for (int i = 0; i < 12; i++) {
            s[i] = _mm256_fmadd_ps(s[i], a, b);
        }
    }
    for (int i = 1; i < 12; i++) {
        s[0] = _mm256_add_ps(s[0], s[i]);
    }
    return s[0][0] + s[0][7];
}

/* Eight streams side by side: one alone does not keep enough cache misses in flight. */
__attribute__((target("avx2"))) static float read_avx2(const char *p, size_t bytes)
{
    size_t stream = bytes / 8 / 64 * 64;
    __m256i s[8] = { _mm256_setzero_si256() };
    for (size_t i = 0; i < stream; i += 64) {
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++) {
            const void *q = p + j * stream + i, *r = p + j * stream + i + 32;
            s[j] = _mm256_or_si256(s[j], _mm256_loadu_si256(q));
            s[j] = _mm256_or_si256(s[j], _mm256_loadu_si256(r));
        }
    }
    for (int j = 1; j < 8; j++) {
        s[0] = _mm256_or_si256(s[0], s[j]);
    }
    return (float)_mm256_extract_epi32(s[0], 0);
}

#endif

static float read_c(const char *p, size_t bytes)
{
    uint64_t s = 0, v;
    for (size_t i = 0; i + 8 <= bytes; i += 8) {
        memcpy(&v, p + i, 8);
        s |= v;
    }
    return (float)s;
}

static void read_op(const struct gr_exec *x, const void *args)
{
    const struct read_args *a = args;
    size_t part = a->bytes / x->nth / 4096 * 4096;
    const char *p = a->p + x->ith * part;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) {
        a->sink[x->ith * 16] = read_avx2(p, part);
        return;
    }
#endif
    a->sink[x->ith * 16] = read_c(p, part);
}

/* Floating-point operations of one call of fma_op on one thread. */
static double fma_flops(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) {
        return 2.0 * 16 * 16 * FMA_ROUNDS;
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        return 2.0 * 12 * 8 * FMA_ROUNDS;
    }
#endif
    return 0.0;
}

static void fma_op(const struct gr_exec *x, const void *args)
{
    float *sink = ((const struct read_args *)args)->sink;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) {
        sink[x->ith * 16] = fma_avx512();
    } else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        sink[x->ith * 16] = fma_avx2();
    }
#else
    sink[x->ith * 16] = 0.0f;
#endif
}

void bench_peaks(struct bench *b)
{
    static const size_t cache_bytes = 28u << 20, memory_bytes = 512u << 20;
    float sink[CHECK_THREAD_MAX * 16];
    char *p = check_alloc(memory_bytes);
    struct read_args a = { .p = p, .bytes = cache_bytes, .sink = sink };
    memset(p, 1, memory_bytes);
    b->peak_gflops = fma_flops() * b->n_thread / bench_ns(b->n_thread, fma_op, &a);
    b->cache_gbs = (double)a.bytes / bench_ns(b->n_thread, read_op, &a);
    a.bytes = memory_bytes;
    b->memory_gbs = (double)a.bytes / bench_ns(b->n_thread, read_op, &a);
    printf("peaks with %d threads: %.1f GFLOP/s f32 FMA, %.1f GB/s reading 28 MB, %.1f GB/s reading "
           "512 MB\n",
           b->n_thread, b->peak_gflops, b->cache_gbs, b->memory_gbs);
    free(p);
}
