#include "bench/sweep/crew.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/process/child_args.h"
#include "common/process/program.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define END_NS (20 * GR_S) /* who has not ended so long after it was asked to is killed */
#define LOOK_MS 20         /* for a file that somebody writes */
#define SERVE_S 60         /* until `graft serve' listens */

extern char **environ;

static int signal_number;

int gr_crew_signal(void)
{
    return signal_number;
}

static sigset_t watched(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGHUP);
    return set;
}

void gr_crew_begin(struct gr_crew *c, const char *dir, const char *key_hex)
{
    const sigset_t set = watched();
    *c = (struct gr_crew){.n = 0};
    snprintf(c->dir, sizeof(c->dir), "%s", dir);
    snprintf(c->key_hex, sizeof(c->key_hex), "%s", key_hex);
    sigprocmask(SIG_BLOCK, &set, NULL);
}

/* ---- starting ---- */

cpu_set_t gr_crew_cpus(const cpu_set_t *own, int from, int n)
{
    cpu_set_t out;
    int at = 0;
    CPU_ZERO(&out);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, own)) {
            continue;
        }
        if (at >= from && at < from + n) {
            CPU_SET(cpu, &out);
        }
        at++;
    }
    return out;
}

/* graft's options as variables would reach some processes of a fleet and not others, and a launcher's word for this
 * process is wrong for its children. */
static bool is_dropped(const char *entry)
{
    static const char *const prefix[] = {
        "GRAFT_",       "OMPI_COMM_WORLD", "OMPI_UNIVERSE", "OMPI_MCA_orte_", "OMPI_MCA_ess", "PMI_",
        "PMIX_",        "RANK=",           "WORLD_SIZE=",   "LOCAL_RANK=",    "SLURM_STEP",   "SLURM_CPU_BIND",
        "SLURM_PROCID", "SLURM_LOCALID",   "SLURM_NODEID",  "SLURM_TASK_PID", "SLURM_GTIDS"};
    for (size_t i = 0; i < GR_ARRAY_LEN(prefix); i++) {
        if (strncmp(entry, prefix[i], strlen(prefix[i])) == 0) {
            return strncmp(entry, "GRAFT_LOG=", 10) != 0;
        }
    }
    return false;
}

static void clean_environment(const char *key_hex)
{
    char **to = environ;
    for (char **from = environ; *from != NULL; from++) {
        if (!is_dropped(*from)) {
            *to++ = *from;
        }
    }
    *to = NULL;
    setenv("GRAFT_KEY", key_hex, 1);
}

static void path_of(const struct gr_crew *c, const char *name, const char *ending, char path[PATH_MAX])
{
    const int n = snprintf(path, PATH_MAX, "%s/%s%s", c->dir, name, ending);
    for (char *p = path + GR_MIN(n, PATH_MAX - 1) - strlen(name) - strlen(ending); *p != '\0'; p++) {
        *p = *p == ' ' ? '-' : *p;
    }
}

static int open_out(const char *path)
{
    return open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
}

static void become(const struct gr_crew *c, const struct gr_crew_member *m, const char *const *argv,
                   const cpu_set_t *cpus, bool read)
{
    char path[PATH_MAX];
    sigset_t none;
    path_of(c, m->name, ".log", path);
    const int log = open_out(path);
    path_of(c, m->name, ".out", path);
    const int out = read ? open_out(path) : log;
    const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (log < 0 || out < 0 || null < 0) {
        log_error("%s: %s", path, strerror(errno));
        _exit(1);
    }
    dup2(null, STDIN_FILENO);
    dup2(out, STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
    if (cpus != NULL && sched_setaffinity(0, sizeof(*cpus), cpus) != 0) {
        log_error("cannot be pinned to its CPUs: %s", strerror(errno));
        _exit(1);
    }
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    clean_environment(c->key_hex);
    execvp(argv[0], (char **)(uintptr_t)argv);
    log_error("cannot start %s: %s", argv[0], strerror(errno));
    _exit(127);
}

enum gr_status gr_crew_start(struct gr_crew *c, const char *name, const char *const *argv, const cpu_set_t *cpus,
                             bool read, int *index_out)
{
    GR_ASSERT(c->n < GR_CREW_MAX);
    struct gr_crew_member *m = &c->member[c->n];
    const pid_t parent = getpid();
    *m = (struct gr_crew_member){.pid = 0};
    snprintf(m->name, sizeof(m->name), "%s", name);
    const pid_t pid = fork();
    if (pid < 0) {
        log_error("cannot start %s: fork: %s", name, strerror(errno));
        return GR_EIO;
    }
    if (pid == 0) {
        setpgid(0, 0); /* ctrl-C of the terminal is this process's alone */
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) {
            _exit(1); /* the parent died before the line above */
        }
        become(c, m, argv, cpus, read);
    }
    m->pid = pid;
    *index_out = c->n++;
    return GR_OK;
}

/* ---- watching ---- */

static bool has_letter(const char *line)
{
    return strpbrk(line, "abcdefghijklmnopqrstuvwxyz") != NULL;
}

/* Why a member has ended, by its log: the first line that tells of an error, else the last that says anything; empty:
 * none does. */
static void telling_line(const struct gr_crew *c, const char *name, char *out, size_t cap)
{
    char path[PATH_MAX], line[1024];
    bool is_error = false;
    path_of(c, name, ".log", path);
    FILE *f = fopen(path, "re");
    out[0] = '\0';
    while (f != NULL && !is_error && fgets(line, sizeof(line), f) != NULL) {
        line[strcspn(line, "\r\n")] = '\0';
        is_error = strstr(line, ": error: ") != NULL;
        if (has_letter(line)) {
            snprintf(out, cap, "%.*s", (int)cap - 1, line);
        }
    }
    if (f != NULL) {
        fclose(f);
    }
}

