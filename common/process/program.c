#include "common/process/program.h"

#include "common/base/log.h"
#include "common/base/out_guard.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

const char *gr_program_sibling(const char *name)
{
    static char path[2 * PATH_MAX];
    char self[PATH_MAX];
    const ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
    self[n > 0 ? n : 0] = '\0';
    snprintf(path, sizeof(path), "%s/%s", dirname(self), name);
    return path;
}

/* Standard input that was closed reads as empty; output that was closed takes nothing, so that its loss is an error. */
static void fill_standard_descriptors(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF) {
            (void)!open("/dev/null", O_RDONLY); /* the lowest number that is free: fd */
        }
    }
}

void gr_program_hear_drains(void)
{
    signal(SIGUSR1, SIG_DFL);
    signal(SIGUSR2, SIG_DFL);
}

static bool hangup_reloads; /* set while there is one thread */

void gr_program_reload_by_hangup(void)
{
    hangup_reloads = true;
}

bool gr_program_reloaded_by(int signal_number)
{
    return hangup_reloads && signal_number == SIGHUP;
}

sigset_t gr_program_endings(void)
{
    sigset_t set;
    struct sigaction hangup;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    if (!hangup_reloads && sigaction(SIGHUP, NULL, &hangup) == 0 && hangup.sa_handler != SIG_IGN) {
        sigaddset(&set, SIGHUP);
    }
    return set;
}

int gr_program_end(int status)
{
    const bool failed_before = ferror(stdout) != 0;
    errno = 0;
    const bool written = fflush(stdout) == 0 && !failed_before;
    if (status == 0 && gr_out_cut_by() != 0) {
        return 128 + gr_out_cut_by();
    }
    if (written || status != 0) {
        return status;
    }
    if (errno == EPIPE) {
        return 128 + SIGPIPE;
    }
    log_error("cannot write to standard output%s%s", errno != 0 ? ": " : "", errno != 0 ? strerror(errno) : "");
    return 1;
}

void gr_program_begin(void)
{
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    signal(SIGUSR1, SIG_IGN);
    signal(SIGUSR2, SIG_IGN);
    signal(SIGCHLD, SIG_DFL);
    fill_standard_descriptors();
}
