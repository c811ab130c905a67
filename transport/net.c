/* TCP helpers and exact reads and writes with a deadline. */
#include "transport/net.h"

#include "common/base/address.h"
#include "common/base/clock.h"
#include "common/base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Connections that may wait to be accepted while the loop is at other work: key-holders wait among strangers. */
#define LISTEN_BACKLOG 1024

uint64_t gr_deadline_ns(int timeout_ms)
{
    return gr_clock_ns() + (uint64_t)GR_MAX(timeout_ms, 0) * GR_MS;
}

/* Rounded up, so that a poll never ends just before the deadline. */
static int left_ms(uint64_t deadline_ns)
{
    uint64_t now = gr_clock_ns();
    if (now >= deadline_ns) {
        return 0;
    }
    uint64_t ms = (deadline_ns - now + GR_MS - 1) / GR_MS;
    return ms > 1000000 ? 1000000 : (int)ms;
}

/* GR_OK: ready (or in error, which the next call will tell). */
static enum gr_status wait_ready(int fd, short events, uint64_t deadline_ns)
{
    for (;;) {
        int ms = left_ms(deadline_ns);
        struct pollfd p = {.fd = fd, .events = events};
        int n = poll(&p, 1, ms);
        if (n > 0) {
            return GR_OK;
        }
        if (n < 0 && errno != EINTR) {
            return GR_EIO;
        }
        if (n == 0 && ms == 0) {
            return GR_ETIMEDOUT;
        }
    }
}

/* closed: the level at which it is told that the peer has closed. */
static enum gr_status exchange_failed(enum gr_status st, enum gr_log_level closed, const char *what, size_t at,
                                      size_t n)
{
    gr_log_line(st == GR_ECLOSED ? closed : GR_LOG_ERROR, "%s: %s after %zu of %zu bytes", what,
                st == GR_ETIMEDOUT ? "the peer was silent for too long, gave up"
                : st == GR_ECLOSED ? "the peer closed the connection"
                                   : strerror(errno),
                at, n);
    return st;
}

static enum gr_status read_all(int fd, void *p, size_t n, uint64_t deadline_ns, enum gr_log_level closed,
                               const char *what)
{
    size_t at = 0;
    while (at < n) {
        ssize_t got = recv(fd, (uint8_t *)p + at, n - at, MSG_DONTWAIT);
        if (got > 0) {
            at += (size_t)got;
            continue;
        }
        if (got == 0 || errno == ECONNRESET || errno == EPIPE) {
            return exchange_failed(GR_ECLOSED, closed, what, at, n);
        }
        enum gr_status st = errno == EAGAIN || errno == EINTR ? wait_ready(fd, POLLIN, deadline_ns) : GR_EIO;
        if (st != GR_OK) {
            return exchange_failed(st, closed, what, at, n);
        }
    }
    return GR_OK;
}

