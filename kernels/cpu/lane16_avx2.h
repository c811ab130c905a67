/* Sixteen float lanes in two AVX2 registers. See lane16_c.h for what each function means. */
#ifndef GR_KERNELS_CPU_LANE16_AVX2_H
#define GR_KERNELS_CPU_LANE16_AVX2_H

#include <immintrin.h>
#include <stdint.h>

/* Register tiles (rows, panels): at most 12 of the 16 registers are sums. */
/* clang-format off */
#define L16_ROW_MAX 6
#define L16_PANEL_MAX { 0, 4, 3, 2, 1, 1, 1 }
#define L16_PV_ROW_MAX 3 /* rows of a P.V tile */
#define L16_TILES(X)                                                                               \
    X(1, 1) X(1, 2) X(1, 3) X(1, 4) X(2, 1) X(2, 2) X(2, 3)                                        \
    X(3, 1) X(3, 2) X(4, 1) X(5, 1) X(6, 1)
/* clang-format on */

typedef struct {
    __m256 lo, hi;
} l16;
typedef struct {
    __m256i lo, hi;
} l16u;

#define L16_FN static inline __attribute__((always_inline, unused))

/* All ones in the first n lanes; the two halves are read from a table of ones and zeros. */
L16_FN l16u l16_mask(int n)
{
    static const int32_t ones[32] = {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1};
    const int32_t *p = ones + 16 - n;
    return (l16u){_mm256_loadu_si256((const __m256i *)(const void *)p),
                  _mm256_loadu_si256((const __m256i *)(const void *)(p + 8))};
}

L16_FN l16 l16_set1(float x)
{
    __m256 v = _mm256_set1_ps(x);
    return (l16){v, v};
}

