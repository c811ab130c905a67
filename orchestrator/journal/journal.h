/* A journal on disk: a folder of segments that one process at a time has, which records are added to and read from when
 * it is opened. docs/journal.md says what it promises.
 *
 * Records are added by one thread, which never waits for the disk: they are written and synced by the journal's own
 * thread, as many together as have come meanwhile. Who must not speak before a record is durable waits until
 * gr_journal_synced() has reached its sequence number; the event descriptor tells when that moves. After a write or a
 * sync that failed nothing is added any more: what the disk holds is then not known.
 *
 * Segments of which less than half is needed are rewritten by the same thread, a piece at a time (compact.h). */
#ifndef GR_ORCHESTRATOR_JOURNAL_JOURNAL_H
#define GR_ORCHESTRATOR_JOURNAL_JOURNAL_H

#include "orchestrator/journal/files.h"
#include "orchestrator/journal/replay.h"

#define GR_JOURNAL_SEGMENT_BYTES (64u << 20) /* a segment that is longer is ended */
#define GR_JOURNAL_WAITING_MAX (64u << 20)   /* bytes that may wait for the disk */

struct gr_journal;

struct gr_journal_config {
    const char *path;                     /* made, 0700, where it is not there; borrowed for the call */
    const struct gr_journal_files *files; /* borrowed; NULL: the system's */
    uint32_t segment_bytes;               /* 0: GR_JOURNAL_SEGMENT_BYTES */
    void *ctx;                            /* the next two's; called while it is opened */
    enum gr_status (*on_record)(void *ctx, const struct gr_record *r); /* gr_replay_create() */
    void (*on_damaged)(void *ctx, uint64_t session); /* after all records: what they said of it is void. May be NULL */
};

/* Reads what is there, and begins a segment of its own. Logged: GR_EIO, GR_ENOMEM, GR_EUNSUPPORTED (of another
 * version), GR_EMISMATCH (another process has it, or it is not this user's alone), and what on_record returns. What is
 * cut or damaged is told by warnings, and is never removed. */
GR_NODISCARD enum gr_status gr_journal_open(const struct gr_journal_config *config, struct gr_journal **out);
/* Waits until all is durable, or has failed. */
void gr_journal_close(struct gr_journal *j);
/* The same, until then at the latest (gr_clock_ns(); UINT64_MAX: without a limit). GR_ETIMEDOUT: the disk has not done
 * it; one line says of which records, and the journal's thread is left with what it is at. NULL is legal. */
enum gr_status gr_journal_close_by(struct gr_journal *j, uint64_t deadline_ns);

/* A record of a session, the number-th of it. r: session, number, kind and body; the rest is the journal's. seq_out may
 * be NULL. GR_EIO: it has failed (logged when it did); GR_AGAIN: too much waits for the disk. */
GR_NODISCARD enum gr_status gr_journal_add(struct gr_journal *j, const struct gr_record *r, uint64_t *seq_out);
/* Is there room for a record that need not be written now? Others have as much again. */
bool gr_journal_has_room(struct gr_journal *j);
/* Waits until records up to this one are durable; GR_EIO: or the journal has failed; GR_ETIMEDOUT: or it is so late
 * (gr_clock_ns(); UINT64_MAX: without a limit), which one line says, once. Reads the event descriptor empty. */
GR_NODISCARD enum gr_status gr_journal_wait(struct gr_journal *j, uint64_t seq, uint64_t deadline_ns);
/* Records up to this one are durable. Any thread. */
uint64_t gr_journal_synced(const struct gr_journal *j);
/* Nothing is added any more. Any thread. */
bool gr_journal_has_failed(const struct gr_journal *j);
/* When the oldest record was added that still waits to be durable (gr_clock_ns()); 0: none waits, or it has failed. Any
 * thread. */
uint64_t gr_journal_waits_since(struct gr_journal *j);
/* Readable when either may have changed; whoever polls it reads it empty. Owned by the journal. */
int gr_journal_fd(const struct gr_journal *j);

#endif
