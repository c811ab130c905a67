#include "common/process/children.h"

#include "common/base/clock.h"
#include "common/process/joined.h"
#include "common/process/program.h"
#include "common/base/log.h"
#include "common/base/out_guard.h"
#include "common/process/signal_hint.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#define RETRY_NS GR_S

/* A signal that is ignored stays so: a descriptor would hear it all the same once it is blocked. */
static void add_drain(sigset_t *set, int number)
{
    struct sigaction now;
    if (sigaction(number, NULL, &now) == 0 && now.sa_handler != SIG_IGN) {
        sigaddset(set, number);
    }
}

static sigset_t watched(void)
{
    sigset_t set = gr_program_endings();
    sigaddset(&set, SIGCHLD);
    add_drain(&set, SIGUSR1);
    add_drain(&set, SIGUSR2);
    if (gr_program_reloaded_by(SIGHUP)) {
        sigaddset(&set, SIGHUP); /* heard even where it is ignored (nohup) */
    }
    return set;
}

enum gr_status gr_children_init(struct gr_children *c, const char *key_hex)
{
    memset(c, 0, sizeof(*c));
    sigset_t set = watched();
    const sigset_t endings = gr_program_endings();
    sigprocmask(SIG_BLOCK, &set, NULL);
    c->child = calloc(GR_CHILD_MAX, sizeof(*c->child));
    if (c->child == NULL) {
        log_error("no memory for child processes");
        return GR_ENOMEM;
    }
    c->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (c->signal_fd < 0) {
        log_error("signalfd: %s", strerror(errno));
        return GR_EIO;
    }
    GR_TRY(gr_out_guard(&endings));
    strncpy(c->key_hex, key_hex != NULL ? key_hex : "", sizeof(c->key_hex) - 1);
    return GR_OK;
}

/* One that asks for haste. */
static bool is_ending(int signal_number)
{
    return signal_number != SIGCHLD && !gr_program_drained_by(signal_number) && !gr_program_reloaded_by(signal_number);
}

static void become_child(const struct gr_children *c, const struct gr_child *k, pid_t parent)
{
    const sigset_t set = watched();
    setpgid(0, 0);
    signal(SIGINT, SIG_IGN); /* forgets a ctrl-C that reached the parent's group before the line above */
    signal(SIGINT, SIG_DFL);
    signal(SIGUSR1, SIG_IGN); /* until the program that it becomes hears them */
    signal(SIGUSR2, SIG_IGN);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) {
        _exit(1); /* the parent died before the line above */
    }
    sigprocmask(SIG_UNBLOCK, &set, NULL);
    if (c->key_hex[0] != '\0') {
        unsetenv("GRAFT_KEY_FILE"); /* it would go before */
        setenv("GRAFT_KEY", c->key_hex, 1);
    }
    setenv("GRAFT_SEAT", k->seat, !k->rule.keeps_seat);
    gr_joined_hand_over(k->joined_fd, k->silent, k->restart.worked);
    execv(k->argv[0], k->argv);
    log_error("cannot start %s: %s", k->argv[0], strerror(errno));
    _exit(1);
}

static enum gr_status start(struct gr_children *c, struct gr_child *k)
{
    const pid_t parent = getpid();
    const pid_t pid = fork();
    if (pid < 0) {
        log_error("cannot start the %s: fork: %s", k->name, strerror(errno));
        return GR_EIO;
    }
    if (pid == 0) {
        become_child(c, k, parent);
    }
    k->pid = pid;
    k->start_ns = gr_clock_ns();
    k->restart_ns = 0;
    k->told_end = 0;
    return GR_OK;
}

static void free_words(char **word)
{
    for (int i = 0; word != NULL && word[i] != NULL; i++) {
        free(word[i]);
    }
    free(word);
}

/* NULL: no memory. */
static char **copy_words(const char *const *word)
{
    size_t n = 0;
    while (word[n] != NULL) {
        n++;
    }
    char **copy = calloc(n + 1, sizeof(*copy));
    for (size_t i = 0; copy != NULL && i < n; i++) {
        copy[i] = strdup(word[i]);
        if (copy[i] == NULL) {
            free_words(copy);
            copy = NULL;
        }
    }
    return copy;
}

/* A name that nobody else has; where there is no randomness, the time and the process are as good. */
static void make_seat(char out[17])
{
    uint64_t name = 0;
    if (getrandom(&name, sizeof(name), 0) != (ssize_t)sizeof(name)) {
        name = gr_clock_ns() ^ (uint64_t)getpid() << 40;
    }
    snprintf(out, 17, "%016" PRIx64, name);
}

