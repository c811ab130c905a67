#include "transport/worker/worker_signals.h"

#include "common/base/clock.h"
#include "common/process/program.h"
#include "common/process/told.h"

#include <signal.h>
#include <stdbool.h>
#include <unistd.h>

#define LOOP_MAX 2 /* a target and its co-located drafter */

static struct gr_worker_io *loops[LOOP_MAX]; /* those that run */
static uint64_t leave_limit_ns;
static struct gr_told told;
static volatile sig_atomic_t follows;
static unsigned limit_s; /* of one that follows */

static bool leave_loops(uint64_t limit_ns)
{
    bool any = false;
    for (int i = 0; i < LOOP_MAX; i++) {
        struct gr_worker_io *w = __atomic_load_n(&loops[i], __ATOMIC_ACQUIRE);
        if (w != NULL) {
            gr_worker_io_leave(w, limit_ns);
            any = true;
        }
    }
    return any;
}

/* Only what a signal handler may do: gr_worker_io_leave() stores a number and writes to a descriptor. */
static void on_signal(int number, siginfo_t *info, void *context)
{
    const bool drains = gr_program_drained_by(number);
    (void)context;
    if (!drains && gr_told_by(&told, info->si_pid) == GR_TOLD_AGAIN) {
        signal(number, SIG_DFL);
        raise(number); /* it is delivered when this returns */
        return;
    }
    if (follows) {
        if (!drains) {
            alarm(limit_s);
        }
        return;
    }
    if (!leave_loops(drains ? UINT64_MAX : leave_limit_ns)) {
        _exit(0);
    }
}

void gr_worker_signals_catch(uint64_t limit_ns)
{
    const sigset_t endings = gr_program_endings();
    struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_RESTART | SA_SIGINFO};
    leave_limit_ns = limit_ns;
    sigemptyset(&action.sa_mask);
    for (int number = 1; number < NSIG; number++) {
        if (sigismember(&endings, number) == 1 || gr_program_drained_by(number)) {
            sigaction(number, &action, NULL);
        }
    }
}

static void on_alarm(int number)
{
    (void)number;
    _exit(0);
}

void gr_worker_signals_follow(void)
{
    limit_s = (unsigned)GR_MIN(leave_limit_ns / GR_S + 1, (uint64_t)UINT32_MAX);
    signal(SIGALRM, on_alarm);
    follows = 1;
}

static void replace(struct gr_worker_io *old, struct gr_worker_io *new)
{
    for (int i = 0; i < LOOP_MAX; i++) {
        struct gr_worker_io *expected = old;
        if (__atomic_compare_exchange_n(&loops[i], &expected, new, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
            return;
        }
    }
}

enum gr_status gr_worker_signals_run(struct gr_worker_io *w)
{
    replace(NULL, w);
    const enum gr_status st = gr_worker_io_run(w);
    replace(w, NULL);
    return st;
}
