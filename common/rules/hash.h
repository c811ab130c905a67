/* The prefix hash: h[0] = 0, h[i + 1] = mix(h[i] ^ (token[i] + 1) * 0x9E3779B97F4A7C15), mix = the finaliser of
 * splitmix64. Both sides keep the whole array, so the hash of every length is known: equal lengths with
 * different tokens are told apart. Header only; common subset of C and CUDA C++. */
#ifndef GR_COMMON_RULES_HASH_H
#define GR_COMMON_RULES_HASH_H

#include "common/rules/gr_math.h"

#define GR_HASH_GOLDEN 0x9E3779B97F4A7C15ull /* 2^64 over the golden ratio, odd: SplitMix64's step */

GR_FN uint64_t gr_mix64(uint64_t x)
{
    x ^= x >> 30;
    x *= 0xBF58476D1CE4E5B9ull;
    x ^= x >> 27;
    x *= 0x94D049BB133111EBull;
    x ^= x >> 31;
    return x;
}

/* Hash of a prefix of hash h extended by one token. */
GR_FN uint64_t gr_hash_extend(uint64_t h, int32_t token)
{
    return gr_mix64(h ^ ((uint64_t)(uint32_t)token + 1) * GR_HASH_GOLDEN);
}

#endif
