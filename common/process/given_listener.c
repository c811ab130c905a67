#include "common/process/given_listener.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>

#define VARIABLE "GRAFT_GROUP_LISTENER"

void gr_listener_give(int fd)
{
    char text[16];
    snprintf(text, sizeof(text), "%d", fd);
    (void)fcntl(fd, F_SETFD, 0);
    setenv(VARIABLE, text, 1);
}

int gr_listener_given(void)
{
    const char *text = getenv(VARIABLE);
    int fd = -1;
    if (text == NULL || sscanf(text, "%d", &fd) != 1 || fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) {
        fd = -1;
    }
    unsetenv(VARIABLE);
    return fd;
}
