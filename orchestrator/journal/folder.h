/* The folder of a journal: whose it is, and what lies in it. */
#ifndef GR_ORCHESTRATOR_JOURNAL_FOLDER_H
#define GR_ORCHESTRATOR_JOURNAL_FOLDER_H

#include "orchestrator/journal/replay.h"

struct gr_journal_folder {
    int fd;                   /* owned; locked while it is open: the folder itself, which nobody can remove and make
                                 again under whoever has it. -1: it is not open */
    uint64_t last_generation; /* of the segments in it; 0: there are none */
};

/* Makes it, 0700, where it is not there. GR_EIO; GR_EMISMATCH: it is another user's, others may enter it, or another
 * process has it. Logged. */
GR_NODISCARD enum gr_status gr_journal_folder_open(const char *path, struct gr_journal_folder *out);
/* Hands all segments to r, in order; what cannot be read is told by warnings. GR_EIO, GR_ENOMEM, GR_EUNSUPPORTED, what
 * on_record returned: logged. */
GR_NODISCARD enum gr_status gr_journal_folder_read(struct gr_journal_folder *f, struct gr_replay *r);
void gr_journal_folder_close(struct gr_journal_folder *f);

#endif
