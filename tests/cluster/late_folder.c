/* A folder as a network's file system may show it (LD_PRELOAD): a name is there only for who has listed the folder
 * since it was made. GRAFT_LATE_DIR: the folder. */
#undef _FILE_OFFSET_BITS /* both names of each function are defined here */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAMES_MAX 256

static char seen[NAMES_MAX][NAME_MAX + 1];
static int n_seen;

static bool is_hidden(const char *path, int flags)
{
    const char *dir = getenv("GRAFT_LATE_DIR");
    const size_t n = dir != NULL ? strlen(dir) : 0;
    if (n == 0 || (flags & (O_CREAT | O_DIRECTORY)) != 0 || strncmp(path, dir, n) != 0 || path[n] != '/') {
        return false;
    }
    for (int i = 0; i < n_seen; i++) {
        if (strcmp(seen[i], path + n + 1) == 0) {
            return false;
        }
    }
    return true;
}

struct dirent *readdir(DIR *d)
{
    struct dirent *(*real)(DIR *) = NULL;
    *(void **)&real = dlsym(RTLD_NEXT, "readdir");
    struct dirent *e = real(d);
    if (e != NULL && n_seen < NAMES_MAX) {
        snprintf(seen[n_seen++], sizeof(seen[0]), "%s", e->d_name);
    }
    return e;
}

struct dirent64 *readdir64(DIR *d)
{
    return (struct dirent64 *)(void *)readdir(d); /* the same on 64 bits */
}

int open(const char *path, int flags, ...)
{
    int (*real)(const char *, int, ...) = NULL;
    *(void **)&real = dlsym(RTLD_NEXT, "open");
    va_list args;
    va_start(args, flags);
    const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(args, mode_t) : 0;
    va_end(args);
    if (is_hidden(path, flags)) {
        errno = ENOENT;
        return -1;
    }
    return real(path, flags, mode);
}

int open64(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(args, mode_t) : 0;
    va_end(args);
    return open(path, flags, mode);
}
