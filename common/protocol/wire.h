/* Codec of the data path's frames: DRAFT, VERDICT, DESYNC, RESYNC, DELTA, FEATURES, COST, TAKEN. Layout in
 * wire_layout.h.
 * Decoding checks magic, version, type, every count and the exact length before anything is used; it never allocates
 * and never reads outside [frame, frame + len). A decoded view borrows the frame's bytes where it says so. */
#ifndef GR_COMMON_PROTOCOL_WIRE_H
#define GR_COMMON_PROTOCOL_WIRE_H

#include "common/rules/accept.h"
#include "common/base/status.h"
#include "common/rules/token_tree.h"
#include "common/protocol/wire_layout.h"

#include <stdbool.h>
#include <stddef.h>

#define GR_DELTA_ID_MAX 1024    /* ids in one DELTA frame; longer deltas are cut into several */
#define GR_RESYNC_HASH_MAX 33   /* hash at my_len and at my_len - 2^k, k = 0 .. 31 */
#define GR_FEATURES_ROW_MAX 32  /* rows in one FEATURES frame */
#define GR_FEATURES_WINDOW 1024 /* rows of a session that were sent and of which no TAKEN has come, at most */
#define GR_COST_POINT_MAX 16    /* points of one COST frame */

/* Largest small frame: a full DELTA. */
#define GR_WIRE_SMALL_BYTES_MAX (GR_WIRE_HEADER_BYTES + 8u + 4u * GR_DELTA_ID_MAX)

enum gr_verdict_kind { GR_VERDICT_PLAIN = 0, GR_VERDICT_PARTIAL = 1, GR_VERDICT_FULL = 2 };
enum gr_desync_reason {
    GR_DESYNC_HASH = 1,
    GR_DESYNC_AHEAD = 2,
    GR_DESYNC_EPOCH = 3,
    GR_DESYNC_UNKNOWN_SESSION = 4,
    GR_DESYNC_DETACHED = 5
};

/* Flags of DELTA. */
#define GR_DELTA_LAST 1u  /* the receiver now holds all the sender has committed */
#define GR_DELTA_DRAFT 2u /* with LAST: the last id is a tail that waits for a tree of header.round */
/* With DRAFT the flags' high byte says how many nodes are wanted at most, 1 .. 63. */
#define GR_DELTA_WANT(n) ((uint16_t)((unsigned)(n) << 8))
#define GR_DELTA_N_WANT(flags) ((int32_t)((flags) >> 8))

/* Flag of VERDICT and DELTA: those of other sessions that were in the same pass follow at once. A hint: trees that are
 * grown together cost less, so a drafter may wait for them a moment. */
#define GR_FRAME_MORE 4u

/* Flags of DRAFT: the time from being asked to sending, in units, at least 1; 0: not told. And what became of drafting
 * ahead, that is of growing on while the target verified. */
#define GR_FRAME_DRAFT_TIME 0x3fffu
#define GR_FRAME_DRAFT_UNIT_NS 4000u
#define GR_FRAME_DRAFT_AHEAD 0x4000u /* the verdict before this tree met work that was done ahead */
#define GR_FRAME_DRAFT_HIT 0x8000u   /* with AHEAD: and that work was of use to this tree */

/* Flag of FEATURES: the sender keeps nothing before first_pos; the receiver begins there if it has less. */
#define GR_FEATURES_START 1u
/* flags of FEATURES: the rows replace others of the same positions, and what was computed from those */
#define GR_FEATURES_AGAIN 2u
#define GR_FEATURES_BF16 2                /* dtype, as in HELLO; the rows' elements are little-endian */
#define GR_WIRE_BULK_BYTES_MAX (1u << 20) /* of a frame; FEATURES hold fewer rows where they are wide */
#define GR_FEATURES_ROW_BYTES_MAX (GR_WIRE_BULK_BYTES_MAX - 256u)
#define GR_FEATURE_CONTEXT_MIN \
    2 /* positions that a head looks back: the tail's row takes the feature of the one before it */
#define GR_FEATURES_NONE 0xffffffffu /* RESYNC's feature_len of a drafter that takes no features */

struct gr_frame_header {
    uint8_t type;   /* enum gr_frame_type */
    uint16_t flags; /* by type */
    uint64_t session;
    uint32_t epoch, round, base_len, payload_len;
    uint64_t prefix_hash;
};

struct gr_verdict {
    uint32_t draft_round; /* GR_WIRE_ROOT_ONLY: the pass had no tree */
    uint32_t keep_len;    /* tokens of the base that stand; < base_len only after an exact-SpecPV roll-back */
    uint32_t final_len;
    int32_t bonus;
    uint8_t kind, finish, n_path;
    uint8_t n_want; /* nodes wanted at most in the next tree; 0: none is wanted, the target does not wait */
    uint8_t node[GR_NODE_MAX];
};

struct gr_resync {
    uint32_t my_len, n_hash;
    uint32_t feature_len;              /* positions before it need no FEATURES, at most my_len; or GR_FEATURES_NONE */
    uint32_t feature_context;          /* positions further back than this many tokens need none either; 0: all do */
    uint64_t hash[GR_RESYNC_HASH_MAX]; /* hash_at(my_len), hash_at(my_len - 1), -2, -4, ... while > 0 */
};

