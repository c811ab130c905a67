/* A folder that all ranks of a job see (--job-dir): rank 0 says there where it listens and, where nobody was given a
 * key, what the key is. A message is one file, rendezvous-JOB-RANDOM, written beside its name and put in place whole.
 *
 * What an earlier life of the job has left there does no harm: rank 0 removes what has its job's name before it writes
 * its own, and a reader tries each message until somebody at the address proves the key. Readers list the folder and
 * open what they find: a network file system remembers for a minute that a name was not there, but not what a folder
 * holds. One thread. */
#ifndef GR_ORCHESTRATOR_LAUNCH_JOB_DIR_H
#define GR_ORCHESTRATOR_LAUNCH_JOB_DIR_H

#include "orchestrator/launch/note.h"

#define GR_JOB_NOTE_MAX 16 /* messages of a job that are looked at */

/* Makes the folder (mode 0700) if it is not there. GR_EINVAL (logged): it is another user's, or open to others. */
GR_NODISCARD enum gr_status gr_job_dir_open(const char *dir);
/* Removes the job's old messages, and anybody's of more than 30 days, and puts a new one in place. note->name: set. */
GR_NODISCARD enum gr_status gr_job_dir_write(const char *dir, const char *job, struct gr_job_note *note);
/* The job's messages, the newest first; 0: none yet, and the log says what there is instead. Those that cannot be read
 * are passed over. */
int gr_job_dir_read(const char *dir, const char *job, struct gr_job_note notes[GR_JOB_NOTE_MAX]);
void gr_job_dir_remove(const struct gr_job_note *note);
/* Of the job whose message `own' is: */
enum gr_job_dir_finding {
    GR_JOB_DIR_OURS,   /* it is there, whole and alone; or that cannot be seen just now */
    GR_JOB_DIR_GONE,   /* it is not there, and nobody else's: who writes one removes what is there first */
    GR_JOB_DIR_ANOTHER /* there is another one */
};
enum gr_job_dir_finding gr_job_dir_look(const char *dir, const char *job, const struct gr_job_note *own);

#endif
