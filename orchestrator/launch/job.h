/* What a process of `graft launch` holds, whatever its rank; and the two ways in which it goes on. */
#ifndef GR_ORCHESTRATOR_LAUNCH_JOB_H
#define GR_ORCHESTRATOR_LAUNCH_JOB_H

#include "common/process/children.h"
#include "orchestrator/cli/spawn.h"
#include "orchestrator/launch/channel.h"
#include "orchestrator/launch/table.h"
#include "orchestrator/launch/where.h"

struct gr_job {
    struct gr_options o;
    struct gr_plan plan; /* of a worker */
    struct gr_who who;
    struct gr_roles roles;
    struct gr_where where;
    struct gr_channel channel;   /* where ranks meet over it */
    struct gr_launch_entry self; /* its GPUs, node and incarnation */
    json_t *facts;               /* owned until the hello takes it */
    enum gr_status unfit;        /* what keeps this rank from its work (logged); GR_OK: nothing does */
    bool with_key;               /* else rank 0 draws one */
    uint8_t key[GR_KEY_BYTES];
    char **env; /* as it was at the start: the command's */
    struct gr_children children;
    int child; /* the orchestrator's or the worker's; -1: not started */
};

/* Rank 0: the orchestrator, the table, the command. Exit status. */
int gr_job_lead(struct gr_job *j);
/* Another rank: a worker. Exit status. */
int gr_job_follow(struct gr_job *j);
/* Rank 0, before it leaves word of itself: is there one of this job already? GR_EMISMATCH (logged): there is, and it
 * has said so. */
GR_NODISCARD enum gr_status gr_job_meet_twin(struct gr_job *j);
/* The same once rank 0 listens at `bound': of one that has come in the same instant, and has taken a port that is
 * looked at before this one. */
GR_NODISCARD enum gr_status gr_job_meet_early_twin(struct gr_job *j, const char *bound);
/* While rank 0 waits for the others: has another one left word of itself in the job's folder meanwhile? If so (logged)
 * it is told, and note is taken back. Where ours is gone and there is no other one, it is written again (logged). */
bool gr_job_met_late_twin(struct gr_job *j, struct gr_job_note *note);
struct gr_job_places {
    const char *join;   /* the orchestrator */
    const char *listen; /* of a target, NULL: its default */
    const char *group;  /* where the ranks of the target meet that this one is with others; NULL: it is one alone */
    int device;         /* the first index of cuda:local, or GR_DEVICE_LOCAL: it stays so */
};
/* The command line of this rank's worker. at: borrowed while the line is used. */
GR_NODISCARD enum gr_status gr_job_line(struct gr_job *j, const struct gr_job_places *at,
                                        struct gr_worker_line *line_out);
/* The devices that this rank was told: by its plan's item, else by --target-device or --draft-device. */
struct gr_devices gr_job_devices(const struct gr_job *j);
/* Processes that its worker is: by its plan's item, else by --tensor-parallel-size; one of a group over ranks is 1. */
int gr_job_tp(const struct gr_job *j);
/* What an end of a hand-shake says of itself: GR_ROLE_LEAD is who listens, GR_ROLE_RANK who comes. */
void gr_job_self(const struct gr_job *j, enum gr_role role, struct gr_hello *hello_out);
/* --control of rank 0's orchestrator; NULL: it was not given, whose default is that of a server by itself. Borrowed. */
const char *gr_job_control(const struct gr_job *j);

/* Signals that are handed on and end nothing here. fd: readable when one has come. */
GR_NODISCARD enum gr_status gr_job_user_signals(int *fd_out);
/* 0: none (any more). *ending: what gr_children_poll() has read; a signal that is handed on ends nothing, whoever reads
 * it, and is taken out of it. */
int gr_job_user_signal(int *ending);
/* Is the signal that asks this process to end a second one? Several senders signal all processes of a job at once, so
 * that what comes within a second of the first is the same one. *first_ns: when that came, 0 before it; written. */
bool gr_job_signal_again(uint64_t *first_ns, uint64_t now_ns);

#endif
