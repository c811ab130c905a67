#include "transport/segment.h"

#include "common/base/log.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define FOLDER "/dev/shm"
/* A new segment may be taken for a stale one until it is locked; then another is made. */
#define N_TRY 1000

static bool is_name(const char *name)
{
    const size_t n_prefix = strlen(GR_SEGMENT_PREFIX);
    return strncmp(name, GR_SEGMENT_PREFIX, n_prefix) == 0 && strlen(name) == GR_SEGMENT_NAME_BYTES - 1 &&
           strspn(name + n_prefix, "0123456789abcdef") == GR_SEGMENT_HEX;
}

static void draw_name(char name[GR_SEGMENT_NAME_BYTES])
{
    unsigned char random[GR_SEGMENT_HEX / 2];
    char hex[GR_SEGMENT_HEX + 1];
    randombytes_buf(random, sizeof(random));
    sodium_bin2hex(hex, sizeof(hex), random, sizeof(random));
    snprintf(name, GR_SEGMENT_NAME_BYTES, "%s%s", GR_SEGMENT_PREFIX, hex);
}

/* 0: locked, and its name still stands, so nobody takes it for a stale one from now on. EWOULDBLOCK: it is another's,
 * or gone. Else an errno. */
static int own(int fd)
{
    struct stat sb;
    if (flock(fd, LOCK_EX | LOCK_NB) != 0 || fstat(fd, &sb) != 0) {
        return errno;
    }
    return sb.st_nlink > 0 ? 0 : EWOULDBLOCK;
}

/* 0 or an errno. */
static int create_owned(struct gr_segment *s)
{
    for (int i = 0; i < N_TRY; i++) {
        draw_name(s->name);
        s->fd = shm_open(s->name, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
        if (s->fd < 0) {
            return errno;
        }
        const int err = own(s->fd);
        if (err == 0) {
            return 0;
        }
        gr_segment_unlink(s);
        if (err != EWOULDBLOCK) {
            return err;
        }
    }
    return EWOULDBLOCK;
}

static const char *advice(int err)
{
    return err == EFBIG    ? "the limit on file sizes (`ulimit -f') is below it"
           : err == ENOSPC ? "enlarge /dev/shm or lower --sessions"
                           : "see /dev/shm";
}

enum gr_status gr_segment_create(size_t bytes, struct gr_segment *out, struct gr_why *why)
{
    struct gr_segment s = {.bytes = bytes, .map = MAP_FAILED};
    GR_ASSERT(sodium_init() >= 0);
    int err = create_owned(&s);
    if (err != 0) {
        snprintf(why->text, sizeof(why->text), "no segment of shared memory can be made: %s", strerror(err));
        return GR_EUNSUPPORTED;
    }
    err = posix_fallocate(s.fd, 0, (off_t)bytes);
    if (err == 0) {
        s.map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, s.fd, 0);
        err = errno;
    }
    if (s.map == MAP_FAILED) {
        snprintf(why->text, sizeof(why->text), "%zu KiB of shared memory cannot be had: %s; %s", bytes / 1024,
                 strerror(err), advice(err));
        gr_segment_unlink(&s);
        return GR_EUNSUPPORTED;
    }
    *out = s;
    return GR_OK;
}

void gr_segment_unlink(struct gr_segment *s)
{
    shm_unlink(s->name);
    close(s->fd);
    s->fd = -1;
}

enum gr_status gr_segment_take(const char *name, size_t bytes, void **map_out, struct gr_why *why)
{
    if (!is_name(name)) {
        snprintf(why->text, sizeof(why->text), "the peer offered a segment of a malformed name");
        return GR_EUNSUPPORTED;
    }
    const int fd = shm_open(name, O_RDWR | O_CLOEXEC, 0);
    if (fd < 0) {
        snprintf(why->text, sizeof(why->text), "the peer's segment %s cannot be opened: %s", name, strerror(errno));
        return GR_EUNSUPPORTED;
    }
    struct stat sb;
    void *map = MAP_FAILED;
    if (fstat(fd, &sb) == 0 && sb.st_uid == geteuid() && (size_t)sb.st_size == bytes) {
        map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    }
    close(fd);
    shm_unlink(name); /* the maker does it too; the earlier, the fewer are left by a kill */
    if (map == MAP_FAILED) {
        snprintf(why->text, sizeof(why->text), "the peer's segment %s is not one of ours of %zu bytes", name, bytes);
        return GR_EUNSUPPORTED;
    }
    *map_out = map;
    return GR_OK;
}

/* ---- what the dead have left ---- */

static bool remove_stale(const char *name)
{
    struct stat sb;
    const int fd = shm_open(name, O_RDONLY | O_NONBLOCK | O_CLOEXEC, 0);
    const bool stale = fd >= 0 && fstat(fd, &sb) == 0 && S_ISREG(sb.st_mode) && sb.st_uid == geteuid() && own(fd) == 0;
    if (stale) {
        shm_unlink(name); /* under its lock: a maker that comes too late for it sees that the name is gone */
    }
    if (fd >= 0) {
        close(fd);
    }
    return stale;
}

int gr_segment_sweep(void)
{
    int n = 0;
    DIR *folder = opendir(FOLDER);
    for (const struct dirent *e = folder != NULL ? readdir(folder) : NULL; e != NULL; e = readdir(folder)) {
        char name[sizeof(e->d_name) + 2];
        snprintf(name, sizeof(name), "/%s", e->d_name);
        n += is_name(name) && remove_stale(name);
    }
    if (folder != NULL) {
        closedir(folder);
    }
    if (n > 0) {
        log_info("%d segments of shared memory that killed processes have left in " FOLDER " were removed", n);
    }
    return n;
}
