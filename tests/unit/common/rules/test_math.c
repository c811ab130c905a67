/* exp, log, Philox and the Gumbel noise against libm in double and the published vectors. */
#include "common/rules/gr_math.h"
#include "common/rules/hash.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <cmocka.h>

/* Distance in units of the last place of the float nearest to want. */
static double ulps(float got, double want)
{
    const float near = (float)want;
    const double ulp = (double)nextafterf(fabsf(near), INFINITY) - (double)fabsf(near);
    return fabs((double)got - want) / ulp;
}

static void test_exp(void **state)
{
    (void)state;
    double worst = 0.0;
    for (int i = 0; i <= 2000000; i++) {
        const float x = -87.0f + 175.0f * (float)i / 2000000.0f;
        const double u = ulps(gr_expf(x), exp((double)x));
        worst = u > worst ? u : worst;
    }
    print_message("# exp: %.3f ulp at most\n", worst);
    assert_true(worst < 2.0);
    assert_true(gr_expf(0.0f) == 1.0f && gr_expf(-0.0f) == 1.0f);
    assert_true(gr_expf(-INFINITY) == 0.0f && gr_expf(-1e30f) == 0.0f);
    assert_true(gr_expf(nextafterf(-87.0f, -100.0f)) == 0.0f && gr_expf(-87.0f) > 0.0f);
    assert_true(gr_expf(1e30f) == gr_expf(88.0f) && gr_expf(INFINITY) == gr_expf(88.0f)); /* clamped */
    assert_true(isfinite(gr_expf(88.0f)));
    assert_true(ulps(gr_expf(1e-30f), 1.0) < 1.0);
}

static void test_exp_monotone(void **state)
{
    (void)state;
    float last = 0.0f; /* the sampler relies on exp(a) <= exp(b) for a <= b */
    for (float x = -87.5f; x < 1.0f; x = nextafterf(x, 2.0f) + (x < -1.0f ? 1e-5f : 1e-6f)) {
        const float y = gr_expf(x);
        assert_true(y >= last * (1.0f - 2.4e-7f)); /* at worst one ulp down */
        last = y;
    }
    for (float x = -1e-3f; x < 0.0f; x = nextafterf(x, 1.0f) + 1e-9f) {
        assert_true(gr_expf(x) <= 1.0f); /* nothing beats the maximum */
    }
}

static void test_log(void **state)
{
    (void)state;
    double worst = 0.0;
    for (uint32_t u = 0x00800000u; u < 0x7f800000u; u += 997) {
        const float x = gr_bits_float(u);
        const double want = log((double)x);
        /* near 1 the logarithm is tiny: absolute there, relative elsewhere */
        const double error = fabs((double)gr_logf(x) - want) / fmax(fabs(want), 1e-2);
        worst = error > worst ? error : worst;
    }
    print_message("# log: relative error %.3g at most\n", worst);
    assert_true(worst < 2.5e-7);
    assert_true(gr_logf(1.0f) == 0.0f);
    for (int i = 1; i < 4000; i++) { /* just beside 1: full relative precision */
        const float below = 1.0f - (float)i * 5.9604645e-8f;
        const float above = 1.0f + (float)i * 1.1920929e-7f;
        assert_true(fabs((double)gr_logf(below) / log((double)below) - 1.0) < 3e-7);
        assert_true(fabs((double)gr_logf(above) / log((double)above) - 1.0) < 3e-7);
    }
}

