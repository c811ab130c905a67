/* Sixteen float lanes in plain C: the meaning of every lane16 function, and the version for machines without
 * AVX2. fmaf() is the libm's where the machine has no fused multiply-add: slow, and right. */
#ifndef GR_KERNELS_CPU_LANE16_C_H
#define GR_KERNELS_CPU_LANE16_C_H

#include "common/rules/gr_math.h"
#include "kernels/kernels.h"

/* Register tiles (rows, panels) that exist, most panels for a number of rows, most rows. */
/* clang-format off */
#define L16_ROW_MAX 2
#define L16_PANEL_MAX { 0, 1, 1 }
#define L16_PV_ROW_MAX 2 /* rows of a P.V tile */
#define L16_TILES(X) X(1, 1) X(2, 1)
/* clang-format on */

typedef struct {
    float f[16];
} l16;
typedef struct {
    uint32_t u[16];
} l16u;

/* Inlined, gcc's instrumentation of the 16-lane loops takes minutes and gigabytes. */
#if defined(__SANITIZE_ADDRESS__)
#define L16_FN static __attribute__((noinline, unused))
#else
#define L16_FN static inline __attribute__((always_inline, unused))
#endif
#define L16_EACH(i) for (int i = 0; i < 16; i++)

L16_FN l16 l16_set1(float x)
{
    l16 v;
    L16_EACH(i)
    {
        v.f[i] = x;
    }
    return v;
}

L16_FN l16 l16_load(const float *p)
{
    l16 v;
    L16_EACH(i)
    {
        v.f[i] = p[i];
    }
    return v;
}

L16_FN void l16_store(float *p, l16 v)
{
    L16_EACH(i)
    {
        p[i] = v.f[i];
    }
}

/* The first n (0 to 16) lanes from memory, nothing is read past them; the others 0. */
L16_FN l16 l16_load_n(const float *p, int n)
{
    l16 v;
    L16_EACH(i)
    {
        v.f[i] = i < n ? p[i] : 0.0f;
    }
    return v;
}

L16_FN void l16_store_n(float *p, l16 v, int n)
{
    for (int i = 0; i < n; i++) {
        p[i] = v.f[i];
    }
}

L16_FN l16 l16_load_bf16(const uint16_t *p)
{
    l16 v;
    L16_EACH(i)
    {
        v.f[i] = gr_bf16_to_f32(p[i]);
    }
    return v;
}

L16_FN l16 l16_add(l16 a, l16 b)
{
    L16_EACH(i)
    {
        a.f[i] = a.f[i] + b.f[i];
    }
    return a;
}

L16_FN l16 l16_sub(l16 a, l16 b)
{
    L16_EACH(i)
    {
        a.f[i] = a.f[i] - b.f[i];
    }
    return a;
}

L16_FN l16 l16_mul(l16 a, l16 b)
{
    L16_EACH(i)
    {
        a.f[i] = a.f[i] * b.f[i];
    }
    return a;
}

L16_FN l16 l16_div(l16 a, l16 b)
{
    L16_EACH(i)
    {
        a.f[i] = a.f[i] / b.f[i];
    }
    return a;
}

/* a * b + c, rounded once */
L16_FN l16 l16_fma(l16 a, l16 b, l16 c)
{
    L16_EACH(i)
    {
        c.f[i] = fmaf(a.f[i], b.f[i], c.f[i]);
    }
    return c;
}

/* As the x86 instructions: b where the two do not compare (NaN) or are equal (+0, -0). */
L16_FN l16 l16_max(l16 a, l16 b)
{
    L16_EACH(i)
    {
        b.f[i] = a.f[i] > b.f[i] ? a.f[i] : b.f[i];
    }
    return b;
}

L16_FN l16 l16_min(l16 a, l16 b)
{
    L16_EACH(i)
    {
        b.f[i] = a.f[i] < b.f[i] ? a.f[i] : b.f[i];
    }
    return b;
}

/* a < b ? x : y */
L16_FN l16 l16_select_lt(l16 a, l16 b, l16 x, l16 y)
{
    L16_EACH(i)
    {
        y.f[i] = a.f[i] < b.f[i] ? x.f[i] : y.f[i];
    }
    return y;
}

/* Bit i: lane i of a equals that of b. */
L16_FN uint32_t l16_eq_mask(l16 a, l16 b)
{
    uint32_t m = 0;
    L16_EACH(i)
    {
        m |= (uint32_t)(a.f[i] == b.f[i]) << i;
    }
    return m;
}

/* The first n (0 to 16) lanes of v, the others `fill`. */
L16_FN l16 l16_head(l16 v, int n, float fill)
{
    L16_EACH(i)
    {
        v.f[i] = i < n ? v.f[i] : fill;
    }
    return v;
}

/* The sum of the lanes, in the order of kernels.h: halves 8, 4, 2, 1 apart. */
L16_FN float l16_sum(l16 v)
{
    for (int d = 8; d >= 1; d /= 2) {
        for (int i = 0; i < d; i++) {
            v.f[i] = v.f[i] + v.f[i + d];
        }
    }
    return v.f[0];
}

L16_FN float l16_hmax(l16 v)
{
    for (int d = 8; d >= 1; d /= 2) {
        for (int i = 0; i < d; i++) {
            v.f[i] = v.f[i] > v.f[i + d] ? v.f[i] : v.f[i + d];
        }
    }
    return v.f[0];
}

L16_FN l16u l16u_set1(uint32_t x)
{
    l16u v;
    L16_EACH(i)
    {
        v.u[i] = x;
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
    l16u v;
    L16_EACH(i)
    {
        v.u[i] = (uint32_t)i;
    }
    return v;
}

L16_FN l16u l16u_add(l16u a, l16u b)
{
    L16_EACH(i)
    {
        a.u[i] += b.u[i];
    }
    return a;
}

L16_FN l16u l16u_and(l16u a, l16u b)
{
    L16_EACH(i)
    {
        a.u[i] &= b.u[i];
    }
    return a;
}

L16_FN l16u l16u_or(l16u a, l16u b)
{
    L16_EACH(i)
    {
        a.u[i] |= b.u[i];
    }
    return a;
}

L16_FN l16u l16u_xor(l16u a, l16u b)
{
    L16_EACH(i)
    {
        a.u[i] ^= b.u[i];
    }
    return a;
}

L16_FN l16u l16u_shl(l16u a, int n)
{
    L16_EACH(i)
    {
        a.u[i] <<= n;
    }
    return a;
}

L16_FN l16u l16u_shr(l16u a, int n)
{
    L16_EACH(i)
    {
        a.u[i] >>= n;
    }
    return a;
}

/* Low and high half of the 64-bit product. */
L16_FN l16u l16u_mul_lo(l16u a, l16u b)
{
    L16_EACH(i)
    {
        a.u[i] *= b.u[i];
    }
    return a;
}

L16_FN l16u l16u_mul_hi(l16u a, l16u b)
{
    L16_EACH(i)
    {
        a.u[i] = (uint32_t)((uint64_t)a.u[i] * b.u[i] >> 32);
    }
    return a;
}

L16_FN l16 l16_from_u32(l16u a)
{
    l16 v;
    L16_EACH(i)
    {
        v.f[i] = (float)a.u[i];
    }
    return v;
}

L16_FN l16 l16_from_i32(l16u a)
{
    l16 v;
    L16_EACH(i)
    {
        v.f[i] = (float)(int32_t)a.u[i];
    }
    return v;
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

#endif
