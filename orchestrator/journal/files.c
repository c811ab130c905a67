#include "orchestrator/journal/files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

static int create_file(void *ctx, int dir, const char *name)
{
    (void)ctx;
    return openat(dir, name, O_WRONLY | O_CREAT | O_TRUNC | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW, 0600);
}

static ssize_t write_file(void *ctx, int fd, const void *p, size_t n)
{
    (void)ctx;
    return write(fd, p, n);
}

static int sync_data(void *ctx, int fd)
{
    (void)ctx;
    return fdatasync(fd);
}

static int rename_file(void *ctx, int dir, const char *from, const char *to)
{
    (void)ctx;
    return renameat(dir, from, dir, to);
}

static int sync_dir(void *ctx, int dir)
{
    (void)ctx;
    return fsync(dir);
}

static int remove_file(void *ctx, int dir, const char *name)
{
    (void)ctx;
    return unlinkat(dir, name, 0);
}

const struct gr_journal_files gr_journal_system_files = {.create = create_file,
                                                         .write = write_file,
                                                         .sync_data = sync_data,
                                                         .rename = rename_file,
                                                         .sync_dir = sync_dir,
                                                         .remove = remove_file};

int gr_journal_write_all(const struct gr_journal_files *f, int fd, const uint8_t *p, size_t n)
{
    while (n > 0) {
        const ssize_t done = f->write(f->ctx, fd, p, n);
        if (done < 0 && errno == EINTR) {
            continue;
        }
        if (done <= 0) {
            errno = done < 0 ? errno : ENOSPC;
            return -1;
        }
        p += done;
        n -= (size_t)done;
    }
    return 0;
}
