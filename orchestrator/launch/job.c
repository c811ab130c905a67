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

const char *gr_job_control(const struct gr_job *j)
{
    return j->o.values.source[GR_OPTION_control] != GR_FROM_DEFAULT ? j->o.control : NULL;
}

void gr_job_self(const struct gr_job *j, enum gr_role role, struct gr_hello *hello_out)
{
    gr_hello_for_messages(role, hello_out);
    hello_out->incarnation = j->self.incarnation;
}

static const struct gr_launch_rank *own_role(const struct gr_job *j)
{
    return &j->roles.rank[j->who.rank];
}

struct gr_devices gr_job_devices(const struct gr_job *j)
{
    const struct gr_launch_rank *own = own_role(j);
    const bool target = own->role == GR_LAUNCH_TARGET;
    return own->devices.n > 0 ? own->devices : target ? j->o.target_device : j->o.draft_device;
}

int gr_job_tp(const struct gr_job *j)
{
    const struct gr_launch_rank *own = own_role(j);
    return own->role != GR_LAUNCH_TARGET || own->group > 0 ? 1 : own->tp > 0 ? own->tp : (int)j->o.tensor_parallel_size;
}

static bool is_local(const struct gr_devices *d)
{
    return d->n == 1 && d->device[0] == GR_DEVICE_LOCAL;
}

/* Those of cuda:local, side by side. */
static struct gr_devices place(const struct gr_job *j, int device)
{
    struct gr_devices d = gr_job_devices(j);
    if (!is_local(&d) || device < 0) {
        return d;
    }
    d.n = gr_job_tp(j);
    for (int i = 0; i < d.n; i++) {
        d.device[i] = device + i;
    }
    return d;
}

static enum gr_status set(struct gr_job *j, enum gr_option_id row, const char *what, const char *text)
{
    return gr_option_set(&j->o.values, &gr_option_rows[row], what, text, GR_FROM_CLI);
}

/* Its devices and its group's size, in the rows from which the worker's command line takes them. A drafter in a
 * target's process has the device of rank 0. */
static enum gr_status set_device(struct gr_job *j, int device)
{
    const bool target = own_role(j)->role == GR_LAUNCH_TARGET;
    const struct gr_devices d = place(j, device);
    char text[GR_DEVICES_TEXT];
    const int n_rank = GR_MAX(own_role(j)->tp, own_role(j)->group);
    if (target && n_rank > 0) {
        snprintf(text, sizeof(text), "%d", n_rank);
        GR_TRY(set(j, GR_OPTION_tensor_parallel_size, "tp", text));
    }
    const struct gr_devices told = gr_job_devices(j);
    if (own_role(j)->devices.n == 0 && (device < 0 || !is_local(&told)) && !(target && j->plan.colocated)) {
        return GR_OK; /* they stand there as they are */
    }
    gr_devices_text(&d, text, sizeof(text));
    GR_TRY(set(j, target ? GR_OPTION_target_device : GR_OPTION_draft_device, "device", text));
    if (target && j->plan.colocated) {
        const struct gr_devices first = {.device = {gr_devices_of(&d, 0)}, .n = 1};
        gr_devices_text(&first, text, sizeof(text));
        return set(j, GR_OPTION_draft_device, "device", text);
    }
    return GR_OK;
}

/* Which of its group this rank is, in memory that stays. */
static void add_group(const struct gr_job *j, const char *group, struct gr_child_args *args)
{
    static char place[16];
    snprintf(place, sizeof(place), "%d", own_role(j)->member);
    gr_child_args_add(args, "--tp-rank", place);
    gr_child_args_add(args, "--tp-group", group);
}

enum gr_status gr_job_line(struct gr_job *j, const struct gr_job_places *at, struct gr_worker_line *line_out)
{
    GR_TRY(set_device(j, at->device));
    if (own_role(j)->role != GR_LAUNCH_TARGET) {
        gr_worker_line_draft(line_out, &j->o, &j->plan, at->join, j->o.n_session);
        return GR_OK;
    }
    gr_worker_line_target(line_out, &j->o, &j->plan, at->join, j->o.n_session);
    gr_child_args_add(&line_out->args, "--listen", at->listen);
    if (own_role(j)->group > 0) {
        add_group(j, at->group, &line_out->args);
    }
    return GR_OK;
}
