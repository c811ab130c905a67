/* Which addresses of this host others are told to try for a socket that listens. Any thread. */
#ifndef GR_TRANSPORT_CONNECT_REACH_H
#define GR_TRANSPORT_CONNECT_REACH_H

#include "common/base/status.h"

#include <stdbool.h>
#include <stddef.h>

#define GR_REACH_BYTES 256 /* of a list, its NUL included */

/* bound: where it listens, numeric HOST:PORT. Unless that is any address it is the list. Else: first this host's end of
 * link_fd, a connection to somebody who has been reached (-1: none), then the addresses of the interfaces that are up.
 * Not listed are loopback (unless the link has it, or there is nothing else), link-local addresses and bridges such as
 * docker0 and virbr0, which many hosts have under one address; a bridge that the link goes through is. As many as
 * fit, with commas between them. */
void gr_reach_list(const char *bound, int link_fd, char out[GR_REACH_BYTES]);

/* Where a target listens: as asked, or, where nothing is (""), at any port: of loopback where own, its end of the link
 * to its orchestrator, is that, since it is for this host alone then; else of all addresses. */
void gr_reach_listen(const char *asked, const char *own, char out[300]);

/* Is every address of the list one that means another host to everybody (loopback, any)? */
bool gr_reach_is_local(const char *list);
/* Numeric HOST:PORT whose host is loopback, or any address. */
bool gr_reach_is_loopback(const char *address);
bool gr_reach_host_is_loopback(const char *host); /* without a port */
bool gr_reach_is_any(const char *address);

#endif
