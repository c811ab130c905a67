#include "orchestrator/journal/folder.h"

#include "common/base/log.h"
#include "orchestrator/journal/segment.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define SEGMENT_FILE_MAX ((off_t)1 << 30) /* a longer file is none of ours */

/* ---- whose it is ---- */

static enum gr_status cannot(const char *path, const char *what)
{
    log_error("journal %s: %s: %s", path, what, strerror(errno));
    return GR_EIO;
}

/* A folder that was just made is durable when the one above it is. */
static enum gr_status sync_above(int fd, const char *path)
{
    const int above = openat(fd, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const bool good = above >= 0 && fsync(above) == 0;
    const enum gr_status st = good ? GR_OK : cannot(path, "the folder above it cannot be synced");
    if (above >= 0) {
        close(above);
    }
    return st;
}

static enum gr_status check_owner(int fd, const char *path)
{
    struct stat s;
    if (fstat(fd, &s) != 0) {
        return cannot(path, "cannot be looked at");
    }
    if (s.st_uid != geteuid() || (s.st_mode & 077) != 0) {
        log_error("journal %s: texts of all sessions lie there: it must be this user's folder and nobody else's "
                  "(chmod 700)",
                  path);
        return GR_EMISMATCH;
    }
    return GR_OK;
}

static enum gr_status lock(int fd, const char *path)
{
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
        return GR_OK;
    }
    if (errno != EWOULDBLOCK) {
        return cannot(path, "cannot be locked");
    }
    log_error("journal %s: another process has this journal: end that one, or give this one another folder", path);
    return GR_EMISMATCH;
}

enum gr_status gr_journal_folder_open(const char *path, struct gr_journal_folder *out)
{
    const bool made = mkdir(path, 0700) == 0;
    struct gr_journal_folder f = {.fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
    if (f.fd < 0) {
        return cannot(path, "cannot be opened as a folder");
    }
    enum gr_status st = check_owner(f.fd, path);
    st = st == GR_OK ? lock(f.fd, path) : st;
    st = st == GR_OK && made ? sync_above(f.fd, path) : st;
    if (st != GR_OK) {
        gr_journal_folder_close(&f);
        return st;
    }
    *out = f;
    return GR_OK;
}

void gr_journal_folder_close(struct gr_journal_folder *f)
{
    if (f->fd >= 0) {
        close(f->fd);
        f->fd = -1;
    }
}

/* ---- what lies in it ---- */

static int is_segment(const struct dirent *e)
{
    return gr_segment_generation(e->d_name) != 0;
}

/* The names are of one length, so that their order is that of their numbers. */
static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static enum gr_status fill(int fd, const char *name, uint8_t *p, size_t n)
{
    for (size_t at = 0; at < n;) {
        const ssize_t got = read(fd, p + at, n - at);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            log_error("journal: %s: cannot be read at byte %zu: %s", name, at,
                      got < 0 ? strerror(errno) : "it is shorter than it was");
            return GR_EIO;
        }
        at += (size_t)got;
    }
    return GR_OK;
}

/* bytes_out: owned by the caller. */
static enum gr_status load(int fd, const char *name, uint8_t **bytes_out, size_t *n_out)
{
    struct stat s;
    if (fstat(fd, &s) != 0 || !S_ISREG(s.st_mode) || s.st_size > SEGMENT_FILE_MAX) {
        log_error("journal: %s: it is no file, or longer than the %lld bytes that a segment has at most", name,
                  (long long)SEGMENT_FILE_MAX);
        return GR_EIO;
    }
    const size_t n = (size_t)s.st_size;
    uint8_t *bytes = malloc(n > 0 ? n : 1);
    if (bytes == NULL) {
        log_error("journal: %s: out of memory for %zu bytes", name, n);
        return GR_ENOMEM;
    }
    const enum gr_status st = fill(fd, name, bytes, n);
    if (st != GR_OK) {
        free(bytes);
        return st;
    }
    *bytes_out = bytes;
    *n_out = n;
    return GR_OK;
}

static enum gr_status replay_one(struct gr_replay *r, const char *name, const uint8_t *p, size_t n)
{
    const enum gr_status st = gr_replay_segment(r, gr_segment_generation(name), p, n);
    if (st == GR_EFORMAT) {
        log_warn("journal: %s: its first %d bytes are damaged, and with them all of it: sessions that may have had "
                 "records there are not served",
                 name, GR_SEGMENT_HEAD_BYTES);
        return GR_OK;
    }
    if (st == GR_EUNSUPPORTED) {
        log_error("journal: %s: another version of graft has written it; go on with that one, or give another folder",
                  name);
    }
    return st;
}

static enum gr_status read_one(struct gr_journal_folder *f, struct gr_replay *r, const char *name)
{
    uint8_t *bytes = NULL;
    size_t n = 0;
    const int fd = openat(f->fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) {
        return cannot(name, "cannot be opened");
    }
    enum gr_status st = load(fd, name, &bytes, &n);
    close(fd);
    if (st == GR_OK) {
        st = replay_one(r, name, bytes, n);
        free(bytes);
    }
    f->last_generation = gr_segment_generation(name);
    return st;
}

static int scan(int dir, struct dirent ***names)
{
    return scandirat(dir, ".", names, is_segment, by_name);
}

enum gr_status gr_journal_folder_read(struct gr_journal_folder *f, struct gr_replay *r)
{
    struct dirent **name = NULL;
    const int n = scan(f->fd, &name);
    if (n < 0) {
        return cannot("its folder", "cannot be read");
    }
    enum gr_status st = GR_OK;
    for (int i = 0; i < n; i++) {
        st = st == GR_OK ? read_one(f, r, name[i]->d_name) : st;
        free(name[i]);
    }
    free((void *)name);
    return st;
}
