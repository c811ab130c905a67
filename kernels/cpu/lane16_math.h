/* common/rules/gr_math.h on sixteen lanes: the same steps in the same order, so the same bits. Included after one of
 * lane16_<isa>.h. */
#ifndef GR_KERNELS_CPU_LANE16_MATH_H
#define GR_KERNELS_CPU_LANE16_MATH_H

#include "common/rules/gr_math.h"

L16_FN l16 l16_exp(l16 x)
{
    l16 c = l16_min(l16_set1(GR_EXP_MAX), x);
    c = l16_max(l16_set1(GR_EXP_MIN), c);
    l16 z = l16_fma(c, l16_set1(GR_EXP_LOG2E), l16_set1(GR_EXP_MAGIC));
    l16 n = l16_sub(z, l16_set1(GR_EXP_MAGIC));
    l16 r = l16_fma(n, l16_set1(-GR_EXP_LN2_HI), c);
    r = l16_fma(n, l16_set1(-GR_EXP_LN2_LO), r);
    l16 p = l16_set1(GR_EXP_C6);
    p = l16_fma(p, r, l16_set1(GR_EXP_C5));
    p = l16_fma(p, r, l16_set1(GR_EXP_C4));
    p = l16_fma(p, r, l16_set1(GR_EXP_C3));
    p = l16_fma(p, r, l16_set1(GR_EXP_C2));
    p = l16_fma(p, r, l16_set1(GR_EXP_C1));
    p = l16_fma(p, l16_mul(r, r), r);
    p = l16_add(p, l16_set1(1.0f));
    l16 y = l16_of_bits(l16u_add(l16_bits(p), l16u_shl(l16_bits(z), 23)));
    return l16_select_lt(x, l16_set1(GR_EXP_MIN), l16_set1(0.0f), y);
}

L16_FN l16 l16_log(l16 x)
{
    l16u u = l16_bits(x);
    l16 e = l16_from_i32(l16u_add(l16u_shr(u, 23), l16u_set1((uint32_t)-126)));
    l16 m = l16_of_bits(l16u_or(l16u_and(u, l16u_set1(0x007fffffu)), l16u_set1(0x3f000000u)));
    l16 half = l16_set1(GR_LOG_SQRTHF), one = l16_set1(1.0f);
    e = l16_select_lt(m, half, l16_sub(e, one), e);
    l16 f = l16_sub(l16_select_lt(m, half, l16_add(m, m), m), one);
    l16 z = l16_mul(f, f);
    l16 y = l16_set1(GR_LOG_P0);
    y = l16_fma(y, f, l16_set1(GR_LOG_P1));
    y = l16_fma(y, f, l16_set1(GR_LOG_P2));
    y = l16_fma(y, f, l16_set1(GR_LOG_P3));
    y = l16_fma(y, f, l16_set1(GR_LOG_P4));
    y = l16_fma(y, f, l16_set1(GR_LOG_P5));
    y = l16_fma(y, f, l16_set1(GR_LOG_P6));
    y = l16_fma(y, f, l16_set1(GR_LOG_P7));
    y = l16_fma(y, f, l16_set1(GR_LOG_P8));
    y = l16_mul(y, f);
    y = l16_mul(y, z);
    y = l16_fma(e, l16_set1(GR_LOG_Q1), y);
    y = l16_fma(l16_set1(-0.5f), z, y);
    return l16_fma(e, l16_set1(GR_LOG_Q2), l16_add(f, y));
}

L16_FN l16 l16_neg(l16 x)
{
    return l16_of_bits(l16u_xor(l16_bits(x), l16u_set1(0x80000000u)));
}

/* gr_gumbel_of_word. d = 1 - (1 - v) is a multiple of 2^-24, so d < 2^-25 says d == 0. */
L16_FN l16 l16_gumbel_of_word(l16u x)
{
    l16 one = l16_set1(1.0f);
    l16 v = l16_mul(l16_add(l16_from_u32(x), l16_set1(0.5f)), l16_set1(2.3283064365386963e-10f));
    v = l16_min(v, l16_set1(0.999999940395355224609375f));
    l16 u = l16_sub(one, v);
    l16 d = l16_sub(one, u);
    l16 e = l16_mul(l16_neg(l16_log(u)), l16_div(v, d));
    e = l16_select_lt(d, l16_set1(2.9802322387695312e-8f), v, e);
    return l16_neg(l16_log(e));
}

/* Philox4x32-10 of the counters (pos, block0 + lane, choice, 0): word w of lane i to out[w], lane i. */
L16_FN void l16_philox(uint32_t pos, uint32_t block0, uint32_t choice, uint64_t key, l16u out[4])
{
    l16u c0 = l16u_set1(pos), c1 = l16u_add(l16u_set1(block0), l16u_iota());
    l16u c2 = l16u_set1(choice), c3 = l16u_set1(0);
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int i = 0; i < 10; i++) {
        l16u m0 = l16u_set1(0xD2511F53u), m1 = l16u_set1(0xCD9E8D57u);
        l16u n0 = l16u_xor(l16u_xor(l16u_mul_hi(c2, m1), c1), l16u_set1(k0));
        l16u n2 = l16u_xor(l16u_xor(l16u_mul_hi(c0, m0), c3), l16u_set1(k1));
        c1 = l16u_mul_lo(c2, m1);
        c3 = l16u_mul_lo(c0, m0);
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

#endif
