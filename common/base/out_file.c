#include "common/base/out_file.h"

#include "common/base/log.h"
#include "common/base/out_guard.h"
#include "common/base/parse.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#define LINK_MAX_DEPTH 40 /* as the kernel's */

static enum gr_status fail(const char *what, const char *path, const char *why)
{
    log_error("%s %s: %s", what, path, why);
    return GR_EIO;
}

/* The number N of /dev/stdout, /dev/stderr, and of N in a folder of this process's descriptors; -1: another name. */
static int own_fd(const char *path)
{
    char own[32];
    snprintf(own, sizeof(own), "/proc/%d/fd/", (int)getpid());
    const char *const folders[] = {"/dev/fd/", "/proc/self/fd/", "/proc/thread-self/fd/", own};
    int64_t fd = -1;
    if (strcmp(path, "/dev/stdout") == 0) {
        return STDOUT_FILENO;
    }
    if (strcmp(path, "/dev/stderr") == 0) {
        return STDERR_FILENO;
    }
    for (size_t i = 0; i < GR_ARRAY_LEN(folders); i++) {
        const size_t n = strlen(folders[i]);
        if (strncmp(path, folders[i], n) == 0 && gr_parse_int(path + n, 0, INT_MAX, &fd)) {
            return (int)fd;
        }
    }
    return -1;
}

/* One link: `to' becomes what it says, seen from the link's own folder. */
static bool follow_one(char to[PATH_MAX])
{
    char target[PATH_MAX], from[PATH_MAX], whole[2 * PATH_MAX];
    const ssize_t n = readlink(to, target, sizeof(target) - 1);
    if (n <= 0) {
        return false;
    }
    target[n] = '\0';
    snprintf(from, sizeof(from), "%s", to);
    const int len = target[0] == '/' ? snprintf(whole, sizeof(whole), "%s", target)
                                     : snprintf(whole, sizeof(whole), "%s/%s", dirname(from), target);
    if (len <= 0 || len >= PATH_MAX) {
        return false;
    }
    memcpy(to, whole, (size_t)len + 1);
    return true;
}

/* What stands at the end of a name. */
struct place {
    bool there;
    struct stat st; /* where something is there */
    int own;        /* this process's descriptor that the name means; -1: none */
    bool opened;    /* a link of /proc to what a process has open: only opening it leads there */
};

static bool in_proc(const char *path)
{
    struct statfs fs;
    char folder[PATH_MAX];
    snprintf(folder, sizeof(folder), "%s", path);
    return statfs(dirname(folder), &fs) == 0 && fs.f_type == PROC_SUPER_MAGIC;
}

/* Follows the links at the end of a name, up to one that stands for a descriptor. */
static enum gr_status follow_links(const char *what, const char *path, char out[PATH_MAX], struct place *p)
{
    *p = (struct place){.own = -1};
    if (snprintf(out, PATH_MAX, "%s", path) >= PATH_MAX) {
        return fail(what, path, "the name is too long");
    }
    for (int depth = 0; depth < LINK_MAX_DEPTH; depth++) {
        p->own = own_fd(out);
        p->there = p->own < 0 && lstat(out, &p->st) == 0;
        if (!p->there) {
            return p->own >= 0 || errno == ENOENT ? GR_OK : fail(what, path, strerror(errno));
        }
        if (!S_ISLNK(p->st.st_mode)) {
            return GR_OK;
        }
        if (strstr(out, "/fd/") != NULL && in_proc(out)) {
            p->opened = true;
            return stat(out, &p->st) == 0 ? GR_OK : fail(what, path, strerror(errno));
        }
        if (!follow_one(out)) {
            return fail(what, path, "a link on its way cannot be followed");
        }
    }
    return fail(what, path, "too many symbolic links");
}

static enum gr_status take_fd(struct gr_out_file *o, int fd)
{
    o->fd = fd;
    o->f = fd >= 0 ? gr_out_stream(fd) : NULL;
    if (o->f == NULL) {
        const enum gr_status st = fail(o->what, o->path, strerror(errno));
        if (fd >= 0) {
            close(fd);
        }
        return st;
    }
    return GR_OK;
}

/* A device, a FIFO, a file that is open or mounted. Opened without waiting for a reader; written as any file is. */
static enum gr_status open_directly(struct gr_out_file *o, const struct stat *st)
{
    const int fd = open(o->path, O_WRONLY | O_TRUNC | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0 && errno == ENXIO && S_ISFIFO(st->st_mode)) {
        return GR_AGAIN;
    }
    if (fd >= 0) {
        const int flags = fcntl(fd, F_GETFL);
        fcntl(fd, F_SETFL, flags & ~O_NONBLOCK);
    }
    return take_fd(o, fd);
}

static mode_t less_umask(mode_t mode)
{
    const mode_t mask = umask(0);
    umask(mask);
    return mode & ~mask;
}

