/* A wall clock that jumps (LD_PRELOAD): while the file exists that GRAFT_CLOCK_STEP names, it shows an hour more, for
 * clock_gettime(), time() and gettimeofday(). CLOCK_MONOTONIC goes on as it does on a host whose clock is set. */
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define STEP_S 3600

static const char *path;

__attribute__((constructor)) static void begin(void)
{
    path = getenv("GRAFT_CLOCK_STEP");
}

static time_t step_s(void)
{
    return path != NULL && access(path, F_OK) == 0 ? STEP_S : 0;
}

int clock_gettime(clockid_t clock, struct timespec *out)
{
    int (*next)(clockid_t, struct timespec *) = NULL;
    *(void **)&next = dlsym(RTLD_NEXT, "clock_gettime");
    const int status = next(clock, out);
    if (status == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        out->tv_sec += step_s();
    }
    return status;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone)
{
    int (*next)(struct timeval *, void *) = NULL;
    *(void **)&next = dlsym(RTLD_NEXT, "gettimeofday");
    const int status = next(out, zone);
    out->tv_sec += step_s();
    return status;
}

time_t time(time_t *out)
{
    struct timespec t = {.tv_sec = 0};
    (void)clock_gettime(CLOCK_REALTIME, &t);
    if (out != NULL) {
        *out = t.tv_sec;
    }
    return t.tv_sec;
}
