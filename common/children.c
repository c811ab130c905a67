#include "common/children.h"

#include "common/clock.h"
#include "common/log.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#define RETRY_NS GR_S

static sigset_t watched(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    return set;
}

enum gr_status gr_children_init(struct gr_children *c, const char *key_hex)
{
    memset(c, 0, sizeof(*c));
    const sigset_t set = watched();
    sigprocmask(SIG_BLOCK, &set, NULL);
    c->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (c->signal_fd < 0) {
        log_error("signalfd: %s", strerror(errno));
        return GR_EIO;
    }
    strncpy(c->key_hex, key_hex != NULL ? key_hex : "", sizeof(c->key_hex) - 1);
    return GR_OK;
}

static void become_child(const struct gr_children *c, const struct gr_child *k, pid_t parent)
{
    const sigset_t set = watched();
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) {
        _exit(1); /* the parent died before the line above */
    }
    sigprocmask(SIG_UNBLOCK, &set, NULL);
    if (c->key_hex[0] != '\0') {
        unsetenv("GRAFT_KEY_FILE"); /* it would go before */
        setenv("GRAFT_KEY", c->key_hex, 1);
    }
    execv(k->argv[0], k->argv);
    log_error("cannot start %s: %s", k->argv[0], strerror(errno));
    _exit(1);
}

static enum gr_status start(struct gr_children *c, struct gr_child *k)
{
    const pid_t parent = getpid();
    const pid_t pid = fork();
    if (pid < 0) {
        log_error("cannot start the %s worker: fork: %s", k->name, strerror(errno));
        return GR_EIO;
    }
    if (pid == 0) {
        become_child(c, k, parent);
    }
    k->pid = pid;
    k->start_ns = gr_clock_ns();
    k->restart_ns = 0;
    return GR_OK;
}

enum gr_status gr_children_start(struct gr_children *c, const char *name, const char *const *argv, int *index_out)
{
    GR_ASSERT(c->n < GR_CHILD_MAX);
    struct gr_child *k = &c->child[c->n];
    *k = (struct gr_child){.name = name};
    for (int i = 0; argv[i] != NULL; i++) {
        GR_ASSERT(i < GR_CHILD_ARG_MAX);
        k->argv[i] = strdup(argv[i]);
        if (k->argv[i] == NULL) {
            log_error("out of memory");
            return GR_ENOMEM;
        }
    }
    *index_out = c->n++;
    return start(c, k);
}

/* At once the first time and after a long life, then 100 ms, 200 ms, ... up to 5 s while lives stay short. */
static uint64_t back_off_ns(struct gr_child *k, uint64_t now_ns)
{
    k->n_short = now_ns - k->start_ns > 10 * GR_S ? 0 : k->n_short;
    const int n = k->n_short++;
    return n == 0 ? 0 : GR_MIN((100ull << GR_MIN(n - 1, 6)) * GR_MS, 5 * GR_S);
}

static enum gr_child_event reap(struct gr_children *c, int *index_out)
{
    for (int i = 0; i < c->n; i++) {
        struct gr_child *k = &c->child[i];
        int status = 0;
        if (k->pid == 0 || waitpid(k->pid, &status, WNOHANG) != k->pid) {
            continue;
        }
        k->pid = 0;
        *index_out = i;
        const bool again = WIFEXITED(status) && WEXITSTATUS(status) == GR_CHILD_EXIT_AGAIN;
        if (WIFSIGNALED(status) || again) {
            const uint64_t now_ns = gr_clock_ns();
            k->restart_ns = now_ns + back_off_ns(k, now_ns);
            if (again) {
                log_warn("the %s worker ended because its device failed; starting it again", k->name);
            } else {
                log_warn("the %s worker was killed by signal %d (%s); starting it again", k->name, WTERMSIG(status),
                         strsignal(WTERMSIG(status)));
            }
            return GR_CHILD_KILLED;
        }
        k->exit_status = WEXITSTATUS(status);
        return k->exit_status != 0 ? GR_CHILD_FAILED : GR_CHILD_ENDED;
    }
    return GR_CHILD_NONE;
}

enum gr_child_event gr_children_poll(struct gr_children *c, bool *interrupted_out, int *index_out)
{
    struct signalfd_siginfo info;
    while (read(c->signal_fd, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
        if (info.ssi_signo != SIGCHLD) {
            *interrupted_out = true;
        }
    }
    return reap(c, index_out);
}

void gr_children_revive(struct gr_children *c, int index, uint64_t now_ns)
{
    struct gr_child *k = &c->child[index];
    k->restart_ns = now_ns + back_off_ns(k, now_ns);
}

void gr_children_signal(const struct gr_children *c, int signal_number)
{
    for (int i = 0; i < c->n; i++) {
        if (c->child[i].pid != 0) {
            kill(c->child[i].pid, signal_number);
        }
    }
}

int gr_children_restart(struct gr_children *c, uint64_t now_ns)
{
    int wait_ms = -1;
    for (int i = 0; i < c->n; i++) {
        struct gr_child *k = &c->child[i];
        if (k->restart_ns == 0) {
            continue;
        }
        if (now_ns >= k->restart_ns) {
            if (start(c, k) == GR_OK) {
                continue;
            }
            k->restart_ns = now_ns + RETRY_NS; /* the system has no process to give: logged */
        }
        const int left_ms = (int)((k->restart_ns - now_ns) / GR_MS) + 1;
        wait_ms = wait_ms < 0 ? left_ms : GR_MIN(wait_ms, left_ms);
    }
    return wait_ms;
}

static bool any_alive(const struct gr_children *c)
{
    for (int i = 0; i < c->n; i++) {
        if (c->child[i].pid != 0) {
            return true;
        }
    }
    return false;
}

void gr_children_finish(struct gr_children *c, int grace_ms)
{
    const uint64_t deadline_ns = gr_clock_ns() + (uint64_t)grace_ms * GR_MS;
    for (;;) {
        for (int i = 0; i < c->n; i++) {
            struct gr_child *k = &c->child[i];
            if (k->pid != 0 && waitpid(k->pid, NULL, WNOHANG) == k->pid) {
                k->pid = 0;
            }
        }
        const uint64_t now_ns = gr_clock_ns();
        if (!any_alive(c) || now_ns >= deadline_ns) {
            break;
        }
        struct pollfd p = {.fd = c->signal_fd, .events = POLLIN};
        (void)poll(&p, 1, (int)((deadline_ns - now_ns) / GR_MS) + 1);
        struct signalfd_siginfo info;
        while (read(c->signal_fd, &info, sizeof(info)) > 0) {
        }
    }
    for (int i = 0; i < c->n; i++) {
        struct gr_child *k = &c->child[i];
        if (k->pid != 0) {
            kill(k->pid, SIGKILL);
            waitpid(k->pid, NULL, 0);
        }
        for (int a = 0; k->argv[a] != NULL; a++) {
            free(k->argv[a]);
        }
    }
    close(c->signal_fd);
    memset(c, 0, sizeof(*c));
}
