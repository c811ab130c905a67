#include "common/process/program.h"

#include <libgen.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
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

void gr_program_take_errors(void)
{
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
}