static enum gr_status write_all(int fd, const void *p, size_t n, uint64_t deadline_ns, enum gr_log_level closed,
                                const char *what)
{
    size_t at = 0;
    while (at < n) {
        ssize_t put = send(fd, (const uint8_t *)p + at, n - at, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (put >= 0) {
            at += (size_t)put;
            continue;
        }
        if (errno == ECONNRESET || errno == EPIPE) {
            return exchange_failed(GR_ECLOSED, closed, what, at, n);
        }
        enum gr_status st = errno == EAGAIN || errno == EINTR ? wait_ready(fd, POLLOUT, deadline_ns) : GR_EIO;
        if (st != GR_OK) {
            return exchange_failed(st, closed, what, at, n);
        }
    }
    return GR_OK;
}

enum gr_status gr_sock_read(int fd, void *p, size_t n, uint64_t deadline_ns, const char *what)
{
    return read_all(fd, p, n, deadline_ns, GR_LOG_ERROR, what);
}

enum gr_status gr_sock_write(int fd, const void *p, size_t n, uint64_t deadline_ns, const char *what)
{
    return write_all(fd, p, n, deadline_ns, GR_LOG_ERROR, what);
}

enum gr_status gr_sock_read_peer(int fd, void *p, size_t n, uint64_t deadline_ns, const char *what)
{
    return read_all(fd, p, n, deadline_ns, GR_LOG_INFO, what);
}

enum gr_status gr_sock_write_peer(int fd, const void *p, size_t n, uint64_t deadline_ns, const char *what)
{
    return write_all(fd, p, n, deadline_ns, GR_LOG_INFO, what);
}

static void set_int(int fd, int level, int option, int value)
{
    (void)setsockopt(fd, level, option, &value, sizeof(value));
}

void gr_sock_tune(int fd)
{
    set_int(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set_int(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_int(fd, IPPROTO_TCP, TCP_KEEPIDLE, 5);
    set_int(fd, IPPROTO_TCP, TCP_KEEPINTVL, 2);
    set_int(fd, IPPROTO_TCP, TCP_KEEPCNT, 5);
    set_int(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 15000);
}

/* ---- addresses ---- */

/* The list is the caller's (freeaddrinfo). Only who listens may leave the port to the system. */
static enum gr_status resolve(const char *address, bool passive, struct addrinfo **list_out)
{
    struct gr_address a;
    char port[8];
    GR_TRY(gr_address_parse(passive ? "cannot listen" : "cannot connect", address, passive ? 0 : 1, &a));
    snprintf(port, sizeof(port), "%u", a.port);
    bool any = a.host[0] == '\0' || strcmp(a.host, "*") == 0;
    struct addrinfo hints = {.ai_family = any && passive ? AF_INET : AF_UNSPEC,
                             .ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_NUMERICSERV | (passive ? AI_PASSIVE : 0)};
    int err = getaddrinfo(any ? NULL : a.host, port, &hints, list_out);
    if (err != 0) {
        log_error("cannot resolve `%s': %s", address, gai_strerror(err));
        return GR_ENOTFOUND;
    }
    return GR_OK;
}

static void bound_text(int fd, char out[64])
{
    struct sockaddr_storage sa;
    socklen_t len = sizeof(sa);
    char host[48] = "?", port[8] = "?";
    if (getsockname(fd, (struct sockaddr *)&sa, &len) == 0) {
        (void)getnameinfo((struct sockaddr *)&sa, len, host, sizeof(host), port, sizeof(port),
                          NI_NUMERICHOST | NI_NUMERICSERV);
    }
    snprintf(out, 64, sa.ss_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
}

static enum gr_status listen_failed(const char *address, int err)
{
    if (err == EADDRINUSE) {
        const char *colon = strrchr(address, ':');
        log_error("cannot listen on %s: port in use, perhaps by another orchestrator: `ss -ltnp sport = %s' tells by "
                  "whom; stop it or choose another port (0: any)",
                  address, colon != NULL ? colon : address);
    } else {
        log_error("cannot listen on %s: %s", address, strerror(err));
    }
    return GR_EIO;
}

enum gr_status gr_tcp_listen(const char *address, int *fd_out, char bound_out[64])
{
    struct addrinfo *list;
    GR_TRY(resolve(address, true, &list));
    int fd = -1, err = EADDRNOTAVAIL;
    for (struct addrinfo *a = list; a != NULL && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0) {
            err = errno;
            continue;
        }
        set_int(fd, SOL_SOCKET, SO_REUSEADDR, 1);
        if (bind(fd, a->ai_addr, a->ai_addrlen) < 0 || listen(fd, LISTEN_BACKLOG) < 0) {
            err = errno;
            close(fd);
            fd = -1;
        }
    }
    freeaddrinfo(list);
    if (fd < 0) {
        return listen_failed(address, err);
    }
    bound_text(fd, bound_out);
    *fd_out = fd;
    return GR_OK;
}

/* One address; 0 or an errno. The socket is left blocking. */
static int connect_one(const struct addrinfo *a, uint64_t deadline_ns, int *fd_out)
{
    int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        return errno;
    }
    int err = connect(fd, a->ai_addr, a->ai_addrlen) < 0 ? errno : 0;
    if (err == EINPROGRESS) {
        socklen_t len = sizeof(err);
        if (wait_ready(fd, POLLOUT, deadline_ns) != GR_OK) {
            err = ETIMEDOUT;
        } else if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &len) < 0) {
            err = errno;
        }
    }
    if (err == 0 && fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK) < 0) {
        err = errno;
    }
    if (err != 0) {
        close(fd);
        return err;
    }
    gr_sock_tune(fd);
    *fd_out = fd;
    return 0;
}

