/* Rewrites a run of segments into one, without the records of sessions that are closed (space.h), a piece at a time. In
 * this order, so that whatever moment the process is killed in, either the run is there or what stands for it:
 *
 *   the records that stay are written to a file without a segment's name, each piece synced
 *   the file takes the name of the run's last segment, in whose place it comes at once, and the folder is synced
 *   the other segments of the run, which its head says it stands for, are removed, and the folder is synced
 *
 * Where the run is not as it was when it was counted, the file is removed, and the run stays as it is. */
#ifndef GR_ORCHESTRATOR_JOURNAL_COMPACT_H
#define GR_ORCHESTRATOR_JOURNAL_COMPACT_H

#include "orchestrator/journal/folder.h"
#include "orchestrator/journal/segment.h"

#define GR_COMPACT_PIECE_BYTES (1u << 20) /* read at a time, and written; or one record, if that is longer */

struct gr_compact_config {
    const struct gr_journal_files *files; /* borrowed, as is dir */
    int dir;
    uint64_t from, to;     /* generations of the run; none of it is being written */
    uint64_t last_seq;     /* of its last record */
    uint64_t salt;         /* of what is written */
    struct gr_space space; /* what it was counted to take; owned by the compaction from its begin on */
};

struct gr_compact;

/* GR_ENOMEM, GR_EIO: logged; c->space is the caller's still. */
GR_NODISCARD enum gr_status gr_compact_begin(const struct gr_compact_config *c, struct gr_compact **out);
/* A piece. GR_AGAIN: there is more to do; GR_OK: it is done. Any other status is a failure, which a warning tells:
 * GR_EFORMAT: the run is not as it was; GR_EIO: nothing has changed; GR_ECLOSED: what the folder has is not known
 * before it is read again, so nothing more is to be compacted. */
GR_NODISCARD enum gr_status gr_compact_step(struct gr_compact *k);
/* What was counted at its begin; and the last generation of the run. */
const struct gr_space *gr_compact_space(const struct gr_compact *k);
uint64_t gr_compact_last(const struct gr_compact *k);
/* One that is not done leaves the run as it was. NULL is legal. */
void gr_compact_destroy(struct gr_compact *k);

/* What a process that was killed in the midst of it has left, without its being part of the journal, is removed: the
 * file without a name, and segments from `from` on, the first after all damage, that another one stands for. Warns
 * where that cannot be done. */
void gr_compact_clean(const struct gr_journal_files *files, int dir, uint64_t from);

#endif
