/* The bytes of a journal: segments, which are files, and the records in them (docs/journal.md has the tables). Pure.
 *
 * Every checksum is XXH3 of 64 bits. Its seed is the segment's salt, drawn at random, so that nothing that a client can
 * have written into a record's body is taken for a record. */
#ifndef GR_ORCHESTRATOR_JOURNAL_RECORD_H
#define GR_ORCHESTRATOR_JOURNAL_RECORD_H

#include "common/base/status.h"

#include <stddef.h>
#include <stdint.h>

#define GR_SEGMENT_HEAD_BYTES 96    /* two copies: without its salt nothing in the segment can be read */
#define GR_COMPACTED_HEAD_BYTES 128 /* the same, of one that was compacted */
#define GR_RECORD_HEAD_BYTES 48
#define GR_RECORD_TAIL_BYTES 8        /* the body's checksum */
#define GR_RECORD_BODY_MAX (8u << 20) /* bytes; a control message has no more (msg.h) */
#define GR_JOURNAL_VERSION 1
#define GR_JOURNAL_VERSION_COMPACTED 2 /* of a segment that stands for others */

struct gr_segment_head {
    uint64_t generation; /* counts segments, from 1; the file's name */
    uint64_t first_seq;  /* of its first record */
    uint64_t salt;
    /* Of one that was compacted: the first generation that it stands for, up to its own, and the number that their
     * first record had. Its records are numbered anew, so that the last one has the number that the last one there had.
     * 0: it was not. */
    uint64_t from_generation, from_seq;
};

static inline size_t gr_segment_head_bytes(const struct gr_segment_head *h)
{
    return h->from_generation != 0 ? GR_COMPACTED_HEAD_BYTES : GR_SEGMENT_HEAD_BYTES;
}

/* The end of a segment that was ended in order; it is about no session. The other kinds are its user's. */
#define GR_RECORD_SEALED 0
/* Together with a kind: the session has no record after this one. When it was closed, say. */
#define GR_RECORD_ENDS (1u << 31)

struct gr_record {
    uint64_t seq;     /* counts the journal's records, from 1, without gaps */
    uint64_t session; /* 0: none */
    uint64_t number;  /* counts the session's records, from 1, without gaps; 0: of no session */
    uint64_t before;  /* the session of record seq - 1: it names whom a lost record was about */
    uint32_t kind;
    uint32_t n_body;     /* bytes */
    const uint8_t *body; /* borrowed */
};

/* out: gr_segment_head_bytes(). */
void gr_segment_head_encode(const struct gr_segment_head *h, uint8_t *out);
/* GR_EFORMAT: these bytes begin no segment; GR_EUNSUPPORTED: one of another version. Neither is logged. */
GR_NODISCARD enum gr_status gr_segment_head_decode(const uint8_t *p, size_t n, struct gr_segment_head *out);

/* Bytes of a record with a body of so many. */
static inline size_t gr_record_bytes(uint32_t n_body)
{
    return (size_t)GR_RECORD_HEAD_BYTES + n_body + GR_RECORD_TAIL_BYTES;
}
/* out: gr_record_bytes(r->n_body). */
void gr_record_encode(const struct gr_record *r, uint64_t salt, uint8_t *out);

enum gr_record_state {
    GR_RECORD_WHOLE,
    GR_RECORD_NO_HEAD, /* out says nothing */
    GR_RECORD_NO_BODY, /* out is right, but its body is cut off or is not what was written */
};
/* What stands at p. */
enum gr_record_state gr_record_decode(const uint8_t *p, size_t n, uint64_t salt, struct gr_record *out);

#endif
