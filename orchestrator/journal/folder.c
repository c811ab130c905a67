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

int gr_segment_open(int dir, const char *name)
{
    return openat(dir, name, O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW);
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
        log_error("journal: %s: it is no plain file, or longer than the %lld bytes that a segment has at most", name,
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

/* damaged_out: something is missing in it, or right before it. */
static enum gr_status replay_one(struct gr_replay *r, const char *name, const uint8_t *p, size_t n, bool *damaged_out)
{
    const uint64_t n_lost = gr_replay_n_lost(r);
    const enum gr_status st = gr_replay_segment(r, gr_segment_generation(name), p, n);
    *damaged_out = st == GR_EFORMAT || gr_replay_n_lost(r) != n_lost;
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

static enum gr_status count_one(struct gr_space *space, const uint8_t *p, size_t n)
{
    struct gr_segment_head h;
    gr_space_add_segment(space);
    const enum gr_status st = gr_segment_head_decode(p, n, &h); /* as before, when it was read */
    return st != GR_OK ? st : gr_space_add_all(space, p, n, gr_segment_head_bytes(&h), h.salt);
}

static enum gr_status read_one(struct gr_journal_folder *f, struct gr_replay *r, uint64_t generation,
                               struct gr_space *space, uint64_t *run)
{
    char name[GR_SEGMENT_NAME_BYTES];
    uint8_t *bytes = NULL;
    size_t n = 0;
    bool damaged = false;
    gr_segment_name(generation, name);
    const int fd = gr_segment_open(f->fd, name);
    if (fd < 0) {
        return cannot(name, "cannot be opened");
    }
    enum gr_status st = load(fd, name, &bytes, &n);
    close(fd);
    if (st != GR_OK) {
        return st;
    }
    st = replay_one(r, name, bytes, n, &damaged);
    if (damaged) {
        gr_space_finish(space);
        *run = generation + 1;
    } else if (st == GR_OK) {
        st = count_one(space, bytes, n);
    }
    free(bytes);
    f->last_generation = generation;
    return st;
}

/* ---- which there are ---- */

static int scan(int dir, struct dirent ***names)
{
    return scandirat(dir, ".", names, is_segment, by_name);
}

void gr_segment_list_finish(struct gr_segment_list *l)
{
    free(l->generation);
    free(l->is_old);
    *l = (struct gr_segment_list){0};
}

/* The first generation that a segment stands for; its own, where that is not told. */
static uint64_t stands_from(int dir, uint64_t generation)
{
    char name[GR_SEGMENT_NAME_BYTES];
    uint8_t head[GR_COMPACTED_HEAD_BYTES];
    struct gr_segment_head h;
    gr_segment_name(generation, name);
    const int fd = gr_segment_open(dir, name);
    const ssize_t n = fd >= 0 ? pread(fd, head, sizeof(head), 0) : -1;
    if (fd >= 0) {
        close(fd);
    }
    const bool told = n > 0 && gr_segment_head_decode(head, (size_t)n, &h) == GR_OK && h.generation == generation &&
                      h.from_generation != 0;
    return told ? h.from_generation : generation;
}

static void mark_old(int dir, struct gr_segment_list *l)
{
    uint64_t least = UINT64_MAX; /* that later ones stand for; only from there on to theirs */
    for (size_t i = l->n; i-- > 0;) {
        l->is_old[i] = l->generation[i] >= least;
        if (!l->is_old[i]) {
            const uint64_t from = stands_from(dir, l->generation[i]);
            least = from < l->generation[i] ? from : UINT64_MAX;
        }
    }
}

enum gr_status gr_journal_folder_list(int dir, uint64_t from, uint64_t to, struct gr_segment_list *out)
{
    struct dirent **name = NULL;
    const int n = scan(dir, &name);
    if (n < 0) {
        return cannot("its folder", "cannot be read");
    }
    struct gr_segment_list l = {.generation = calloc((size_t)n + 1, sizeof(*l.generation)),
                                .is_old = calloc((size_t)n + 1, sizeof(*l.is_old))};
    const bool room = l.generation != NULL && l.is_old != NULL;
    for (int i = 0; i < n; i++) {
        const uint64_t generation = gr_segment_generation(name[i]->d_name);
        if (room && generation >= from && generation <= to) {
            l.generation[l.n++] = generation;
        }
        free(name[i]);
    }
    free((void *)name);
    if (!room) {
        log_error("journal: out of memory for the names of %d segments", n);
        gr_segment_list_finish(&l);
        return GR_ENOMEM;
    }
    mark_old(dir, &l);
    *out = l;
    return GR_OK;
}

enum gr_status gr_journal_folder_read(struct gr_journal_folder *f, struct gr_replay *r, struct gr_space *space,
                                      uint64_t *run_out)
{
    struct gr_segment_list l;
    enum gr_status st = gr_journal_folder_list(f->fd, 0, UINT64_MAX, &l);
    if (st != GR_OK) {
        return st;
    }
    *run_out = 1;
    for (size_t i = 0; st == GR_OK && i < l.n; i++) {
        st = l.is_old[i] ? GR_OK : read_one(f, r, l.generation[i], space, run_out);
    }
    gr_segment_list_finish(&l);
    return st;
}