/* Every address of a name in turn; 0 or the last errno. */
static int connect_any(const struct addrinfo *list, uint64_t deadline_ns, int *fd_out)
{
    int err = EADDRNOTAVAIL;
    for (const struct addrinfo *a = list; a != NULL && err != 0; a = a->ai_next) {
        err = connect_one(a, deadline_ns, fd_out);
    }
    return err;
}

static enum gr_status connect_failed(const char *address, int err)
{
    log_error("cannot connect to %s: %s%s", address, strerror(err),
              err == ECONNREFUSED ? " (is the process there started?)" : "");
    return err == ETIMEDOUT ? GR_ETIMEDOUT : GR_EIO;
}

enum gr_status gr_tcp_connect(const char *address, int timeout_ms, int *fd_out)
{
    struct addrinfo *list;
    GR_TRY(resolve(address, false, &list));
    const int err = connect_any(list, gr_deadline_ns(timeout_ms), fd_out);
    freeaddrinfo(list);
    return err == 0 ? GR_OK : connect_failed(address, err);
}

static bool may_come_later(int err)
{
    return err == ECONNREFUSED || err == ECONNRESET || err == EHOSTUNREACH || err == ENETUNREACH || err == ETIMEDOUT;
}

enum gr_status gr_tcp_connect_patiently(const char *address, int patience_ms, int tell_ms, int *fd_out)
{
    struct addrinfo *list;
    GR_TRY(resolve(address, false, &list));
    const uint64_t deadline_ns = gr_deadline_ns(patience_ms);
    uint64_t tell_ns = tell_ms > 0 && tell_ms < patience_ms ? gr_deadline_ns(tell_ms) : UINT64_MAX;
    int err = connect_any(list, deadline_ns, fd_out);
    for (int wait_ms = 50; may_come_later(err) && gr_clock_ns() < deadline_ns; wait_ms = GR_MIN(2 * wait_ms, 1000)) {
        if (wait_ms == 50) {
            log_info("nobody listens on %s yet; trying for %d s", address, patience_ms / 1000);
        }
        const uint64_t now_ns = gr_clock_ns();
        if (now_ns >= tell_ns) {
            log_warn("waiting for %s ...", address);
            tell_ns = UINT64_MAX;
        }
        const int left_ms = (int)((GR_MAX(GR_MIN(deadline_ns, tell_ns), now_ns) - now_ns) / GR_MS) + 1;
        (void)poll(NULL, 0, GR_MIN(wait_ms, left_ms));
        err = connect_any(list, deadline_ns, fd_out);
    }
    freeaddrinfo(list);
    if (err == 0) {
        return GR_OK;
    }
    log_error("cannot connect to %s within %d s: %s; is the process there started?", address, patience_ms / 1000,
              strerror(err));
    return may_come_later(err) ? GR_ETIMEDOUT : GR_EIO;
}

enum gr_status gr_tcp_accept(int listen_fd, int *fd_out)
{
    int fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0) {
        /* The one who connected is gone again, or nobody is there (non-blocking listener). */
        if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED || errno == EPROTO) {
            return GR_AGAIN;
        }
        return GR_EIO;
    }
    gr_sock_tune(fd);
    *fd_out = fd;
    return GR_OK;
}
