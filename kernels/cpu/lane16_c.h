/* Sixteen float lanes by the compiler's vector extensions: the meaning of every lane16 function, and the version for
 * machines without AVX2. Four lanes are a quad, the widest that every machine with vectors has. */
#ifndef GR_KERNELS_CPU_LANE16_C_H
#define GR_KERNELS_CPU_LANE16_C_H

#include "common/rules/gr_math.h"
#include "kernels/kernels.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif
#include <math.h>
#include <string.h>

/* Register tiles (rows, panels) that exist, most panels for a number of rows, most rows. */
/* clang-format off */
#define L16_ROW_MAX 4
#define L16_PANEL_MAX { 0, 1, 1, 1, 1 }
#define L16_PV_ROW_MAX 2 /* rows of a P.V tile */
#define L16_TILES(X) X(1, 1) X(2, 1) X(3, 1) X(4, 1)
/* clang-format on */

typedef float l4 __attribute__((vector_size(16)));
typedef int32_t l4i __attribute__((vector_size(16)));
typedef uint32_t l4u __attribute__((vector_size(16)));

typedef struct {
    l4 q[4];
} l16;
typedef struct {
    l4u q[4];
} l16u;

/* Inlined, gcc's instrumentation of the 16-lane loops takes minutes and gigabytes. */
#if defined(__SANITIZE_ADDRESS__)
#define L16_FN static __attribute__((noinline, unused))
#else
#define L16_FN static inline __attribute__((always_inline, unused))
#endif
/* Loops over the quads of a vector, and over its lanes one by one. */
#define L16_QUADS(i) _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++)
#define L16_EACH(i) for (int i = 0; i < 16; i++)

L16_FN l16 l16_set1(float x)
{
    l16 v;
    L16_QUADS(i)
    {
        v.q[i] = (l4){x, x, x, x};
    }
    return v;
}

L16_FN l16 l16_load(const float *p)
{
    l16 v;
    memcpy(&v, p, sizeof(v));
    return v;
}

L16_FN void l16_store(float *p, l16 v)
{
    memcpy(p, &v, sizeof(v));
}

/* The first n (0 to 16) lanes from memory, nothing is read past them; the others 0. */
L16_FN l16 l16_load_n(const float *p, int n)
{
    float f[16] = {0};
    memcpy(f, p, (size_t)n * sizeof(float));
    return l16_load(f);
}

L16_FN void l16_store_n(float *p, l16 v, int n)
{
    memcpy(p, &v, (size_t)n * sizeof(float));
}

L16_FN l16 l16_of_bits(l16u a)
{
    l16 v;
    memcpy(&v, &a, sizeof(v));
    return v;
}

L16_FN l16u l16_bits(l16 a)
{
    l16u v;
    memcpy(&v, &a, sizeof(v));
    return v;
}

L16_FN l16 l16_load_bf16(const uint16_t *p)
{
    typedef uint16_t l4h __attribute__((vector_size(8)));
    l16u v;
    L16_QUADS(i)
    {
        l4h h;
        memcpy(&h, p + 4 * i, sizeof(h));
        v.q[i] = __builtin_convertvector(h, l4u) << 16;
    }
    return l16_of_bits(v);
}

L16_FN l16 l16_add(l16 a, l16 b)
{
    L16_QUADS(i)
    {
        a.q[i] = a.q[i] + b.q[i];
    }
    return a;
}

L16_FN l16 l16_sub(l16 a, l16 b)
{
    L16_QUADS(i)
    {
        a.q[i] = a.q[i] - b.q[i];
    }
    return a;
}

L16_FN l16 l16_mul(l16 a, l16 b)
{
    L16_QUADS(i)
    {
        a.q[i] = a.q[i] * b.q[i];
    }
    return a;
}

L16_FN l16 l16_div(l16 a, l16 b)
{
    L16_QUADS(i)
    {
        a.q[i] = a.q[i] / b.q[i];
    }
    return a;
}

#if defined(__SSE2__) && !defined(__FMA__)
/* The machine has no fused multiply-add. The product of two floats is exact in double, so the sum in double is the
 * right value rounded to 53 bits, and narrowing it rounds a second time. The second rounding can differ from rounding
 * once only where the first left a value half-way between two floats, which is where the 29 bits that narrowing drops
 * are a one and zeros; or below the least normal float and up to it, as fewer bits are kept there. */
#define L16_DROPPED 0x1fffffff /* of a double's lower word */
#define L16_HALF_WAY 0x10000000
#define L16_LEAST_NORMAL 0x00800000 /* bits of FLT_MIN */

L16_FN __m128d l2d_low(__m128 a)
{
    return _mm_cvtps_pd(a);
}

