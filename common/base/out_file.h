/* A file that graft writes because a user has named it: --ready-file, --output, --trace-file, --make-key, --save,
 * plots.
 *
 * A symbolic link is followed first, also one that leads to nothing yet. Where nothing or a regular file stands, what
 * is written appears whole or not at all: it is written beside the name and takes its place when it is closed, with the
 * old file's mode. A device or a FIFO is written directly and never replaced; a FIFO that nobody reads is an error.
 * Names of this process's own open files (/dev/stdout, /dev/fd/N) are those files. */
#ifndef GR_COMMON_BASE_OUT_FILE_H
#define GR_COMMON_BASE_OUT_FILE_H

#include "common/base/status.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/types.h>
#include <time.h>

struct gr_out_file {
    const char *what;           /* whose value the name is ("--output"), for messages; borrowed */
    FILE *f;                    /* NULL: not open */
    int fd;                     /* under f */
    char path[PATH_MAX];        /* links followed */
    char beside[PATH_MAX + 16]; /* empty: written directly */
    bool keep_old;              /* an existing file is never replaced */
};

/* Which file was put in place, so that it alone is taken away again. Zeroed: none. */
struct gr_out_place {
    char path[PATH_MAX];
    dev_t device;
    ino_t inode;
    struct timespec written_at; /* a later file may get the same inode, but not the same time */
};

/* mode: of a new file, less the umask. keep_old: an existing regular file is an error. Failures are one
 * logged line and leave nothing. */
GR_NODISCARD enum gr_status gr_out_file_open(const char *what, const char *path, mode_t mode, bool keep_old,
                                             struct gr_out_file *out);
/* The same, but GR_AGAIN, and nothing logged, where it is a FIFO that nobody reads yet. */
GR_NODISCARD enum gr_status gr_out_file_try(const char *what, const char *path, mode_t mode, bool keep_old,
                                            struct gr_out_file *out);
/* Where another program should write in its place. */
const char *gr_out_file_name(const struct gr_out_file *o);
/* What was written takes its place. good false: what was written is not whole, nothing takes its place and GR_EIO is
 * returned. place_out, optional: where it is; none if it was written directly. */
GR_NODISCARD enum gr_status gr_out_file_close(struct gr_out_file *o, bool good, struct gr_out_place *place_out);
/* Nothing of it stays. Nothing happens where none is open. */
void gr_out_file_drop(struct gr_out_file *o);
/* Takes the file away, if it is still the one that was put there. */
void gr_out_place_remove(const struct gr_out_place *p);

#endif
