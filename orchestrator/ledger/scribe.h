/* Writes what happens to sessions into a journal, and keeps the ledger as its next reader will find it: each message is
 * one record. Used by one thread. */
#ifndef GR_ORCHESTRATOR_LEDGER_SCRIBE_H
#define GR_ORCHESTRATOR_LEDGER_SCRIBE_H

#include "orchestrator/journal/journal.h"
#include "orchestrator/ledger/ledger.h"

struct gr_scribe;

/* Opens the journal in this folder, and reads it into the ledger. Logged: as gr_journal_open() and gr_ledger_take()
 * return. files: borrowed; NULL: the system's. */
GR_NODISCARD enum gr_status gr_scribe_create(const char *path, const struct gr_journal_files *files,
                                             struct gr_scribe **out);
/* Waits until all is durable, or has failed. */
void gr_scribe_destroy(struct gr_scribe *s);

/* Journals a message: OPEN with what the session has of it (epoch, wishes, defaults filled in), KEPT, APPEND with
 * keep_len and hash of the tokens that stay, COMMIT with tokens that became final, FINISHED, CLOSED. Nothing of it is
 * durable before gr_journal_synced() has reached *seq_out, which may be NULL.
 *
 * Logged: GR_EINVAL: it does not fit what was said of the session before; GR_ELIMIT, GR_ENOMEM; GR_EIO, GR_AGAIN as of
 * gr_journal_add(): then nothing more of the session is journalled, so that its next reader finds it as it was before
 * this message. The caller ends the session with an error. */
GR_NODISCARD enum gr_status gr_scribe_note(struct gr_scribe *s, const struct gr_msg *m, uint64_t *seq_out);

struct gr_journal *gr_scribe_journal(struct gr_scribe *s);
const struct gr_ledger *gr_scribe_ledger(const struct gr_scribe *s);

#endif
