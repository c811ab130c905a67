/* What graft-pmix and graft-mpi share: their command line and their end of the socket to `graft launch`. They are
 * started by it alone:
 *     graft-pmix RANK SIZE SECONDS
 * Rank 0 publishes the note that it hears; another rank says the note that it gets. SECONDS is how long a call may take
 * where the library can be told so; `graft launch' ends a helper that takes longer. Standard output is standard error
 * here, as libraries print to it. One thread. */
#ifndef GR_ORCHESTRATOR_PROGRAMS_CHANNEL_HELPER_H
#define GR_ORCHESTRATOR_PROGRAMS_CHANNEL_HELPER_H

#include "orchestrator/launch/channel_words.h"

#include <stdbool.h>

struct channel_task {
    int rank, size, seconds;
};

/* false, with a line on standard error: nobody but a user has started it. */
bool channel_begin(int argc, char **argv, struct channel_task *out);
void channel_say(enum gr_channel_word word, const char *text);
/* An error's packet; returns the exit status. */
int channel_refuse(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* The note, a text that ends with 0. false: `graft launch' is gone. */
bool channel_hear_note(char note_out[GR_CHANNEL_BYTES_MAX]);

#endif
