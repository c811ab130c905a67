/* Exact reads and writes on a stream socket with a deadline (gr_clock_ns()), for the hand-shakes
 * before frames flow. They work on blocking and non-blocking sockets alike. `what` names the
 * exchange in the logged line. */
#ifndef GR_TRANSPORT_SOCK_H
#define GR_TRANSPORT_SOCK_H

#include "common/status.h"

#include <stddef.h>
#include <stdint.h>

/* GR_ETIMEDOUT, GR_ECLOSED (end of file or reset), GR_EIO. */
GR_NODISCARD enum gr_status gr_sock_read(int fd, void *p, size_t n, uint64_t deadline_ns, const char *what);
GR_NODISCARD enum gr_status gr_sock_write(int fd, const void *p, size_t n, uint64_t deadline_ns, const char *what);

uint64_t gr_deadline_ns(int timeout_ms);

/* No delay, and keep-alive probes that notice a vanished machine within about 15 s. No-op on Unix
 * sockets. */
void gr_sock_tune(int fd);

#endif
