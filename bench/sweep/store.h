/* What a sweep has measured so far: a file of JSON lines that is only ever added to, so that a sweep that was killed
 * goes on after what it had. A line {"about": {...}, "digest": "..."} says where the runs come from that bear its
 * digest; the others are runs:
 *   {"by": digest, "fleet": name, "mode": "trees", "sessions": 8, "repeat": 0, "row": {...}}   what the clients saw
 *   {..., "failed": "why"}                                                                     it could not be measured
 * A run is done if it has a row and the same digest; one that failed is tried again. A last line that was cut short is
 * passed over, and taken away by the next sweep. */
#ifndef GR_BENCH_SWEEP_STORE_H
#define GR_BENCH_SWEEP_STORE_H

#include "common/base/status.h"

#include <jansson.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/types.h>

#define GR_STORE_BYTES_MAX (256u << 20) /* of the file */

/* Which run. */
struct gr_run_id {
    const char *fleet; /* plan.h: gr_fleet_name() */
    const char *mode;  /* "trees" or "plain" */
    int n_session, repeat;
};

struct gr_store {
    json_t *runs;    /* owned: all lines that are runs */
    json_t *abouts;  /* owned: digest -> about */
    char digest[20]; /* of the runs that count */
    FILE *f;         /* NULL: it is only read */
    int lock_fd;
    off_t n_byte; /* of whole lines */
    char path[PATH_MAX];
};

/* The text of `about' as a number: equal for equal objects, whatever the order of their keys. */
void gr_store_digest(const json_t *about, char digest[static 20]);
/* DIR/runs.jsonl, with its folder where that is not there. about NULL: it is only read, and the last runs count; else
 * it is added to, and those of `about' count. GR_EIO: cannot be read or written, or another sweep has it; GR_EFORMAT:
 * it holds something else; GR_ENOTFOUND: nothing to read. Logged. gr_store_close() is legal afterwards. */
GR_NODISCARD enum gr_status gr_store_open(const char *dir, const json_t *about, struct gr_store *out);
void gr_store_close(struct gr_store *s);
/* The row of a run that is done and counts; NULL: it is not. Borrowed. */
const json_t *gr_store_row(const struct gr_store *s, const struct gr_run_id *id);
/* Why the last attempt at a run that counts has failed; NULL: it has not. */
const char *gr_store_failure(const struct gr_store *s, const struct gr_run_id *id);
/* row: not stolen; NULL: it failed, why says so. On the disk when it returns. GR_EIO: logged. */
GR_NODISCARD enum gr_status gr_store_add(struct gr_store *s, const struct gr_run_id *id, const json_t *row,
                                         const char *why);
/* Where the runs that count come from. Borrowed; NULL: there are none. */
const json_t *gr_store_about(const struct gr_store *s);

#endif