struct gr_delta {
    uint32_t common_len, n_id; /* header.base_len = common_len + n_id */
    const uint8_t *id_bytes;   /* borrowed: u32[n_id] */
};

struct gr_features {
    uint32_t first_pos, n_row, width; /* header.base_len = first_pos + n_row */
    uint8_t dtype;                    /* as agreed in HELLO */
    uint8_t raw;                      /* 1: the captured states, 0: fused */
    const uint8_t *row_bytes;         /* borrowed: n_row * width elements */
};

/* What a round of the session costs beside the draft, so that the drafter can weigh a node against its price:
 * overhead_ns (host work and wire) plus a pass of n_row rows (tail included), linear between points and beyond the
 * last one. Points increase in n_row; the first has n_row 1: a round without a tree. */
struct gr_cost {
    uint32_t overhead_ns, n_point;
    uint32_t n_row[GR_COST_POINT_MAX], pass_ns[GR_COST_POINT_MAX];
};

/* Length prefix lengths of a RESYNC: my_len, then my_len - 2^k while positive. Returns how many. */
int gr_resync_lengths(uint32_t my_len, uint32_t len_out[GR_RESYNC_HASH_MAX]);

/* Header of a frame, and that len is exactly header + payload. GR_EFORMAT (one line logged) otherwise. */
GR_NODISCARD enum gr_status gr_wire_decode_header(const uint8_t *frame, size_t len, struct gr_frame_header *out);
/* Payload decoders; `frame` is the whole frame, its header already decoded. n_vocab bounds ids. */
GR_NODISCARD enum gr_status gr_wire_decode_draft(const uint8_t *frame, size_t len, int32_t n_vocab,
                                                 struct gr_token_tree *out);
GR_NODISCARD enum gr_status gr_wire_decode_verdict(const uint8_t *frame, size_t len, int32_t n_vocab,
                                                   struct gr_verdict *out);
GR_NODISCARD enum gr_status gr_wire_decode_desync(const uint8_t *frame, size_t len, uint32_t *reason_out,
                                                  uint32_t *my_len_out);
GR_NODISCARD enum gr_status gr_wire_decode_resync(const uint8_t *frame, size_t len, struct gr_resync *out);
GR_NODISCARD enum gr_status gr_wire_decode_delta(const uint8_t *frame, size_t len, struct gr_delta *out);
GR_NODISCARD enum gr_status gr_wire_decode_features(const uint8_t *frame, size_t len, struct gr_features *out);
GR_NODISCARD enum gr_status gr_wire_decode_cost(const uint8_t *frame, size_t len, struct gr_cost *out);
GR_NODISCARD enum gr_status gr_wire_decode_taken(const uint8_t *frame, size_t len);
int32_t gr_delta_id(const struct gr_delta *d, uint32_t i); /* may be any 32-bit value: check it */

/* Encoders write header and payload (h->payload_len and h->type are set by them) and return the frame's bytes;
 * 0 when cap is too small (the caller's error). */
size_t gr_wire_encode_draft(const struct gr_frame_header *h, const struct gr_token_tree *t, uint8_t *out, size_t cap);
size_t gr_wire_encode_verdict(const struct gr_frame_header *h, const struct gr_verdict *v, uint8_t *out, size_t cap);
size_t gr_wire_encode_desync(const struct gr_frame_header *h, uint32_t reason, uint32_t my_len, uint8_t *out,
                             size_t cap);
size_t gr_wire_encode_resync(const struct gr_frame_header *h, const struct gr_resync *r, uint8_t *out, size_t cap);
size_t gr_wire_encode_delta(const struct gr_frame_header *h, uint32_t common_len, const int32_t *id, uint32_t n_id,
                            uint8_t *out, size_t cap);
/* Writes header and fixed part; the rows follow at *rows_out (n_row * row_bytes), in place. */
size_t gr_wire_encode_features(const struct gr_frame_header *h, const struct gr_features *f, size_t row_bytes,
                               uint8_t *out, size_t cap, uint8_t **rows_out);
#define GR_WIRE_COST_BYTES(n_point) (8u + 8u * (unsigned)(n_point))
size_t gr_wire_encode_cost(const struct gr_frame_header *h, const struct gr_cost *c, uint8_t *out, size_t cap);
/* TAKEN is its header: features before base_len are not needed any more. */
size_t gr_wire_encode_taken(const struct gr_frame_header *h, uint8_t *out, size_t cap);
#define GR_WIRE_RESYNC_BYTES(n_hash) (16u + 8u * (unsigned)(n_hash))
#define GR_WIRE_FEATURES_BYTES(n_row, row_bytes) (12u + (size_t)(n_row) * (row_bytes))
/* Rows of row_bytes (> 0) that a FEATURES frame holds at most; 0: such a row fits none. */
static inline int32_t gr_features_frame_rows(size_t row_bytes)
{
    const size_t n = GR_FEATURES_ROW_BYTES_MAX / row_bytes;
    return n < GR_FEATURES_ROW_MAX ? (int32_t)n : GR_FEATURES_ROW_MAX;
}
/* The largest such frame, header included: what a slot for them has to hold. */
static inline size_t gr_features_frame_bytes(size_t row_bytes)
{
    return GR_WIRE_HEADER_BYTES + GR_WIRE_FEATURES_BYTES(gr_features_frame_rows(row_bytes), row_bytes);
}
size_t gr_dtype_bytes(uint8_t dtype); /* 0: unknown */

#endif
