/* The launcher's own channel as the place where ranks meet (--rendezvous pmix, mpi): rank 0's note, the one that a job
 * directory would hold, goes to the others through the library that the launcher speaks with.
 *
 * A library is called by a helper process alone, graft-pmix or graft-mpi, which lives for the exchange: it links the
 * library, so that graft starts and runs without; one that hangs is killed, which no thread could be; and a rank that
 * fails later is in no world of MPI whose other ranks would be ended or wait for it. Nothing here waits. One thread. */
#ifndef GR_ORCHESTRATOR_LAUNCH_CHANNEL_H
#define GR_ORCHESTRATOR_LAUNCH_CHANNEL_H

#include "orchestrator/launch/note.h"
#include "orchestrator/launch/who.h"

#include <sys/types.h>

enum gr_channel_by { GR_CHANNEL_NOT, GR_CHANNEL_PMIX, GR_CHANNEL_MPI };

struct gr_channel {
    enum gr_channel_by by;
    pid_t helper; /* 0: none runs */
    int fd;       /* of its socket, readable when it has said something; -1: none */
    bool has_note;
    struct gr_job_note note;            /* of rank 0 */
    char library[128], call[64];        /* what it has said of itself last */
    char of_launcher[48], refused[512]; /* the launcher's version of PMIx; why the helper cannot */
};

/* A value of --rendezvous: pmix, mpi, or another one, which is no channel. */
enum gr_channel_by gr_channel_named(const char *rendezvous);
/* "tcp, job-dir" and the channels of this build, for --version. */
const char *gr_channel_built(void);
/* GR_EUNSUPPORTED (logged): this build has none, or no launcher that has one has started this process. */
GR_NODISCARD enum gr_status gr_channel_check(enum gr_channel_by by, const struct gr_who *w, char *const *env);
/* Starts the helper. start_within: ns in which the caller will have ended it; a library that can be told a limit is
 * told a longer one. note: what rank 0 publishes; NULL: another rank. */
GR_NODISCARD enum gr_status gr_channel_start(struct gr_channel *c, enum gr_channel_by by, const struct gr_who *w,
                                             char *const *env, int64_t start_within, const struct gr_job_note *note);
/* Hears the helper. GR_OK: rank 0's helper has published the note and ended; another rank has the note. GR_ENOTFOUND
 * (logged, with the call that has not come back): not yet. GR_EUNSUPPORTED (logged): the helper cannot. */
GR_NODISCARD enum gr_status gr_channel_hear(struct gr_channel *c, const struct gr_who *w);
/* "PMIx", "MPI". */
const char *gr_channel_name(enum gr_channel_by by);
/* Kills the helper if it runs. */
void gr_channel_end(struct gr_channel *c);

#endif
