#include "model/files/format.h"

#include <string.h>

#include "common/rules/bf16.h"

static const char *const names[] = {
#define X(name, bytes, n) #name,
    GR_FORMAT_LIST(X)
#undef X
};

static const size_t block_bytes[] = {
#define X(name, bytes, n) bytes,
    GR_FORMAT_LIST(X)
#undef X
};

static const size_t block_len[] = {
#define X(name, bytes, n) n,
    GR_FORMAT_LIST(X)
#undef X
};

const char *gr_format_name(enum gr_format dtype)
{
    return (size_t)dtype < GR_N_FORMAT ? names[dtype] : "(unknown)";
}

size_t gr_format_bytes(enum gr_format dtype)
{
    return (size_t)dtype < GR_N_FORMAT ? block_bytes[dtype] : 0;
}

size_t gr_format_block(enum gr_format dtype)
{
    return (size_t)dtype < GR_N_FORMAT ? block_len[dtype] : 1;
}

/* ---- halves ---- */

/* The exponents of the two formats are 112 apart. The product is exact, and is what a subnormal half needs. */
float gr_f16_to_f32(uint16_t h)
{
    const uint32_t magnitude = (uint32_t)(h & 0x7fffu) << 13;
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    const uint32_t times_2_112 = 0x77800000u;
    float x = 0.0f, scale = 0.0f;
    memcpy(&x, &magnitude, sizeof(x));
    memcpy(&scale, &times_2_112, sizeof(scale));
    x *= scale;
    uint32_t u = 0;
    memcpy(&u, &x, sizeof(u));
    u = magnitude >= 0x0f800000u ? magnitude | 0x7f800000u : u; /* infinity and NaN */
    u |= sign;
    memcpy(&x, &u, sizeof(x));
    return x;
}

static void f16_to_f32(const uint8_t *p, size_t n, float *out)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t h = 0;
        memcpy(&h, p + 2 * i, sizeof(h));
        out[i] = gr_f16_to_f32(h);
    }
}

static void bf16_to_f32(const uint8_t *p, size_t n, float *out)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t h = 0;
        memcpy(&h, p + 2 * i, sizeof(h));
        out[i] = gr_bf16_to_f32(h);
    }
}

static float half_at(const uint8_t *p)
{
    return gr_f16_to_f32((uint16_t)(p[0] | p[1] << 8));
}

/* ---- blocks of 32: a half d (and a half m), then codes ----
 * A product that something is added to is a statement of its own, so that no compiler fuses the two (the build's
 * -ffp-contract and clang's default both end at a statement).
 * Four bits each: byte j holds the code of element j in its low half, that of element j + 16 in its high half. */

/* d * (q - 8) */
static void q4_0_to_f32(const uint8_t *b, float *out)
{
    const float d = half_at(b);
    for (int j = 0; j < 16; j++) {
        out[j] = d * (float)((b[2 + j] & 15) - 8);
        out[j + 16] = d * (float)((b[2 + j] >> 4) - 8);
    }
}

/* d * q + m */
static void q4_1_to_f32(const uint8_t *b, float *out)
{
    const float d = half_at(b), m = half_at(b + 2);
    for (int j = 0; j < 16; j++) {
        const float lo = d * (float)(b[4 + j] & 15);
        const float hi = d * (float)(b[4 + j] >> 4);
        out[j] = lo + m;
        out[j + 16] = hi + m;
    }
}

/* The fifth bit of element i's code is bit i of the 32 after d (and m). */
static int fifth_bit(const uint8_t *bits, int i)
{
    return (bits[i / 8] >> (i % 8) & 1) << 4;
}

/* d * (q - 16) */
static void q5_0_to_f32(const uint8_t *b, float *out)
{
    const float d = half_at(b);
    for (int j = 0; j < 16; j++) {
        out[j] = d * (float)(((b[6 + j] & 15) | fifth_bit(b + 2, j)) - 16);
        out[j + 16] = d * (float)((b[6 + j] >> 4 | fifth_bit(b + 2, j + 16)) - 16);
    }
}

