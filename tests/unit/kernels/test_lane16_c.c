/* The lanes of plain C against scalar code, bit by bit. The fused multiply-add is the one that needs it: without the
 * machine's own it is made in double, and is right only if every lane in doubt is done again. */
#include "kernels/cpu/lane16_c.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <float.h>
#include <inttypes.h>

#define N_RANDOM 400000 /* vectors a kind */

static uint64_t state = 88172645463325252u;

static uint32_t random_bits(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 16);
}

static float float_of(uint32_t bits)
{
    float v;
    memcpy(&v, &bits, sizeof(v));
    return v;
}

static uint32_t bits_of(float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof(bits));
    return bits;
}

/* A float whose exponent lies in [from, from + n), with few or with all bits of its mantissa. */
static float random_float(int from, int n)
{
    const uint32_t keep = (random_bits() & 1) != 0 ? 0xffffffffu : 0xffffffffu << random_bits() % 24;
    const uint32_t exponent = (uint32_t)(from + (int)(random_bits() % (uint32_t)n)) << 23;
    return float_of((random_bits() & 0x807fffffu & (keep | 0x80000000u)) | exponent);
}

struct triple {
    float a[16], b[16], c[16];
};

static void expect_fma(const struct triple *t, const char *kind)
{
    float got[16];
    l16_store(got, l16_fma(l16_load(t->a), l16_load(t->b), l16_load(t->c)));
    for (int i = 0; i < 16; i++) {
        const float want = fmaf(t->a[i], t->b[i], t->c[i]);
        if (bits_of(got[i]) != bits_of(want) && !(isnan(got[i]) && isnan(want))) {
            fail_msg("%s: fma(%a, %a, %a) = %a, not %a", kind, (double)t->a[i], (double)t->b[i], (double)t->c[i],
                     (double)want, (double)got[i]);
        }
    }
}

/* Exponents about which products and sums meet: of ordinary size, tiny, and huge. */
static void test_fma_random(void **unused)
{
    (void)unused;
    static const struct {
        const char *kind;
        int a, b, c, n;
    } kinds[] = {
        {"near 1", 117, 117, 107, 20},        {"far apart", 117, 117, 90, 60},  {"subnormal sums", 60, 60, 0, 12},
        {"products far below", 1, 100, 1, 8}, {"overflow", 185, 190, 250, 5},   {"all sizes", 0, 0, 0, 256},
        {"about FLT_MIN", 63, 63, 0, 4},      {"a bit in 53", 127, 98, 127, 2},
    };
    for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
        for (int n = 0; n < N_RANDOM; n++) {
            struct triple t;
            for (int i = 0; i < 16; i++) {
                t.a[i] = random_float(kinds[k].a, kinds[k].n);
                t.b[i] = random_float(kinds[k].b, kinds[k].n);
                t.c[i] = random_float(kinds[k].c, kinds[k].n);
            }
            expect_fma(&t, kinds[k].kind);
        }
    }
}

/* The sum lies so near half-way between two floats that a double holds just that: rounding twice gets a part of these
 * lanes wrong. They are counted, so that the test is known to meet them. */
static void test_fma_rounded_twice(void **unused)
{
    (void)unused;
    int n_wrong = 0;
    for (int n = 0; n < 20000; n++) {
        struct triple t;
        for (int i = 0; i < 16; i++) {
            /* (1 + e)(1 - e) lies below 1 by less than a double of the sum's size tells. */
            const float e = ldexpf(1.0f, -15 - (int)(random_bits() % 8));
            const float half_ulp = (random_bits() & 1) != 0 ? ldexpf(1.0f, -24) : -ldexpf(1.0f, -24);
            t.a[i] = half_ulp * (1.0f + e);
            t.b[i] = 1.0f - e;
            t.c[i] = random_float(127, 1);
            n_wrong += (float)((double)t.a[i] * t.b[i] + t.c[i]) != fmaf(t.a[i], t.b[i], t.c[i]);
        }
        expect_fma(&t, "half-way");
        /* An exact half and a speck. */
        for (int i = 0; i < 16; i++) {
            t.a[i] = ldexpf(1.0f, -40) * (1.0f + ldexpf((float)(random_bits() % 100), -20));
            t.b[i] = (random_bits() & 1) != 0 ? ldexpf(1.0f, -40) : -ldexpf(1.0f, -40);
            t.c[i] = random_float(127, 1);
        }
        expect_fma(&t, "speck");
    }
    assert_true(n_wrong > 10000);
}

