/* Connecting: every address of every name of a list, one after the other begun, whoever answers first taken. A name
 * whose first address is silent must not cost the time of its second. */
#include "transport/net.h"

#include "common/base/address.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "transport/own.h"
#include "transport/pause.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netdb.h>
#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ATTEMPT_MAX 16    /* addresses of a list, names resolved; more are not tried */
#define HEAD_START_MS 250 /* of one address before the next is tried beside it */
#define PAUSE_MS_MIN 50u  /* between tries, where nobody listens yet */
#define PAUSE_MS_MAX 1000u
#define LIST_BYTES 1024 /* of an address file */

struct attempt {
    struct sockaddr_storage to;
    socklen_t len;
    int fd;  /* -1: not begun, or over */
    int err; /* errno; 0: not begun, or it goes on */
};

/* One try at a list. */
struct dial {
    struct attempt attempt[ATTEMPT_MAX];
    int n, n_begun, n_pending;
    char unknown[200]; /* the first name that was not resolved, and why; "": none */
};

/* ---- who is meant ---- */

/* A directory that a network file system remembers as lacking the file is read anew by listing it. */
static void look_around(const char *path)
{
    char folder[PATH_MAX];
    const char *slash = strrchr(path, '/');
    snprintf(folder, sizeof(folder), "%.*s", slash == NULL ? 1 : (int)(slash - path) + 1, slash == NULL ? "." : path);
    DIR *d = opendir(folder);
    while (d != NULL && readdir(d) != NULL) {
    }
    if (d != NULL) {
        closedir(d);
    }
}

/* GR_ENOTFOUND: it is not there, or empty. */
static enum gr_status read_file(const char *path, char out[LIST_BYTES])
{
    look_around(path);
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    const ssize_t n = fd >= 0 ? read(fd, out, LIST_BYTES - 1) : -1;
    if (fd >= 0) {
        close(fd);
    }
    out[GR_MAX(n, 0)] = '\0';
    out[strcspn(out, " \r\n\t")] = '\0';
    return out[0] != '\0' ? GR_OK : GR_ENOTFOUND;
}

static void add_name(struct dial *d, const char *item, const struct gr_address *a)
{
    char port[8];
    struct addrinfo *list = NULL;
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    const bool any = a->host[0] == '\0' || strcmp(a->host, "*") == 0;
    snprintf(port, sizeof(port), "%u", a->port);
    const int err = getaddrinfo(any ? NULL : a->host, port, &hints, &list);
    if (err != 0 && d->unknown[0] == '\0') {
        snprintf(d->unknown, sizeof(d->unknown), "cannot resolve `%.100s': %s", item, gai_strerror(err));
    }
    for (const struct addrinfo *i = list; i != NULL && d->n < ATTEMPT_MAX; i = i->ai_next) {
        struct attempt *t = &d->attempt[d->n++];
        *t = (struct attempt){.len = i->ai_addrlen, .fd = -1};
        memcpy(&t->to, i->ai_addr, i->ai_addrlen);
    }
    if (list != NULL) {
        freeaddrinfo(list);
    }
}

/* GR_ENOTFOUND: nobody is known yet; d->unknown says why. */
static enum gr_status resolve(const char *address, struct dial *d)
{
    char text[LIST_BYTES], item[300];
    size_t at = 0;
    *d = (struct dial){0};
    if (address[0] == '@' && read_file(address + 1, text) != GR_OK) {
        snprintf(d->unknown, sizeof(d->unknown), "the file %.100s with the orchestrator's address is not there",
                 address + 1);
        return GR_ENOTFOUND;
    }
    const char *list = address[0] == '@' ? text : address;
    GR_TRY(gr_address_check_peer("cannot connect", list));
    while (gr_address_next(list, &at, item)) {
        struct gr_address a;
        GR_TRY(gr_address_parse("cannot connect", item, 1, &a));
        add_name(d, item, &a);
    }
    return d->n > 0 ? GR_OK : GR_ENOTFOUND;
}

/* ---- the race ---- */

static void end_attempt(struct dial *d, struct attempt *t, int err)
{
    if (t->fd >= 0) {
        close(t->fd);
        d->n_pending--;
    }
    t->fd = -1;
    t->err = err;
}