/* d * q + m */
static void q5_1_to_f32(const uint8_t *b, float *out)
{
    const float d = half_at(b), m = half_at(b + 2);
    for (int j = 0; j < 16; j++) {
        const float lo = d * (float)((b[8 + j] & 15) | fifth_bit(b + 4, j));
        const float hi = d * (float)(b[8 + j] >> 4 | fifth_bit(b + 4, j + 16));
        out[j] = lo + m;
        out[j + 16] = hi + m;
    }
}

/* d * q, q a signed byte */
static void q8_0_to_f32(const uint8_t *b, float *out)
{
    const float d = half_at(b);
    for (int j = 0; j < 32; j++) {
        out[j] = d * (float)(int8_t)b[2 + j];
    }
}

/* A byte e, then codes: 2^(e - 127) times a number of one sign, two exponent and one mantissa bits (OCP Microscaling
 * Formats 1.0, E8M0 and E2M1). As ggml reads it: code 8, minus zero, is zero, and e = 255 is no NaN. The codes' numbers
 * are doubled here to be whole, and the scale is halved: e < 2 is then a subnormal. */
static void mxfp4_to_f32(const uint8_t *b, float *out)
{
    static const float twice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    const uint32_t bits = b[0] < 2 ? 0x00200000u << b[0] : (uint32_t)(b[0] - 1) << 23;
    float d = 0.0f;
    memcpy(&d, &bits, sizeof(d));
    for (int j = 0; j < 16; j++) {
        out[j] = d * twice[b[1 + j] & 15];
        out[j + 16] = d * twice[b[1 + j] >> 4];
    }
}

/* ---- blocks of 256 ("K") ---- */

/* Codes of two bits in 64 bytes: each half of the block (128 elements) has 32 of them, and of its four rows of 32
 * elements row r has bits 2 r and 2 r + 1 of byte j. */
