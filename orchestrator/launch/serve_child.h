/* The orchestrator of a job: `graft serve' as a child of rank 0. Unless --control has said it, the system chooses
 * its port, which it says over a pipe once it serves. Another life of it, after a kill, takes the same port, where the
 * workers look for it. */
#ifndef GR_ORCHESTRATOR_LAUNCH_SERVE_CHILD_H
#define GR_ORCHESTRATOR_LAUNCH_SERVE_CHILD_H

#include "orchestrator/launch/job.h"
#include "transport/connect/reach.h"

struct gr_serve_child {
    char control[GR_WHERE_CONTROL_BYTES]; /* where it listens, with the ports that listeners take; set by the caller */
    char connect[GR_WHERE_CONTROL_BYTES]; /* where a process of this host reaches it, once it is ready */
    char reach[GR_REACH_BYTES];           /* where others do: a list */
    int ready_fd;                         /* readable when it has something to say; -1: not started */
    int port;                             /* 0: not known yet */
};

/* Its command line, but for the pipe over which it says its port. control: where it is to listen; borrowed, as all that
 * the line points to. */
void gr_serve_child_line(struct gr_job *j, const char *control, struct gr_worker_line *line);
/* Sets j->child. */
GR_NODISCARD enum gr_status gr_serve_child_start(struct gr_job *j, struct gr_serve_child *s);
/* Reads what it has said. True once: from here on port and connect are known. */
bool gr_serve_child_is_ready(struct gr_job *j, struct gr_serve_child *s);

#endif