L16_FN __m128d l2d_high(__m128 a)
{
    return _mm_cvtps_pd(_mm_movehl_ps(a, a));
}

/* Lanes whose sign bit is set are in doubt. low, high: the sums of which narrow was made. */
L16_FN __m128i l4_doubt(__m128d low, __m128d high, __m128 narrow)
{
    const __m128i low_words =
        _mm_castps_si128(_mm_shuffle_ps(_mm_castpd_ps(low), _mm_castpd_ps(high), _MM_SHUFFLE(2, 0, 2, 0)));
    const __m128i half_way =
        _mm_cmpeq_epi32(_mm_and_si128(low_words, _mm_set1_epi32(L16_DROPPED)), _mm_set1_epi32(L16_HALF_WAY));
    const __m128i size = _mm_and_si128(_mm_castps_si128(narrow), _mm_set1_epi32(INT32_MAX));
    return _mm_or_si128(half_way, _mm_sub_epi32(size, _mm_set1_epi32(L16_LEAST_NORMAL + 1)));
}

/* All ones where the sum of two doubles is not the exact one (Knuth's TwoSum). */
L16_FN __m128d l2d_inexact(__m128d p, __m128d c, __m128d sum)
{
    const __m128d c_in_sum = _mm_sub_pd(sum, p);
    const __m128d lost = _mm_add_pd(_mm_sub_pd(p, _mm_sub_pd(sum, c_in_sum)), _mm_sub_pd(c, c_in_sum));
    return _mm_cmpneq_pd(lost, _mm_setzero_pd());
}

/* Lanes in doubt, done again where the sum in double was not exact. Takes no part of a lane that is right. */
static __attribute__((noinline, unused)) l4 l4_fma_again(l4 a, l4 b, l4 c, __m128i doubt, l4 narrow)
{
    const __m128d p[2] = {_mm_mul_pd(l2d_low(a), l2d_low(b)), _mm_mul_pd(l2d_high(a), l2d_high(b))};
    const __m128d wide[2] = {l2d_low(c), l2d_high(c)};
    const int inexact = _mm_movemask_pd(l2d_inexact(p[0], wide[0], _mm_add_pd(p[0], wide[0]))) |
                        _mm_movemask_pd(l2d_inexact(p[1], wide[1], _mm_add_pd(p[1], wide[1]))) << 2;
    const int lanes = _mm_movemask_ps(_mm_castsi128_ps(doubt)) & inexact;
    for (int i = 0; i < 4 && lanes != 0; i++) {
        narrow[i] = (lanes >> i & 1) != 0 ? fmaf(a[i], b[i], c[i]) : narrow[i];
    }
    return narrow;
}

/* a * b + c, rounded once */
L16_FN l16 l16_fma(l16 a, l16 b, l16 c)
{
    l16 sum;
    __m128i doubt[4];
    L16_QUADS(i)
    {
        const __m128d low = _mm_add_pd(_mm_mul_pd(l2d_low(a.q[i]), l2d_low(b.q[i])), l2d_low(c.q[i]));
        const __m128d high = _mm_add_pd(_mm_mul_pd(l2d_high(a.q[i]), l2d_high(b.q[i])), l2d_high(c.q[i]));
        sum.q[i] = _mm_movelh_ps(_mm_cvtpd_ps(low), _mm_cvtpd_ps(high));
        doubt[i] = l4_doubt(low, high, sum.q[i]);
    }
    const __m128i any = _mm_or_si128(_mm_or_si128(doubt[0], doubt[1]), _mm_or_si128(doubt[2], doubt[3]));
    if (__builtin_expect(_mm_movemask_ps(_mm_castsi128_ps(any)) != 0, 0)) {
        L16_QUADS(i)
        {
            sum.q[i] = l4_fma_again(a.q[i], b.q[i], c.q[i], doubt[i], sum.q[i]);
        }
    }
    return sum;
}
#else
/* a * b + c, rounded once */
L16_FN l16 l16_fma(l16 a, l16 b, l16 c)
{
    L16_EACH(i)
    {
        c.q[i / 4][i % 4] = fmaf(a.q[i / 4][i % 4], b.q[i / 4][i % 4], c.q[i / 4][i % 4]);
    }
    return c;
}
#endif

/* a where m is all ones, else b. */
L16_FN l4 l4_choose(l4i m, l4 a, l4 b)
{
    l4i x, y;
    memcpy(&x, &a, sizeof(x));
    memcpy(&y, &b, sizeof(y));
    x = (x & m) | (y & ~m);
    memcpy(&a, &x, sizeof(a));
    return a;
}