/* A file that is mounted by itself, as containers mount single ones: nothing can be renamed over it. */
static bool is_mount_point(const struct gr_out_file *o, bool there)
{
    struct statx self;
    return there && statx(AT_FDCWD, o->path, AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS, &self) == 0 &&
           (self.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0;
}

static enum gr_status open_beside(struct gr_out_file *o, mode_t mode)
{
    char folder[PATH_MAX];
    snprintf(folder, sizeof(folder), "%s", o->path);
    /* A short name of its own: one made of the file's may be longer than a name may be. */
    snprintf(o->beside, sizeof(o->beside), "%s/.graft-XXXXXX", dirname(folder));
    const int fd = mkostemp(o->beside, O_CLOEXEC);
    if (fd < 0) {
        o->beside[0] = '\0';
        return fail(o->what, o->path, strerror(errno));
    }
    const enum gr_status st = fchmod(fd, mode) != 0 ? fail(o->what, o->path, strerror(errno)) : take_fd(o, fd);
    if (st != GR_OK) {
        unlink(o->beside);
    }
    return st;
}

enum gr_status gr_out_file_try(const char *what, const char *path, mode_t mode, bool keep_old, struct gr_out_file *out)
{
    struct gr_out_file o = {.what = what, .keep_old = keep_old};
    struct place p;
    if (path[0] == '\0') {
        return fail(what, path, "an empty name; a file is wanted");
    }
    GR_TRY(follow_links(what, path, o.path, &p));
    if (p.own >= 0) {
        GR_TRY(take_fd(&o, fcntl(p.own, F_DUPFD_CLOEXEC, 0)));
        *out = o;
        return GR_OK;
    }
    if (p.there && S_ISDIR(p.st.st_mode)) {
        return fail(what, path, "is a folder; a file is wanted");
    }
    if (p.there && S_ISREG(p.st.st_mode) && keep_old) {
        return fail(what, path, "the file exists; it is not replaced");
    }
    const bool replaced = !p.opened && (!p.there || S_ISREG(p.st.st_mode)) && !is_mount_point(&o, p.there);
    GR_TRY(replaced ? open_beside(&o, p.there ? p.st.st_mode & 07777 : less_umask(mode)) : open_directly(&o, &p.st));
    *out = o;
    return GR_OK;
}

enum gr_status gr_out_file_open(const char *what, const char *path, mode_t mode, bool keep_old, struct gr_out_file *out)
{
    const enum gr_status st = gr_out_file_try(what, path, mode, keep_old, out);
    return st == GR_AGAIN ? fail(what, path, "nobody reads this FIFO; start its reader first") : st;
}

const char *gr_out_file_name(const struct gr_out_file *o)
{
    return o->beside[0] != '\0' ? o->beside : o->path;
}

/* A link fails where something has come meanwhile; a rename replaces it. */
static bool put_in_place(const struct gr_out_file *o)
{
    if (!o->keep_old) {
        return rename(o->beside, o->path) == 0;
    }
    const bool done = link(o->beside, o->path) == 0;
    const int error = errno;
    unlink(o->beside);
    errno = error;
    return done;
}

/* A stream that failed earlier no longer knows why. What is wrong with the file is still wrong: writing a byte more
 * tells. */
static bool flushed(struct gr_out_file *o)
{
    if (!ferror(o->f)) {
        return fflush(o->f) == 0;
    }
    (void)!write(o->fd, "\n", 1); /* for errno; the file is given up in any case */
    return false;
}

enum gr_status gr_out_file_close(struct gr_out_file *o, bool good, struct gr_out_place *place_out)
{
    struct gr_out_place place = {0};
    struct stat st;
    errno = 0;
    /* By its name: another program may have made it anew. */
    const bool whole = good && flushed(o) && (o->beside[0] == '\0' || stat(o->beside, &st) == 0);
    const int error = errno;
    const bool closed = fclose(o->f) == 0;
    o->f = NULL;
    if (!whole || !closed || (o->beside[0] != '\0' && !put_in_place(o))) {
        const int why = !whole ? error : errno;
        if (o->beside[0] != '\0') {
            unlink(o->beside);
        }
        return fail(o->what, o->path, why != 0 ? strerror(why) : "it could not be written whole");
    }
    if (o->beside[0] != '\0') {
        place.device = st.st_dev;
        place.inode = st.st_ino;
        place.written_at = st.st_mtim;
        memcpy(place.path, o->path, sizeof(place.path));
    }
    if (place_out != NULL) {
        *place_out = place;
    }
    return GR_OK;
}

void gr_out_file_drop(struct gr_out_file *o)
{
    if (o->f == NULL) {
        return;
    }
    fclose(o->f);
    o->f = NULL;
    if (o->beside[0] != '\0') {
        unlink(o->beside);
    }
}

void gr_out_place_remove(const struct gr_out_place *p)
{
    struct stat st;
    if (p->path[0] != '\0' && lstat(p->path, &st) == 0 && st.st_dev == p->device && st.st_ino == p->inode &&
        st.st_mtim.tv_sec == p->written_at.tv_sec && st.st_mtim.tv_nsec == p->written_at.tv_nsec) {
        unlink(p->path);
    }
}
