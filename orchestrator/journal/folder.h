/* The folder of a journal: whose it is, and what lies in it. */
#ifndef GR_ORCHESTRATOR_JOURNAL_FOLDER_H
#define GR_ORCHESTRATOR_JOURNAL_FOLDER_H

#include "orchestrator/journal/files.h"
#include "orchestrator/journal/replay.h"
#include "orchestrator/journal/space.h"

struct gr_journal_folder {
    int fd;                   /* owned; locked while it is open: the folder itself, which nobody can remove and make
                                 again under whoever has it. -1: it is not open */
    uint64_t last_generation; /* of the segments in it; 0: there are none */
};

/* Segments that there are, in order. */
struct gr_segment_list {
    uint64_t *generation; /* owned, (n) */
    bool *is_old; /* owned, (n): a compacted one stands for it, and a process was killed before it was removed */
    size_t n;
};

/* Makes it, 0700, where it is not there. GR_EIO; GR_EMISMATCH: it is another user's, others may enter it, or another
 * process has it. Logged. */
GR_NODISCARD enum gr_status gr_journal_folder_open(const char *path, struct gr_journal_folder *out);
/* Those from this generation on to that one. GR_EIO, GR_ENOMEM: logged. */
GR_NODISCARD enum gr_status gr_journal_folder_list(int dir, uint64_t from, uint64_t to, struct gr_segment_list *out);
/* For reading; a FIFO under its name holds nobody up. */
int gr_segment_open(int dir, const char *name);
void gr_segment_list_finish(struct gr_segment_list *l);
/* Hands all segments to r, in order; what cannot be read is told by warnings. *run_out: the first generation after all
 * that is damaged; space: what the segments from there on take. GR_EIO, GR_ENOMEM, GR_EUNSUPPORTED, what on_record
 * returned: logged. */
GR_NODISCARD enum gr_status gr_journal_folder_read(struct gr_journal_folder *f, struct gr_replay *r,
                                                   struct gr_space *space, uint64_t *run_out);
void gr_journal_folder_close(struct gr_journal_folder *f);

#endif