static void begin_attempt(struct dial *d)
{
    struct attempt *t = &d->attempt[d->n_begun++];
    t->fd = socket(t->to.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (t->fd < 0) {
        t->err = errno;
        return;
    }
    d->n_pending++;
    const int err = gr_own_bind(t->fd, (const struct sockaddr *)&t->to);
    if (err != 0) {
        end_attempt(d, t, err);
    } else if (connect(t->fd, (struct sockaddr *)&t->to, t->len) < 0 && errno != EINPROGRESS) {
        end_attempt(d, t, errno);
    }
}

/* Looks at those that are on their way, for at most wait_ms. The one that is connected, or NULL. */
static struct attempt *look(struct dial *d, int wait_ms)
{
    struct pollfd fds[ATTEMPT_MAX];
    struct attempt *of[ATTEMPT_MAX];
    nfds_t n = 0;
    for (int i = 0; i < d->n_begun; i++) {
        if (d->attempt[i].fd >= 0) {
            of[n] = &d->attempt[i];
            fds[n++] = (struct pollfd){.fd = d->attempt[i].fd, .events = POLLOUT};
        }
    }
    (void)poll(fds, n, wait_ms);
    for (nfds_t i = 0; i < n; i++) {
        int err = 0;
        socklen_t len = sizeof(err);
        if (fds[i].revents == 0) {
            continue;
        }
        if (getsockopt(of[i]->fd, SOL_SOCKET, SO_ERROR, &err, &len) < 0) {
            err = errno;
        }
        if (err == 0) {
            return of[i];
        }
        end_attempt(d, of[i], err);
    }
    return NULL;
}

/* -1: nobody has answered by then. The socket is left blocking. */
static int race(struct dial *d, uint64_t deadline_ns)
{
    struct attempt *winner = NULL;
    uint64_t next_ns = 0;
    int fd = -1;
    for (;;) {
        const uint64_t now_ns = gr_clock_ns();
        if (d->n_begun < d->n && (d->n_pending == 0 || now_ns >= next_ns)) {
            begin_attempt(d);
            next_ns = now_ns + HEAD_START_MS * GR_MS;
            continue;
        }
        if (d->n_pending == 0) {
            break;
        }
        const uint64_t until_ns = d->n_begun < d->n ? GR_MIN(next_ns, deadline_ns) : deadline_ns;
        winner = look(d, gr_ms_left(until_ns, now_ns));
        if (winner != NULL || (d->n_pending > 0 && gr_clock_ns() >= deadline_ns)) {
            break;
        }
    }
    if (winner != NULL && fcntl(winner->fd, F_SETFL, fcntl(winner->fd, F_GETFL) & ~O_NONBLOCK) == 0) {
        fd = winner->fd;
        winner->fd = -1;
        d->n_pending--;
        gr_sock_tune(fd);
    }
    for (int i = 0; i < d->n_begun; i++) {
        if (d->attempt[i].fd >= 0) {
            end_attempt(d, &d->attempt[i], ETIMEDOUT);
        }
    }
    return fd;
}

/* ---- what is told ---- */

static bool may_come_later(int err)
{
    return err == ECONNREFUSED || err == ECONNRESET || err == EHOSTUNREACH || err == ENETUNREACH || err == ETIMEDOUT ||
           err == EHOSTDOWN || err == ENETDOWN || err == EINVAL || err == 0;
}

/* Of the last one that was tried: errors of the others are in the line. */
static int error_of(const struct dial *d)
{
    int err = 0;
    for (int i = 0; i < d->n_begun; i++) {
        err = d->attempt[i].err;
    }
    return err;
}

/* A route that is a black hole says EINVAL. */
static const char *reason(int err)
{
    return err == EINVAL ? "no way there (Invalid argument)" : strerror(err);
}

static void put(char out[400], const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void put(char out[400], const char *fmt, ...)
{
    const size_t n = strlen(out);
    va_list args;
    va_start(args, fmt);
    vsnprintf(out + n, 400 - n, fmt, args);
    va_end(args);
}

/* "Connection refused" of one numeric address, or each address with its own reason. */
static void list_reasons(const struct dial *d, const char *address, char out[400])
{
    char text[64];
    out[0] = '\0';
    for (int i = 0; i < d->n_begun; i++) {
        const struct attempt *t = &d->attempt[i];
        gr_sockaddr_text(&t->to, text);
        if (d->n == 1 && strcmp(text, address) == 0) {
            put(out, "%s", reason(t->err));
        } else {
            put(out, "%s%s: %s", i > 0 ? "; " : "", text, reason(t->err));
        }
    }
    if (d->unknown[0] != '\0') {
        put(out, "%s%s", d->n > 0 ? "; " : "", d->unknown);
    }
}

static enum gr_status connect_failed(const char *address, const struct dial *d)
{
    char why[400];
    list_reasons(d, address, why);
    if (d->n == 0) {
        log_error("%s", d->unknown);
        return GR_ENOTFOUND;
    }
    const int err = error_of(d);
    log_error("cannot connect to %s: %s%s", address, why,
              err == ECONNREFUSED ? " (is the process there started?)" : "");
    return err == ETIMEDOUT ? GR_ETIMEDOUT : GR_EIO;
}

enum gr_status gr_tcp_connect(const char *address, int timeout_ms, int *fd_out)
{
    struct dial d;
    enum gr_status st = resolve(address, &d);
    if (st != GR_OK) {
        return st == GR_ENOTFOUND ? connect_failed(address, &d) : st;
    }
    const int fd = race(&d, gr_deadline_ns(timeout_ms));
    if (fd < 0) {
        return connect_failed(address, &d);
    }
    *fd_out = fd;
    return GR_OK;
}

/* How long one try may take: a link that eats packets is given more from try to try, an address that has come meanwhile
 * is not kept waiting by one that has gone. */
static int try_ms(int n_try, uint64_t deadline_ns)
{
    return GR_MIN(2000 << GR_MIN(n_try, 3), gr_ms_left(deadline_ns, gr_clock_ns()));
}

/* GR_AGAIN: nobody yet. */
static enum gr_status try_once(const char *address, int n_try, uint64_t deadline_ns, struct dial *d, int *fd_out)
{
    const enum gr_status st = resolve(address, d);
    if (st != GR_OK) {
        return st == GR_ENOTFOUND ? GR_AGAIN : st;
    }
    *fd_out = race(d, gr_deadline_ns(try_ms(n_try, deadline_ns)));
    return *fd_out >= 0 ? GR_OK : may_come_later(error_of(d)) ? GR_AGAIN : GR_EIO;
}

static enum gr_status out_of_patience(const char *address, int patience_ms, const struct dial *d, enum gr_status st)
{
    char why[400];
    list_reasons(d, address, why);
    log_error("cannot connect to %s within %d s: %s; is the process there started?", address, patience_ms / 1000, why);
    return st == GR_AGAIN ? GR_ETIMEDOUT : st;
}

enum gr_status gr_tcp_connect_patiently(const char *address, int patience_ms, int tell_ms, int *fd_out)
{
    struct dial d = {0};
    const uint64_t deadline_ns = gr_deadline_ns(patience_ms);
    uint64_t tell_ns = tell_ms > 0 && tell_ms < patience_ms ? gr_deadline_ns(tell_ms) : UINT64_MAX;
    enum gr_status st = try_once(address, 0, deadline_ns, &d, fd_out);
    for (int n = 1; st == GR_AGAIN && gr_clock_ns() < deadline_ns; n++) {
        const int wait_ms = (int)gr_pause_ms((uint32_t)n - 1, PAUSE_MS_MIN, PAUSE_MS_MAX);
        if (n == 1) {
            log_info("nobody listens on %s yet; trying for %d s", address, patience_ms / 1000);
        }
        const uint64_t now_ns = gr_clock_ns();
        if (now_ns >= tell_ns) {
            log_warn("waiting for %s ...", address);
            tell_ns = UINT64_MAX;
        }
        (void)poll(NULL, 0, GR_MIN(wait_ms, gr_ms_left(GR_MIN(deadline_ns, tell_ns), now_ns) + 1));
        st = try_once(address, n, deadline_ns, &d, fd_out);
    }
    return st == GR_AGAIN || st == GR_EIO ? out_of_patience(address, patience_ms, &d, st) : st;
}
