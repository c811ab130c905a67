#include "common/process/ranks.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/process/children.h"
#include "common/process/program.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define VARIABLE "GRAFT_GROUP"
#define PROGRAM "/proc/self/exe"
#define GRACE_MS 2000

extern char **environ;

/* ---- one of the others ---- */

bool gr_ranks_inherit(struct gr_ranks *r)
{
    const char *text = getenv(VARIABLE);
    *r = (struct gr_ranks){.memory_fd = -1, .abort_mutex = PTHREAD_MUTEX_INITIALIZER};
    int rank = 0, n_rank = 0, fd = -1;
    const bool is_rank = text != NULL && sscanf(text, "%d,%d,%d", &rank, &n_rank, &fd) == 3 && rank > 0 &&
                         rank < n_rank && n_rank <= GR_RANKS_MAX && fcntl(fd, F_SETFD, FD_CLOEXEC) == 0;
    unsetenv(VARIABLE);
    if (is_rank) {
        r->rank = rank;
        r->n_rank = n_rank;
        r->memory_fd = fd;
    }
    return is_rank;
}

const char *gr_ranks_role(const struct gr_ranks *r, const char *program)
{
    static char role[32];
    snprintf(role, sizeof(role), "%s rank %d", program, r->rank);
    return role;
}

/* ---- rank 0 starts them ---- */

/* The environment of another rank: this one's, and the group. NULL: no memory. */
static char **environment_of(char *group)
{
    size_t n = 0;
    while (environ[n] != NULL) {
        n++;
    }
    char **all = calloc(n + 2, sizeof(*all));
    if (all != NULL) {
        memcpy(all, environ, n * sizeof(*all));
        all[n] = group;
    }
    return all;
}

/* Between fork and exec of a process with threads: nothing but system calls. */
static void become_rank(const struct gr_ranks *r, int alive_fd, pid_t parent, char *const *argv, char **environment)
{
    sigset_t endings = gr_program_endings();
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) {
        _exit(1);
    }
    sigaddset(&endings, SIGCHLD);
    sigprocmask(SIG_UNBLOCK, &endings, NULL);
    signal(SIGINT, SIG_IGN); /* rank 0 ends them in order */
    signal(SIGTERM, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    fcntl(alive_fd, F_SETFD, 0);
    fcntl(r->memory_fd, F_SETFD, 0);
    execve(PROGRAM, argv, environment);
    _exit(127);
}

static enum gr_status start_rank(struct gr_ranks *r, int rank, char *const *argv)
{
    char group[64];
    int alive[2];
    snprintf(group, sizeof(group), VARIABLE "=%d,%d,%d", rank, r->n_rank, r->memory_fd);
    char **environment = environment_of(group);
    if (environment == NULL || pipe2(alive, O_CLOEXEC) != 0) {
        free(environment);
        log_error("cannot start rank %d of a group of %d: %s", rank, r->n_rank, strerror(errno));
        return GR_EIO;
    }
    const pid_t parent = getpid();
    const pid_t pid = fork();
    if (pid == 0) {
        become_rank(r, alive[1], parent, argv, environment);
    }
    free(environment);
    close(alive[1]);
    r->alive_fd[rank] = alive[0];
    if (pid < 0) {
        log_error("cannot start rank %d of a group of %d: fork: %s", rank, r->n_rank, strerror(errno));
        return GR_EIO;
    }
    r->pid[rank] = pid;
    return GR_OK;
}

/* ---- watching ---- */

static int wait_for(pid_t pid)
{
    int status = 0;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    return status;
}

static void abort_waits(struct gr_ranks *r)
{
    pthread_mutex_lock(&r->abort_mutex);
    if (r->abort != NULL) {
        r->abort(r->abort_ctx);
    }
    pthread_mutex_unlock(&r->abort_mutex);
}

void gr_ranks_abort_with(struct gr_ranks *r, void (*abort)(void *ctx), void *ctx)
{
    pthread_mutex_lock(&r->abort_mutex);
    r->abort = abort;
    r->abort_ctx = ctx;
    pthread_mutex_unlock(&r->abort_mutex);
}

/* A rank is gone. One that has failed by itself has said why, and would again. */
static void end_with(struct gr_ranks *r, int rank, int status)
{
    abort_waits(r);
    if (WIFSIGNALED(status)) {
        log_error("rank %d of %d was killed by signal %d (%s): the tensor-parallel group ends", rank, r->n_rank,
                  WTERMSIG(status), strsignal(WTERMSIG(status)));
        _exit(GR_CHILD_EXIT_AGAIN);
    }
    log_error("rank %d of %d ended with status %d: the tensor-parallel group ends", rank, r->n_rank,
              WEXITSTATUS(status));
    _exit(WEXITSTATUS(status) != 0 ? WEXITSTATUS(status) : GR_CHILD_EXIT_AGAIN);
}

/* Nobody here knows how it ended; whoever has started it does. */
static void end_without(struct gr_ranks *r, int rank)
{
    abort_waits(r);
    log_error("rank %d of %d on host %s is gone: the tensor-parallel group ends", rank, r->n_rank, r->host[rank]);
    _exit(GR_CHILD_EXIT_AGAIN);
}

