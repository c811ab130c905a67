#include "transport/worker/supervise.h"

#include "common/process/children.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/process/program.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SUPERVISED_VARIABLE "GRAFT_SUPERVISED"
#define GRACE_MS 3000 /* a child that has not ended so long after it was told to is killed */

static const struct gr_child_rule rule = {.restart = {.pause_max_ns = 30 * GR_S}, .status_0_ends = true};

static bool is_flag(const char *arg)
{
    return strcmp(arg, "--supervise") == 0;
}

bool gr_supervise_wanted(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (is_flag(argv[i])) {
            return true;
        }
    }
    return false;
}

static enum gr_status start(struct gr_children *c, const char *name, int argc, char **argv)
{
    char program[32];
    snprintf(program, sizeof(program), "graft-%s", name);
    const char *child[GR_CHILD_ARG_MAX + 1] = {gr_program_sibling(program)};
    int n = 1, index = 0;
    for (int i = 1; i < argc; i++) {
        if (is_flag(argv[i])) {
            continue;
        }
        if (n == GR_CHILD_ARG_MAX) {
            log_error("more than %d arguments", GR_CHILD_ARG_MAX);
            return GR_ELIMIT;
        }
        child[n++] = argv[i];
    }
    GR_TRY(gr_children_init(c, NULL));
    return gr_children_start(c, name, child, &rule, &index);
}

/* -1: go on; else the status to end with. */
static int handle(struct gr_children *c)
{
    int signal_number = 0;
    int index = 0;
    const enum gr_child_event e = gr_children_poll(c, &signal_number, &index);
    if (signal_number != 0) {
        return 0;
    }
    return e == GR_CHILD_ENDED || e == GR_CHILD_GIVEN_UP ? c->child[index].exit_status : -1;
}

int gr_supervise_run(const char *name, int argc, char **argv)
{
    struct gr_children c;
    setenv(SUPERVISED_VARIABLE, "1", 1);
    gr_log_place();
    if (start(&c, name, argc, argv) != GR_OK) {
        return 1;
    }
    int status = -1;
    while (status < 0) {
        const int wait_ms = gr_children_restart(&c, gr_clock_ns());
        struct pollfd p = {.fd = c.signal_fd, .events = POLLIN};
        (void)poll(&p, 1, wait_ms);
        status = handle(&c);
    }
    gr_children_signal(&c, SIGTERM);
    gr_children_finish(&c, GRACE_MS);
    return status;
}

int gr_supervise_exit_status(enum gr_status st)
{
    if (st == GR_ECLOSED) {
        return getenv(SUPERVISED_VARIABLE) != NULL ? GR_EXIT_ORCHESTRATOR_LOST : 0;
    }
    return st == GR_OK ? 0 : st == GR_ECUDA ? GR_CHILD_EXIT_AGAIN : gr_program_refused(st);
}
