/* Two processes that take themselves for rank 0 and come in the same instant: neither finds the other before it leaves
 * word of itself, so each looks once more when it has. Each would else wait for ranks that the other one has. */
#include "orchestrator/launch/job.h"

#include "common/base/log.h"

#include <string.h>
#include <time.h>

#define WORD_MS 2000 /* so long one that has removed our message may take to put its own in place */
#define LOOK_MS 50

enum gr_status gr_job_meet_early_twin(struct gr_job *j, const char *bound)
{
    const char *port = strrchr(bound, ':');
    const int n_all = j->where.n_address;
    int n = 0;
    while (n < n_all && strcmp(strrchr(j->where.address[n], ':'), port) != 0) {
        n++;
    }
    if (n == 0 || n == n_all) {
        return GR_OK;
    }
    j->where.n_address = n;
    const enum gr_status st = gr_job_meet_twin(j);
    j->where.n_address = n_all;
    return st;
}

bool gr_job_met_late_twin(struct gr_job *j, struct gr_job_note *note)
{
    const char *dir = j->where.dir;
    if (note->name[0] == '\0') {
        return false;
    }
    enum gr_job_dir_finding found = gr_job_dir_look(dir, j->who.job, note);
    if (found == GR_JOB_DIR_OURS) {
        return false;
    }
    log_error("rank 0 on host %s: rank 0 comes twice: another one of job %s has left word of itself in %s", j->who.host,
              j->who.job, dir);
    gr_job_dir_remove(note);
    for (int ms = 0; ms < WORD_MS && found == GR_JOB_DIR_GONE; ms += LOOK_MS) {
        (void)nanosleep(&(struct timespec){.tv_nsec = LOOK_MS * 1000000L}, NULL);
        found = gr_job_dir_look(dir, j->who.job, note);
    }
    note->name[0] = '\0';
    if (gr_job_meet_twin(j) != GR_OK) {
        log_info("it has been told, and ends, too");
    }
    return true;
}
