/* Exact reads and writes with a deadline, and how a TCP socket is tuned. */
#include "transport/net.h"

#include "common/base/clock.h"
#include "common/base/log.h"

#include <errno.h>
#include <limits.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

/* The driver says it in every network namespace, /sys only in its own; but some kernels do not ask the driver. */
bool gr_net_is_bridge(const char *interface)
{
    struct ethtool_drvinfo info = {.cmd = ETHTOOL_GDRVINFO};
    struct ifreq request = {.ifr_data = (char *)&info};
    char path[64];
    snprintf(request.ifr_name, sizeof(request.ifr_name), "%s", interface);
    const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    const bool is_said = fd >= 0 && ioctl(fd, SIOCETHTOOL, &request) == 0;
    if (fd >= 0) {
        close(fd);
    }
    snprintf(path, sizeof(path), "/sys/class/net/%.16s/bridge", interface);
    return is_said ? strcmp(info.driver, "bridge") == 0 : access(path, F_OK) == 0;
}

uint64_t gr_deadline_ns(int timeout_ms)
{
    return gr_clock_ns() + (uint64_t)GR_MAX(timeout_ms, 0) * GR_MS;
}

/* GR_OK: ready (or in error, which the next call will tell). */
static enum gr_status wait_ready(int fd, short events, uint64_t deadline_ns)
{
    for (;;) {
        int ms = gr_ms_left(deadline_ns, gr_clock_ns());
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
