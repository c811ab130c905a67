/* The one exp and the one log of graft, in single precision: plain IEEE operations and fused
 * multiply-adds only, so that C, AVX2, AVX-512 and CUDA versions that repeat these steps lane by lane
 * give equal bits. Header only; common subset of C and CUDA C++.
 *
 * exp: range reduction by ln 2 in two parts (Cody and Waite), then a polynomial of degree 6.
 * log: m in [sqrt(1/2), sqrt(2)), polynomial in m - 1 (the coefficients are the classic Cephes ones). */
#ifndef GR_COMMON_RULES_GR_MATH_H
#define GR_COMMON_RULES_GR_MATH_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define GR_FN static __host__ __device__ inline
#else
#define GR_FN static inline
#endif

#define GR_EXP_MIN (-87.0f) /* below: 0 */
#define GR_EXP_MAX 88.0f    /* above: clamped */
#define GR_EXP_LOG2E 1.44269504088896341f
#define GR_EXP_MAGIC 12582912.0f /* 1.5 * 2^23: adding it rounds to an integer */
#define GR_EXP_LN2_HI 0.693359375f
#define GR_EXP_LN2_LO (-2.12194440e-4f)
#define GR_EXP_C6 1.9875691500e-4f
#define GR_EXP_C5 1.3981999507e-3f
#define GR_EXP_C4 8.3334519073e-3f
#define GR_EXP_C3 4.1665795894e-2f
#define GR_EXP_C2 1.6666665459e-1f
#define GR_EXP_C1 5.0000001201e-1f

#define GR_LOG_SQRTHF 0.707106781186547524f
#define GR_LOG_P0 7.0376836292e-2f
#define GR_LOG_P1 (-1.1514610310e-1f)
#define GR_LOG_P2 1.1676998740e-1f
#define GR_LOG_P3 (-1.2420140846e-1f)
#define GR_LOG_P4 1.4249322787e-1f
#define GR_LOG_P5 (-1.6668057665e-1f)
#define GR_LOG_P6 2.0000714765e-1f
#define GR_LOG_P7 (-2.4999993993e-1f)
#define GR_LOG_P8 3.3333331174e-1f
#define GR_LOG_Q1 (-2.12194440e-4f)
#define GR_LOG_Q2 0.693359375f

GR_FN uint32_t gr_float_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof(u));
    return u;
}

GR_FN float gr_bits_float(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof(x));
    return x;
}

/* e^x; exactly 0 for x < -87 (that includes -inf). */
GR_FN float gr_expf(float x)
{
    float c = x > GR_EXP_MAX ? GR_EXP_MAX : x;
    c = c < GR_EXP_MIN ? GR_EXP_MIN : c;
    float z = fmaf(c, GR_EXP_LOG2E, GR_EXP_MAGIC);
    float n = z - GR_EXP_MAGIC;
    float r = fmaf(n, -GR_EXP_LN2_HI, c);
    r = fmaf(n, -GR_EXP_LN2_LO, r);
    float p = GR_EXP_C6;
    p = fmaf(p, r, GR_EXP_C5);
    p = fmaf(p, r, GR_EXP_C4);
    p = fmaf(p, r, GR_EXP_C3);
    p = fmaf(p, r, GR_EXP_C2);
    p = fmaf(p, r, GR_EXP_C1);
    p = fmaf(p, r * r, r);
    p = p + 1.0f;
    /* times 2^n: z's low bits hold n (in two's complement), so it goes straight to the exponent. */
    uint32_t bits = gr_float_bits(p) + (gr_float_bits(z) << 23);
    return x < GR_EXP_MIN ? 0.0f : gr_bits_float(bits);
}

/* Natural logarithm of a positive normal number; others are the caller's error. */
GR_FN float gr_logf(float x)
{
    uint32_t u = gr_float_bits(x);
    float e = (float)((int32_t)(u >> 23) - 126);
    float m = gr_bits_float((u & 0x007fffffu) | 0x3f000000u); /* [0.5, 1) */
    int small = m < GR_LOG_SQRTHF;
    e = small ? e - 1.0f : e;
    float f = small ? (m + m) - 1.0f : m - 1.0f;
    float z = f * f;
    float y = GR_LOG_P0;
    y = fmaf(y, f, GR_LOG_P1);
    y = fmaf(y, f, GR_LOG_P2);
    y = fmaf(y, f, GR_LOG_P3);
    y = fmaf(y, f, GR_LOG_P4);
    y = fmaf(y, f, GR_LOG_P5);
    y = fmaf(y, f, GR_LOG_P6);
    y = fmaf(y, f, GR_LOG_P7);
    y = fmaf(y, f, GR_LOG_P8);
    y = y * f;
    y = y * z;
    y = fmaf(e, GR_LOG_Q1, y);
    y = fmaf(-0.5f, z, y);
    return fmaf(e, GR_LOG_Q2, f + y);
}

/* Philox4x32-10 (Salmon et al., SC'11): four words from a 128-bit counter and a 64-bit key. */
GR_FN void gr_philox4x32(const uint32_t counter[4], uint64_t key, uint32_t out[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int i = 0; i < 10; i++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0;
        uint64_t p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        uint32_t n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* Gumbel noise of one random word: g = -log(-log1p(-v)), v = min((x + 0.5) * 2^-32, 1 - 2^-24).
 * log1p(-v) is taken as log(u) * v / (1 - u) with u = 1 - v, which keeps full precision for small v;
 * the other form, -log(-log(u)), picks a random token in 0.4 % of steps in single precision. */
GR_FN float gr_gumbel_of_word(uint32_t x)
{
    float v = ((float)x + 0.5f) * 2.3283064365386963e-10f;
    v = v < 0.999999940395355224609375f ? v : 0.999999940395355224609375f;
    float u = 1.0f - v;
    float d = 1.0f - u;
    float e = d == 0.0f ? v : -gr_logf(u) * (v / d);
    return -gr_logf(e);
}

/* Noise of token `id` at sequence position `pos` (the position of the picked token). */
GR_FN float gr_gumbel(uint64_t seed, uint32_t pos, uint32_t id, uint32_t choice)
{
    uint32_t counter[4], out[4];
    counter[0] = pos;
    counter[1] = id >> 2;
    counter[2] = choice;
    counter[3] = 0;
    gr_philox4x32(counter, seed, out);
    return gr_gumbel_of_word(out[id & 3]);
}

#endif
