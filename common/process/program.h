/* What all programs of a build share. */
#ifndef GR_COMMON_PROCESS_PROGRAM_H
#define GR_COMMON_PROCESS_PROGRAM_H

#include "common/base/status.h"

#include <signal.h>
#include <stdbool.h>

/* Exit statuses of all programs: 0 done, 1 failed, 2 usage, 128 + the signal that cut a command short (130: SIGINT). */
#define GR_EXIT_USAGE 2
#define GR_EXIT_SIGNAL 128
/* Of a command that `st` keeps from its work. GR_EINVAL: a value that somebody gave cannot be, wherever it stood. */
static inline int gr_program_refused(enum gr_status st)
{
    return st == GR_EINVAL ? GR_EXIT_USAGE : 1;
}

/* Path of `name` ("graft-target") in the folder of the running program; static buffer, valid until the next call. */
const char *gr_program_sibling(const char *name);

/* Makes what a program inherits safe. To be called first in main().
 * - A closed pipe (SIGPIPE) and the limit on file sizes (SIGXFSZ, `ulimit -f') become errors of the call that meets
 * them, told like any other, instead of signals that end the process.
 * - The end of a child is told, even if the parent ignores SIGCHLD: an ignored signal survives exec, and the kernel
 * then takes the child's status away before anybody has seen it.
 * - SIGUSR1 and SIGUSR2, which a launcher sends to every process of a job when its time is nearly up, end nobody: who
 * serves others drains by them (gr_program_drained_by), who is served goes on while that lasts.
 * - Descriptors 0 to 2 that are closed become /dev/null's: else the next file or socket that is opened gets their
 * numbers, and text and log lines go into it. Output that is read-only fails at its first write. */
void gr_program_begin(void);

/* What main() returns: the status or, where all went well but standard output did not take everything, 1 and a line. A
 * reader that has left is no error to tell of: then it is a shell's status of a program that SIGPIPE has ended. */
int gr_program_end(int status);
/* The signals that ask a command to end: SIGINT, SIGTERM and, unless its parent has it ignored (nohup), SIGHUP, which a
 * terminal that goes away sends; not where it has a process read its files again. */
sigset_t gr_program_endings(void);
/* A signal that asks for a drain without a limit of time, and never for haste: SIGUSR1 or SIGUSR2. */
static inline bool gr_program_drained_by(int signal_number)
{
    return signal_number == SIGUSR1 || signal_number == SIGUSR2;
}
/* From here on SIGHUP asks this process to read its files again, and not to end: before gr_children_init(). */
void gr_program_reload_by_hangup(void);
bool gr_program_reloaded_by(int signal_number);
/* From here on SIGUSR1 and SIGUSR2 reach this process: before gr_children_init() of who serves. */
void gr_program_hear_drains(void);

#endif
