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

#define SAYS_JOINED UINT64_C(1)
#define SAYS_END (UINT64_C(1) << 32)

static int parent_fd = -1;
static bool joined_before, is_child;
static bool told_joined, told_end;

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

static void tell(uint64_t what)
{
    ssize_t n = write(parent_fd, &what, sizeof(what));
    (void)n; /* the counter's parent end outlives this process */
}

void gr_joined_tell(void)
{
    if (parent_fd < 0 || told_joined) {
        return;
    }
    told_joined = true;
    tell(SAYS_JOINED);
    gr_log_hush(false);
}

void gr_joined_tell_end(void)
{
    if (parent_fd < 0 || told_end) {
        return;
    }
    told_end = true;
    tell(SAYS_END);
}

bool gr_joined_says_joined(uint64_t count)
{
    return (uint32_t)count != 0;
}

bool gr_joined_says_end(uint64_t count)
{
    return count >= SAYS_END;
}
