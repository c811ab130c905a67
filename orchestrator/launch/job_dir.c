#include "orchestrator/launch/job_dir.h"

#include "common/base/log.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define NOTE_BYTES_MAX 8192
#define PREFIX "rendezvous-"
#define FORGOTTEN_S (30 * 24 * 3600) /* longer than a job runs */

static enum gr_status failed(const char *what, const char *path)
{
    log_error("--job-dir: %s %s: %s", what, path, strerror(errno));
    return GR_EIO;
}

enum gr_status gr_job_dir_open(const char *dir)
{
    struct stat sb;
    if (mkdir(dir, 0700) != 0 && errno != EEXIST) {
        return failed("cannot make", dir);
    }
    if (stat(dir, &sb) != 0) {
        return failed("cannot read", dir);
    }
    if (!S_ISDIR(sb.st_mode) || sb.st_uid != geteuid() || (sb.st_mode & 077) != 0) {
        log_error("--job-dir %s: a folder of your own that nobody else may enter is wanted (chmod 700)", dir);
        return GR_EINVAL;
    }
    return GR_OK;
}

/* ---- writing ---- */

/* Whole and on the disk before it has its name. */
static enum gr_status put(const char *path, const char *text)
{
    char beside[PATH_MAX + 8];
    snprintf(beside, sizeof(beside), "%s.new", path);
    const int fd = open(beside, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    const size_t n = strlen(text);
    bool good = fd >= 0 && write(fd, text, n) == (ssize_t)n && fsync(fd) == 0;
    if (fd >= 0) {
        good = close(fd) == 0 && good;
    }
    if (!good || rename(beside, path) != 0) {
        const enum gr_status st = failed("cannot write", path);
        (void)unlink(beside);
        return st;
    }
    return GR_OK;
}

static void sync_folder(const char *dir)
{
    const int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        (void)fsync(fd);
        close(fd);
    }
}

/* One that does not have its own name yet is none: another rank 0, of the same instant, may be about to give it. */
static bool is_of_job(const char *name, const char *job)
{
    const size_t n = strlen(PREFIX), m = strlen(job);
    return strncmp(name, PREFIX, n) == 0 && strncmp(name + n, job, m) == 0 && name[n + m] == '-' &&
           strpbrk(name + n + m + 1, "-.") == NULL;
}

/* Of a job that was killed long ago: nobody would remove it, as no other job has its name. */
static bool is_forgotten(const char *name, const char *path)
{
    struct stat sb;
    return strncmp(name, PREFIX, strlen(PREFIX)) == 0 && stat(path, &sb) == 0 &&
           time(NULL) - sb.st_mtim.tv_sec > FORGOTTEN_S;
}

static void remove_old(const char *dir, const char *job)
{
    DIR *d = opendir(dir);
    char path[PATH_MAX];
    for (const struct dirent *e = d != NULL ? readdir(d) : NULL; e != NULL; e = readdir(d)) {
        if (snprintf(path, sizeof(path), "%s/%s", dir, e->d_name) < PATH_MAX &&
            (is_of_job(e->d_name, job) || is_forgotten(e->d_name, path))) {
            (void)unlink(path);
        }
    }
    if (d != NULL) {
        closedir(d);
    }
}

enum gr_status gr_job_dir_write(const char *dir, const char *job, struct gr_job_note *note)
{
    uint64_t random = 0;
    char *text = gr_job_note_text(job, note);
    if (text == NULL) {
        return GR_ENOMEM;
    }
    remove_old(dir, job);
    randombytes_buf(&random, sizeof(random));
    enum gr_status st = GR_ELIMIT;
    const int n = snprintf(note->name, sizeof(note->name), "%s/" PREFIX "%s-%016" PRIx64, dir, job, random);
    if (n < (int)sizeof(note->name)) {
        st = put(note->name, text);
    } else {
        log_error("--job-dir %s: the path is too long", dir);
    }
    if (st != GR_OK) {
        note->name[0] = '\0';
    }
    sync_folder(dir);
    free(text);
    return st;
}

void gr_job_dir_remove(const struct gr_job_note *note)
{
    if (note->name[0] != '\0') {
        (void)unlink(note->name);
    }
}

/* ---- reading ---- */

/* Only its owner can have written it: the folder is closed to others. */
static bool read_one(const char *path, const char *job, struct gr_job_note *note, struct timespec *when_out)
{
    char text[NOTE_BYTES_MAX];
    struct stat sb;
    const int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) {
        return false;
    }
    const ssize_t n = read(fd, text, sizeof(text));
    const bool good = fstat(fd, &sb) == 0 && sb.st_uid == geteuid() && n > 0 && n < (ssize_t)sizeof(text);
    close(fd);
    *when_out = sb.st_mtim;
    return good && gr_job_note_parse(text, (size_t)n, job, note);
}

/* A reader would pass it over else. */
static bool is_whole(const char *path, const char *job)
{
    struct gr_job_note note;
    struct timespec when;
    errno = 0;
    return read_one(path, job, &note, &when) || errno == EMFILE || errno == ENFILE;
}

enum gr_job_dir_finding gr_job_dir_look(const char *dir, const char *job, const struct gr_job_note *own)
{
    const char *own_name = strrchr(own->name, '/') + 1;
    DIR *d = opendir(dir);
    bool ours = d == NULL && errno != ENOENT && errno != ENOTDIR, another = false;
    for (const struct dirent *e = d != NULL ? readdir(d) : NULL; e != NULL; e = readdir(d)) {
        const bool same = strcmp(e->d_name, own_name) == 0;
        ours = ours || (same && is_whole(own->name, job));
        another = another || (!same && is_of_job(e->d_name, job));
    }
    if (d != NULL) {
        closedir(d);
    }
    return another ? GR_JOB_DIR_ANOTHER : ours ? GR_JOB_DIR_OURS : GR_JOB_DIR_GONE;
}

static bool is_newer(const struct timespec *a, const struct timespec *b)
{
    return a->tv_sec != b->tv_sec ? a->tv_sec > b->tv_sec : a->tv_nsec > b->tv_nsec;
}

int gr_job_dir_read(const char *dir, const char *job, struct gr_job_note notes[GR_JOB_NOTE_MAX])
{
    struct timespec when[GR_JOB_NOTE_MAX];
    DIR *d = opendir(dir);
    int n = 0;
    if (d == NULL) {
        (void)failed("cannot read", dir);
        return 0;
    }
    for (const struct dirent *e = readdir(d); e != NULL && n < GR_JOB_NOTE_MAX; e = readdir(d)) {
        struct gr_job_note note = {.n_address = 0};
        struct timespec at;
        if (!is_of_job(e->d_name, job) || strlen(e->d_name) > NAME_MAX - 8 ||
            snprintf(note.name, sizeof(note.name), "%s/%s", dir, e->d_name) >= PATH_MAX ||
            !read_one(note.name, job, &note, &at)) {
            continue;
        }
        int i = n++;
        for (; i > 0 && is_newer(&at, &when[i - 1]); i--) {
            notes[i] = notes[i - 1];
            when[i] = when[i - 1];
        }
        notes[i] = note;
        when[i] = at;
    }
    closedir(d);
    if (n == 0) {
        log_error("nothing there is of job %s", job);
    }
    return n;
}
