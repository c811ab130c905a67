/* What rank 0 says of itself where the others look for it: its addresses and, where nobody was given a key, the key. As
 * a text it is one JSON object, in a file of a job directory or in the launcher's own channel. Pure. */
#ifndef GR_ORCHESTRATOR_LAUNCH_NOTE_H
#define GR_ORCHESTRATOR_LAUNCH_NOTE_H

#include "transport/connect/bootstrap.h"

#include <limits.h>

#define GR_JOB_ADDRESS_MAX 16 /* addresses of rank 0 */

struct gr_job_note {
    char address[GR_JOB_ADDRESS_MAX][64];
    int n_address;
    bool has_key;
    uint8_t key[GR_KEY_BYTES];
    char name[PATH_MAX]; /* its file; "" before it is written, and where it has none */
    bool lost;           /* it was removed, and cannot be written again so far, which was said */
};

/* To be freed; below 2 KB. NULL (logged): no memory. */
char *gr_job_note_text(const char *job, const struct gr_job_note *note);
/* false: it is no note, or another job's. */
bool gr_job_note_parse(const char *text, size_t n, const char *job, struct gr_job_note *out);

#endif
