/* What a session's text is made of, as the orchestrator keeps it: token ids in segments, and the prefix hash of all of
 * them. From it a session can be opened again anywhere. Owned memory grows as needed, up to one OPEN message. */
#ifndef GR_ORCHESTRATOR_MACHINE_TRANSCRIPT_H
#define GR_ORCHESTRATOR_MACHINE_TRANSCRIPT_H

#include "common/protocol/msg.h"

enum gr_segment_kind { GR_SEGMENT_PROMPT = 0, GR_SEGMENT_GENERATED = 1, GR_SEGMENT_APPENDED = 2 };

#define GR_TRANSCRIPT_LEN_MAX GR_MSG_ID_MAX
#define GR_TRANSCRIPT_SEGMENT_MAX 2048 /* segments of a session; OPEN has a pair of numbers for each, 4096 at most */

struct gr_transcript {
    int32_t *token; /* owned */
    uint32_t len;
    uint64_t hash;    /* of all tokens */
    int32_t *segment; /* owned: pairs (kind, tokens), as in OPEN */
    uint32_t n_segment;
    size_t cap, cap_segment; /* numbers that there is memory for */
};

/* Adds tokens; neighbours of one kind are one segment. GR_ELIMIT (not logged): past one of the limits above;
 * GR_ENOMEM (logged). Unchanged on failure. */
GR_NODISCARD enum gr_status gr_transcript_add(struct gr_transcript *t, enum gr_segment_kind kind, const int32_t *id,
                                              uint32_t n);
/* Whether n tokens of a kind fit after the first keep_len, within the limits above, and what is generated after them.
 */
bool gr_transcript_fits(const struct gr_transcript *t, uint32_t keep_len, enum gr_segment_kind kind, uint32_t n);
/* Keeps the first len tokens; len <= t->len. */
void gr_transcript_cut(struct gr_transcript *t, uint32_t len);
/* Hash of the first len tokens; len <= t->len. Computed from the front: once a turn, not once a round. */
uint64_t gr_transcript_hash_at(const struct gr_transcript *t, uint32_t len);
void gr_transcript_finish(struct gr_transcript *t);

#endif
