#include "orchestrator/http/secret_file.h"

#include "common/base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static enum gr_status check_mode(const char *what, const char *path, const struct stat *sb)
{
    const mode_t too_much = sb->st_uid == geteuid() ? 077 : 007;
    if ((sb->st_mode & too_much) != 0) {
        log_error("%s %s has mode %04o, so others may read what it keeps secret; chmod 600 %s", what, path,
                  (unsigned)sb->st_mode & 07777u, path);
        return GR_EINVAL;
    }
    return GR_OK;
}

static enum gr_status check(const char *what, const char *path, bool secret, const struct stat *sb)
{
    if (!S_ISREG(sb->st_mode)) {
        log_error("%s %s is no regular file; it is read again at SIGHUP", what, path);
        return GR_EINVAL;
    }
    if (sb->st_size > (off_t)GR_SECRET_FILE_MAX) {
        log_error("%s %s has %lld bytes; at most %u are taken", what, path, (long long)sb->st_size, GR_SECRET_FILE_MAX);
        return GR_EINVAL;
    }
    return secret ? check_mode(what, path, sb) : GR_OK;
}

static enum gr_status fail(const char *what, const char *path)
{
    log_error("%s %s: %s", what, path, strerror(errno));
    return GR_EIO;
}

/* Up to cap bytes; -1: errno says why. */
static ssize_t read_all(int fd, char *to, size_t cap)
{
    size_t n = 0;
    ssize_t got = 1;
    while (n < cap && got > 0) {
        got = read(fd, to + n, cap - n);
        n += got > 0 ? (size_t)got : 0;
    }
    return got < 0 ? -1 : (ssize_t)n;
}

static enum gr_status read_open(const char *what, const char *path, bool secret, int fd, struct gr_secret_text *out)
{
    struct stat sb;
    if (fstat(fd, &sb) != 0) {
        return fail(what, path);
    }
    GR_TRY(check(what, path, secret, &sb));
    *out = (struct gr_secret_text){.text = calloc(1, (size_t)sb.st_size + 1), .len = (size_t)sb.st_size};
    if (out->text == NULL) {
        log_error("out of memory for %s %s", what, path);
        return GR_ENOMEM;
    }
    const ssize_t n = read_all(fd, out->text, out->len);
    if (n < 0) {
        return fail(what, path);
    }
    out->len = (size_t)n;
    return GR_OK;
}

enum gr_status gr_secret_file_read(const char *what, const char *path, bool secret, struct gr_secret_text *out)
{
    *out = (struct gr_secret_text){0};
    const int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0) {
        return fail(what, path);
    }
    const enum gr_status st = read_open(what, path, secret, fd, out);
    close(fd);
    if (st != GR_OK) {
        gr_secret_text_finish(out);
    }
    return st;
}

void gr_secret_text_finish(struct gr_secret_text *t)
{
    if (t->text != NULL) {
        sodium_memzero(t->text, t->len);
    }
    free(t->text);
    *t = (struct gr_secret_text){0};
}
