/* What the device and the host of the exchange prototype share: sizes, the place of a session, records for the
 * replay, the target's stand-in for logits. Common subset of C and CUDA C++. */
#ifndef GR_BENCH_EXCHANGE_H
#define GR_BENCH_EXCHANGE_H

#include "common/rules/gr_math.h"
#include "common/rules/hash.h"

#include <stdint.h>

enum {
    GX_FRAME_BYTES = 512,   /* slot of a DRAFT: 40 + 4 + 6 * 63 = 422 are the most it takes */
    GX_VERDICT_BYTES = 256, /* slot of a VERDICT: 40 + 20 + 63 = 123 are the most it takes */
    GX_COMPACT_BYTES = 16,  /* round u32, bonus u32, accepted nodes u64 */
    GX_N_VOCAB = 128256,
    GX_N_TREE = 64,
    GX_CORRUPT_EVERY = 16,
    GX_CORRUPT_AT = 5,
    GX_N_CORRUPTION = 11
};
#define GX_COMPACT_ROOT_ONLY (1ull << 63) /* nodes are 0 .. 62 */

/* Why a frame was refused; the first that holds, in this order. */
enum gx_fault { GX_GOOD = 0, GX_BAD_HEADER = 1, GX_BAD_TREE = 2, GX_BAD_PLACE = 4 };

/* What both sides must agree on before a round. */
struct gx_place {
    uint64_t session, hash; /* hash: of base_len tokens */
    uint32_t epoch, round, base_len, pad;
};

/* A round as the target's device saw it: its private copy of the DRAFT, and what it answered. */
struct gx_record {
    uint8_t frame[GX_FRAME_BYTES];
    uint8_t verdict[GX_VERDICT_BYTES];
    uint32_t fault; /* enum gx_fault */
    uint32_t pad[3];
};

/* The host's machine that follows the same frames. */
struct gx_replay {
    struct gx_place place;
    uint32_t n_round, n_refused, n_mismatch,
        n_misjudged; /* misjudged: a planted fault taken, or a sound frame refused */
};

GR_FN int gx_is_corrupted(uint32_t i_round)
{
    return i_round % GX_CORRUPT_EVERY == GX_CORRUPT_AT;
}

/* Stands for the target's own pick after `row`: a child in three of four cases where there is one. */
GR_FN int32_t gx_pick(const struct gx_place *p, int row, int32_t first_child_token /* -1: no child */)
{
    const uint64_t h = gr_mix64(p->hash ^ ((uint64_t)row + 1) * (uint64_t)GR_HASH_GOLDEN);
    return first_child_token >= 0 && (h & 3) != 0 ? first_child_token : (int32_t)((h >> 8) % GX_N_VOCAB);
}

#ifdef __cplusplus
extern "C" {
#endif
/* One round. verdict_bytes: 16 or 256, the form that was published. */
void gx_replay_round(struct gx_replay *r, const struct gx_record *rec, int verdict_bytes);
#ifdef __cplusplus
}
#endif
#endif
