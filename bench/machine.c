#include "bench/machine.h"

#include "common/base/clock.h"
#include "kernels/kernels.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define FMA_ROUNDS 2000000 /* turns of the loop that is timed */
#define N_THREAD_MAX 1024  /* threads, at most */
#define N_SAMPLE 9         /* runs, of which the shortest counts */

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
    __m256i s[8] = {_mm256_setzero_si256()};
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

struct work {
    const char *p;
    size_t bytes;
    float *sink; /* (n_thread, 16): a cache line each */
};

static void read_part(const struct gr_exec *x, void *arg)
{
    const struct work *w = arg;
    const size_t part = w->bytes / (size_t)x->nth / 4096 * 4096;
    const char *p = w->p + (size_t)x->ith * part;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) {
        w->sink[x->ith * 16] = read_avx2(p, part);
        return;
    }
#endif
    w->sink[x->ith * 16] = read_c(p, part);
}

static void multiply(const struct gr_exec *x, void *arg)
{
    float *sink = ((const struct work *)arg)->sink;
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

/* Operations of one thread's multiply(); 0: this machine has no fused multiply-add that is known here. */
static double multiply_flops(void)
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

/* Shortest of N_SAMPLE runs after one warm-up, in seconds: a ceiling is the best that was ever seen. */
static double best_seconds(int n_thread, void (*fn)(const struct gr_exec *x, void *arg), struct work *w, int n_repeat)
{
    struct gr_team *team = NULL;
    static float sink[N_THREAD_MAX * 16];
    double best = 1e30;
    w->sink = sink;
    if (n_thread > N_THREAD_MAX || gr_team_create(n_thread, &team) != GR_OK) {
        return best;
    }
    for (int i = -1; i < N_SAMPLE; i++) {
        const uint64_t begin = gr_clock_ns();
        for (int k = 0; k < n_repeat; k++) {
            gr_team_run(team, fn, w);
        }
        const double seconds = (double)(gr_clock_ns() - begin) / 1e9 / n_repeat;
        best = i >= 0 && seconds < best ? seconds : best;
    }
    gr_team_destroy(team);
    return best;
}

double gr_machine_peak_flops(int n_thread)
{
    struct work w = {0};
    return multiply_flops() * n_thread / best_seconds(n_thread, multiply, &w, 1);
}

double gr_machine_read_bytes_per_s(int n_thread, size_t bytes)
{
    const size_t huge = 2u << 20;
    const size_t whole = (bytes + huge - 1) / huge * huge;
    char *p = aligned_alloc(huge, whole);
    if (p == NULL) {
        return 0.0;
    }
    (void)madvise(p, whole, MADV_HUGEPAGE); /* as the models' memory */
    memset(p, 1, bytes);
    struct work w = {.p = p, .bytes = bytes};
    const int n_repeat = bytes < (64u << 20) ? 8 : 1;
    const double rate = (double)bytes / best_seconds(n_thread, read_part, &w, n_repeat);
    free(p);
    return rate;
}
