/* Writes down, in their order, what a process writes, syncs, renames and sends (LD_PRELOAD), so that a test can hold
 * the order of them against what was promised: test_sync_order.py reads it.
 *
 * GRAFT_ORDER_LOG: the file. GRAFT_ORDER_DELAY_MS: a sync takes so much longer, which is when a message that does not
 * wait for it leaves too early. GRAFT_ORDER_HANG: while the file exists that it names, no sync returns.
 * GRAFT_ORDER_FAIL: while the file exists that it names, a sync fails with EIO, and nothing of it is on the disk. A
 * sync is noted when it has succeeded, a message before it is sent: two that stand in the right order here were in it.
 * When a sync begins is noted as well.
 *
 * An event: kind (4 bytes, a letter first), length (4 bytes), inode (8 bytes), then its bytes. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int log_fd = -1;
static unsigned delay_us;
static const char *hang_path, *fail_path;

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("GRAFT_ORDER_LOG"), *delay = getenv("GRAFT_ORDER_DELAY_MS");
    hang_path = getenv("GRAFT_ORDER_HANG");
    fail_path = getenv("GRAFT_ORDER_FAIL");
    log_fd = path != NULL ? open(path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600) : -1;
    delay_us = delay != NULL ? (unsigned)atoi(delay) * 1000 : 0;
}

static void put(const void *p, size_t n)
{
    if (syscall(SYS_write, log_fd, p, n) != (long)n) {
        abort(); /* what is missing in it would be taken for an order */
    }
}

struct event {
    char kind[4];
    uint32_t n;
    uint64_t inode;
};

static void note(char kind, uint64_t inode, const struct iovec *part, size_t n_part)
{
    struct event e = {.kind = {kind}, .inode = inode};
    if (log_fd < 0) {
        return;
    }
    for (size_t i = 0; i < n_part; i++) {
        e.n += (uint32_t)part[i].iov_len;
    }
    pthread_mutex_lock(&lock);
    put(&e, sizeof(e));
    for (size_t i = 0; i < n_part; i++) {
        put(part[i].iov_base, part[i].iov_len);
    }
    pthread_mutex_unlock(&lock);
}

/* 0: it is neither a file nor a socket. */
static char kind_of(int fd, uint64_t *inode)
{
    struct stat s;
    if (fstat(fd, &s) != 0) {
        return 0;
    }
    *inode = s.st_ino;
    return S_ISREG(s.st_mode) ? 'W' : S_ISSOCK(s.st_mode) ? 'O' : 0;
}

static void note_out(int fd, const struct iovec *part, size_t n_part)
{
    uint64_t inode = 0;
    const char kind = kind_of(fd, &inode);
    if (kind != 0) {
        note(kind, inode, part, n_part);
    }
}

ssize_t write(int fd, const void *p, size_t n)
{
    ssize_t (*next)(int, const void *, size_t) = NULL;
    *(void **)&next = dlsym(RTLD_NEXT, "write");
    note_out(fd, &(struct iovec){.iov_base = (void *)(uintptr_t)p, .iov_len = n}, 1);
    return next(fd, p, n);
}

ssize_t writev(int fd, const struct iovec *part, int n_part)
{
    ssize_t (*next)(int, const struct iovec *, int) = NULL;
    *(void **)&next = dlsym(RTLD_NEXT, "writev");
    note_out(fd, part, (size_t)n_part);
    return next(fd, part, n_part);
}

ssize_t send(int fd, const void *p, size_t n, int flags)
{
    ssize_t (*next)(int, const void *, size_t, int) = NULL;
    *(void **)&next = dlsym(RTLD_NEXT, "send");
    note_out(fd, &(struct iovec){.iov_base = (void *)(uintptr_t)p, .iov_len = n}, 1);
    return next(fd, p, n, flags);
}

ssize_t sendmsg(int fd, const struct msghdr *m, int flags)
{
    ssize_t (*next)(int, const struct msghdr *, int) = NULL;
    *(void **)&next = dlsym(RTLD_NEXT, "sendmsg");
    note_out(fd, m->msg_iov, m->msg_iovlen);
    return next(fd, m, flags);
}

int fdatasync(int fd)
{
    int (*next)(int) = NULL;
    *(void **)&next = dlsym(RTLD_NEXT, "fdatasync");
    uint64_t inode = 0;
    (void)kind_of(fd, &inode);
    note('B', inode, NULL, 0);
    if (delay_us > 0) {
        usleep(delay_us);
    }
    while (hang_path != NULL && access(hang_path, F_OK) == 0) {
        usleep(1000);
    }
    if (fail_path != NULL && access(fail_path, F_OK) == 0) {
        errno = EIO;
        return -1;
    }
    const int status = next(fd);
    if (status == 0) {
        note('S', inode, NULL, 0);
    }
    return status;
}

int fsync(int fd)
{
    int (*next)(int) = NULL;
    *(void **)&next = dlsym(RTLD_NEXT, "fsync");
    const int status = next(fd);
    if (status == 0) {
        note('D', 0, NULL, 0);
    }
    return status;
}

int renameat(int old_dir, const char *from, int new_dir, const char *to)
{
    int (*next)(int, const char *, int, const char *) = NULL;
    *(void **)&next = dlsym(RTLD_NEXT, "renameat");
    struct stat s = {.st_ino = 0};
    (void)fstatat(old_dir, from, &s, 0);
    const int status = next(old_dir, from, new_dir, to);
    note('R', s.st_ino, &(struct iovec){.iov_base = (void *)(uintptr_t)to, .iov_len = strlen(to)}, 1);
    return status;
}