static void take_end(struct gr_ranks *r, int rank)
{
    const bool far = r->pid[rank] == GR_RANKS_FAR;
    const int status = far ? 0 : wait_for(r->pid[rank]);
    if (!atomic_load(&r->ending) && far) {
        end_without(r, rank);
    } else if (!atomic_load(&r->ending)) {
        end_with(r, rank, status);
    }
    r->pid[rank] = 0;
}

/* A process's pipe becomes readable when it ends; what a socket brings is not the watcher's. */
static short event_of(const struct gr_ranks *r, int rank)
{
    return r->pid[rank] == GR_RANKS_FAR ? POLLRDHUP : POLLIN;
}

static void *watch(void *arg)
{
    struct gr_ranks *r = arg;
    struct pollfd p[GR_RANKS_MAX];
    for (int left = r->n_rank - 1; left > 0;) {
        for (int i = 1; i < r->n_rank; i++) {
            p[i - 1] = (struct pollfd){.fd = r->pid[i] != 0 ? r->alive_fd[i] : -1, .events = event_of(r, i)};
        }
        (void)poll(p, (nfds_t)(r->n_rank - 1), -1);
        for (int i = 1; i < r->n_rank; i++) {
            if (r->pid[i] != 0 && p[i - 1].revents != 0) {
                take_end(r, i);
                left--;
            }
        }
    }
    return NULL;
}

static void close_all(struct gr_ranks *r)
{
    for (int i = 1; i < r->n_rank; i++) {
        if (r->alive_fd[i] > 0) {
            close(r->alive_fd[i]);
        }
    }
    if (r->memory != NULL) {
        munmap(r->memory, r->memory_bytes);
    }
    if (r->memory_fd >= 0) {
        close(r->memory_fd);
    }
    *r = (struct gr_ranks){.memory_fd = -1};
}

static void kill_all(const struct gr_ranks *r)
{
    for (int i = 1; i < r->n_rank; i++) {
        if (r->pid[i] == GR_RANKS_FAR) {
            (void)shutdown(r->alive_fd[i], SHUT_RDWR);
        } else if (r->pid[i] != 0) {
            kill(r->pid[i], SIGKILL);
        }
    }
}

static void kill_and_wait(const struct gr_ranks *r)
{
    kill_all(r);
    for (int i = 1; i < r->n_rank; i++) {
        if (r->pid[i] != 0) {
            (void)wait_for(r->pid[i]);
        }
    }
}

static enum gr_status start_watcher(struct gr_ranks *r)
{
    if (pthread_create(&r->watcher, NULL, watch, r) != 0) {
        log_error("cannot start the thread that watches a group of %d ranks", r->n_rank);
        return GR_ENOMEM;
    }
    r->watches = true;
    return GR_OK;
}

enum gr_status gr_ranks_start(struct gr_ranks *r, int n_rank, char *const *argv)
{
    GR_ASSERT(n_rank >= 2 && n_rank <= GR_RANKS_MAX);
    *r = (struct gr_ranks){.n_rank = n_rank,
                           .memory_fd = memfd_create("graft-group", MFD_CLOEXEC),
                           .abort_mutex = PTHREAD_MUTEX_INITIALIZER};
    if (r->memory_fd < 0) {
        log_error("memory for a group of %d ranks: memfd_create: %s", n_rank, strerror(errno));
        return GR_EIO;
    }
    enum gr_status st = GR_OK;
    for (int i = 1; st == GR_OK && i < n_rank; i++) {
        st = start_rank(r, i, argv);
    }
    st = st == GR_OK ? start_watcher(r) : st;
    if (st != GR_OK) {
        kill_and_wait(r);
        close_all(r);
    }
    return st;
}

enum gr_status gr_ranks_watch(struct gr_ranks *r, const int *fd, char (*host)[64])
{
    for (int i = 1; i < r->n_rank; i++) {
        r->alive_fd[i] = fcntl(fd[i], F_DUPFD_CLOEXEC, 3);
        if (r->alive_fd[i] < 0) {
            log_error("a group of %d ranks: %s", r->n_rank, strerror(errno));
            return GR_EIO;
        }
        r->pid[i] = GR_RANKS_FAR;
        snprintf(r->host[i], sizeof(r->host[i]), "%s", host[i]);
    }
    return start_watcher(r);
}

enum gr_status gr_ranks_map(struct gr_ranks *r, size_t bytes)
{
    if (ftruncate(r->memory_fd, (off_t)bytes) == 0) {
        void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, r->memory_fd, 0);
        if (p != MAP_FAILED) {
            r->memory = p;
            r->memory_bytes = bytes;
            return GR_OK;
        }
    }
    log_error("%zu MiB of memory for a group of %d ranks: %s", bytes >> 20, r->n_rank, strerror(errno));
    return GR_ENOMEM;
}

void gr_ranks_let_go(struct gr_ranks *r)
{
    atomic_store(&r->ending, true);
}

void gr_ranks_finish(struct gr_ranks *r)
{
    gr_ranks_let_go(r);
    if (r->watches) {
        const struct timespec until = gr_clock_timespec(gr_clock_ns() + GRACE_MS * GR_MS);
        if (pthread_clockjoin_np(r->watcher, NULL, CLOCK_MONOTONIC, &until) != 0) {
            kill_all(r);
            pthread_join(r->watcher, NULL);
        }
    }
    close_all(r);
}
