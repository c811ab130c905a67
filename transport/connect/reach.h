/* Which addresses of this host others are told to try for a socket that listens. Any thread. */
#ifndef GR_TRANSPORT_CONNECT_REACH_H
#define GR_TRANSPORT_CONNECT_REACH_H

#include "common/base/status.h"
#include "transport/net.h"

#include <stdbool.h>
#include <stddef.h>

#define GR_REACH_BYTES 256 /* of a list, its NUL included */

/* at: where it listens. Of any address: first this host's end of link_fd, a connection to somebody who has been reached
 * (-1: none), then what gr_own_choose() gives; loopback where the link has it, or where there is nothing else. Else the
 * addresses that it listens at, the link's end first where it is one of them. As many as fit, with commas between them.
 */
void gr_reach_list(const struct gr_listening *at, int link_fd, char out[GR_REACH_BYTES]);

/* Where a target listens: as asked, or, where nothing is (""), at any port: of loopback where own, its end of the link
 * to its orchestrator, is that and no --interface was told, since it is for this host alone then; else of any address.
 */
void gr_reach_listen(const char *asked, const char *own, char out[300]);

/* Is every address of the list one that means another host to everybody (loopback, any)? */
bool gr_reach_is_local(const char *list);
/* Numeric HOST:PORT whose host is loopback, or any address. */
bool gr_reach_is_loopback(const char *address);
bool gr_reach_host_is_loopback(const char *host); /* without a port */
bool gr_reach_is_any(const char *address);

#endif
