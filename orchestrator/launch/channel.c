#include "orchestrator/launch/channel.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/process/program.h"
#include "orchestrator/launch/channel_words.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define LATER_S 20 /* than the launch itself: its lines say more than a library's */

struct kind {
    const char *word, *name, *helper, *packages;
    const char *variables[4]; /* a launcher that has this channel sets one of them */
    bool is_built;
};

static const struct kind kinds[] = {
    [GR_CHANNEL_PMIX] = {"pmix", "PMIx", "graft-pmix", "Debian: libpmix-dev", {"PMIX_NAMESPACE"}, GR_WITH_PMIX},
    [GR_CHANNEL_MPI] = {"mpi",
                        "MPI",
                        "graft-mpi",
                        "Debian: libopenmpi-dev or libmpich-dev",
                        {"PMIX_NAMESPACE", "OMPI_COMM_WORLD_SIZE", "PMI_RANK"},
                        GR_WITH_MPI},
};

enum gr_channel_by gr_channel_named(const char *rendezvous)
{
    for (size_t i = GR_CHANNEL_PMIX; rendezvous != NULL && i < GR_ARRAY_LEN(kinds); i++) {
        if (strcmp(kinds[i].word, rendezvous) == 0) {
            return (enum gr_channel_by)i;
        }
    }
    return GR_CHANNEL_NOT;
}

const char *gr_channel_name(enum gr_channel_by by)
{
    return kinds[by].name;
}

const char *gr_channel_built(void)
{
    return GR_WITH_PMIX && GR_WITH_MPI ? "tcp, job-dir, pmix, mpi"
           : GR_WITH_PMIX              ? "tcp, job-dir, pmix"
           : GR_WITH_MPI               ? "tcp, job-dir, mpi"
                                       : "tcp, job-dir";
}

static bool has_launcher(const struct kind *k, char *const *env)
{
    for (int i = 0; k->variables[i] != NULL; i++) {
        if (gr_env_get(env, k->variables[i]) != NULL) {
            return true;
        }
    }
    return false;
}

enum gr_status gr_channel_check(enum gr_channel_by by, const struct gr_who *w, char *const *env)
{
    const struct kind *k = &kinds[by];
    if (!k->is_built) {
        log_error("--rendezvous %s is not part of this build; configure it with -Dmpi=enabled where %s is installed "
                  "(%s), or leave the option out",
                  k->word, k->name, k->packages);
        return GR_EUNSUPPORTED;
    }
    if (!has_launcher(k, env)) {
        log_error("rank %d on host %s: --rendezvous %s: no launcher that speaks %s has started this process, as %s is "
                  "not set (mpirun sets it, srun with --mpi=pmix); leave the option out, or give --job-dir DIR",
                  w->rank, w->host, k->word, k->name, k->variables[0]);
        return GR_EUNSUPPORTED;
    }
    if (access(gr_program_sibling(k->helper), X_OK) != 0) {
        log_error("--rendezvous %s: %s: %s; it belongs beside graft", k->word, gr_program_sibling(k->helper),
                  strerror(errno));
        return GR_EUNSUPPORTED;
    }
    return GR_OK;
}

/* ---- the helper ---- */

static void become(const struct kind *k, const struct gr_who *w, int seconds, int fd, pid_t parent)
{
    char number[3][16];
    sigset_t none;
    snprintf(number[0], sizeof(number[0]), "%d", w->rank);
    snprintf(number[1], sizeof(number[1]), "%d", w->size);
    snprintf(number[2], sizeof(number[2]), "%d", seconds);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent || dup2(fd, GR_CHANNEL_FD) < 0) {
        _exit(1); /* the parent died before the line above */
    }
    if (fd == GR_CHANNEL_FD) {
        (void)fcntl(fd, F_SETFD, 0); /* else the copy has no close-on-exec */
    }
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    const char *path = gr_program_sibling(k->helper);
    execl(path, k->helper, number[0], number[1], number[2], (char *)NULL);
    log_error("cannot start %s: %s", path, strerror(errno));
    _exit(127);
}

static enum gr_status start_helper(struct gr_channel *c, const struct gr_who *w, int seconds)
{
    const pid_t parent = getpid();
    int fds[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) != 0) {
        log_error("socketpair: %s", strerror(errno));
        return GR_EIO;
    }
    c->fd = fds[0];
    c->helper = fork();
    if (c->helper == 0) {
        become(&kinds[c->by], w, seconds, fds[1], parent);
    }
    close(fds[1]);
    if (c->helper < 0) {
        log_error("cannot start %s: fork: %s", kinds[c->by].helper, strerror(errno));
        gr_channel_end(c);
        return GR_EIO;
    }
    return GR_OK;
}

