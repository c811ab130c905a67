/* What a journal asks of the system, as a table, so that a test can stand in for a disk that fails, or look at the
 * order of calls. Each function returns -1 with errno set on failure, as the call it is named after. Called by the
 * journal's thread, and by the one that opens the journal. */
#ifndef GR_ORCHESTRATOR_JOURNAL_FILES_H
#define GR_ORCHESTRATOR_JOURNAL_FILES_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct gr_journal_files {
    void *ctx;
    int (*create)(void *ctx, int dir, const char *name); /* for writing, 0600, empty; a file that is there is emptied */
    ssize_t (*write)(void *ctx, int fd, const void *p, size_t n);
    int (*sync_data)(void *ctx, int fd);
    int (*rename)(void *ctx, int dir, const char *from, const char *to);
    int (*sync_dir)(void *ctx, int dir);
    int (*remove)(void *ctx, int dir, const char *name);
};

extern const struct gr_journal_files gr_journal_system_files;

/* All n bytes; a signal does not end it. -1 with errno: some were not written; ENOSPC where a write took none. */
int gr_journal_write_all(const struct gr_journal_files *f, int fd, const uint8_t *p, size_t n);

#endif
