#include "orchestrator/launch/job.h"

#include "common/base/clock.h"
#include "common/base/device.h"
#include "common/base/log.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define SAME_SIGNAL_NS GR_S

/* ---- signals that are handed on ---- */

static int user_fd = -1;
static volatile sig_atomic_t user_signal;

static void on_user_signal(int number)
{
    const uint64_t one = 1;
    user_signal = number;
    (void)!write(user_fd, &one, sizeof(one));
}

/* Handlers, not a signal mask: children inherit a mask, and would never see the signal. */
enum gr_status gr_job_user_signals(int *fd_out)
{
    struct sigaction action = {.sa_handler = on_user_signal, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    user_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (user_fd < 0) {
        log_error("eventfd: %s", strerror(errno));
        return GR_EIO;
    }
    sigaction(SIGUSR1, &action, NULL);
    sigaction(SIGUSR2, &action, NULL);
    *fd_out = user_fd;
    return GR_OK;
}

int gr_job_user_signal(int *ending)
{
    uint64_t count;
    if (*ending == SIGUSR1 || *ending == SIGUSR2) {
        const int number = *ending;
        *ending = 0;
        return number;
    }
    if (user_fd < 0 || read(user_fd, &count, sizeof(count)) != (ssize_t)sizeof(count)) {
        return 0;
    }
    return user_signal;
}

bool gr_job_signal_again(uint64_t *first_ns, uint64_t now_ns)
{
    if (*first_ns == 0) {
        *first_ns = now_ns;
    }
    return now_ns > *first_ns + SAME_SIGNAL_NS;
}

/* ---- what both kinds of rank need ---- */

void gr_job_self(const struct gr_job *j, enum gr_role role, struct gr_hello *hello_out)
{
    *hello_out = (struct gr_hello){.version = GR_PROTOCOL_VERSION,
                                   .role = role,
                                   .incarnation = j->self.incarnation,
                                   .limits = {.small_bytes_max = 65536, .n_small_slot = 2}};
    gr_host_id(hello_out->host_id);
}

int gr_job_device(const struct gr_job *j)
{
    const struct gr_launch_rank *own = &j->roles.rank[j->who.rank];
    const int named = own->role == GR_LAUNCH_TARGET ? j->o.target_device : j->o.draft_device;
    return own->has_device ? own->device : named;
}

/* Its device, in the row from which the worker's command line takes it. A drafter in a target's process has the
 * target's. */
static enum gr_status set_device(struct gr_job *j, int device)
{
    const struct gr_launch_rank *own = &j->roles.rank[j->who.rank];
    const bool target = own->role == GR_LAUNCH_TARGET;
    const enum gr_option_id row = target ? GR_OPTION_target_device : GR_OPTION_draft_device;
    const int asked = gr_job_device(j);
    const int taken = asked == GR_DEVICE_LOCAL && device >= 0 ? device : asked;
    char text[32];
    if (!own->has_device && taken == asked) {
        return GR_OK;
    }
    snprintf(text, sizeof(text),
             taken == GR_DEVICE_CPU     ? "cpu"
             : taken == GR_DEVICE_LOCAL ? "cuda:local"
                                        : "cuda:%d",
             taken);
    GR_TRY(gr_option_set(&j->o.values, &gr_option_rows[row], "device", text, GR_FROM_CLI));
    return target && j->plan.colocated
               ? gr_option_set(&j->o.values, &gr_option_rows[GR_OPTION_draft_device], "device", text, GR_FROM_CLI)
               : GR_OK;
}

enum gr_status gr_job_line(struct gr_job *j, const char *join, const char *listen, int device,
                           struct gr_worker_line *line_out)
{
    GR_TRY(set_device(j, device));
    if (j->roles.rank[j->who.rank].role == GR_LAUNCH_TARGET) {
        gr_worker_line_target(line_out, &j->o, &j->plan, join, j->o.n_session);
        gr_child_args_add(&line_out->args, "--listen", listen);
    } else {
        gr_worker_line_draft(line_out, &j->o, &j->plan, join, j->o.n_session);
    }
    return GR_OK;
}
