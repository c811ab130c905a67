/* TCP connections by address, and exact reads and writes on a stream socket with a deadline (gr_clock_ns()), for the
 * hand-shakes before frames flow. They work on blocking and non-blocking sockets alike. `what` names the exchange in
 * the logged line. */
#ifndef GR_TRANSPORT_NET_H
#define GR_TRANSPORT_NET_H

#include "common/base/status.h"

#include <stddef.h>
#include <stdint.h>

/* GR_ETIMEDOUT, GR_ECLOSED (end of file or reset), GR_EIO. */
GR_NODISCARD enum gr_status gr_sock_read(int fd, void *p, size_t n, uint64_t deadline_ns, const char *what);
GR_NODISCARD enum gr_status gr_sock_write(int fd, const void *p, size_t n, uint64_t deadline_ns, const char *what);

/* The same with a peer that holds the key. That it closes is told at level info: its process has ended, perhaps in good
 * order, and whoever misses it says so. */
GR_NODISCARD enum gr_status gr_sock_read_peer(int fd, void *p, size_t n, uint64_t deadline_ns, const char *what);
GR_NODISCARD enum gr_status gr_sock_write_peer(int fd, const void *p, size_t n, uint64_t deadline_ns, const char *what);

uint64_t gr_deadline_ns(int timeout_ms);

/* No delay, and keep-alive probes that notice a vanished machine within about 15 s. No-op on Unix
 * sockets. */
void gr_sock_tune(int fd);

/* TCP helpers. "HOST:PORT" ("[V6]:PORT"; listen: ":PORT" or "*:PORT" = any IPv4 address); port 0 =
 * any. Errors are logged with address and reason ("port in use: ..."). GR_EINVAL: not an address;
 * GR_ENOTFOUND: unknown host; GR_ETIMEDOUT; GR_EIO: anything else, such as a refused connection. */
GR_NODISCARD enum gr_status gr_tcp_listen(const char *address, int *fd_out, char bound_out[64]);
GR_NODISCARD enum gr_status gr_tcp_connect(const char *address, int timeout_ms, int *fd_out);
/* Tries again with back-off (50 ms, 100 ms ... 1 s) while nobody listens there, for at most patience_ms. tell_ms: when
 * that has taken so long, one warning says who is waited for; 0: none does. */
GR_NODISCARD enum gr_status gr_tcp_connect_patiently(const char *address, int patience_ms, int tell_ms, int *fd_out);
/* Accepts with CLOEXEC, NODELAY, non-blocking off. GR_AGAIN: nobody is there (any more). GR_EIO, not logged: errno
 * tells; the socket may stay readable, so an I/O loop uses listener.h. */
GR_NODISCARD enum gr_status gr_tcp_accept(int listen_fd, int *fd_out);

#endif