/* Random123's kat_vectors for philox4x32-10. */
static void test_philox(void **state)
{
    (void)state;
    static const struct {
        uint32_t counter[4];
        uint64_t key;
        uint32_t want[4];
    } kat[] = {
        {{0, 0, 0, 0}, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         0xffffffffffffffffull,
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         0x299f31d0a4093822ull,
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof(kat) / sizeof(kat[0]); i++) {
        uint32_t out[4];
        gr_philox4x32(kat[i].counter, kat[i].key, out);
        for (int k = 0; k < 4; k++) {
            assert_int_equal(out[k], kat[i].want[k]);
        }
    }
}

/* g = -log(-log1p(-v)), DESIGN.md section 3, in double from the same v. */
static double gumbel_reference(uint32_t x)
{
    const float v32 = ((float)x + 0.5f) * 2.3283064365386963e-10f;
    const double v = fmin((double)v32, 1.0 - 0x1p-24);
    return -log(-log1p(-v));
}

static void test_gumbel_accuracy(void **state)
{
    (void)state;
    double worst = 0.0;
    uint64_t rng = 1;
    for (int i = 0; i < 3000000; i++) {
        uint32_t x = (uint32_t)i; /* the small words, where the other form fails */
        if (i >= 1000000) {
            rng = gr_mix64(rng + GR_HASH_GOLDEN);
            x = i < 2000000 ? (uint32_t)(rng >> 32) : 0xffffffffu - (uint32_t)(rng % (1u << 20));
        }
        const double want = gumbel_reference(x);
        const double error = fabs((double)gr_gumbel_of_word(x) - want) / fmax(1.0, fabs(want));
        worst = error > worst ? error : worst;
    }
    print_message("# gumbel: error %.3g at most, relative above 1\n", worst);
    assert_true(worst < 1e-6);
}

static void test_gumbel_range(void **state)
{
    (void)state;
    static const uint32_t x[] = {0, 1, 2, 0x7fffffff, 0x80000000, 0xfffffe00, 0xffffff7f, 0xffffff80, 0xffffffff};
    for (size_t i = 0; i < sizeof(x) / sizeof(x[0]); i++) {
        const float g = gr_gumbel_of_word(x[i]);
        assert_true(isfinite(g) && g > -3.2f && g < 23.0f);
    }
    /* small v, large noise: the precise end of v is where it decides */
    assert_true(gr_gumbel_of_word(0) > gr_gumbel_of_word(1));
    assert_true(gr_gumbel_of_word(1) > gr_gumbel_of_word(0x80000000u));
    assert_true(gr_gumbel_of_word(0x80000000u) > gr_gumbel_of_word(0xffffffffu));
}

/* Which word of which counter an id gets, DESIGN.md section 3. */
static void test_gumbel_addressing(void **state)
{
    (void)state;
    const uint64_t seed = 0x123456789abcdef0ull;
    for (uint32_t id = 0; id < 40; id++) {
        const uint32_t counter[4] = {77, id >> 2, 3, 0};
        uint32_t word[4];
        gr_philox4x32(counter, seed, word);
        assert_true(gr_gumbel(seed, 77, id, 3) == gr_gumbel_of_word(word[id & 3]));
    }
    assert_true(gr_gumbel(seed, 77, 5, 3) != gr_gumbel(seed, 78, 5, 3));
    assert_true(gr_gumbel(seed, 77, 5, 3) != gr_gumbel(seed, 77, 5, 4));
    assert_true(gr_gumbel(seed, 77, 5, 3) != gr_gumbel(seed + (1ull << 32), 77, 5, 3)); /* all 64 bits of the seed */
}

/* Mean and variance of the standard Gumbel distribution: 0.5772, pi^2 / 6. */
static void test_gumbel_moments(void **state)
{
    (void)state;
    const int n = 1000000;
    double sum = 0.0;
    double sum2 = 0.0;
    for (int i = 0; i < n; i++) {
        const double g = (double)gr_gumbel(42, (uint32_t)(i / 1000), (uint32_t)(i % 1000), 0);
        sum += g;
        sum2 += g * g;
    }
    const double mean = sum / n;
    const double var = sum2 / n - mean * mean;
    assert_true(fabs(mean - 0.57721566) < 5.0 * 1.2825 / 1000.0);
    assert_true(fabs(var - 1.64493407) < 0.02);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exp),
        cmocka_unit_test(test_exp_monotone),
        cmocka_unit_test(test_log),
        cmocka_unit_test(test_philox),
        cmocka_unit_test(test_gumbel_accuracy),
        cmocka_unit_test(test_gumbel_range),
        cmocka_unit_test(test_gumbel_addressing),
        cmocka_unit_test(test_gumbel_moments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
