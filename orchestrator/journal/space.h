/* How much of a run of segments is still needed. A session is closed when its last record says so (GR_RECORD_ENDS);
 * where its first record is in the run as well, nothing of it is needed any more. Pure; used by one thread at a time.
 */
#ifndef GR_ORCHESTRATOR_JOURNAL_SPACE_H
#define GR_ORCHESTRATOR_JOURNAL_SPACE_H

#include "orchestrator/journal/cells.h"
#include "orchestrator/journal/record.h"

#include <stdbool.h>

#define GR_SPACE_WASTE_PART 16         /* less waste than this part of a segment is left */
#define GR_SPACE_NEED_MAX (512u << 20) /* bytes that stay, at most: a segment is read into memory as a whole */

/* All zero, but n_byte_segment: there is nothing. */
struct gr_space {
    uint32_t n_byte_segment;             /* that a segment counts for beside its records */
    struct gr_cells sessions;            /* owned: what each of them takes */
    uint64_t n_byte, n_record;           /* of all that sessions have */
    uint64_t n_dead_byte, n_dead_record; /* of those that are closed */
    uint64_t n_own_byte;                 /* heads and ends of segments: nobody needs them either */
};

/* It is as it was at first, and frees nothing but memory. */
void gr_space_finish(struct gr_space *s);
/* The next segment, and a record in it. GR_ENOMEM: logged; the record is not counted. */
void gr_space_add_segment(struct gr_space *s);
GR_NODISCARD enum gr_status gr_space_add(struct gr_space *s, const struct gr_record *r);
/* The same of all whole records, up to the first that is not; from: where the first is. */
GR_NODISCARD enum gr_status gr_space_add_all(struct gr_space *s, const uint8_t *p, size_t n, size_t from,
                                             uint64_t salt);
GR_NODISCARD enum gr_status gr_space_copy(const struct gr_space *s, struct gr_space *out);
/* Is no record of the session needed? */
bool gr_space_is_dead(const struct gr_space *s, uint64_t session);
/* Bytes that would go, and that would stay. */
uint64_t gr_space_waste(const struct gr_space *s);
uint64_t gr_space_need(const struct gr_space *s);
/* Is it to be rewritten? Where more would go than stay, of a size that counts beside a segment. */
bool gr_space_pays(const struct gr_space *s, size_t segment_bytes);
/* Is the segment that is being written, which is counted as well, to be ended before it is full, so that it can be
 * rewritten with the others? Where it pays, and as many bytes would go as a segment has, beside those that were there
 * when a rewriting failed. */
bool gr_space_ends_early(const struct gr_space *s, size_t segment_bytes, uint64_t n_failed_byte);
/* What was dead in `then', an earlier state of it, is gone. GR_ENOMEM: logged; it is as it was. */
GR_NODISCARD enum gr_status gr_space_forget(struct gr_space *s, const struct gr_space *then);

#endif
