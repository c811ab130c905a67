/* TCP connections by address, and exact reads and writes on a stream socket with a deadline (gr_clock_ns()), for the
 * hand-shakes before frames flow. They work on blocking and non-blocking sockets alike. `what` names the exchange in
 * the logged line. */
#ifndef GR_TRANSPORT_NET_H
#define GR_TRANSPORT_NET_H

#include "common/base/status.h"
#include "transport/interface.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

/* GR_ETIMEDOUT, GR_ECLOSED (end of file or reset), GR_EIO. */
GR_NODISCARD enum gr_status gr_sock_read(int fd, void *p, size_t n, uint64_t deadline_ns, const char *what);
GR_NODISCARD enum gr_status gr_sock_write(int fd, const void *p, size_t n, uint64_t deadline_ns, const char *what);

/* The same where it is no fault that the peer closes, which is told at level info: a peer that holds the key and whose
 * process has ended, perhaps in good order, and whoever misses it says so; or a stranger that has said nothing. */
GR_NODISCARD enum gr_status gr_sock_read_peer(int fd, void *p, size_t n, uint64_t deadline_ns, const char *what);
GR_NODISCARD enum gr_status gr_sock_write_peer(int fd, const void *p, size_t n, uint64_t deadline_ns, const char *what);

uint64_t gr_deadline_ns(int timeout_ms);

/* No delay, and keep-alive probes that notice a vanished machine within about 15 s. No-op on Unix
 * sockets. */
void gr_sock_tune(int fd);

/* Whether an interface is a bridge, such as docker0 and virbr0, which many hosts have under one address. */
bool gr_net_is_bridge(const char *interface);

/* ---- dial.c, listen.c ---- */

/* Who listens: HOST:PORT, [V6]:PORT; ":PORT" and "*:PORT" are any address of both families; port 0: any; FIRST-LAST:
 * the first that is free. Errors are logged with address and reason ("port in use: ..."). GR_EINVAL: not an address;
 * GR_ENOTFOUND: unknown host; GR_EIO. bound_out: where it listens, numeric. */
GR_NODISCARD enum gr_status gr_tcp_listen(const char *address, int *fd_out, char bound_out[64]);
/* Sockets that listen for the same, all at one port. */
struct gr_listening {
    int fd[GR_INTERFACE_CHOSEN_MAX];
    int n;
    char bound[64]; /* where the first one listens, numeric */
};
/* The same, but any address is every one of --interface where that was told (own.h). The errors of gr_own_choose(),
 * too. */
GR_NODISCARD enum gr_status gr_tcp_listen_own(const char *address, struct gr_listening *out);
void gr_listening_close(struct gr_listening *l);
/* Who connects: a list of HOST:PORT with commas between them, or @FILE, a file that holds one (address.h). All
 * addresses of all names are tried, each next one a moment after the one before it, until one answers; the line that
 * tells a failure lists them. Its own end is as gr_own_bind() says. GR_ENOTFOUND: no name is known, or the file is not
 * there; GR_ETIMEDOUT; GR_EIO: anything else, such as a refused connection. */
GR_NODISCARD enum gr_status gr_tcp_connect(const char *address, int timeout_ms, int *fd_out);
/* Tries again with back-off (50 ms, 100 ms ... 1 s) while nobody listens there, the name is not known or the file is
 * not there, for at most patience_ms; names and file are read anew each time. tell_ms: when that has taken so long, one
 * warning says who is waited for; 0: none does. GR_ETIMEDOUT when the time is over. */
GR_NODISCARD enum gr_status gr_tcp_connect_patiently(const char *address, int patience_ms, int tell_ms, int *fd_out);
/* Accepts with CLOEXEC, NODELAY, non-blocking off. GR_AGAIN: nobody is there (any more). GR_EIO, not logged: errno
 * tells; the socket may stay readable, so an I/O loop uses listener.h. */
GR_NODISCARD enum gr_status gr_tcp_accept(int listen_fd, int *fd_out);

/* Numeric HOST:PORT, [V6]:PORT; "?:?" where it has none. An IPv4 address that an IPv6 socket has is written as such. */
void gr_sockaddr_text(const struct sockaddr_storage *a, char out[64]);
/* The same without port and brackets. */
void gr_sockaddr_host(const struct sockaddr_storage *a, char out[64]);
/* Of a socket's own end, and of its other one. */
void gr_sock_own_text(int fd, char out[64]);
void gr_sock_peer_text(int fd, char out[64]);

#endif
