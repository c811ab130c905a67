/* bf16 as a pair of bytes: the upper half of an f32. What weights are stored in, and features kept and sent. */
#ifndef GR_COMMON_RULES_BF16_H
#define GR_COMMON_RULES_BF16_H

#include <stdint.h>
#include <string.h>

/* Round to nearest, ties to even; a NaN stays one. */
static inline uint16_t gr_bf16_from_f32(float x)
{
    uint32_t u = 0;
    memcpy(&u, &x, sizeof(u));
    if ((u & 0x7fffffffu) > 0x7f800000u) {
        return (uint16_t)(u >> 16 | 0x40u);
    }
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

static inline float gr_bf16_to_f32(uint16_t h)
{
    const uint32_t u = (uint32_t)h << 16;
    float x = 0.0f;
    memcpy(&x, &u, sizeof(x));
    return x;
}

#endif
