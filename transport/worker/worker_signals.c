#include "transport/worker/worker_signals.h"

#include <signal.h>
#include <unistd.h>

#define LOOP_MAX 2 /* a target and its co-located drafter */

static struct gr_worker_io *loops[LOOP_MAX]; /* those that run */

/* Only what a signal handler may do: gr_worker_io_stop() stores a flag and writes to a descriptor. */
static void on_signal(int number)
{
    bool any = false;
    (void)number;
    for (int i = 0; i < LOOP_MAX; i++) {
        struct gr_worker_io *w = __atomic_load_n(&loops[i], __ATOMIC_ACQUIRE);
        if (w != NULL) {
            gr_worker_io_stop(w);
            any = true;
        }
    }
    if (!any) {
        _exit(0);
    }
}

void gr_worker_signals_catch(void)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART | (int)SA_RESETHAND};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
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