/* As the x86 instructions: b where the two do not compare (NaN) or are equal (+0, -0). */
L16_FN l16 l16_max(l16 a, l16 b)
{
    L16_QUADS(i)
    {
        b.q[i] = l4_choose(a.q[i] > b.q[i], a.q[i], b.q[i]);
    }
    return b;
}

L16_FN l16 l16_min(l16 a, l16 b)
{
    L16_QUADS(i)
    {
        b.q[i] = l4_choose(a.q[i] < b.q[i], a.q[i], b.q[i]);
    }
    return b;
}

/* a < b ? x : y */
L16_FN l16 l16_select_lt(l16 a, l16 b, l16 x, l16 y)
{
    L16_QUADS(i)
    {
        y.q[i] = l4_choose(a.q[i] < b.q[i], x.q[i], y.q[i]);
    }
    return y;
}

/* Bit i: lane i of a equals that of b. */
L16_FN uint32_t l16_eq_mask(l16 a, l16 b)
{
    uint32_t m = 0;
    L16_EACH(i)
    {
        m |= (uint32_t)(a.q[i / 4][i % 4] == b.q[i / 4][i % 4]) << i;
    }
    return m;
}

L16_FN l16u l16u_set1(uint32_t x)
{
    l16u v;
    L16_QUADS(i)
    {
        v.q[i] = (l4u){x, x, x, x};
    }
    return v;
}

L16_FN l16u l16u_load(const void *p)
{
    l16u v;
    memcpy(&v, p, sizeof(v));
    return v;
}

L16_FN l16u l16u_iota(void)
{
    return (l16u){{{0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9, 10, 11}, {12, 13, 14, 15}}};
}

/* The first n (0 to 16) lanes of v, the others `fill`. */
L16_FN l16 l16_head(l16 v, int n, float fill)
{
    const l16u lane = l16u_iota();
    const l4u count = {(uint32_t)n, (uint32_t)n, (uint32_t)n, (uint32_t)n};
    L16_QUADS(i)
    {
        v.q[i] = l4_choose(lane.q[i] < count, v.q[i], (l4){fill, fill, fill, fill});
    }
    return v;
}

/* The sum of the lanes, in the order of kernels.h: halves 8, 4, 2, 1 apart. */
L16_FN float l16_sum(l16 v)
{
    const l4 s = (v.q[0] + v.q[2]) + (v.q[1] + v.q[3]);
    return (s[0] + s[2]) + (s[1] + s[3]);
}

L16_FN float l16_hmax(l16 v)
{
    float f[16];
    l16_store(f, v);
    for (int d = 8; d >= 1; d /= 2) {
        for (int i = 0; i < d; i++) {
            f[i] = f[i] > f[i + d] ? f[i] : f[i + d];
        }
    }
    return f[0];
}

L16_FN l16u l16u_add(l16u a, l16u b)
{
    L16_QUADS(i)
    {
        a.q[i] += b.q[i];
    }
    return a;
}

L16_FN l16u l16u_and(l16u a, l16u b)
{
    L16_QUADS(i)
    {
        a.q[i] &= b.q[i];
    }
    return a;
}

L16_FN l16u l16u_or(l16u a, l16u b)
{
    L16_QUADS(i)
    {
        a.q[i] |= b.q[i];
    }
    return a;
}

L16_FN l16u l16u_xor(l16u a, l16u b)
{
    L16_QUADS(i)
    {
        a.q[i] ^= b.q[i];
    }
    return a;
}

L16_FN l16u l16u_shl(l16u a, int n)
{
    L16_QUADS(i)
    {
        a.q[i] <<= n;
    }
    return a;
}

L16_FN l16u l16u_shr(l16u a, int n)
{
    L16_QUADS(i)
    {
        a.q[i] >>= n;
    }
    return a;
}

/* Low and high half of the 64-bit product. */
L16_FN l16u l16u_mul_lo(l16u a, l16u b)
{
    L16_QUADS(i)
    {
        a.q[i] *= b.q[i];
    }
    return a;
}

L16_FN l16u l16u_mul_hi(l16u a, l16u b)
{
    typedef uint64_t l4w __attribute__((vector_size(32)));
    L16_QUADS(i)
    {
        a.q[i] = __builtin_convertvector(
            __builtin_convertvector(a.q[i], l4w) * __builtin_convertvector(b.q[i], l4w) >> 32, l4u);
    }
    return a;
}

L16_FN l16 l16_from_u32(l16u a)
{
    l16 v;
    L16_QUADS(i)
    {
        v.q[i] = __builtin_convertvector(a.q[i], l4);
    }
    return v;
}

L16_FN l16 l16_from_i32(l16u a)
{
    l16 v;
    L16_QUADS(i)
    {
        v.q[i] = __builtin_convertvector((l4i)a.q[i], l4);
    }
    return v;
}

#endif
