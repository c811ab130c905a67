/* Control messages between the orchestrator and its workers and clients: msgpack maps with the key "t" (type name) and
 * the fields of messages.inc, the one table that structs and codec are made from. An unknown type or key, a missing or
 * mistyped field, or a value out of range refuses the message.
 *
 * A message owns its arrays once decoded (gr_msg_finish). For sending, arrays are borrowed. */
#ifndef GR_COMMON_PROTOCOL_MSG_H
#define GR_COMMON_PROTOCOL_MSG_H

#include "common/base/status.h"
#include "common/protocol/wishes.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GR_MSG_BYTES_MAX (8u << 20) /* bytes of one control message */
#define GR_MSG_ID_MAX (1 << 20)     /* ids in one array */
#define GR_MSG_TEXT_MAX 256         /* bytes of a text, its NUL included */
#define GR_NUMERICS_ID_MAX 96       /* of a worker's numerics id, the same way */
#define GR_MSG_ANSWER_MAX 16384     /* of what tells an answer again, the same way */
#define GR_TRACE_ID_MAX 33          /* of a trace's id, its NUL included */
#define GR_MODEL_NAME_MAX 128       /* of a model's name in a fleet, its NUL included */
#define GR_SEAT_MAX 64              /* of a worker's seat, the same way */
#define GR_HOST_NAME_MAX 64         /* of a host's name or numeric address, the same way */
/* Log-probabilities of a COMMIT: a refresh's chain, a tree's path and the bonus. */
#define GR_MSG_LOGPROB_MAX 6720 /* (GR_SPECPV_BUFFER_MAX + GR_TREE_MAX) * GR_LOGPROB_ROW */

/* Types of messages. */
enum gr_msg_type {
#define GR_MSG_BARE(NAME, about) GR_MSG_##NAME,
#define GR_MSG_BEGIN(NAME, member, about) GR_MSG_##NAME,
#include "common/protocol/messages.inc"
    GR_N_MSG
};

struct gr_msg_ids {
    int32_t *p; /* decoded: owned by the message; encoding: borrowed */
    uint32_t n;
};

struct gr_msg_floats {
    float *p; /* as gr_msg_ids */
    uint32_t n;
};

/* A text that is too long for a place in the message. */
struct gr_msg_long {
    char *p;    /* as gr_msg_ids; decoded: with a NUL after it */
    uint32_t n; /* bytes; 0: there is none */
};

/* What a field of each kind is in C. */
#define GR_FIELD_BOOL(name, limit) bool name;
#define GR_FIELD_U32(name, limit) uint32_t name;
#define GR_FIELD_U64(name, limit) uint64_t name;
#define GR_FIELD_F64(name, limit) double name;
#define GR_FIELD_STR(name, limit) char name[limit];
#define GR_FIELD_TEXT(name, limit) struct gr_msg_long name;
#define GR_FIELD_IDS(name, limit) struct gr_msg_ids name;
#define GR_FIELD_FLOATS(name, limit) struct gr_msg_floats name;

/* struct gr_msg_join, gr_msg_open, ...: a message without its session. */
/* clang-format off */
#define GR_MSG_BEGIN(NAME, member, about) struct gr_msg_##member {
#define GR_FIELD(kind, name, need, limit) GR_FIELD_##kind(name, limit)
#define GR_PART(type, name) type name;
#define GR_MSG_END(NAME, member) };
/* clang-format on */
#include "common/protocol/messages.inc"

struct gr_msg {
    enum gr_msg_type type;
    uint64_t session; /* that it is about; 0: none, or a client's new one */
    union {           /* by type: join, open, opened, ... */
#define GR_MSG_BEGIN(NAME, member, about) struct gr_msg_##member member;
#include "common/protocol/messages.inc"
    };
};

const char *gr_msg_name(enum gr_msg_type type);

/* Writes the map into out. GR_ELIMIT (logged): does not fit into cap. Allocates nothing. */
GR_NODISCARD enum gr_status gr_msg_encode(const struct gr_msg *m, uint8_t *out, size_t cap, size_t *len_out);
/* GR_EFORMAT (one line logged: type, field, what) on anything that breaks the schema. */
GR_NODISCARD enum gr_status gr_msg_decode(const uint8_t *bytes, size_t len, struct gr_msg *out);
/* Frees a decoded message's arrays. */
void gr_msg_finish(struct gr_msg *m);

#endif
