#include "common/process/supervise.h"

#include "common/process/children.h"
#include "common/process/joined.h"
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

static const struct gr_child_rule rule = {
    .restart = {.pause_max_ns = 30 * GR_S}, .status_0_ends = true, .keeps_seat = true};

bool gr_supervise_is_child(void)
{
    return getenv(SUPERVISED_VARIABLE) != NULL;
}

void gr_supervise_forget(void)
{
    unsetenv(SUPERVISED_VARIABLE);
}

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

static enum gr_status start(struct gr_children *c, const struct gr_supervised *what, int argc, char **argv)
{
    const char *child[GR_CHILD_ARG_MAX + 1] = {gr_program_sibling(what->program)};
    int n = 1, index = 0;
    if (what->verb != NULL) {
        child[n++] = what->verb;
    }
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
    gr_program_hear_drains();
    if (what->rereads) {
        gr_program_reload_by_hangup();
    }
    GR_TRY(gr_children_init(c, NULL));
    return gr_children_start(c, what->name, child, &rule, &index);
}

struct supervisor {
    struct gr_children children;
    bool leaving;     /* the child has been told to end or to drain: its next end is the last */
    bool told_to_end; /* by a signal of which a second one ends it at once */
};

/* -1: go on; else the status to end with. */
static int hand_on(struct supervisor *s, int signal_number)
{
    const bool ends = !gr_program_drained_by(signal_number);
    if (gr_program_reloaded_by(signal_number)) {
        gr_children_signal(&s->children, signal_number);
        return -1;
    }
    const bool at_once = ends && s->told_to_end;
    s->leaving = true;
    s->told_to_end = s->told_to_end || ends;
    gr_children_signal(&s->children, signal_number);
    if (at_once) {
        return GR_EXIT_SIGNAL + signal_number;
    }
    return s->children.child[0].pid == 0 ? 0 : -1; /* between two lives there is nothing to finish */
}

/* -1: go on; else the status to end with. */
static int handle(struct supervisor *s)
{
    int signal_number = 0;
    int index = 0;
    const enum gr_child_event e = gr_children_poll(&s->children, &signal_number, &index);
    const int status = signal_number != 0 ? hand_on(s, signal_number) : -1;
    if (e == GR_CHILD_NONE || status >= 0) {
        return status;
    }
    const int its = s->children.child[index].exit_status;
    if (e == GR_CHILD_RESTARTED) {
        return s->leaving ? GR_MAX(its, 1) : -1;
    }
    return e == GR_CHILD_GIVEN_UP ? GR_MAX(its, 1) : its;
}

int gr_supervise_run(const struct gr_supervised *what, int argc, char **argv)
{
    struct supervisor s = {0};
    setenv(SUPERVISED_VARIABLE, "1", 1);
    gr_log_place();
    if (start(&s.children, what, argc, argv) != GR_OK) {
        return 1;
    }
    int status = -1;
    while (status < 0) {
        const int wait_ms = gr_children_restart(&s.children, gr_clock_ns());
        const struct gr_child *child = &s.children.child[0];
        struct pollfd p[] = {{.fd = s.children.signal_fd, .events = POLLIN},
                             {.fd = child->joined_fd, .events = POLLIN}};
        (void)poll(p, GR_ARRAY_LEN(p), wait_ms);
        status = handle(&s);
        if (gr_children_joined(&s.children, 0)) {
            gr_joined_tell(); /* this process may be a child, too: `graft launch' waits for its worker */
        }
        if (gr_children_ends(&s.children, 0)) {
            gr_joined_tell_end();
        }
    }
    gr_children_finish(&s.children, GRACE_MS);
    return status;
}

int gr_supervise_exit_status(enum gr_status st)
{
    if (st == GR_ECLOSED) {
        return GR_EXIT_ORCHESTRATOR_LOST;
    }
    return st == GR_OK ? 0 : st == GR_ECUDA ? GR_CHILD_EXIT_AGAIN : gr_program_refused(st);
}
