#include "common/base/in_file.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

int gr_in_file_open(const char *path)
{
    return open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
}

FILE *gr_in_file_stream(const char *path)
{
    const int fd = gr_in_file_open(path);
    FILE *f = fd >= 0 ? fdopen(fd, "r") : NULL;
    if (f == NULL && fd >= 0) {
        close(fd);
    }
    return f;
}

ssize_t gr_in_file_read(int fd, char *to, size_t cap)
{
    size_t n = 0;
    while (n < cap) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        const int ready = poll(&p, 1, GR_IN_FILE_MS);
        const ssize_t got = ready > 0 ? read(fd, to + n, cap - n) : -1;
        if (ready == 0) {
            errno = ETIMEDOUT;
        }
        if (got <= 0) {
            return got < 0 ? -1 : (ssize_t)n;
        }
        n += (size_t)got;
    }
    return (ssize_t)n;
}

const char *gr_in_file_error(int error)
{
    return error == ETIMEDOUT ? "nobody has written into this FIFO within 5 s" : strerror(error);
}
