/* Sixteen float lanes in one AVX-512 register. See lane16_c.h for what each function means. */
#ifndef GR_KERNELS_CPU_LANE16_AVX512_H
#define GR_KERNELS_CPU_LANE16_AVX512_H

#include <immintrin.h>
#include <stdint.h>

/* Register tiles (rows, panels): 24 sums, the rest of the 32 registers for operands. */
/* clang-format off */
#define L16_ROW_MAX 8
#define L16_PANEL_MAX { 0, 8, 8, 8, 6, 4, 4, 3, 3 }
#define L16_PV_ROW_MAX 6 /* rows of a P.V tile */
#define L16_TILES(X)                                                                               \
    X(1, 1) X(1, 2) X(1, 3) X(1, 4) X(1, 5) X(1, 6) X(1, 7) X(1, 8)                                \
    X(2, 1) X(2, 2) X(2, 3) X(2, 4) X(2, 5) X(2, 6) X(2, 7) X(2, 8)                                \
    X(3, 1) X(3, 2) X(3, 3) X(3, 4) X(3, 5) X(3, 6) X(3, 7) X(3, 8)                                \
    X(4, 1) X(4, 2) X(4, 3) X(4, 4) X(4, 5) X(4, 6)                                                \
    X(5, 1) X(5, 2) X(5, 3) X(5, 4) X(6, 1) X(6, 2) X(6, 3) X(6, 4)                                \
    X(7, 1) X(7, 2) X(7, 3) X(8, 1) X(8, 2) X(8, 3)
/* clang-format on */

typedef __m512 l16;
typedef __m512i l16u;

#define L16_FN static inline __attribute__((always_inline, unused))

L16_FN __mmask16 l16_mask(int n)
{
    return (__mmask16)((1u << n) - 1u);
}

L16_FN l16 l16_set1(float x)
{
    return _mm512_set1_ps(x);
}

L16_FN l16 l16_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

L16_FN void l16_store(float *p, l16 v)
{
    _mm512_storeu_ps(p, v);
}

L16_FN l16 l16_load_n(const float *p, int n)
{
    return _mm512_maskz_loadu_ps(l16_mask(n), p);
}

L16_FN void l16_store_n(float *p, l16 v, int n)
{
    _mm512_mask_storeu_ps(p, l16_mask(n), v);
}

L16_FN l16 l16_load_bf16(const uint16_t *p)
{
    __m512i v = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(v, 16));
}

L16_FN l16 l16_add(l16 a, l16 b)
{
    return _mm512_add_ps(a, b);
}

L16_FN l16 l16_sub(l16 a, l16 b)
{
    return _mm512_sub_ps(a, b);
}

L16_FN l16 l16_mul(l16 a, l16 b)
{
    return _mm512_mul_ps(a, b);
}

L16_FN l16 l16_div(l16 a, l16 b)
{
    return _mm512_div_ps(a, b);
}

L16_FN l16 l16_fma(l16 a, l16 b, l16 c)
{
    return _mm512_fmadd_ps(a, b, c);
}

L16_FN l16 l16_max(l16 a, l16 b)
{
    return _mm512_max_ps(a, b);
}

L16_FN l16 l16_min(l16 a, l16 b)
{
    return _mm512_min_ps(a, b);
}

L16_FN l16 l16_select_lt(l16 a, l16 b, l16 x, l16 y)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x);
}

L16_FN uint32_t l16_eq_mask(l16 a, l16 b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ);
}

L16_FN l16 l16_head(l16 v, int n, float fill)
{
    return _mm512_mask_blend_ps(l16_mask(n), _mm512_set1_ps(fill), v);
}

L16_FN float l16_sum(l16 v)
{
    __m256 a = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

L16_FN float l16_hmax(l16 v)
{
    __m256 a = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
}

L16_FN l16u l16u_set1(uint32_t x)
{
    return _mm512_set1_epi32((int)x);
}

L16_FN l16u l16u_load(const void *p)
{
    return _mm512_loadu_si512(p);
}

L16_FN l16u l16u_iota(void)
{
    return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}

L16_FN l16u l16u_add(l16u a, l16u b)
{
    return _mm512_add_epi32(a, b);
}

L16_FN l16u l16u_and(l16u a, l16u b)
{
    return _mm512_and_si512(a, b);
}

L16_FN l16u l16u_or(l16u a, l16u b)
{
    return _mm512_or_si512(a, b);
}

L16_FN l16u l16u_xor(l16u a, l16u b)
{
    return _mm512_xor_si512(a, b);
}

#define l16u_shl(v, n) _mm512_slli_epi32((v), (n))
#define l16u_shr(v, n) _mm512_srli_epi32((v), (n))

L16_FN l16u l16u_mul_lo(l16u a, l16u b)
{
    return _mm512_mullo_epi32(a, b);
}

L16_FN l16u l16u_mul_hi(l16u a, l16u b)
{
    __m512i even = _mm512_srli_epi64(_mm512_mul_epu32(a, b), 32);
    __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(a, 32), _mm512_srli_epi64(b, 32));
    return _mm512_mask_blend_epi32(0xaaaa, even, odd);
}

L16_FN l16 l16_from_u32(l16u v)
{
    return _mm512_cvtepu32_ps(v);
}

L16_FN l16 l16_from_i32(l16u v)
{
    return _mm512_cvtepi32_ps(v);
}

L16_FN l16 l16_of_bits(l16u v)
{
    return _mm512_castsi512_ps(v);
}

L16_FN l16u l16_bits(l16 v)
{
    return _mm512_castps_si512(v);
}

#endif