enum gr_status gr_children_start(struct gr_children *c, const char *name, const char *const *argv,
                                 const struct gr_child_rule *rule, int *index_out)
{
    GR_ASSERT(c->n < GR_CHILD_MAX);
    struct gr_child *k = &c->child[c->n];
    *k = (struct gr_child){.rule = *rule, .joined_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    if (k->joined_fd < 0) {
        log_error("eventfd: %s", strerror(errno));
        return GR_EIO;
    }
    make_seat(k->seat);
    k->name = strdup(name);
    k->argv = copy_words(argv);
    if (k->name == NULL || k->argv == NULL) {
        log_error("no memory for a child process");
        free(k->name);
        free_words(k->argv);
        close(k->joined_fd);
        return GR_ENOMEM;
    }
    *index_out = c->n++;
    return start(c, k);
}

/* ---- ends ---- */

static enum gr_end_kind end_kind(int status)
{
    if (WIFSIGNALED(status)) {
        return GR_END_SIGNAL;
    }
    switch (WEXITSTATUS(status)) {
    case 0:
    case GR_EXIT_ORCHESTRATOR_LOST:
        return GR_END_LINK;
    case GR_CHILD_EXIT_AGAIN:
        return GR_END_DEVICE;
    default:
        return GR_END_FAILED;
    }
}

static void describe_end(enum gr_end_kind kind, int status, char *text, size_t text_bytes)
{
    switch (kind) {
    case GR_END_SIGNAL:
        snprintf(text, text_bytes, "was killed by signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
        break;
    case GR_END_DEVICE:
        snprintf(text, text_bytes, "ended because its device or its group failed, or a pass hung");
        break;
    case GR_END_LINK:
        snprintf(text, text_bytes, "has lost its link");
        break;
    case GR_END_FAILED:
        snprintf(text, text_bytes, "ended with status %d", WEXITSTATUS(status));
        break;
    }
}

static void log_restart(const struct gr_child *k, enum gr_end_kind kind, const char *end)
{
    if (kind == GR_END_FAILED && k->silent) {
        log_warn("the %s %s (its own line above says why); trying again without further lines, with pauses of up "
                 "to %d s, until it is back",
                 k->name, end, (int)(k->rule.restart.pause_max_ns / GR_S));
    } else {
        log_warn("the %s %s; starting it again", k->name, end);
    }
}

static void say_why(struct gr_child *k, enum gr_restart_verdict verdict, int status, const char *end)
{
    k->why[0] = '\0';
    if (verdict == GR_RESTART_FRUITLESS) {
        snprintf(k->why, sizeof(k->why), "the %s ended %d times in a row without a token; the last time it %s%s%s",
                 k->name, k->restart.n_fruitless, end, WIFSIGNALED(status) ? ": " : "",
                 WIFSIGNALED(status) ? gr_signal_hint(WTERMSIG(status)) : "");
    }
}

/* What it has told by now. */
static void hear(struct gr_child *k)
{
    uint64_t count = 0;
    if (read(k->joined_fd, &count, sizeof(count)) != (ssize_t)sizeof(count)) {
        return;
    }
    k->ends = k->ends || gr_joined_says_end(count);
    if (!k->restart.joined && gr_joined_says_joined(count) && gr_restart_joined(&k->restart)) {
        log_warn("the %s is back", k->name);
    }
}

bool gr_children_joined(struct gr_children *c, int index)
{
    hear(&c->child[index]);
    return c->child[index].restart.joined;
}

bool gr_children_ends(const struct gr_children *c, int index)
{
    return c->child[index].ends;
}

static enum gr_child_event take_end(struct gr_child *k, int status)
{
    const uint64_t now_ns = gr_clock_ns();
    const enum gr_end_kind kind = end_kind(status);
    char end[96];
    k->exit_status = WIFSIGNALED(status) ? 0 : WEXITSTATUS(status);
    const bool in_order = k->exit_status == 0 || k->exit_status == GR_EXIT_ORCHESTRATOR_LOST;
    if (!WIFSIGNALED(status) && in_order && k->rule.status_0_ends) {
        return GR_CHILD_ENDED;
    }
    if (WIFSIGNALED(status) && WTERMSIG(status) == k->told_end) { /* before it could heed it in another way */
        k->why[0] = '\0';
        return GR_CHILD_GIVEN_UP;
    }
    describe_end(kind, status, end, sizeof(end));
    if (k->ends) {
        if (kind == GR_END_SIGNAL) { /* else it has told its reason itself */
            log_warn("the %s %s while it was ending", k->name, end);
        }
        k->why[0] = '\0';
        return GR_CHILD_GIVEN_UP;
    }
    const struct gr_restart_answer a = gr_restart_end(&k->restart, &k->rule.restart, kind, now_ns - k->start_ns);
    if (a.verdict != GR_RESTART_AGAIN) {
        say_why(k, a.verdict, status, end);
        return GR_CHILD_GIVEN_UP;
    }
    k->silent = a.silent;
    k->restart_ns = now_ns + a.pause_ns;
    if (a.tell) {
        log_restart(k, kind, end);
    }
    return GR_CHILD_RESTARTED;
}

/* Whether the child has ended. Its status may have been taken by somebody else (ECHILD): then nothing is known but that
 * it is gone, which counts as an end by a failure of its own. */
static bool has_ended(pid_t pid, int *status)
{
    const pid_t got = waitpid(pid, status, WNOHANG);
    if (got < 0 && errno == ECHILD) {
        *status = W_EXITCODE(1, 0);
        return true;
    }
    return got == pid;
}

static enum gr_child_event reap(struct gr_children *c, int *index_out)
{
    for (int i = 0; i < c->n; i++) {
        struct gr_child *k = &c->child[i];
        int status = 0;
        (void)gr_children_joined(c, i);
        if (k->pid == 0 || !has_ended(k->pid, &status)) {
            continue;
        }
        (void)gr_children_joined(c, i); /* it may have joined and ended since the line above */
        k->pid = 0;
        *index_out = i;
        return take_end(k, status);
    }
    return GR_CHILD_NONE;
}

static bool is_said_again(struct gr_children *c, const struct signalfd_siginfo *info)
{
    return is_ending((int)info->ssi_signo) && gr_told_by(&c->told, (pid_t)info->ssi_pid) == GR_TOLD_SAME;
}

enum gr_child_event gr_children_poll(struct gr_children *c, int *signal_out, int *index_out)
{
    struct signalfd_siginfo info;
    while (read(c->signal_fd, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
        const int number = (int)info.ssi_signo;
        if (is_said_again(c, &info)) {
            continue;
        }
        if (number != SIGCHLD && (*signal_out == 0 || !gr_program_reloaded_by(number))) {
            *signal_out = number;
        }
        if (is_ending(number)) {
            gr_out_hurry(number);
        }
    }
    return reap(c, index_out);
}

void gr_children_progress(struct gr_children *c, int index)
{
    gr_restart_progress(&c->child[index].restart);
}

void gr_children_signal(struct gr_children *c, int signal_number)
{
    for (int i = 0; i < c->n; i++) {
        struct gr_child *k = &c->child[i];
        if (k->pid != 0) {
            k->told_end = is_ending(signal_number) ? signal_number : k->told_end;
            kill(k->pid, signal_number);
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
    bool hurry = false;
    for (;;) {
        for (int i = 0; i < c->n; i++) {
            struct gr_child *k = &c->child[i];
            int status;
            if (k->pid != 0 && has_ended(k->pid, &status)) {
                k->pid = 0;
            }
        }
        const uint64_t now_ns = gr_clock_ns();
        if (!any_alive(c) || now_ns >= deadline_ns || hurry) {
            break;
        }
        struct pollfd p = {.fd = c->signal_fd, .events = POLLIN};
        (void)poll(&p, 1, (int)((deadline_ns - now_ns) / GR_MS) + 1);
        struct signalfd_siginfo info;
        while (read(c->signal_fd, &info, sizeof(info)) > 0) {
            if (is_ending((int)info.ssi_signo)) {
                hurry = true;
                gr_out_hurry((int)info.ssi_signo);
            }
        }
    }
    for (int i = 0; i < c->n; i++) {
        struct gr_child *k = &c->child[i];
        if (k->pid != 0) {
            kill(k->pid, SIGKILL);
            waitpid(k->pid, NULL, 0);
        }
        free_words(k->argv);
        free(k->name);
        close(k->joined_fd);
    }
    close(c->signal_fd);
    free(c->child);
    memset(c, 0, sizeof(*c));
}
