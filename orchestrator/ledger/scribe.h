/* Writes what happens to sessions into a journal, and keeps the ledger as its next reader will find it: each message is
 * one record. Used by one thread. */
#ifndef GR_ORCHESTRATOR_LEDGER_SCRIBE_H
#define GR_ORCHESTRATOR_LEDGER_SCRIBE_H

#include "orchestrator/journal/journal.h"
#include "orchestrator/ledger/ledger.h"

struct gr_scribe;

/* Opens the journal in this folder, and reads it into the ledger. Logged: as gr_journal_open() and gr_ledger_take()
 * return. files, segment_bytes: as of gr_journal_config. */
GR_NODISCARD enum gr_status gr_scribe_create(const char *path, const struct gr_journal_files *files,
                                             uint32_t segment_bytes, struct gr_scribe **out);
/* Waits until all is durable, or has failed; at the latest until then (gr_clock_ns(); UINT64_MAX: without a limit).
 * GR_ETIMEDOUT: logged, as of gr_journal_close_by(). NULL is legal. */
enum gr_status gr_scribe_destroy(struct gr_scribe *s, uint64_t deadline_ns);

/* Journals a message: OPEN with what the session has of it (epoch, wishes, defaults filled in), KEPT, APPEND with
 * keep_len and hash of the tokens that stay, COMMIT with tokens that became final, FINISHED, CLOSED. Nothing of it is
 * durable before gr_journal_synced() has reached *seq_out, which may be NULL.
 *
 * Logged: GR_EINVAL: it does not fit what was said of the session before; GR_ELIMIT, GR_ENOMEM; GR_EIO, GR_AGAIN as of
 * gr_journal_add(). Then the next reader finds the session as it was before this message. After a COMMIT so does this
 * process: its tokens can be noted later. After another message nothing more of the session is journalled, and the
 * caller ends it with an error. */
GR_NODISCARD enum gr_status gr_scribe_note(struct gr_scribe *s, const struct gr_msg *m, uint64_t *seq_out);
/* Nothing more of the session is journalled: what has to be in it next is not. */
void gr_scribe_give_up(struct gr_scribe *s, uint64_t session);

struct gr_journal *gr_scribe_journal(struct gr_scribe *s);
const struct gr_ledger *gr_scribe_ledger(const struct gr_scribe *s);

#endif
