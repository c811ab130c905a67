/* For tests of journals: folders of their own, records that tell where they belong, who reads them back, and a disk
 * that notes each call. Include it in one .c file of a program. */
#ifndef GR_TESTS_JOURNAL_WORLD_H
#define GR_TESTS_JOURNAL_WORLD_H

#include "orchestrator/journal/journal.h"

#include <stdatomic.h>

#define JOURNAL_N_SESSION 40 /* those whose records are looked at when they are read */
#define JOURNAL_BODY 100

/* ---- folders ---- */

/* An empty one under /tmp, with this word in its name. */
void journal_make_folder(const char *word, char path_out[64]);
void journal_remove_folder(const char *path);

/* ---- records ---- */

/* With a body that is made of both numbers. */
enum gr_status journal_add(struct gr_journal *j, uint64_t session, uint64_t number, bool ends, uint64_t *seq_out);
/* Until a record is durable, or never will be. */
void journal_wait_for(const struct gr_journal *j, uint64_t seq);

/* What is read. */
struct journal_reading {
    char path[64];
    uint64_t n_record, n_damaged;
    uint64_t number[JOURNAL_N_SESSION]; /* of the last record of each */
    bool ended[JOURNAL_N_SESSION], damaged[JOURNAL_N_SESSION];
    bool wrong; /* a record is not what journal_add() has written, or not the one that comes next */
};

/* Opens the journal at x->path, and fills the rest of x. */
enum gr_status journal_open(struct journal_reading *x, const struct gr_journal_files *files, uint32_t segment_bytes,
                            struct gr_journal **out);
/* on_record of that; ctx: a journal_reading. */
enum gr_status journal_take(void *ctx, const struct gr_record *r);

/* ---- a disk ---- */

/* c: a file is created; w: written; s: synced; r: renamed; d: the folder is synced; u: a file is removed. One thread at
 * a time. */
struct journal_disk {
    _Atomic int n_call;
    char calls[4096];
    bool (*goes)(struct journal_disk *d); /* after a call was noted; false: it fails with EIO. NULL: it goes */
};

/* False: it has to fail. */
bool journal_disk_call(struct journal_disk *d, char what);
/* The system's, by way of d. Who needs another function puts it in its place, and calls journal_disk_call() in it. */
struct gr_journal_files journal_disk_files(struct journal_disk *d);

#endif