static enum gr_status hand_over(const struct gr_channel *c, const char *job, const struct gr_job_note *note)
{
    char packet[GR_CHANNEL_BYTES_MAX];
    char *text = gr_job_note_text(job, note);
    if (text == NULL) {
        return GR_ENOMEM;
    }
    const int n = snprintf(packet, sizeof(packet), "%c%s", GR_CHANNEL_NOTE, text);
    free(text);
    if (n >= (int)sizeof(packet) || send(c->fd, packet, (size_t)n, MSG_NOSIGNAL | MSG_DONTWAIT) != n) {
        log_error("%s does not take rank 0's note: %s", kinds[c->by].helper, strerror(errno));
        return GR_EIO;
    }
    return GR_OK;
}

enum gr_status gr_channel_start(struct gr_channel *c, enum gr_channel_by by, const struct gr_who *w, char *const *env,
                                int64_t start_within, const struct gr_job_note *note)
{
    const char *version = gr_env_get(env, "PMIX_VERSION");
    *c = (struct gr_channel){.by = by, .fd = -1};
    if (version != NULL) {
        snprintf(c->of_launcher, sizeof(c->of_launcher), "; the launcher's PMIx is %.12s", version);
    }
    snprintf(c->call, sizeof(c->call), "the start of %s", kinds[by].helper);
    GR_TRY(start_helper(c, w, (int)(start_within / (int64_t)GR_S) + LATER_S));
    const enum gr_status st = note != NULL ? hand_over(c, w->job, note) : GR_OK;
    if (st != GR_OK) {
        gr_channel_end(c);
    }
    return st;
}

/* Reaps the helper, which has ended or is to. */
static int reap(struct gr_channel *c)
{
    int status = 0;
    while (c->helper > 0 && waitpid(c->helper, &status, 0) < 0 && errno == EINTR) {
    }
    c->helper = 0;
    if (c->fd >= 0) {
        close(c->fd);
    }
    c->fd = -1;
    return WIFSIGNALED(status) ? GR_EXIT_SIGNAL + WTERMSIG(status) : WEXITSTATUS(status);
}

void gr_channel_end(struct gr_channel *c)
{
    if (c->helper > 0) {
        (void)kill(c->helper, SIGKILL);
    }
    (void)reap(c);
}

/* ---- what it says ---- */

static void take_packet(struct gr_channel *c, const struct gr_who *w, char *packet)
{
    const char *text = packet + 1;
    switch (packet[0]) {
    case GR_CHANNEL_LIBRARY:
        snprintf(c->library, sizeof(c->library), " (%.100s)", text);
        break;
    case GR_CHANNEL_CALL:
        snprintf(c->call, sizeof(c->call), "%.60s", text);
        break;
    case GR_CHANNEL_ERROR:
        snprintf(c->refused, sizeof(c->refused), "%.500s", text);
        break;
    case GR_CHANNEL_NOTE:
        c->has_note = gr_job_note_parse(text, strlen(text), w->job, &c->note);
        if (!c->has_note) {
            snprintf(c->refused, sizeof(c->refused), "what %s brought is no note of this job, %s",
                     gr_channel_name(c->by), w->job);
        }
        break;
    default:
        break;
    }
}

/* It has closed its end: it ends within a moment. */
static void take_end(struct gr_channel *c, const struct gr_who *w)
{
    const int status = reap(c);
    if (c->refused[0] != '\0' || c->has_note || (status == 0 && w->rank == 0)) {
        return;
    }
    snprintf(c->refused, sizeof(c->refused),
             "%s has ended with status %d (the last call: %s); a line above may say why", kinds[c->by].helper, status,
             c->call);
}

static void take_packets(struct gr_channel *c, const struct gr_who *w)
{
    char packet[GR_CHANNEL_BYTES_MAX];
    while (c->fd >= 0) {
        const ssize_t n = recv(c->fd, packet, sizeof(packet) - 1, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
            return;
        }
        if (n <= 0) {
            take_end(c, w);
            return;
        }
        packet[n] = '\0';
        take_packet(c, w, packet);
    }
}

enum gr_status gr_channel_hear(struct gr_channel *c, const struct gr_who *w)
{
    take_packets(c, w);
    if (c->refused[0] != '\0') {
        log_error("--rendezvous %s: %s%s%s", kinds[c->by].word, c->refused, c->library, c->of_launcher);
        return GR_EUNSUPPORTED;
    }
    if (w->rank == 0 ? c->helper == 0 : c->has_note) {
        return GR_OK;
    }
    log_error("%s has not come back%s%s", c->call, c->library, c->of_launcher);
    return GR_ENOTFOUND;
}
