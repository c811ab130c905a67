/* Two processes that take themselves for rank 0 and come in the same instant: neither finds the other before it leaves
 * word of itself, so each looks once more when it has. Each would else wait for ranks that the other one has. */
#include "orchestrator/launch/job.h"

#include "common/base/address.h"
#include "common/base/log.h"

#include <string.h>
#include <time.h>

#define WORD_MS 2000 /* so long one that has removed our message may take to put its own in place */
#define LOOK_MS 50

enum gr_status gr_job_meet_early_twin(struct gr_job *j, const char *bound)
{
    const char *port = gr_address_port_of(bound);
    const int n_all = j->where.n_address;
    int n = 0;
    while (n < n_all && strcmp(gr_address_port_of(j->where.address[n]), port) != 0) {
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

/* Ours is gone, and another's may be about to come. */
static enum gr_job_dir_finding look_whose(const struct gr_job *j, const struct gr_job_note *note)
{
    enum gr_job_dir_finding found = gr_job_dir_look(j->where.dir, j->who.job, note);
    for (int ms = 0; ms < WORD_MS && found == GR_JOB_DIR_GONE && !note->lost; ms += LOOK_MS) {
        (void)nanosleep(&(struct timespec){.tv_nsec = LOOK_MS * 1000000L}, NULL);
        found = gr_job_dir_look(j->where.dir, j->who.job, note);
    }
    return found;
}

/* Something that empties folders has taken it; ranks that come later need it. Where it cannot be written it keeps its
 * name, so that this is tried again with the next look. */
static void put_back(const struct gr_job *j, struct gr_job_note *note)
{
    char name[PATH_MAX], why[400] = "";
    memcpy(name, note->name, sizeof(name));
    gr_log_hold(why, sizeof(why));
    enum gr_status st = gr_job_dir_open(j->where.dir);
    st = st == GR_OK ? gr_job_dir_write(j->where.dir, j->who.job, note) : st;
    gr_log_hold(NULL, 0);
    if (st == GR_OK) {
        note->lost = false;
        log_warn("rank 0 on host %s: %s was removed, by which other ranks find this one; it has been written again",
                 j->who.host, name);
        return;
    }
    memcpy(note->name, name, sizeof(name));
    if (!note->lost) {
        note->lost = true;
        log_warn("rank 0 on host %s: %s was removed, by which other ranks find this one, and cannot be written again "
                 "so far: %s",
                 j->who.host, name, why);
    }
}

bool gr_job_met_late_twin(struct gr_job *j, struct gr_job_note *note)
{
    const char *dir = j->where.dir;
    if (note->name[0] == '\0') {
        return false;
    }
    const enum gr_job_dir_finding found = look_whose(j, note);
    if (found == GR_JOB_DIR_GONE) {
        put_back(j, note);
    }
    note->lost = note->lost && found == GR_JOB_DIR_GONE;
    if (found != GR_JOB_DIR_ANOTHER) {
        return false;
    }
    log_error("rank 0 on host %s: rank 0 comes twice: another one of job %s has left word of itself in %s", j->who.host,
              j->who.job, dir);
    gr_job_dir_remove(note);
    note->name[0] = '\0';
    if (gr_job_meet_twin(j) != GR_OK) {
        log_info("it has been told, and ends, too");
    }
    return true;
}
