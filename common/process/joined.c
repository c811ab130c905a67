#include "common/process/joined.h"

#include "common/base/log.h"
#include "common/base/parse.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define FD_VARIABLE "GRAFT_JOINED_FD"
#define SILENT_VARIABLE "GRAFT_SILENT_UNTIL_JOINED"

#define WORKED_VARIABLE "GRAFT_JOINED_BEFORE"

static int parent_fd = -1;
static bool joined_before, is_child;

void gr_joined_hand_over(int fd, bool silent, bool worked)
{
    char number[16];
    snprintf(number, sizeof(number), "%d", fd);
    fcntl(fd, F_SETFD, 0);
    setenv(FD_VARIABLE, number, 1);
    if (silent) {
        setenv(SILENT_VARIABLE, "1", 1);
    }
    if (worked) {
        setenv(WORKED_VARIABLE, "1", 1);
    }
}

void gr_joined_inherit(void)
{
    const char *number = getenv(FD_VARIABLE);
    int64_t fd = -1;
    if (number != NULL && gr_parse_int(number, 0, INT_MAX, &fd) && fcntl((int)fd, F_SETFD, FD_CLOEXEC) == 0) {
        parent_fd = (int)fd;
        is_child = true;
        gr_log_hush(getenv(SILENT_VARIABLE) != NULL);
        joined_before = getenv(WORKED_VARIABLE) != NULL;
    }
    unsetenv(FD_VARIABLE);
    unsetenv(SILENT_VARIABLE);
    unsetenv(WORKED_VARIABLE);
}

bool gr_joined_is_child(void)
{
    return is_child;
}

bool gr_joined_before(void)
{
    return joined_before;
}

void gr_joined_tell(void)
{
    const uint64_t one = 1;
    if (parent_fd < 0) {
        return;
    }
    ssize_t n = write(parent_fd, &one, sizeof(one));
    (void)n; /* the counter's parent end outlives this process */
    close(parent_fd);
    parent_fd = -1;
    gr_log_hush(false);
}
