/* Byte offsets of the data path's frames (docs/frames.md). All integers little-endian. A device that
 * reads or writes frames uses these offsets; hosts use wire.h. Common subset of C and CUDA C++. */
#ifndef GR_COMMON_PROTOCOL_WIRE_LAYOUT_H
#define GR_COMMON_PROTOCOL_WIRE_LAYOUT_H

#define GR_WIRE_MAGIC 0x54465247u /* "GRFT" */
#define GR_WIRE_VERSION 1

enum gr_wire_header_offset {
    GR_WIRE_OFF_MAGIC = 0,        /* u32 */
    GR_WIRE_OFF_VERSION = 4,      /* u8 */
    GR_WIRE_OFF_TYPE = 5,         /* u8, enum gr_frame_type */
    GR_WIRE_OFF_FLAGS = 6,        /* u16, by type */
    GR_WIRE_OFF_SESSION = 8,      /* u64 */
    GR_WIRE_OFF_EPOCH = 16,       /* u32 */
    GR_WIRE_OFF_ROUND = 20,       /* u32 */
    GR_WIRE_OFF_BASE_LEN = 24,    /* u32 */
    GR_WIRE_OFF_PAYLOAD_LEN = 28, /* u32 */
    GR_WIRE_OFF_HASH = 32,        /* u64 */
    GR_WIRE_HEADER_BYTES = 40
};

enum gr_frame_type {
    GR_FRAME_DRAFT = 1,
    GR_FRAME_VERDICT = 2,
    GR_FRAME_DESYNC = 3,
    GR_FRAME_RESYNC = 4,
    GR_FRAME_DELTA = 5,
    GR_FRAME_FEATURES = 6,
    GR_FRAME_COST = 7,
    GR_FRAME_TAKEN = 8
};

/* DRAFT payload: n u32, token_id u32[n], parent i16[n]. */
enum { GR_WIRE_DRAFT_OFF_N = 0, GR_WIRE_DRAFT_OFF_TOKEN = 4 };
#define GR_WIRE_DRAFT_BYTES(n) (4u + 6u * (unsigned)(n))

/* VERDICT payload, fixed part, then node u8[n_path]. */
enum {
    GR_WIRE_VERDICT_OFF_DRAFT_ROUND = 0, /* u32; all ones: root-only */
    GR_WIRE_VERDICT_OFF_KEEP_LEN = 4,    /* u32 */
    GR_WIRE_VERDICT_OFF_FINAL_LEN = 8,   /* u32 */
    GR_WIRE_VERDICT_OFF_BONUS = 12,      /* u32 */
    GR_WIRE_VERDICT_OFF_KIND = 16,       /* u8, enum gr_verdict_kind */
    GR_WIRE_VERDICT_OFF_FINISH = 17,     /* u8, enum gr_finish */
    GR_WIRE_VERDICT_OFF_N_PATH = 18,     /* u8 */
    GR_WIRE_VERDICT_OFF_N_WANT = 19,     /* u8, nodes wanted at most in the next tree; 0: none is wanted */
    GR_WIRE_VERDICT_OFF_NODE = 20
};
#define GR_WIRE_VERDICT_BYTES(n_path) (20u + (unsigned)(n_path))
#define GR_WIRE_ROOT_ONLY 0xffffffffu /* in place of a DRAFT's round: the pass had no tree */

#endif