L16_FN l16 l16_load(const float *p)
{
    return (l16){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}

L16_FN void l16_store(float *p, l16 v)
{
    _mm256_storeu_ps(p, v.lo);
    _mm256_storeu_ps(p + 8, v.hi);
}

L16_FN l16 l16_load_n(const float *p, int n)
{
    l16u m = l16_mask(n);
    return (l16){_mm256_maskload_ps(p, m.lo), _mm256_maskload_ps(p + 8, m.hi)};
}

L16_FN void l16_store_n(float *p, l16 v, int n)
{
    l16u m = l16_mask(n);
    _mm256_maskstore_ps(p, m.lo, v.lo);
    _mm256_maskstore_ps(p + 8, m.hi, v.hi);
}

L16_FN l16 l16_load_bf16(const uint16_t *p)
{
    const __m128i *q = (const __m128i *)(const void *)p;
    __m256i lo = _mm256_cvtepu16_epi32(_mm_loadu_si128(q));
    __m256i hi = _mm256_cvtepu16_epi32(_mm_loadu_si128(q + 1));
    return (l16){_mm256_castsi256_ps(_mm256_slli_epi32(lo, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(hi, 16))};
}

L16_FN l16 l16_add(l16 a, l16 b)
{
    return (l16){_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}

L16_FN l16 l16_sub(l16 a, l16 b)
{
    return (l16){_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}

L16_FN l16 l16_mul(l16 a, l16 b)
{
    return (l16){_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}

L16_FN l16 l16_div(l16 a, l16 b)
{
    return (l16){_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}

L16_FN l16 l16_fma(l16 a, l16 b, l16 c)
{
    return (l16){_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}

L16_FN l16 l16_max(l16 a, l16 b)
{
    return (l16){_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}

L16_FN l16 l16_min(l16 a, l16 b)
{
    return (l16){_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
}

L16_FN l16 l16_select_lt(l16 a, l16 b, l16 x, l16 y)
{
    return (l16){_mm256_blendv_ps(y.lo, x.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)),
                 _mm256_blendv_ps(y.hi, x.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ))};
}

L16_FN uint32_t l16_eq_mask(l16 a, l16 b)
{
    int lo = _mm256_movemask_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_EQ_OQ));
    int hi = _mm256_movemask_ps(_mm256_cmp_ps(a.hi, b.hi, _CMP_EQ_OQ));
    return (uint32_t)(lo | hi << 8);
}

L16_FN l16 l16_head(l16 v, int n, float fill)
{
    l16u m = l16_mask(n);
    __m256 f = _mm256_set1_ps(fill);
    return (l16){_mm256_blendv_ps(f, v.lo, _mm256_castsi256_ps(m.lo)),
                 _mm256_blendv_ps(f, v.hi, _mm256_castsi256_ps(m.hi))};
}

L16_FN float l16_sum(l16 v)
{
    __m256 a = _mm256_add_ps(v.lo, v.hi);
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

L16_FN float l16_hmax(l16 v)
{
    __m256 a = _mm256_max_ps(v.lo, v.hi);
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
}

L16_FN l16u l16u_set1(uint32_t x)
{
    __m256i v = _mm256_set1_epi32((int)x);
    return (l16u){v, v};
}

L16_FN l16u l16u_load(const void *p)
{
    const __m256i *q = p;
    return (l16u){_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
}

L16_FN l16u l16u_iota(void)
{
    return (l16u){_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15)};
}

L16_FN l16u l16u_add(l16u a, l16u b)
{
    return (l16u){_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}

L16_FN l16u l16u_and(l16u a, l16u b)
{
    return (l16u){_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)};
}

L16_FN l16u l16u_or(l16u a, l16u b)
{
    return (l16u){_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)};
}

L16_FN l16u l16u_xor(l16u a, l16u b)
{
    return (l16u){_mm256_xor_si256(a.lo, b.lo), _mm256_xor_si256(a.hi, b.hi)};
}

#define l16u_shl(v, n) ((l16u){_mm256_slli_epi32((v).lo, (n)), _mm256_slli_epi32((v).hi, (n))})
#define l16u_shr(v, n) ((l16u){_mm256_srli_epi32((v).lo, (n)), _mm256_srli_epi32((v).hi, (n))})

L16_FN l16u l16u_mul_lo(l16u a, l16u b)
{
    return (l16u){_mm256_mullo_epi32(a.lo, b.lo), _mm256_mullo_epi32(a.hi, b.hi)};
}

L16_FN __m256i l16_mul_hi8(__m256i a, __m256i b)
{
    __m256i even = _mm256_srli_epi64(_mm256_mul_epu32(a, b), 32);
    __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), _mm256_srli_epi64(b, 32));
    return _mm256_blend_epi32(even, odd, 0xaa);
}

L16_FN l16u l16u_mul_hi(l16u a, l16u b)
{
    return (l16u){l16_mul_hi8(a.lo, b.lo), l16_mul_hi8(a.hi, b.hi)};
}

/* Both 16-bit halves convert exactly, so the one rounding is that of the last sum. */
L16_FN __m256 l16_from_u32_8(__m256i v)
{
    __m256 hi = _mm256_cvtepi32_ps(_mm256_srli_epi32(v, 16));
    __m256 lo = _mm256_cvtepi32_ps(_mm256_and_si256(v, _mm256_set1_epi32(0xffff)));
    return _mm256_add_ps(_mm256_mul_ps(hi, _mm256_set1_ps(65536.0f)), lo);
}

L16_FN l16 l16_from_u32(l16u v)
{
    return (l16){l16_from_u32_8(v.lo), l16_from_u32_8(v.hi)};
}

L16_FN l16 l16_from_i32(l16u v)
{
    return (l16){_mm256_cvtepi32_ps(v.lo), _mm256_cvtepi32_ps(v.hi)};
}

L16_FN l16 l16_of_bits(l16u v)
{
    return (l16){_mm256_castsi256_ps(v.lo), _mm256_castsi256_ps(v.hi)};
}

L16_FN l16u l16_bits(l16 v)
{
    return (l16u){_mm256_castps_si256(v.lo), _mm256_castps_si256(v.hi)};
}

#endif