static void say_end(const struct gr_crew *c, const struct gr_crew_member *m, char why[GR_CREW_WHY_MAX])
{
    char line[200], end[48];
    telling_line(c, m->name, line, sizeof(line));
    if (WIFSIGNALED(m->status)) {
        snprintf(end, sizeof(end), "was killed by signal %d", WTERMSIG(m->status));
    } else {
        snprintf(end, sizeof(end), "ended with status %d", WEXITSTATUS(m->status));
    }
    snprintf(why, GR_CREW_WHY_MAX, "%s %s%s%s", m->name, end, line[0] != '\0' ? ": " : "", line);
}

/* The first that is found to have ended; -1: none has. */
static int reap(struct gr_crew *c)
{
    for (int i = 0; i < c->n; i++) {
        struct gr_crew_member *m = &c->member[i];
        if (m->pid != 0 && waitpid(m->pid, &m->status, WNOHANG) == m->pid) {
            m->pid = 0;
            return i;
        }
    }
    return -1;
}

/* Until a signal or for `ns'. A signal that asks to end: GR_ECANCELED. */
static enum gr_status rest(uint64_t ns)
{
    const sigset_t set = watched();
    const struct timespec t = gr_clock_timespec(ns);
    const int got = sigtimedwait(&set, NULL, &t);
    if (got > 0 && got != SIGCHLD) {
        signal_number = got;
        return GR_ECANCELED;
    }
    return GR_OK;
}

/* index -1: nobody is to end, a file is to come. */
static enum gr_status watch(struct gr_crew *c, int index, const char *path, int limit_s, char why[GR_CREW_WHY_MAX])
{
    const uint64_t end_ns = gr_clock_ns() + (uint64_t)limit_s * GR_S;
    for (;;) {
        const int ended = reap(c);
        if (ended >= 0 && ended == index && c->member[ended].status == 0) {
            return GR_OK;
        }
        if (ended >= 0) {
            say_end(c, &c->member[ended], why);
            return GR_EINVAL;
        }
        if (path != NULL && access(path, F_OK) == 0) {
            return GR_OK;
        }
        const uint64_t now_ns = gr_clock_ns();
        if (now_ns >= end_ns) {
            snprintf(why, GR_CREW_WHY_MAX, "not over within %d s", limit_s);
            return GR_ETIMEDOUT;
        }
        GR_TRY(rest(GR_MIN(end_ns - now_ns, path != NULL ? LOOK_MS * GR_MS : GR_S)));
    }
}

enum gr_status gr_crew_wait(struct gr_crew *c, int index, int limit_s, char why[GR_CREW_WHY_MAX])
{
    return watch(c, index, NULL, limit_s, why);
}

enum gr_status gr_crew_await_file(struct gr_crew *c, const char *path, int limit_s, char why[GR_CREW_WHY_MAX])
{
    return watch(c, -1, path, limit_s, why);
}

/* ---- `graft serve' ---- */

static enum gr_status read_address(const char *path, char address[GR_CREW_ADDRESS_MAX])
{
    FILE *f = fopen(path, "re");
    const bool got = f != NULL && fgets(address, GR_CREW_ADDRESS_MAX, f) != NULL;
    const int error = f == NULL ? errno : 0;
    if (f != NULL) {
        fclose(f);
    }
    address[got ? strcspn(address, "\r\n") : 0] = '\0';
    if (!got) {
        log_error("%s: %s", path, error != 0 ? strerror(error) : "no address in it");
    }
    return got ? GR_OK : GR_EIO;
}

enum gr_status gr_crew_serve(struct gr_crew *c, const char *name, const cpu_set_t *cpus, int *index_out,
                             char address[GR_CREW_ADDRESS_MAX], char why[GR_CREW_WHY_MAX])
{
    static struct gr_child_args a;
    char ready[PATH_MAX];
    snprintf(ready, sizeof(ready), "%s/ready", c->dir);
    (void)unlink(ready); /* of a life that was killed */
    gr_child_args_begin(&a, gr_program_sibling("graft"));
    gr_child_args_add_flag(&a, "serve", true);
    gr_child_args_add(&a, "--control", "127.0.0.1:0");
    gr_child_args_add(&a, "--ready-file", ready);
    GR_TRY(gr_crew_start(c, name, a.argv, cpus, false, index_out));
    GR_TRY(gr_crew_await_file(c, ready, SERVE_S, why));
    return read_address(ready, address);
}

/* ---- ending ---- */

static void signal_all(const struct gr_crew *c, int number)
{
    for (int i = 0; i < c->n; i++) {
        if (c->member[i].pid != 0) {
            kill(c->member[i].pid, number);
        }
    }
}

static bool any_alive(const struct gr_crew *c)
{
    bool any = false;
    for (int i = 0; i < c->n; i++) {
        any = any || c->member[i].pid != 0;
    }
    return any;
}

void gr_crew_end(struct gr_crew *c)
{
    const uint64_t end_ns = gr_clock_ns() + END_NS;
    signal_all(c, SIGTERM);
    while (any_alive(c) && gr_clock_ns() < end_ns) {
        if (reap(c) < 0 && rest(GR_S) != GR_OK) {
            break; /* asked for haste */
        }
    }
    signal_all(c, SIGKILL);
    for (int i = 0; i < c->n; i++) {
        if (c->member[i].pid != 0) {
            (void)waitpid(c->member[i].pid, &c->member[i].status, 0);
            c->member[i].pid = 0;
        }
    }
}