static int two_bits(const uint8_t *codes, int i)
{
    return codes[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
}

/* 16 bytes of scale (low half) and minimum (high half), each for 16 elements, 64 bytes of codes, d, dmin:
 * (d * scale) * q - dmin * min. */
static void q2_k_to_f32(const uint8_t *b, float *out)
{
    const float d = half_at(b + 80), dmin = half_at(b + 82);
    for (int i = 0; i < 256; i++) {
        const float ds = d * (float)(b[i / 16] & 15), dm = dmin * (float)(b[i / 16] >> 4);
        const float product = ds * (float)two_bits(b + 16, i);
        out[i] = product - dm;
    }
}

/* Scale k (of 16) of Q3_K, six bits in 12 bytes: the low four in halves of the first eight bytes, the scales from 8 on
 * in the high ones; the upper two in byte 8 + k % 4, lowest bits first. */
static int six_bits(const uint8_t *s, int k)
{
    return (s[k % 8] >> (k / 8 * 4) & 15) | (s[8 + k % 4] >> (k / 4 * 2) & 3) << 4;
}

/* 32 bytes of third bits (bit r of byte j is of element j of row r, of eight rows of 32), 64 bytes of codes, 12 of
 * scales, d: (d * (scale - 32)) * (q - 4), q of three bits. */
static void q3_k_to_f32(const uint8_t *b, float *out)
{
    const float d = half_at(b + 108);
    for (int i = 0; i < 256; i++) {
        const float ds = d * (float)(six_bits(b + 96, i / 16) - 32);
        const int third = b[i % 32] >> (i / 32) & 1;
        out[i] = ds * (float)((two_bits(b + 32, i) | third << 2) - 4);
    }
}

/* Scale and minimum of part i (of 8, 32 elements each), six bits each in 12 bytes: of the first four parts in the low
 * bits of bytes i and i + 4; of the last four the low halves in byte i + 4, the two high bits in the tops of those. */
static void scale_and_min(const uint8_t *s, int i, int *scale_out, int *min_out)
{
    if (i < 4) {
        *scale_out = s[i] & 63;
        *min_out = s[i + 4] & 63;
        return;
    }
    *scale_out = (s[i + 4] & 15) | (s[i - 4] >> 6) << 4;
    *min_out = s[i + 4] >> 4 | (s[i] >> 6) << 4;
}

/* d, dmin, 12 bytes of scales, 128 bytes of codes: (d * scale) * q - dmin * min. 32 bytes hold two parts, the first in
 * their low halves. high: of Q5_K, 32 bytes whose bit i is the fifth of part i's codes; NULL: none. */
static void q45_k_to_f32(const uint8_t *b, const uint8_t *high, const uint8_t *codes, float *out)
{
    const float d = half_at(b), dmin = half_at(b + 2);
    for (int i = 0; i < 8; i++) {
        int scale = 0, min = 0;
        scale_and_min(b + 4, i, &scale, &min);
        const float ds = d * (float)scale, dm = dmin * (float)min;
        const uint8_t *q = codes + i / 2 * 32;
        for (int j = 0; j < 32; j++) {
            int code = i % 2 == 0 ? q[j] & 15 : q[j] >> 4;
            code |= high != NULL ? (high[j] >> i & 1) << 4 : 0;
            const float product = ds * (float)code;
            out[i * 32 + j] = product - dm;
        }
    }
}

static void q4_k_to_f32(const uint8_t *b, float *out)
{
    q45_k_to_f32(b, NULL, b + 16, out);
}

static void q5_k_to_f32(const uint8_t *b, float *out)
{
    q45_k_to_f32(b, b + 16, b + 48, out);
}

/* 128 bytes of low halves, 64 bytes of the upper two bits, 16 signed scales, d: (d * scale) * (q - 32). Each half of
 * the block (128 elements) has 64 and 32 of those bytes; of its four rows of 32, rows 0 and 2 lie in the low and high
 * halves of its first 32 bytes, rows 1 and 3 of the second; byte j of the upper bits has two for each row. A scale
 * stands for 16 elements. */
static void q6_k_to_f32(const uint8_t *b, float *out)
{
    const float d = half_at(b + 208);
    for (int i = 0; i < 256; i++) {
        const int half = i / 128, row = i % 128 / 32, j = i % 32;
        const uint8_t low = b[half * 64 + row % 2 * 32 + j];
        const uint8_t high = b[128 + half * 32 + j];
        const int code = (row < 2 ? low & 15 : low >> 4) | (high >> (2 * row) & 3) << 4;
        const float ds = d * (float)(int8_t)b[192 + i / 16];
        out[i] = ds * (float)(code - 32);
    }
}

typedef void block_fn(const uint8_t *block, float *out);

static block_fn *const block_fns[GR_N_FORMAT] = {
    [GR_FORMAT_Q4_0] = q4_0_to_f32, [GR_FORMAT_Q4_1] = q4_1_to_f32, [GR_FORMAT_Q5_0] = q5_0_to_f32,
    [GR_FORMAT_Q5_1] = q5_1_to_f32, [GR_FORMAT_Q8_0] = q8_0_to_f32, [GR_FORMAT_MXFP4] = mxfp4_to_f32,
    [GR_FORMAT_Q2_K] = q2_k_to_f32, [GR_FORMAT_Q3_K] = q3_k_to_f32, [GR_FORMAT_Q4_K] = q4_k_to_f32,
    [GR_FORMAT_Q5_K] = q5_k_to_f32, [GR_FORMAT_Q6_K] = q6_k_to_f32,
};

void gr_format_to_f32(enum gr_format dtype, const void *data, size_t n, float *out)
{
    GR_ASSERT(gr_format_is_weight(dtype) && n % block_len[dtype] == 0);
    if (dtype == GR_FORMAT_F32) {
        memcpy(out, data, n * sizeof(*out));
    } else if (dtype == GR_FORMAT_F16) {
        f16_to_f32(data, n, out);
    } else if (dtype == GR_FORMAT_BF16) {
        bf16_to_f32(data, n, out);
    } else {
        const uint8_t *p = data;
        for (size_t i = 0; i < n; i += block_len[dtype], p += block_bytes[dtype]) {
            block_fns[dtype](p, out + i);
        }
    }
}
