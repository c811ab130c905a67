#include "common/base/device_lock.h"

#include "common/base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

/* Another user's file is opened as it is: with O_CREAT the kernel may refuse it in a folder that all may write to. */
static int open_file(const char *file)
{
    int fd = open(file, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 && errno == ENOENT) {
        fd = open(file, O_RDONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
    }
    return fd;
}

static int lock(int fd, const char *what)
{
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
        return 0;
    }
    if (errno == EWOULDBLOCK) {
        log_info("%s: another worker is taking memory of it: waiting", what);
    }
    int st = -1;
    do {
        st = flock(fd, LOCK_EX);
    } while (st != 0 && errno == EINTR);
    return st;
}

void gr_device_lock_take(struct gr_device_lock *l, const char *file, const char *what)
{
    const int fd = open_file(file);
    GR_ASSERT(!l->held);
    if (fd < 0 || lock(fd, what) != 0) {
        log_warn("%s: %s: %s: workers that start on it at one time may each take the memory that the other counts on",
                 what, file, strerror(errno));
        if (fd >= 0) {
            close(fd);
        }
        return;
    }
    *l = (struct gr_device_lock){.held = true, .fd = fd};
}

void gr_device_lock_give(struct gr_device_lock *l)
{
    if (l->held) {
        close(l->fd);
    }
    *l = (struct gr_device_lock){.held = false};
}
