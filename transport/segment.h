/* A named piece of POSIX shared memory, for as long as its name stands. The name of a process that is killed meanwhile
 * stays. So the maker holds a file lock on it: one whose lock can be had belongs to nobody (a process id would say
 * less: other containers that see the same folder count their own). Any thread. */
#ifndef GR_TRANSPORT_SEGMENT_H
#define GR_TRANSPORT_SEGMENT_H

#include "transport/transport.h"

#include <stddef.h>

#define GR_SEGMENT_PREFIX "/graft-"
#define GR_SEGMENT_HEX 32 /* random digits of a name */
#define GR_SEGMENT_NAME_BYTES (sizeof(GR_SEGMENT_PREFIX) + GR_SEGMENT_HEX)

struct gr_segment {
    char name[GR_SEGMENT_NAME_BYTES];
    int fd; /* holds the lock */
    void *map;
    size_t bytes;
};

/* Its pages are taken at once: later a full /dev/shm would be a SIGBUS. GR_EUNSUPPORTED: why says what was lacking. */
GR_NODISCARD enum gr_status gr_segment_create(size_t bytes, struct gr_segment *out, struct gr_why *why);
/* The name goes, and the lock; the memory stays the caller's (munmap). */
void gr_segment_unlink(struct gr_segment *s);
/* Maps and unlinks a segment of this user that somebody else has made. */
GR_NODISCARD enum gr_status gr_segment_take(const char *name, size_t bytes, void **map_out, struct gr_why *why);
/* Removes this user's segments whose makers are dead; their number. */
int gr_segment_sweep(void);

#endif
