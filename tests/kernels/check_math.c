/* common/rules/gr_math.h against the libm in double: exp and log within 2 units in the last place; Gumbel noise, from
 * the same rounded v, within 3 eps of its value plus 3 eps of 1 (it crosses zero). Philox against Random123's vectors.
 */
#include "tests/kernels/check.h"

#include "common/rules/gr_math.h"
#include "common/base/status.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static double ulp_of(double v)
{
    int e;
    frexp(v, &e);
    return ldexp(1.0, e - 24);
}

static double worst_exp(void)
{
    double worst = 0.0;
    for (int i = 0; i <= 2000000; i++) {
        float x = -87.0f + 175.0f * (float)i / 2000000.0f;
        double want = exp((double)x);
        worst = fmax(worst, fabs((double)gr_expf(x) - want) / ulp_of(want));
    }
    for (int i = 0; i < 500000; i++) { /* around 0 in relative steps */
        float x = ldexpf(rng_normal(), -rng_below(30));
        double want = exp((double)x);
        worst = fmax(worst, fabs((double)gr_expf(x) - want) / ulp_of(want));
    }
    return worst;
}

static double worst_log(void)
{
    double worst = 0.0;
    for (uint64_t u = 0x00800000u; u < 0x7f800000u; u += 997) {
        float x = gr_bits_float((uint32_t)u);
        double want = log((double)x);
        worst = fmax(worst, fabs((double)gr_logf(x) - want) / ulp_of(want));
    }
    for (uint32_t u = 0x3f000000u; u < 0x40000000u; u += 13) { /* [0.5, 2) */
        float x = gr_bits_float(u);
        double want = log((double)x);
        if (want != 0.0) {
            worst = fmax(worst, fabs((double)gr_logf(x) - want) / ulp_of(want));
        }
    }
    return worst;
}

static double gumbel_error(uint32_t x)
{
    float v = ((float)x + 0.5f) * 0x1p-32f;
    v = fminf(v, 1.0f - 0x1p-24f);
    double want = -log(-log1p(-(double)v));
    return fabs((double)gr_gumbel_of_word(x) - want) / (CHECK_EPS * (1.0 + fabs(want)));
}

static double worst_gumbel(void)
{
    double worst = 0.0;
    for (uint32_t i = 0; i < 70000; i++) {
        worst = fmax(worst, gumbel_error(i));
        worst = fmax(worst, gumbel_error(UINT32_MAX - i));
    }
    for (int i = 0; i < 2000000; i++) {
        worst = fmax(worst, gumbel_error(rng_u32()));
    }
    return worst;
}

static void check_philox(struct check *c)
{
    static const struct {
        uint32_t counter[4];
        uint64_t key;
        uint32_t want[4];
    } kat[] = {
        {{0, 0, 0, 0}, 0, {0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}},
        {{~0u, ~0u, ~0u, ~0u}, ~0ull, {0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}},
        {{0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u},
         0x299f31d0a4093822u,
         {0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u}},
    };
    for (size_t i = 0; i < GR_ARRAY_LEN(kat); i++) {
        uint32_t out[4];
        gr_philox4x32(kat[i].counter, kat[i].key, out);
        check_same(c, "philox4x32-10", out, kat[i].want, sizeof(out));
    }
}

void check_math(struct check *c)
{
    snprintf(c->label, sizeof(c->label), "math");
    double e = worst_exp(), l = worst_log(), g = worst_gumbel();
    printf("# math: exp %.2f ulp, log %.2f ulp, gumbel %.2f eps of (1 + |g|)\n", e, l, g);
    if (!(e <= 2.0) || !(l <= 2.0) || !(g <= 3.0)) {
        check_fail(c, "exp %.2f ulp (2), log %.2f ulp (2), gumbel %.2f (3)", e, l, g);
    }
    if (gr_expf(-INFINITY) != 0.0f || gr_expf(-88.0f) != 0.0f || gr_expf(0.0f) != 1.0f || gr_logf(1.0f) != 0.0f) {
        check_fail(c, "exp(-inf), exp(-88), exp(0), log(1) are not exact");
    }
    check_philox(c);
}
