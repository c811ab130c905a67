/* Number formats of weights: every half and bf16, and quantised blocks of random bytes against a definition of their
 * own and against what gguf-py (ggml's own Python) makes of the same bytes. */
#include "model/files/format.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <string.h>

#define N_BLOCK 64

static double half_value(unsigned h)
{
    const unsigned e = h >> 10 & 31, m = h & 1023;
    const double sign = h >> 15 ? -1.0 : 1.0;
    return e == 31 ? (m != 0 ? (double)NAN : sign * (double)INFINITY)
           : e > 0 ? sign * ldexp(1024.0 + m, (int)e - 25)
                   : sign * ldexp(m, -24);
}

static void test_halves(void **state)
{
    (void)state;
    for (unsigned h = 0; h < 65536; h++) {
        const uint16_t word = (uint16_t)h;
        float f16 = 0.0f, bf16 = 0.0f;
        uint32_t bits = 0;
        gr_format_to_f32(GR_FORMAT_F16, &word, 1, &f16);
        gr_format_to_f32(GR_FORMAT_BF16, &word, 1, &bf16);
        const double want = half_value(h);
        assert_true(isnan(want) ? isnan(f16) : (double)f16 == want);
        assert_true(isnan(want) || (signbit(f16) != 0) == (h >> 15 != 0));
        memcpy(&bits, &bf16, sizeof(bits));
        assert_int_equal(bits, h << 16);
    }
}

/* ---- blocks, by their description ---- */

static double half_in(const uint8_t *p)
{
    return half_value((unsigned)p[0] | (unsigned)p[1] << 8);
}

/* Bits [at, at + n) of the bytes at p as a number. */
static int bits_of(const uint8_t *p, int at, int n)
{
    int value = 0;
    for (int i = 0; i < n; i++) {
        value |= (p[(at + i) / 8] >> ((at + i) % 8) & 1) << i;
    }
    return value;
}

/* Code of four bits of element i in blocks of 32: low halves first. */
static int nibble(const uint8_t *codes, int i)
{
    return bits_of(codes, i % 16 * 8 + i / 16 * 4, 4);
}

/* Scale (min false) or minimum of part i in the 12 bytes of Q4_K and Q5_K. */
static int part_number(const uint8_t *s, int i, bool min)
{
    if (i < 4) {
        return bits_of(s + i + 4 * min, 0, 6);
    }
    return bits_of(s + 4 + i, 4 * min, 4) + 16 * bits_of(s + i - 4 + 4 * min, 6, 2);
}

static double k_value(const uint8_t *b, int code, int i)
{
    return half_in(b) * part_number(b + 4, i / 32, false) * code - half_in(b + 2) * part_number(b + 4, i / 32, true);
}

/* Where the two bits of element i lie in the 64 bytes of Q2_K and Q3_K. */
static int two_bits_at(int i)
{
    return (i / 128 * 32 + i % 32) * 8 + i / 32 % 4 * 2;
}

/* One sign, two exponent (bias 1), one mantissa bit. */
static double e2m1_value(int code)
{
    const int e = code >> 1 & 3, m = code & 1;
    const double magnitude = e == 0 ? 0.5 * m : ldexp(1.0 + 0.5 * m, e - 1);
    return code >= 8 ? -magnitude : magnitude;
}

static double value_of(enum gr_format format, const uint8_t *b, int i)
{
    const int k_code = (i / 64 * 32 + i % 32) * 8 + i / 32 % 2 * 4;
    switch (format) {
    case GR_FORMAT_Q4_0:
        return half_in(b) * (nibble(b + 2, i) - 8);
    case GR_FORMAT_Q4_1:
        return half_in(b) * nibble(b + 4, i) + half_in(b + 2);
    case GR_FORMAT_Q5_0:
        return half_in(b) * (nibble(b + 6, i) + 16 * bits_of(b + 2, i, 1) - 16);
    case GR_FORMAT_Q5_1:
        return half_in(b) * (nibble(b + 8, i) + 16 * bits_of(b + 4, i, 1)) + half_in(b + 2);
    case GR_FORMAT_Q8_0:
        return half_in(b) * (b[2 + i] < 128 ? b[2 + i] : b[2 + i] - 256);
    case GR_FORMAT_MXFP4:
        return ldexp(e2m1_value(nibble(b + 1, i)), b[0] - 127);
    case GR_FORMAT_Q2_K:
        return half_in(b + 80) * bits_of(b + i / 16, 0, 4) * bits_of(b + 16, two_bits_at(i), 2) -
               half_in(b + 82) * bits_of(b + i / 16, 4, 4);
    case GR_FORMAT_Q3_K: {
        const int k = i / 16, code = bits_of(b + 32, two_bits_at(i), 2) + 4 * bits_of(b, i % 32 * 8 + i / 32, 1);
        const int scale = bits_of(b + 96 + k % 8, k / 8 * 4, 4) + 16 * bits_of(b + 104 + k % 4, k / 4 * 2, 2);
        return half_in(b + 108) * (scale - 32) * (code - 4);
    }
    case GR_FORMAT_Q4_K:
        return k_value(b, bits_of(b + 16, k_code, 4), i);
    case GR_FORMAT_Q5_K:
        return k_value(b, bits_of(b + 48, k_code, 4) + 16 * bits_of(b + 16, i % 32 * 8 + i / 32, 1), i);
    case GR_FORMAT_Q6_K: {
        const int half = i / 128, row = i / 32 % 4, j = i % 32, scale = b[192 + i / 16];
        const int low = bits_of(b + half * 64 + row % 2 * 32 + j, row / 2 * 4, 4);
        const int high = bits_of(b + 128 + half * 32 + j, row * 2, 2);
        return half_in(b + 208) * (scale < 128 ? scale : scale - 256) * (low + 16 * high - 32);
    }
    default:
        fail();
        return 0.0;
    }
}