static void test_fma_special(void **unused)
{
    (void)unused;
    static const float special[] = {0.0f,     -0.0f,     1.0f,     -1.0f,           FLT_MIN,
                                    -FLT_MIN, FLT_MAX,   -FLT_MAX, FLT_TRUE_MIN,    -FLT_TRUE_MIN,
                                    INFINITY, -INFINITY, NAN,      0x1.fffffcp-127f};
    const int n = (int)(sizeof(special) / sizeof(special[0]));
    for (int k = 0; k < n * n * n; k += 16) {
        struct triple t;
        for (int i = 0; i < 16; i++) {
            const int at = (k + i) % (n * n * n);
            t.a[i] = special[at % n];
            t.b[i] = special[at / n % n];
            t.c[i] = special[at / n / n];
        }
        expect_fma(&t, "special");
    }
}

/* ---- the others ---- */

static void test_integers(void **unused)
{
    (void)unused;
    for (int n = 0; n < 1000; n++) {
        uint32_t a[16], b[16];
        for (int i = 0; i < 16; i++) {
            a[i] = random_bits();
            b[i] = n == 0 ? 0xffffffffu : random_bits();
        }
        const l16u high = l16u_mul_hi(l16u_load(a), l16u_load(b));
        const l16u low = l16u_mul_lo(l16u_load(a), l16u_load(b));
        const l16 u = l16_from_u32(l16u_load(a)), s = l16_from_i32(l16u_load(a));
        for (int i = 0; i < 16; i++) {
            assert_int_equal(high.q[i / 4][i % 4], (uint32_t)((uint64_t)a[i] * b[i] >> 32));
            assert_int_equal(low.q[i / 4][i % 4], a[i] * b[i]);
            assert_true(u.q[i / 4][i % 4] == (float)a[i] && s.q[i / 4][i % 4] == (float)(int32_t)a[i]);
        }
    }
}

static void test_choices(void **unused)
{
    (void)unused;
    for (int n = 0; n < 1000; n++) {
        float a[16], b[16], max[16], min[16], lt[16], head[16];
        for (int i = 0; i < 16; i++) {
            a[i] = random_bits() % 5 == 0 ? 0.0f : random_float(120, 4);
            b[i] = random_bits() % 5 == 0 ? -0.0f : (random_bits() % 5 == 0 ? a[i] : random_float(120, 4));
        }
        a[n % 16] = n % 3 == 0 ? NAN : a[n % 16];
        l16_store(max, l16_max(l16_load(a), l16_load(b)));
        l16_store(min, l16_min(l16_load(a), l16_load(b)));
        l16_store(lt, l16_select_lt(l16_load(a), l16_load(b), l16_set1(1.0f), l16_set1(2.0f)));
        l16_store(head, l16_head(l16_load(b), n % 17, 7.0f));
        const uint32_t equal = l16_eq_mask(l16_load(a), l16_load(b));
        for (int i = 0; i < 16; i++) {
            assert_int_equal(bits_of(max[i]), bits_of(a[i] > b[i] ? a[i] : b[i]));
            assert_int_equal(bits_of(min[i]), bits_of(a[i] < b[i] ? a[i] : b[i]));
            assert_true(lt[i] == (a[i] < b[i] ? 1.0f : 2.0f));
            assert_int_equal(bits_of(head[i]), bits_of(i < n % 17 ? b[i] : 7.0f));
            assert_int_equal(equal >> i & 1, a[i] == b[i]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fma_random), cmocka_unit_test(test_fma_rounded_twice), cmocka_unit_test(test_fma_special),
        cmocka_unit_test(test_integers),   cmocka_unit_test(test_choices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
