/* A segment that is being written. Used by one thread at a time. */
#ifndef GR_ORCHESTRATOR_JOURNAL_SEGMENT_H
#define GR_ORCHESTRATOR_JOURNAL_SEGMENT_H

#include "orchestrator/journal/files.h"
#include "orchestrator/journal/record.h"

#define GR_SEGMENT_NAME_BYTES 32

struct gr_segment {
    const struct gr_journal_files *files; /* borrowed, as is dir */
    int dir;
    int fd;                      /* owned; -1: none is open */
    struct gr_segment_head head; /* of the one that is open, or was last */
};

/* "0000000000000001.segment" */
void gr_segment_name(uint64_t generation, char out[static GR_SEGMENT_NAME_BYTES]);
/* 0: that is no segment's name. */
uint64_t gr_segment_generation(const char *name);

/* A new one: when it returns, file and name are durable. GR_EIO: logged. */
GR_NODISCARD enum gr_status gr_segment_begin(struct gr_segment *s, const struct gr_segment_head *head);
/* GR_EIO: logged; nothing is to be written to it any more. */
GR_NODISCARD enum gr_status gr_segment_write(struct gr_segment *s, const uint8_t *p, size_t n);
GR_NODISCARD enum gr_status gr_segment_sync(struct gr_segment *s);
void gr_segment_close(struct gr_segment *s);

#endif