/* ---- golden ---- */

static const struct {
    enum gr_format format;
    int halves[2];   /* where a block has halves; they are kept finite. -1: none */
    uint64_t golden; /* FNV-1a of the f32 bytes that gguf-py 0.19 dequantises from the same N_BLOCK blocks */
} rows[] = {
    {GR_FORMAT_Q4_0, {0, -1}, UINT64_C(0xf4e34feeaa06fdb0)},
    {GR_FORMAT_Q4_1, {0, 2}, UINT64_C(0xe22aed22c793b6b4)},
    {GR_FORMAT_Q5_0, {0, -1}, UINT64_C(0x830cbda9732615b9)},
    {GR_FORMAT_Q5_1, {0, 2}, UINT64_C(0x2c6884c031da506e)},
    {GR_FORMAT_Q8_0, {0, -1}, UINT64_C(0x9f4248cd0678d46b)},
    {GR_FORMAT_MXFP4, {-1, -1}, UINT64_C(0x78d9192437266398)},
    {GR_FORMAT_Q2_K, {80, 82}, UINT64_C(0x40fc03b21210662f)},
    {GR_FORMAT_Q3_K, {108, -1}, UINT64_C(0x439aa2d7c47c2e98)},
    {GR_FORMAT_Q4_K, {0, 2}, UINT64_C(0x49dde0f9d8ad163d)},
    {GR_FORMAT_Q5_K, {0, 2}, UINT64_C(0x051f7d3e3d553df0)},
    {GR_FORMAT_Q6_K, {208, -1}, UINT64_C(0xe5c2e9a93562d9af)},
};

static void random_blocks(size_t row, uint8_t *data, size_t block_bytes)
{
    uint64_t s = UINT64_C(0x9E3779B97F4A7C15);
    for (size_t i = 0; i < N_BLOCK * block_bytes; i++) {
        s ^= s << 13;
        s ^= s >> 7;
        s ^= s << 17;
        data[i] = (uint8_t)(s >> 56);
    }
    for (size_t b = 0; b < N_BLOCK; b++) {
        for (int k = 0; k < 2 && rows[row].halves[k] >= 0; k++) {
            data[b * block_bytes + (size_t)rows[row].halves[k] + 1] &= 0xbf;
        }
    }
}

static void test_blocks(void **state)
{
    (void)state;
    static uint8_t data[N_BLOCK * 256];
    static float out[N_BLOCK * 256];
    for (size_t row = 0; row < GR_ARRAY_LEN(rows); row++) {
        const enum gr_format format = rows[row].format;
        const size_t bytes = gr_format_bytes(format), len = gr_format_block(format);
        random_blocks(row, data, bytes);
        gr_format_to_f32(format, data, N_BLOCK * len, out);
        uint64_t hash = UINT64_C(0xcbf29ce484222325);
        for (size_t i = 0; i < N_BLOCK * len * sizeof(float); i++) {
            hash = (hash ^ ((const uint8_t *)out)[i]) * UINT64_C(0x100000001b3);
        }
        for (size_t i = 0; i < N_BLOCK * len; i++) {
            /* as a float, as MXFP4's largest are infinite */
            const double want = (double)(float)value_of(format, data + i / len * bytes, (int)(i % len));
            if (fabs((double)out[i] - want) > 1e-3 * fabs(want) + 1e-3) { /* sums cancel; the hash judges the bits */
                fail_msg("%s: element %zu is %g, by the description %g", gr_format_name(format), i, (double)out[i],
                         want);
            }
        }
        if (hash != rows[row].golden) {
            fail_msg("%s: %016llx is not gguf-py's", gr_format_name(format), (unsigned long long)hash);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_halves),
        cmocka_unit_test(test_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
